"""
`spec.scheduler`: what is taken off a scheduler, and the configuration of Dask that it starts with,
as variables of its environment, and of its workers'. Pure.

A setting's path is what lies between its value and the top: `("distributed", "scheduler",
"worker-ttl")`. A part may have dots itself, as names of loggers do; Dask's own dotted keys cannot
say that.

Dask reads `DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL=10m` (dask.config.collect_env): lower case, `__`
for a dot, `_` also for a hyphen, the value in Python's syntax or else as text. What can't be
written so (`distributed.logging` has names of loggers with dots in them, others have capitals) goes
into DASK_INTERNAL_INHERIT_CONFIG, in which Dask's own SSHCluster hands its configuration on: JSON
in base64, which every other variable outranks, whoever set that.
"""

from __future__ import annotations

import ast
import base64
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Annotated, Any, TypeAlias

from dask_adaptive.model.amounts import counted
from dask_adaptive.model.codec import Check, InvalidPolicy, Kind, Problem, decode, json_name, one_of
from dask_adaptive.model.kinds import ObjectName

Path: TypeAlias = tuple[str, ...]

#: A JSON value: a tuple for each list, a read-only mapping for each object.
Value: TypeAlias = Any

AUTO, SHARED, DISABLED = "Auto", "Shared", "Disabled"

#: What the agent comes in by: with a value from here, it would not.
PRELOAD = ("distributed", "scheduler", "preload")

#: How often a client asks its scheduler about workers.
POLLING = ("distributed", "client", "scheduler-info-interval")

#: Sections of distributed's own configuration: a plain value in their place ends any scheduler.
_SECTIONS = frozenset(
    ("distributed", *rest)
    for rest in (
        (), ("scheduler",), ("worker",), ("nanny",), ("client",), ("comm",), ("deploy",),
        ("adaptive",), ("diagnostics",), ("dashboard",), ("admin",), ("p2p",), ("logging",),
    )
)  # fmt: skip

#: Settings of one policy, and characters of all their keys and values: they travel to the
#: scheduler with its pod, and Linux allows 128 KiB in one variable.
MAX_SETTINGS, MAX_CHARACTERS = 200, 32_000

#: Parts of a path, and lists and objects in one another. Dask's own configuration has six.
MAX_DEPTH = 16

#: Whole numbers beyond this cannot be sent to a scheduler (msgpack).
_BIGGEST = 2**63


@dataclass(frozen=True, slots=True)
class Setting:
    """One value of Dask's configuration."""

    path: Path
    value: Value

    @property
    def key(self) -> str:
        return ".".join(self.path)

    @property
    def spelled(self) -> Path:
        """The path as Dask compares it."""
        return spelled(self.path)


def spelled(path: Path) -> Path:
    """Spell a path as Dask compares it: `worker_ttl` and `worker-ttl` are the same."""
    return tuple(part.replace("_", "-") for part in path)


def read_settings(node: Any) -> tuple[Setting, ...]:
    """
    Read nested configuration. At the top a dotted key stands for its path, as in
    `dask.config.set`; below, a dot is part of the name, as in Dask's YAML files. The text `None`
    stands for null, as in Dask's variables: `kubectl apply` leaves nulls out.

    Returns:
        The settings in the order of their paths: the API server sorts keys, files do not.

    Raises:
        InvalidPolicy: The user can fix it; each problem has its path.
    """
    if not isinstance(node, Mapping):
        example = "{distributed: {scheduler: {worker-ttl: 10m}}}"
        raise InvalidPolicy(f"must be an object with Dask's configuration, such as {example}")
    if problem := _too_big(node):
        raise InvalidPolicy(problem)
    read = list(_settings(node, ()))
    found = tuple(sorted((s for s in read if isinstance(s, Setting)), key=lambda s: s.path))
    problems = [p for p in read if isinstance(p, Problem)]
    size = sum(len(s.key) + len(str(s.value)) for s in found)
    if len(found) > MAX_SETTINGS or size > MAX_CHARACTERS:
        words = f"holds {counted(len(found), 'setting')} of {size} characters, {_ALLOWED}"
        problems.append(Problem("", words))
    else:
        problems += [*_contradictions(found), *_harm(found)]
    if problems:
        raise InvalidPolicy(*problems)
    return found


_ALLOWED = (
    f"and {MAX_SETTINGS} of {MAX_CHARACTERS} are allowed: put the others into the image, in"
    " /etc/dask"
)


def _too_big(node: Mapping[Any, Any]) -> str:
    """The error of the whole, before time is spent on its parts; empty: none."""
    try:
        size = len(json.dumps(node, ensure_ascii=False, skipkeys=True, default=str))
    except RecursionError:
        return _TOO_DEEP
    except ValueError:
        return "has a number of thousands of digits, which can't be sent to a scheduler"
    # Quotes and the like double what they stand in, at most.
    return f"has {size} characters, {_ALLOWED}" if size > 2 * MAX_CHARACTERS else ""


_TOO_DEEP = f"is nested too deeply: {MAX_DEPTH} levels are allowed"


def _settings(node: Mapping[Any, Any], above: Path) -> Iterator[Setting | Problem]:
    for key, value in node.items():
        where = "".join(f".{part}" for part in above)
        if not isinstance(key, str):
            yield Problem(where, f'the key {key!r} must be a string: write "{key}"')
            continue
        parts = (*above, key) if above else tuple(key.split("."))
        if not all(part.strip() and part.isprintable() for part in parts):
            yield Problem(where, f"the key {key!r:.80} has a part without a name")
        elif len(parts) > MAX_DEPTH:
            yield Problem(where, _TOO_DEEP)
        elif isinstance(value, Mapping):
            yield from _settings(value, parts)
        else:
            try:
                yield Setting(parts, _frozen(None if value == "None" else value))
            except ValueError as exc:
                yield Problem("".join(f".{part}" for part in parts), str(exc))


def _frozen(value: Any, depth: int = 0) -> Value:
    if depth > MAX_DEPTH:
        raise ValueError(_TOO_DEEP)
    if isinstance(value, Mapping):
        return MappingProxyType({str(k): _frozen(v, depth + 1) for k, v in value.items()})
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(one, depth + 1) for one in value)
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, int) and -_BIGGEST <= value < _BIGGEST:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    raise ValueError(
        f"{value!s:.80} can't be sent to a scheduler; write a string in quotes, a number,"
        " true, false, null, a list or an object"
    )


def _contradictions(settings: tuple[Setting, ...]) -> Iterator[Problem]:
    seen: dict[Path, Setting] = {}
    for setting in settings:
        if setting.spelled in seen:
            yield Problem("", f"sets {setting.key} twice; keep one of the two")
        seen[setting.spelled] = setting
    for path, setting in seen.items():
        for length in range(1, len(path)):
            if path[:length] in seen:
                upper = seen[path[:length]].key
                yield Problem("", f"gives {upper} a value, and {setting.key} below it too")


def _harm(settings: tuple[Setting, ...]) -> Iterator[Problem]:
    for setting in settings:
        if setting.spelled == PRELOAD:
            words = (
                "must not have a value, because it loads the agent: set"
                " DASK_DISTRIBUTED__SCHEDULER__PRELOAD in the DaskCluster instead"
            )
            yield Problem(f".{setting.key}", words)
        if setting.spelled in _SECTIONS:
            yield Problem(f".{setting.key}", "is a section; name a setting in it")


_OnOff = Annotated[str, one_of({AUTO: AUTO, DISABLED: DISABLED})]


@dataclass(frozen=True, slots=True)
class ReliefChoices:
    """A choice for each of `wire.RELIEFS`, which the core does not import."""

    #: Keeps running totals of task prefixes instead of summing over all task groups at each read.
    prefixes: _OnOff = AUTO
    #: Pickles what tasks have in common only once, and measures the cost of serializing. Shared
    #: also sends it to each worker only once, where all tasks share it.
    pickling: Annotated[str, one_of({AUTO: AUTO, SHARED: SHARED, DISABLED: DISABLED})] = AUTO
    #: Parses the host in each worker's address only once.
    host: _OnOff = AUTO
    #: Answers clients that ask about all workers from a copy that is at most a second old.
    identity: _OnOff = AUTO
    #: Stops clients that run in workers from polling for all workers.
    client_info: _OnOff = AUTO

    @property
    def chosen(self) -> dict[str, str]:
        """Reliefs with another choice than Auto, by their names in JSON."""
        choices = {json_name(own): choice for own, choice in asdict(self).items()}
        return {name: choice for name, choice in choices.items() if choice != AUTO}


@dataclass(frozen=True, slots=True)
class SchedulerTls:
    """The certificates for a scheduler that takes TLS only."""

    #: A Secret in the policy's namespace with ca.crt, tls.crt and tls.key in PEM. The operator
    #: needs the right to get it (the chart's scheduler.tls.secretNames), and reads it again every
    #: 30 s. Default the chart's scheduler.tls.secretName.
    secret_name: ObjectName | None = None


TCP, TLS = "tcp", "tls"

_PROTOCOL = Kind(
    one_of({TCP: TCP, TLS: TLS}).parse,
    "must be tcp or tls, the only ones that the operator speaks: start dask scheduler with one",
    cel="self in ['tcp', 'tls']",
    schema={"type": "string", "maxLength": 8},
)


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """A policy's settings for the scheduler, and for the connection to it."""

    #: Hot spots of the scheduler that the agent replaces with cheaper code. Auto applies a relief
    #: where this release of distributed needs it; Disabled never applies it. Changes take effect at
    #: once.
    relief: ReliefChoices = ReliefChoices()
    #: Dask configuration of the scheduler, nested as in Dask's YAML files; at the top level, a key
    #: may also be a path such as a.b.c. Write None for null. It applies from the scheduler's next
    #: pod, through environment variables; the container's own variables take precedence. The
    #: condition SchedulerConfigured names keys that are unknown, invalid, or not applied yet. Not
    #: for secrets.
    config: Annotated[tuple[Setting, ...], Kind(read_settings)] = ()
    #: The protocol that the scheduler listens on: tcp or tls. Default tls if a Secret is named here
    #: or in the chart, else tcp.
    protocol: Annotated[str, _PROTOCOL] | None = None
    #: The operator's certificates for a scheduler that accepts only TLS.
    tls: SchedulerTls = SchedulerTls()

    def checks(self) -> Iterator[Check]:
        if self.tls.secret_name and self.protocol == TCP:
            words = "is for tls, and protocol is tcp: drop one of the two"
            yield Check(".tls.secretName", words, ("tls", "protocol"))

    def transport(self, default_secret: str) -> tuple[str, str]:
        """
        The protocol, and the Secret for it; empty: there is none, or the protocol needs none.

        Args:
            default_secret: Where no policy says anything; empty: schedulers take no TLS.
        """
        secret = self.tls.secret_name or default_secret
        protocol = self.protocol or (TLS if secret else TCP)
        return protocol, secret if protocol == TLS else ""

    def configures(self, path: Path) -> bool:
        """Tells whether `config` has a setting."""
        return any(setting.spelled == spelled(path) for setting in self.config)


def scheduler_settings(spec: Mapping[str, Any]) -> SchedulerSettings:
    """Read the `scheduler` of a policy's spec, whatever else is in it. Raises `InvalidPolicy`."""
    return decode(SchedulerSettings, spec.get("scheduler") or {}, "spec.scheduler")


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


def json_by_key(values: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """One text for equal values, whatever the order of their own keys."""
    return tuple((k, json.dumps(v, sort_keys=True, ensure_ascii=False)) for k, v in values.items())


def _put(root: dict[str, Any], path: Path, value: Any) -> None:
    for part in path[:-1]:
        root = root.setdefault(part, {})
    root[path[-1]] = value


RELIEF = "DASK_ADAPTIVE_RELIEF"
INHERIT = "DASK_INTERNAL_INHERIT_CONFIG"

#: Whatever a worker's clients know of other workers they ask for when they need it.
SELDOM = Setting(POLLING, "600s")

#: A part of a path that comes back out of a variable as it was, or as Dask takes for the same.
_PLAIN = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*|[a-z0-9]+(_[a-z0-9]+)*")

#: Variables of Dask and of ours that are no setting, though they look like one.
_RESERVED = frozenset({RELIEF, INHERIT, "DASK_CONFIG", "DASK_ROOT_CONFIG"})

#: What newer releases of Dask read as a value though Python does not (interpret_value).
_WORDS = frozenset({"none", "null", "true", "false"})


@dataclass(frozen=True, slots=True)
class Environment:
    """Variables to set, and settings that find no way in."""

    variables: Mapping[str, str]
    left_out: tuple[str, ...] = ()  # keys: the pod has a DASK_INTERNAL_INHERIT_CONFIG of its own


def of_scheduler(
    settings: SchedulerSettings, taken: Collection[str], *, has_unseen: bool = False
) -> Environment:
    """
    The variables of a scheduler.

    Args:
        taken: Variables that are there already: what they say counts.
        has_unseen: There may be others that can't be seen, and must not be overwritten.
    """
    found = _of_config(settings.config, taken, has_unseen=has_unseen)
    chosen = settings.relief.chosen
    if not chosen or RELIEF in taken:
        return found
    relief = ",".join(f"{name}={choice}" for name, choice in chosen.items())
    return Environment({RELIEF: relief, **found.variables}, found.left_out)


def of_worker(
    settings: SchedulerSettings, taken: Collection[str], *, has_unseen: bool = False
) -> Environment:
    """
    The variables of a worker; the arguments are those of `of_scheduler`.

    Where there may be others, none: the agent slows worker clients down, too, from 2025.4.0 on.
    """
    is_off = settings.relief.client_info == DISABLED or settings.configures(POLLING)
    return Environment({}) if is_off or has_unseen else _of_config((SELDOM,), taken)


def variable(path: Path) -> str:
    """The name of a setting's variable; empty if it can't have one."""
    if not all(_PLAIN.fullmatch(part) for part in path):
        return ""
    name = "DASK_" + "__".join(part.replace("-", "_").upper() for part in path)
    return "" if name in _RESERVED else name


def literal(value: Value) -> str:
    """A value as Dask reads it out of a variable: text as it stands, where that stays text."""
    plain = thaw(value)
    if isinstance(plain, str) and plain.lower() not in _WORDS:
        try:
            ast.literal_eval(plain)
        except (SyntaxError, ValueError):
            return plain
        except (MemoryError, RecursionError):
            pass  # nested so deeply that another Python may well read it
    return repr(plain)


def _of_config(
    config: Iterable[Setting], taken: Collection[str], *, has_unseen: bool = False
) -> Environment:
    theirs = {_canonical(name) for name in taken}
    variables: dict[str, str] = {}
    below: list[Setting] = []
    for setting in config:
        name = variable(setting.path)
        if name and _canonical(name) in theirs:
            continue
        if not name or has_unseen or any(_overlap(name, other) for other in theirs):
            below.append(setting)
        else:
            variables[name] = literal(setting.value)
    if below and INHERIT in taken:
        return Environment(variables, tuple(s.key for s in below))
    return Environment({**variables, **({INHERIT: _inherited(below)} if below else {})})


def _canonical(name: str) -> str:
    return name.upper().replace("-", "_")


def _overlap(one: str, other: str) -> bool:
    """True if one path is a section that holds the other: their order would decide."""
    return one.startswith(f"{other}__") or other.startswith(f"{one}__")


def _inherited(settings: Iterable[Setting]) -> str:
    """Serialize as `dask.config.serialize` does."""
    return base64.urlsafe_b64encode(json.dumps(nested(settings)).encode()).decode()
