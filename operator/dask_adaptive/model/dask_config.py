"""
Dask's configuration as a policy holds it: settings by path, frozen; and as others want to have it.

A path is what lies between a value and the top: `("distributed", "scheduler", "worker-ttl")`. A
part may itself hold dots, as names of loggers do; Dask's own dotted keys cannot say that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

from dask_adaptive.model.spec import InvalidPolicy

Path: TypeAlias = tuple[str, ...]

#: A JSON value: a tuple for each list, a read-only mapping for each object.
Value: TypeAlias = Any

#: Settings of one policy, and characters of all their keys and values: they travel to the
#: scheduler with its pod, and Linux allows 128 KiB in one variable.
MAX_SETTINGS, MAX_CHARACTERS = 200, 32_000

#: Whole numbers beyond this cannot be sent to a scheduler (msgpack).
_BIGGEST = 2**63


@dataclass(frozen=True, slots=True)
class Setting:
    """One value of Dask's configuration that people want."""

    path: Path
    value: Value

    @property
    def key(self) -> str:
        return ".".join(self.path)


def read_settings(node: Any, at: str) -> tuple[Setting, ...]:
    """
    Read nested configuration. At the top a dotted key stands for its path, as in
    `dask.config.set`; below, a dot is part of the name, as in Dask's YAML files. The text `None`
    stands for null, as in Dask's variables: `kubectl apply` leaves nulls out.

    Args:
        at: The field that holds it, for messages.

    Returns:
        The settings in the order of their paths: the API server sorts keys, files do not.

    Raises:
        InvalidPolicy: The user can mend it; the message names the key.
    """
    if not isinstance(node, Mapping):
        example = "{distributed: {scheduler: {worker-ttl: 10m}}}"
        raise InvalidPolicy(f"{at} must be an object with Dask's configuration, such as {example}")
    found = tuple(sorted(_settings(node, (), at), key=lambda s: s.path))
    _refuse_contradictions(found, at)
    size = sum(len(s.key) + len(str(s.value)) for s in found)
    if len(found) > MAX_SETTINGS or size > MAX_CHARACTERS:
        raise InvalidPolicy(
            f"{at} holds {len(found)} settings of {size} characters, and {MAX_SETTINGS} of"
            f" {MAX_CHARACTERS} are allowed: put the others into the image, in /etc/dask"
        )
    return found


def spelled(part: str) -> str:
    """A part as Dask compares it: `worker_ttl` and `worker-ttl` are the same."""
    return part.replace("_", "-")


def flat(settings: Iterable[Setting]) -> dict[str, Any]:
    """
    JSON by dotted key. What lies below a part with a dot in it has no such key, and is part of the
    value above it: `{"distributed.logging": {"distributed.scheduler": "debug"}}`.
    """
    flat: dict[str, Any] = {}
    for setting in settings:
        split = next((i for i, part in enumerate(setting.path) if "." in part), len(setting.path))
        key, below = ".".join(setting.path[:split]), setting.path[split:]
        if below:
            _put(flat.setdefault(key, {}), below, thaw(setting.value))
        else:
            flat[key] = thaw(setting.value)
    return flat


def nested(settings: Iterable[Setting]) -> dict[str, Any]:
    """JSON as in a YAML file of Dask."""
    root: dict[str, Any] = {}
    for setting in settings:
        _put(root, setting.path, thaw(setting.value))
    return root


def thaw(value: Value) -> Any:
    """Plain JSON again."""
    if isinstance(value, Mapping):
        return {key: thaw(one) for key, one in value.items()}
    return [thaw(one) for one in value] if isinstance(value, tuple) else value


def _put(root: dict[str, Any], path: Path, value: Any) -> None:
    for part in path[:-1]:
        root = root.setdefault(part, {})
    root[path[-1]] = value


def _settings(node: Mapping[Any, Any], above: Path, at: str) -> Iterator[Setting]:
    for key, value in node.items():
        where = ".".join((at, *above))
        if not isinstance(key, str):
            raise InvalidPolicy(f'{where}: the key {key!r} must be a text: write "{key}"')
        parts = (*above, key) if above else tuple(key.split("."))
        if not all(part.strip() and part.isprintable() for part in parts):
            raise InvalidPolicy(f"{where}: the key {key!r} has a part without a name")
        if isinstance(value, Mapping):
            yield from _settings(value, parts, at)
        else:
            value = None if value == "None" else value
            yield Setting(parts, _frozen(value, ".".join((at, *parts))))


def _frozen(value: Any, where: str) -> Value:
    if isinstance(value, Mapping):
        return MappingProxyType({str(k): _frozen(v, where) for k, v in value.items()})
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(one, where) for one in value)
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, int) and -_BIGGEST <= value < _BIGGEST:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise InvalidPolicy(
        f"{where}: {value!s:.80} can't be sent to a scheduler; write a text (in quotes), a number,"
        " true, false, null, a list or an object"
    )


def _refuse_contradictions(settings: tuple[Setting, ...], at: str) -> None:
    seen: dict[Path, Setting] = {}
    for setting in settings:
        path = tuple(map(spelled, setting.path))
        if path in seen:
            raise InvalidPolicy(f"{at} says {setting.key} twice; keep one of the two")
        seen[path] = setting
    for path, setting in seen.items():
        for length in range(1, len(path)):
            if path[:length] in seen:
                upper = seen[path[:length]].key
                raise InvalidPolicy(f"{at} gives {upper} a value, and {setting.key} below it too")
