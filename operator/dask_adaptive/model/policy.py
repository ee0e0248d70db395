"""Declares and parses the spec of an AdaptivePolicy."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

from dask_adaptive.model import kinds, scaling
from dask_adaptive.model.amounts import Amount
from dask_adaptive.model.codec import Check, InvalidPolicy, Listed, decode, one_of
from dask_adaptive.model.keys import default_group_of
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Budget, Recycle, Window
from dask_adaptive.model.scaling import AUTO_S, GroupBounds, not_above
from dask_adaptive.model.scheduler_settings import SchedulerSettings

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
    STOCK = "Stock"  # it leaves at once, as in plain Dask


@dataclass(frozen=True, slots=True)
class ClusterRef:
    #: Name of the DaskCluster. It need not exist yet.
    name: kinds.ObjectName


@dataclass(frozen=True, slots=True)
class ShufflePins:
    #: Whether a running shuffle pins its workers.
    enabled: bool = True
    #: Maximum time that one shuffle pins its workers.
    timeout_s: kinds.Seconds = 3600.0


@dataclass(frozen=True, slots=True)
class ManualPins:
    #: Maximum time that such a pin lasts, counted from when it was set.
    max_duration_s: kinds.Seconds = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class ClientPins:
    #: Whether code may pin workers.
    enabled: bool = True
    #: Maximum time that one such pin lasts, renewals included.
    max_duration_s: kinds.Seconds = 4 * 3600.0


@dataclass(frozen=True, slots=True)
class Pins:
    """Selects the pins that count, and how long each may last."""

    #: Pins on workers that take part in a P2P shuffle; the agent sets and removes them.
    shuffle: ShufflePins = ShufflePins()
    #: Pins that people set with the annotation dask-adaptive.dev/pin.
    manual: ManualPins = ManualPins()
    #: Pins that code sets, with pinned() of dask_adaptive_agent.
    client: ClientPins = ClientPins()


@dataclass(frozen=True, slots=True)
class Disruption:
    """Reactions to node signals, and hints for node autoscalers."""

    #: Drain drains workers at once when their node is cordoned or about to be removed
    #: (cluster-autoscaler, Karpenter, spot termination); Ignore does not. Needs an operator that
    #: serves all namespaces.
    node_signals: Annotated[bool, one_of({"Drain": True, "Ignore": False})] = True
    #: Whether the webhook annotates the pods of workers, as they are created, so that
    #: cluster-autoscaler and Karpenter leave their nodes alone. Your own annotations stay.
    hints: bool = True
    #: How many workers of a group may be missing at the same time because they are replaced; if
    #: several budgets apply, the lowest holds. An empty list sets no limit. Default one of 25%.
    budgets: Annotated[tuple[Budget, ...], Listed(32)] = (Budget(Amount(percent=25.0)),)
    #: Workers are replaced for quotas only while one of these windows is open; without any, always.
    #: The hard memory limit, ends of pods and replacements on request do not wait.
    windows: Annotated[tuple[Window, ...], Listed(32)] = ()


@dataclass(frozen=True, slots=True)
class Retirement:
    """Settings for the retirement of a worker."""

    #: How long a worker may take to finish its tasks and hand over its results.
    grace_period_s: kinds.Seconds = 15 * 60.0
    #: After the grace period, Abort puts the worker back into service; Force moves its results and
    #: gives up its running tasks, which run again elsewhere.
    on_timeout: OnTimeout = OnTimeout.ABORT
    #: How many workers may be leaving at the same time.
    max_concurrent: kinds.Positive = 5
    #: After a worker's own `--lifetime`, Drain lets it finish its tasks and hand over its results
    #: first, for at most the grace period; Stock closes it at once, as Dask alone does.
    on_lifetime: OnLifetime = OnLifetime.DRAIN


@dataclass(frozen=True)  # no slots: cached_property needs a __dict__
class Policy:
    """
    One AdaptivePolicy. Bounds are Deployments of the default worker group, unless it has bounds of
    its own; then `max_replicas` is that of all groups together.
    """

    #: The DaskCluster to scale, in the policy's own namespace. Immutable.
    cluster_ref: ClusterRef
    #: Maximum number of workers of the default worker group. If workerGroups has bounds for that
    #: group, the maximum of all scaled groups together. Required.
    max_replicas: kinds.Count
    #: Minimum number of workers of the default worker group. If workerGroups has bounds for that
    #: group, set it there.
    min_replicas: kinds.Count = 0
    #: Auto decides and acts; Advise decides and only reports what it would do; Paused only
    #: observes.
    mode: Mode = Mode.AUTO
    #: How long a worker must have been idle before it may leave. Auto keeps it for as long as its
    #: return takes, which is the time that workers of its group take to start and its data to move,
    #: within 12s and 5m.
    idle_timeout_s: scaling.IdleTimeout = AUTO_S
    #: How the number of workers follows the load.
    target: scaling.LoadTarget = field(default_factory=scaling.LoadTarget)
    #: How fast the number of workers changes, with HorizontalPodAutoscaler's fields. By default it
    #: rises at once, and falls after idleTimeout.
    behavior: scaling.Behavior = field(default_factory=scaling.Behavior)
    #: Minimums for certain hours, such as working hours. If several apply, the highest counts;
    #: minReplicas applies as well.
    schedules: Annotated[tuple[scaling.Schedule, ...], Listed(32)] = ()
    #: What happens to the cluster when nobody uses it. A cluster is in use while a worker is
    #: pinned, or while code requests workers.
    idle: scaling.Idle = field(default_factory=scaling.Idle)
    #: What to do while the scheduler does not answer. No worker leaves meanwhile.
    fallback: scaling.Fallback = field(default_factory=scaling.Fallback)
    #: Once a worker has been unschedulable for this long, no more are requested, except for
    #: occasional retries.
    unschedulable_timeout_s: kinds.PositiveSeconds = 300.0
    #: When more than this part of the connected workers, and at least three, are lost at the same
    #: time, nothing is scaled until they are back. 100% turns it off.
    max_unready: kinds.Part = 0.45
    #: Whether P2P shuffles wait for workers that are about to join. A shuffle assigns its outputs
    #: to the workers that are connected when it begins.
    shuffle: scaling.ShuffleWait = field(default_factory=scaling.ShuffleWait)
    #: Which pins hold a worker, and for how long.
    pins: Pins = field(default_factory=Pins)
    #: How a worker leaves.
    retirement: Retirement = field(default_factory=Retirement)
    #: How many workers may be missing at the same time, and when; how signals about nodes are used,
    #: and which hints node autoscalers get.
    disruption: Disruption = field(default_factory=Disruption)
    #: When a worker is replaced by another one. It finishes its running tasks and hands over its
    #: results first; no work is redone.
    recycle: Recycle = field(default_factory=Recycle)
    #: Settings of one worker group, instead of those above. A group with maxReplicas is scaled,
    #: too.
    worker_groups: scaling.WorkerGroups = ()
    #: How the agent relieves the scheduler, the configuration of Dask that the scheduler starts
    #: with, and how the operator reaches it.
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    #: Only operators of this name serve the policy, as an IngressClass names its controller.
    #: Default dask-adaptive, an operator's default name.
    controller_name: kinds.ControllerName = DEFAULT_CONTROLLER

    @property
    def cluster(self) -> str:
        return self.cluster_ref.name

    @cached_property
    def own_bounds(self) -> tuple[GroupBounds, ...]:
        """The scaled groups in `spec.workerGroups`."""
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
        """Return the bounds of each scaled group, the default one first."""
        own = {g.name: g for g in self.own_bounds}
        default = own.pop(default_group, None) or GroupBounds(
            default_group, self.max_replicas, self.min_replicas, self.idle_timeout_s, priority=0
        )
        return (default, *own.values())

    @cached_property
    def group_recycle(self) -> Mapping[str, Recycle]:
        """By worker group with limits of its own, what replaces `recycle`."""
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
        """If the default group has bounds, the policy's maximum is that of all groups."""
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
    """Read only `disruption`, ignoring the rest of a spec. Raises `InvalidPolicy`."""
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
