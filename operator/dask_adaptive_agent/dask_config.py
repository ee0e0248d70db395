"""
Dask's configuration that people want, against the one with which this scheduler runs.

Nothing is set here: what a running scheduler has read it does not read again, and some of its parts
would have the new value, others the old one. So this only says what is not as wanted, and why.
"""

from __future__ import annotations

import contextlib
import logging
import operator
import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import dask
import dask.config
import distributed
from dask.utils import parse_bytes, parse_timedelta

from dask_adaptive_agent import wire

logger = logging.getLogger(__name__)

Schema = Mapping[str, Any]

#: A value that is longer is cut in messages.
SHOWN = 60

#: What Dask reads though neither its schemas nor its defaults name it. The first is where names of
#: loggers are (distributed.config.initialize_logging).
UNLISTED = (
    "distributed.logging",
    "distributed.scheduler.pickle",
    "logging",
    "logging-file-config",
    "scheduler-address",
    "annotations",
    "multiprocessing",
)

#: The types of JSON schema, as Python has them. A boolean is no number, though Python says so.
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list, tuple),
    "object": (Mapping,),
}


#: Bounds of JSON schema: when a number is beyond one, how a message says so, and what they allow.
_BOUNDS: tuple[tuple[str, Callable[[Any, Any], bool], str, str], ...] = (
    ("minimum", operator.lt, "less than", "from"),
    ("exclusiveMinimum", operator.le, "not more than", "above"),
    ("maximum", operator.gt, "more than", "up to"),
)


def rows(wanted: Mapping[str, Any]) -> list[wire.ConfigRow]:
    """
    What is wrong with the settings that are wanted, by dotted key; empty: all are in place.

    A value may be a mapping, where names below have dots in them: what it holds is merged into
    what is there, as Dask does with files.
    """
    return [row for key, value in sorted(wanted.items()) if (row := _row(key, value)) is not None]


def _row(key: str, value: Any) -> wire.ConfigRow | None:
    now = _new_name(key)
    if now is None:
        return _problem(key, wire.K_UNKNOWN, f"{_release(key)} has removed it")
    path = now.split(".")
    schema = _find(_schema(), path)
    if (
        schema is None
        and not any(f"{now}.".startswith(f"{known}.") for known in UNLISTED)
        and not _has_default(path)
    ):
        return _problem(key, wire.K_UNKNOWN, f"{_release(key)} does not know it")
    wrong = _mismatch(value, schema or {}) or _misread(now, value)
    if wrong:
        return _problem(key, wire.K_INVALID, wrong)
    running = dask.config.get(now, default=_ABSENT)
    if _holds(running, value):
        return None
    return _problem(key, wire.K_PENDING, _pending(path, running, value, known=bool(schema)))


def _problem(key: str, state: str, message: str) -> wire.ConfigRow:
    return {"key": key, "state": state, "message": message}


class _Absent:
    def __repr__(self) -> str:
        return "none"


_ABSENT = _Absent()


def _pending(path: list[str], running: Any, value: Any, *, known: bool) -> str:
    """
    Values are shown only of settings that the schema describes: others may be passwords, the
    running one perhaps out of a Secret that those who read the message may not read.
    """
    if known and not isinstance(value, Mapping):
        said = f"it runs with {_shown(running)}, not {_shown(value)}"
    else:
        said = "it runs with another value"
    name = "DASK_" + "__".join(path).replace("-", "_").upper()
    return f"{said}; its pod sets {name}" if name in os.environ else said


def _shown(value: Any) -> str:
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def _new_name(key: str) -> str | None:
    """The key's name in this release; None: it is gone (dask.config.check_deprecations)."""
    known: Mapping[str, str | None] = dask.config.deprecations
    for old in (key.replace("_", "-"), key):
        if old in known:
            return known[old]
    return key


def _release(key: str) -> str:
    module: Any = distributed if key.startswith("distributed.") else dask
    return f"{module.__name__} {module.__version__}"


def _misread(key: str, value: Any) -> str:
    """
    Why a text cannot be read as its default can: as a duration, or as a number of bytes. Schemas
    call both "string", and a scheduler that can't read one ends at its start.
    """
    default = _default(key)
    if not isinstance(value, str) or not isinstance(default, str):
        return ""
    for parse, what in ((parse_timedelta, "a duration"), (parse_bytes, "a number of bytes")):
        if _can(parse, default):
            return "" if _can(parse, value) else f"{_shown(value)} is not {what} such as {default}"
    return ""


def _can(parse: Any, value: str) -> bool:
    with contextlib.suppress(KeyError, ValueError, IndexError):
        parse(value)
        return True
    return False


def _default(key: str) -> Any:
    every: Any = dask.config.defaults
    found = (dask.config.get(key, default=None, config=one) for one in every)
    return next((value for value in found if value is not None), None)


def _canonical(part: str, node: Any) -> str:
    """The spelling that is there already: a hyphen or an underscore."""
    return str(dask.config.canonical_name(part, node))


def _holds(running: Any, value: Any) -> bool:
    """Tells whether the running value is, or contains, the wanted one."""
    if isinstance(value, Mapping):
        if not isinstance(running, Mapping):
            return False
        return all(
            _holds(running.get(_canonical(k, running), _ABSENT), v) for k, v in value.items()
        )
    if isinstance(value, (list, tuple)) and isinstance(running, (list, tuple)):
        return len(value) == len(running) and all(map(_holds, running, value))
    return bool(running == value) and isinstance(running, bool) == isinstance(value, bool)


def _has_default(path: list[str]) -> bool:
    """
    Whether some package has told Dask about such a setting (dask.config.update_defaults), or about
    its section, where the default is a mapping that is empty: it is open.
    """
    for defaults in dask.config.defaults:
        node: Any = defaults
        for part in path:
            if isinstance(node, Mapping) and not node and node is not defaults:
                return True
            try:
                node = node[_canonical(part, node)]
            except (TypeError, KeyError):
                break
        else:
            return True
    return False


@lru_cache(maxsize=1)
def _schema() -> Schema:
    """
    The schemas of Dask and of distributed as one. Without one that can be read nothing is said to
    be unknown or invalid, except by the defaults.
    """
    properties: dict[str, Any] = {}
    for module, name in ((dask, "dask-schema.yaml"), (distributed, "distributed-schema.yaml")):
        path = os.path.join(os.path.dirname(str(module.__file__)), name)
        try:
            for schema in dask.config.collect_yaml([path]):
                properties.update(schema["properties"])
        except Exception:
            logger.exception("Failed to read %s: settings are not checked against it", path)
    return {"type": "object", "properties": properties}


def _find(schema: Schema, path: list[str]) -> Schema | None:
    """
    The schema of a setting; None: nobody describes it. What lies in an object that lists nothing is
    the user's own: any value will do. One that lists something is closed, though JSON schema's
    rule is another one: upstream means it so.
    """
    for part in path:
        properties = schema.get("properties")
        if properties is None:
            return {} if "object" in _types(schema) else None
        name = _canonical(part, properties)
        if name in properties:
            schema = properties[name]
        elif schema.get("additionalProperties"):
            return {}
        else:
            return None
    return schema


def _types(schema: Schema) -> list[str]:
    types = schema.get("type", [])
    return [types] if isinstance(types, str) else list(types)


def _mismatch(value: Any, schema: Schema) -> str:
    """
    Why a value is not what a schema asks for, by the part of JSON schema that upstream uses; empty:
    it is.
    """
    types = _types(schema)
    if types and not any(_is_of(value, name) for name in types):
        return f"{_shown(value)} is not {_either(types)}"
    for choices in (schema.get("oneOf"), schema.get("anyOf")):
        if choices and all(_mismatch(value, one) for one in choices):
            return f"{_shown(value)} is not {_either([_described(one) for one in choices])}"
    if "enum" in schema and not any(_holds(value, one) for one in schema["enum"]):
        return f"{_shown(value)} is not one of {', '.join(map(repr, schema['enum']))}"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        for key, is_beyond, how, _ in _BOUNDS:
            if key in schema and is_beyond(value, schema[key]):
                return f"{value} is {how} {schema[key]}"
    return _mismatch_within(value, schema)


def _mismatch_within(value: Any, schema: Schema) -> str:
    parts: list[tuple[str, Any, Schema]] = []
    if isinstance(value, (list, tuple)):
        parts = [(f"entry {at}", one, schema.get("items", {})) for at, one in enumerate(value)]
    elif isinstance(value, Mapping):
        properties = schema.get("properties", {})
        parts = [(key, one, properties.get(key, {})) for key, one in value.items()]
    wrong = ((where, _mismatch(one, its)) for where, one, its in parts)
    return next((f"{where}: {why}" for where, why in wrong if why), "")


def _is_of(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, _TYPES.get(name, (object,)))


def _described(schema: Schema) -> str:
    if "enum" in schema:
        return " or ".join(map(repr, schema["enum"]))
    bounds = [f"{word} {schema[key]}" for key, _, _, word in _BOUNDS if key in schema]
    return " ".join([_either(_types(schema)), *bounds])


def _either(names: list[str]) -> str:
    return " or ".join(names) or "anything"
