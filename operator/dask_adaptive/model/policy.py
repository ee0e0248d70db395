"""What the user asked for: the spec of an AdaptivePolicy, parsed once."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Amount, Budget, Recycle, Window
from dask_adaptive.model.recycle_spec import (
    read_budgets,
    read_groups,
    read_max_per_hour,
    read_recycle,
    read_restart_at,
    read_windows,
)
from dask_adaptive.model.scaling import GroupBounds, Scaling
from dask_adaptive.model.scaling_spec import read_scaling
from dask_adaptive.model.scheduler_spec import SchedulerSettings, read_scheduler
from dask_adaptive.model.spec import InvalidPolicy as InvalidPolicy
from dask_adaptive.model.spec import Reader


class Mode(str, enum.Enum):
    AUTO = "Auto"  # decide and act
    ADVISE = "Advise"  # decide and report; do nothing
    PAUSED = "Paused"  # observe and report; decide nothing


class OnTimeout(str, enum.Enum):
    ABORT = "Abort"  # the worker goes back to service
    FORCE = "Force"  # its data is moved, its running tasks are given up


class OnLifetime(str, enum.Enum):
    DRAIN = "Drain"  # it leaves once it is drained, or after the grace period
    STOCK = "Stock"  # it leaves at once, as Dask alone has it


@dataclass(frozen=True, slots=True)
class Pins:
    """Which pins count, and the longest that each may last. Times in seconds."""

    shuffle: bool = True
    shuffle_timeout_s: float = 3600.0
    manual_max_s: float = 24 * 3600.0
    client: bool = True  # whether code may pin
    client_max_s: float = 4 * 3600.0


@dataclass(frozen=True, slots=True)
class EvictionGuard:
    """Whether evictions of a worker's pod are put off until it has drained."""

    enabled: bool = False
    max_delay_s: float = 10 * 60.0  # from the first eviction that was put off


@dataclass(frozen=True, slots=True)
class Disruption:
    """What is made of news about machines, and told to those who take them away."""

    node_signals: bool = True  # drain workers whose node is about to go
    hints: bool = True  # annotate pods of pinned and busy workers: not to be evicted
    budgets: tuple[Budget, ...] = (Budget(Amount(percent=25.0)),)
    windows: tuple[Window, ...] = ()
    max_per_hour: Amount | None = None  # recycles for quotas; None: no limit


@dataclass(frozen=True, slots=True)
class Retirement:
    """How a worker leaves."""

    grace_s: float = 15 * 60.0  # from the first request to the deadline
    on_timeout: OnTimeout = OnTimeout.ABORT
    max_concurrent: int = 5  # workers on their way out at once
    on_lifetime: OnLifetime = OnLifetime.DRAIN  # when a worker's own `--lifetime` is over


@dataclass(frozen=True, slots=True)
class Policy:
    """
    One AdaptivePolicy. Bounds are Deployments of the default worker group, unless it has bounds of
    its own; then `maximum` is that of all groups together.
    """

    cluster: str
    maximum: int
    minimum: int = 0
    mode: Mode = Mode.AUTO
    idle_timeout_s: float = 60.0
    target_duration_s: float = 5.0
    pins: Pins = field(default_factory=Pins)
    retirement: Retirement = field(default_factory=Retirement)
    eviction_guard: EvictionGuard = field(default_factory=EvictionGuard)
    disruption: Disruption = field(default_factory=Disruption)
    recycle: Recycle = field(default_factory=Recycle)
    group_recycle: Mapping[str, Recycle] = field(default_factory=dict)  # by worker group
    restart_at: float | None = None  # seconds since 1970: pods made before are replaced
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    scaling: Scaling = field(default_factory=Scaling)

    def bounds(self, default_group: str) -> tuple[GroupBounds, ...]:
        """Of each worker group that is scaled, the default one first."""
        own = {g.name: g for g in self.scaling.groups}
        default = own.pop(default_group, GroupBounds(default_group, self.maximum, self.minimum))
        return (default, *own.values())

    def idle_timeout_of(self, bounds: GroupBounds) -> float:
        """Seconds without a task after which a worker of the group may leave."""
        return self.idle_timeout_s if bounds.idle_timeout_s is None else bounds.idle_timeout_s

    def recycle_of(self, group: str) -> Recycle:
        return self.group_recycle.get(group, self.recycle)

    def __post_init__(self) -> None:
        if not 0 <= self.minimum <= self.maximum:
            raise InvalidPolicy(
                "spec.minReplicas must lie between 0 and spec.maxReplicas,"
                f" got {self.minimum} and {self.maximum}"
            )
        if self.target_duration_s <= 0:
            raise InvalidPolicy("spec.target.duration must be longer than 0s")
        if self.retirement.max_concurrent < 1:
            raise InvalidPolicy("spec.retirement.maxConcurrent must be at least 1")
        if self._would_stand_still():
            raise InvalidPolicy(
                "spec.disruption.budgets has one of 0 for TaskQuota, and with recycle.tasks.exact"
                " workers would come to their quota and never be replaced: raise it, or drop exact"
            )

    def _would_stand_still(self) -> bool:
        is_forbidden = any(
            budget.workers.of(1) < 1
            for budget in self.disruption.budgets
            if not budget.reasons or Reason.TASK_QUOTA in budget.reasons
        )
        return is_forbidden and any(
            recycle.tasks.exact for recycle in (self.recycle, *self.group_recycle.values())
        )


def parse_policy(spec: Mapping[str, Any]) -> Policy:
    """
    Read the spec of an AdaptivePolicy, defaults filled in as the CRD's schema does.

    Args:
        spec: `spec` of the object, as JSON. Unknown keys are refused: a rehearsal must not accept
            what the API server would not.

    Raises:
        InvalidPolicy: The user can mend it by editing the field that the message names.
    """
    reader = Reader(spec, "spec")
    guard, recycle = reader.object("evictionGuard"), reader.object("recycle")
    policy = Policy(
        cluster=reader.object("clusterRef").text("name", "the name of the DaskCluster"),
        maximum=reader.count("maxReplicas", None),
        minimum=reader.count("minReplicas", 0),
        mode=Mode(reader.one_of("mode", [m.value for m in Mode], "Auto")),
        idle_timeout_s=reader.seconds("idleTimeout", "60s"),
        target_duration_s=reader.object("target").seconds("duration", "5s"),
        pins=_pins(reader.object("pins")),
        retirement=_retirement(reader.object("retirement")),
        eviction_guard=EvictionGuard(
            enabled=guard.flag("enabled", False), max_delay_s=guard.seconds("maxDelay", "10m")
        ),
        disruption=_disruption(reader.object("disruption"), recycle),
        recycle=read_recycle(recycle),
        group_recycle=read_groups(reader),
        restart_at=read_restart_at(reader),
        scheduler=read_scheduler(reader.object("scheduler")),
        scaling=read_scaling(reader),
    )
    reader.refuse_unknown()
    return policy


def _pins(spec: Reader) -> Pins:
    shuffle, manual, client = (spec.object(k) for k in ("shuffle", "manual", "client"))
    return Pins(
        shuffle=shuffle.flag("enabled", True),
        shuffle_timeout_s=shuffle.seconds("timeout", "1h"),
        manual_max_s=manual.seconds("maxDuration", "24h"),
        client=client.flag("enabled", True),
        client_max_s=client.seconds("maxDuration", "4h"),
    )


def _retirement(spec: Reader) -> Retirement:
    return Retirement(
        grace_s=spec.seconds("gracePeriod", "15m"),
        on_timeout=OnTimeout(spec.one_of("onTimeout", [o.value for o in OnTimeout], "Abort")),
        max_concurrent=spec.count("maxConcurrent", 5),
        on_lifetime=OnLifetime(
            spec.one_of("onLifetime", [o.value for o in OnLifetime], OnLifetime.DRAIN.value)
        ),
    )


def _disruption(spec: Reader, recycle: Reader) -> Disruption:
    return Disruption(
        node_signals=spec.one_of("nodeSignals", ["Drain", "Ignore"], "Drain") == "Drain",
        hints=spec.flag("hints", True),
        budgets=read_budgets(spec, Disruption().budgets),
        windows=read_windows(spec),
        max_per_hour=read_max_per_hour(recycle),
    )
