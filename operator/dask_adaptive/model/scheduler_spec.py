"""`spec.scheduler`: what is taken off a scheduler, and with which configuration it starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dask_adaptive.model.dask_config import Setting, read_settings, spelled
from dask_adaptive.model.spec import Reader

#: As `wire.RELIEFS`, which the core does not import: what may be said of each relief.
AUTO, SHARED, DISABLED = "Auto", "Shared", "Disabled"
RELIEFS = {
    "prefixes": (AUTO, DISABLED),
    "idle": (AUTO, DISABLED),
    "pickling": (AUTO, SHARED, DISABLED),
    "host": (AUTO, DISABLED),
    "identity": (AUTO, DISABLED),
    "clientInfo": (AUTO, DISABLED),
}

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


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """What a policy wants of the scheduler itself."""

    relief: tuple[tuple[str, str], ...] = ()  # those of which more is said than Auto
    config: tuple[Setting, ...] = ()

    def choice(self, relief: str) -> str:
        return dict(self.relief).get(relief, AUTO)

    def configures(self, path: tuple[str, ...]) -> bool:
        """Whether `config` says something about a setting."""
        wanted = tuple(map(spelled, path))
        return any(tuple(map(spelled, s.path)) == wanted for s in self.config)


def read_scheduler(spec: Reader) -> SchedulerSettings:
    """
    Read `spec.scheduler`.

    Raises:
        InvalidPolicy: The user can mend it by editing the field that the message names.
    """
    relief = spec.object("relief")
    choices = {name: relief.one_of(name, known, AUTO) for name, known in RELIEFS.items()}
    config = read_settings(spec.get("config", {}), f"{spec.path}.config")
    for setting in config:
        _refuse_harm(setting, spec)
    return SchedulerSettings(tuple((n, c) for n, c in choices.items() if c != AUTO), config)


def scheduler_settings(spec: Mapping[str, Any]) -> SchedulerSettings:
    """
    Read the `scheduler` of an AdaptivePolicy's spec, whatever else is in it. Raises
    `InvalidPolicy`.
    """
    reader = Reader(spec, "spec").object("scheduler")
    settings = read_scheduler(reader)
    reader.refuse_unknown()
    return settings


def _refuse_harm(setting: Setting, spec: Reader) -> None:
    path = tuple(map(spelled, setting.path))
    if path == PRELOAD:
        raise spec.error(
            "config",
            f": {setting.key} is how the agent comes in; set DASK_DISTRIBUTED__SCHEDULER__PRELOAD"
            " in the DaskCluster's spec.scheduler.spec, to which the agent is added",
        )
    if path in _SECTIONS:
        raise spec.error("config", f": {setting.key} is a section; name a setting in it")
