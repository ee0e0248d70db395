"""What the user asked for: the spec of an AdaptivePolicy, parsed once."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

from dask_adaptive.model.amounts import Amount
from dask_adaptive.model.codec import Check, InvalidPolicy, Listed, decode, one_of
from dask_adaptive.model.keys import default_group_of
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Budget, Recycle, Window
from dask_adaptive.model.scaling import (
    AUTO_S,
    Behavior,
    Fallback,
    GroupBounds,
    Idle,
    IdleTimeout,
    LoadTarget,
    Schedule,
    ShuffleWait,
    WorkerGroups,
    not_above,
)
from dask_adaptive.model.scheduler_settings import SchedulerSettings
from dask_adaptive.model.spec import (
    ControllerName,
    Count,
    ObjectName,
    Part,
    Positive,
    PositiveSeconds,
    Seconds,
)

#: Of operators that were given no name, and of policies that name none.
DEFAULT_CONTROLLER = "dask-adaptive"

__all__ = ["DEFAULT_CONTROLLER", "InvalidPolicy", "Policy", "disruption_of", "parse_policy"]


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
class ClusterRef:
    name: ObjectName


@dataclass(frozen=True, slots=True)
class ShufflePins:
    enabled: bool = True
    timeout_s: Seconds = 3600.0


@dataclass(frozen=True, slots=True)
class ManualPins:
    max_duration_s: Seconds = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class ClientPins:
    enabled: bool = True  # whether code may pin
    max_duration_s: Seconds = 4 * 3600.0


@dataclass(frozen=True, slots=True)
class Pins:
    """Which pins count, and the longest that each may last."""

    shuffle: ShufflePins = ShufflePins()
    manual: ManualPins = ManualPins()
    client: ClientPins = ClientPins()


@dataclass(frozen=True, slots=True)
class Disruption:
    """What is made of news about machines, and told to those who take them away."""

    #: Drain workers whose node is about to go.
    node_signals: Annotated[bool, one_of({"Drain": True, "Ignore": False})] = True
    hints: bool = True  # the webhook annotates workers' pods: not to be evicted by autoscalers
    budgets: Annotated[tuple[Budget, ...], Listed(32)] = (Budget(Amount(percent=25.0)),)
    windows: Annotated[tuple[Window, ...], Listed(32)] = ()


@dataclass(frozen=True, slots=True)
class Retirement:
    """How a worker leaves."""

    grace_period_s: Seconds = 15 * 60.0  # from the first request to the deadline
    on_timeout: OnTimeout = OnTimeout.ABORT
    max_concurrent: Positive = 5  # workers on their way out at once
    on_lifetime: OnLifetime = OnLifetime.DRAIN  # when a worker's own `--lifetime` is over


@dataclass(frozen=True)  # no slots: cached_property needs a __dict__
class Policy:
    """
    One AdaptivePolicy. Bounds are Deployments of the default worker group, unless it has bounds of
    its own; then `max_replicas` is that of all groups together.
    """

    cluster_ref: ClusterRef
    max_replicas: Count
    min_replicas: Count = 0
    mode: Mode = Mode.AUTO
    idle_timeout_s: IdleTimeout = AUTO_S
    target: LoadTarget = field(default_factory=LoadTarget)
    behavior: Behavior = field(default_factory=Behavior)
    schedules: Annotated[tuple[Schedule, ...], Listed(32)] = ()
    idle: Idle = field(default_factory=Idle)
    fallback: Fallback = field(default_factory=Fallback)
    #: After a pod has found no node for so long, no more workers are requested.
    unschedulable_timeout_s: PositiveSeconds = 300.0
    max_unready: Part = 0.45  # with more of the workers away, nothing is scaled
    shuffle: ShuffleWait = field(default_factory=ShuffleWait)
    pins: Pins = field(default_factory=Pins)
    retirement: Retirement = field(default_factory=Retirement)
    disruption: Disruption = field(default_factory=Disruption)
    recycle: Recycle = field(default_factory=Recycle)
    worker_groups: WorkerGroups = ()
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    controller_name: ControllerName = DEFAULT_CONTROLLER  # the operators of that name serve it

    @property
    def cluster(self) -> str:
        return self.cluster_ref.name

    @cached_property
    def own_bounds(self) -> tuple[GroupBounds, ...]:
        """Of the groups in `spec.workerGroups` that are scaled."""
        return tuple(
            GroupBounds(
                group.name,
                group.max_replicas,
                group.min_replicas or 0,
                self.idle_timeout_s if group.idle_timeout_s is None else group.idle_timeout_s,
                group.priority or 0,
            )
            for group in self.worker_groups
            if group.max_replicas is not None
        )

    def bounds(self, default_group: str) -> tuple[GroupBounds, ...]:
        """Of each worker group that is scaled, the default one first."""
        own = {g.name: g for g in self.own_bounds}
        default = own.pop(default_group, None) or GroupBounds(
            default_group, self.max_replicas, self.min_replicas, self.idle_timeout_s, priority=0
        )
        return (default, *own.values())

    @cached_property
    def group_recycle(self) -> Mapping[str, Recycle]:
        """By worker group with limits of its own: what holds instead of `recycle`."""
        own = {g.name: g.recycle for g in self.worker_groups if g.recycle is not None}
        return {name: limits.within(self.recycle) for name, limits in own.items()}

    def recycle_of(self, group: str) -> Recycle:
        return self.group_recycle.get(group, self.recycle)

    def checks(self) -> Iterator[Check]:
        if self.min_replicas > self.max_replicas:
            yield not_above("spec.maxReplicas", self.min_replicas, self.max_replicas)
        yield from self._checks_of_groups()
        yield from self._checks_of_schedules()
        replicas = self.fallback.replicas
        if replicas is not None and replicas > self.max_replicas:
            words = f"({replicas}) must not be greater than spec.maxReplicas ({self.max_replicas})"
            yield Check(".fallback.replicas", words, ("fallback", "maxReplicas"))
        if self._would_stand_still():
            yield Check(
                ".disruption.budgets",
                "has one of 0 for TaskQuota, and with recycle.tasks.exact workers would come to"
                " their quota and never be replaced: raise it, or drop exact",
                ("disruption", "recycle"),
            )

    def _checks_of_groups(self) -> Iterator[Check]:
        """With bounds for the default group, the policy's maximum is that of all groups."""
        groups = self.own_bounds
        if all(g.name != default_group_of(self.cluster) for g in groups):
            return
        if self.min_replicas:
            words = "must be that of the default group in spec.workerGroups: write it there"
            yield Check(".minReplicas", words, ("minReplicas", "workerGroups", "clusterRef"))
        total = sum(g.minimum for g in groups)
        if total > self.max_replicas:
            yield Check(
                ".workerGroups",
                f"the minReplicas of all groups ({total}) must not be more than spec.maxReplicas"
                f" ({self.max_replicas}): lower them or raise it",
                ("workerGroups", "maxReplicas", "clusterRef"),
            )

    def _checks_of_schedules(self) -> Iterator[Check]:
        default, needs = default_group_of(self.cluster), ("clusterRef", "schedules", "workerGroups")
        most = {bounds.name: bounds.maximum for bounds in self.bounds(default)}
        for i, schedule in enumerate(self.schedules):
            maximum = most.get(schedule.worker_group or default)
            if maximum is None:
                words = "must be the default group, or one of spec.workerGroups with maxReplicas"
                yield Check(f".schedules[{i}].workerGroup", words, needs)
            elif schedule.min_replicas > maximum:
                words = "must not be greater than maxReplicas of its worker group"
                yield Check(f".schedules[{i}].minReplicas", words, (*needs, "maxReplicas"))

    def _would_stand_still(self) -> bool:
        is_forbidden = any(
            budget.workers.of(1) < 1
            for budget in self.disruption.budgets
            if not budget.reasons or Reason.TASK_QUOTA in budget.reasons
        )
        return is_forbidden and self.recycle.tasks.exact


def disruption_of(spec: Mapping[str, Any]) -> Disruption:
    """Read one part, whatever else is in a spec. Raises `InvalidPolicy`."""
    return decode(Disruption, spec.get("disruption") or {}, "spec.disruption")


def parse_policy(spec: Mapping[str, Any]) -> Policy:
    """
    Read the spec of an AdaptivePolicy, defaults filled in as the CRD's schema does.

    Args:
        spec: `spec` of the object, as JSON. Unknown keys are refused: a rehearsal must not accept
            what the API server would not.

    Raises:
        InvalidPolicy: The user can fix it; the text has a line for each problem, with its path.
    """
    return decode(Policy, spec, "spec")
