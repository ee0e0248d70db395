"""
What a policy says of a scheduler as variables of its environment, and of its workers'. Pure.

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
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from dask_adaptive.model.dask_config import Path, Setting, Value, nested, thaw
from dask_adaptive.model.scheduler_spec import DISABLED, POLLING, SchedulerSettings

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
    if not settings.relief or RELIEF in taken:
        return found
    relief = ",".join(f"{name}={choice}" for name, choice in settings.relief)
    return Environment({RELIEF: relief, **found.variables}, found.left_out)


def of_worker(
    settings: SchedulerSettings, taken: Collection[str], *, has_unseen: bool = False
) -> Environment:
    """
    The variables of a worker; the arguments are those of `of_scheduler`.

    Where there may be others, none: the agent slows worker clients down, too, only later.
    """
    is_off = settings.choice("clientInfo") == DISABLED or settings.configures(POLLING)
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
    """Whether one stands for a section that the other is in: their order would decide."""
    return one.startswith(f"{other}__") or other.startswith(f"{one}__")


def _inherited(settings: Iterable[Setting]) -> str:
    """As dask.config.serialize."""
    return base64.urlsafe_b64encode(json.dumps(nested(settings)).encode()).decode()
