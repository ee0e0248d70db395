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
    #: Maximum time that a shuffle pins its workers.
    timeout_s: kinds.Seconds = 3600.0


@dataclass(frozen=True, slots=True)
class ManualPins:
    #: Maximum duration of such a pin, from when it was set.
    max_duration_s: kinds.Seconds = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class ClientPins:
    #: Whether user code may pin workers.
    enabled: bool = True
    #: Maximum duration of such a pin, including renewals.
    max_duration_s: kinds.Seconds = 4 * 3600.0


@dataclass(frozen=True, slots=True)
class Pins:
    """Selects the pins that count, and how long each may last."""

    #: Pins that the agent sets on the workers of a P2P shuffle, and removes when it ends.
    shuffle: ShufflePins = ShufflePins()
    #: Pins that people set with the annotation dask-adaptive.dev/pin.
    manual: ManualPins = ManualPins()
    #: Pins that user code sets with pinned() from dask_adaptive_agent.
    client: ClientPins = ClientPins()


@dataclass(frozen=True, slots=True)
class Disruption:
    """Reactions to node signals, and hints for node autoscalers."""

    #: Drain drains the workers of a node as soon as it is cordoned or about to be removed
    #: (cluster-autoscaler, Karpenter, spot termination); Ignore does nothing. Needs an operator
    #: that watches nodes: one that serves all namespaces, or has watch.nodes.
    node_signals: Annotated[bool, one_of({"Drain": True, "Ignore": False})] = True
    #: Whether the webhook annotates new worker pods so that cluster-autoscaler and Karpenter do not
    #: remove their nodes. It never changes annotations of yours.
    hints: bool = True
    #: How many workers of a group may be unavailable at the same time because they are being
    #: replaced. If several budgets apply, the lowest counts. An empty list means no limit. Default
    #: one of 25%.
    budgets: Annotated[tuple[Budget, ...], Listed(32)] = (Budget(Amount(percent=25.0)),)
    #: Quotas replace workers only while one of these windows is open; without windows, at any time.
    #: The hard memory limit, the end of a pod and replacements that you request do not wait for a
    #: window.
    windows: Annotated[tuple[Window, ...], Listed(32)] = ()


@dataclass(frozen=True, slots=True)
class Retirement:
    """Settings for the retirement of a worker."""

    #: How long a worker may take to finish its tasks and hand over its results.
    grace_period_s: kinds.Seconds = 15 * 60.0
    #: After the grace period, Abort returns the worker to service; Force moves its results and
    #: abandons its running tasks, which other workers run again.
    on_timeout: OnTimeout = OnTimeout.ABORT
    #: How many workers may be retiring at the same time.
    max_concurrent: kinds.Positive = 5
    #: When a worker reaches its own `--lifetime`, Drain lets it finish its tasks and hand over its
    #: results first, within the grace period; Stock closes it at once, as Dask does by default.
    on_lifetime: OnLifetime = OnLifetime.DRAIN


@dataclass(frozen=True)  # no slots: cached_property needs a __dict__
class Policy:
    """
    One AdaptivePolicy. Bounds are Deployments of the default worker group, unless it has bounds of
    its own; then `max_replicas` is that of all groups together.
    """

    #: The DaskCluster to scale, in the policy's own namespace. Immutable.
    cluster_ref: ClusterRef
    #: Maximum number of workers of the default worker group; if workerGroups has bounds for that
    #: group, of all scaled groups together. Required.
    max_replicas: kinds.Count
    #: Minimum number of workers of the default worker group. If workerGroups has bounds for that
    #: group, set the minimum there.
    min_replicas: kinds.Count = 0
    #: Auto scales the cluster; Advise only reports what it would do; Paused only observes.
    mode: Mode = Mode.AUTO
    #: How long a worker must be idle before it may be removed. Auto learns this time: how long
    #: workers of its group take to start, plus how long its data takes to move, at least 12s and at
    #: most 5m.
    idle_timeout_s: scaling.IdleTimeout = AUTO_S
    #: How the number of workers follows the load.
    target: scaling.LoadTarget = field(default_factory=scaling.LoadTarget)
    #: How fast the number of workers changes, modelled on HorizontalPodAutoscaler. HPA's
    #: stabilizationWindowSeconds and periodSeconds are durations here, called stabilizationWindow
    #: and period. By default the number rises at once, and falls after idleTimeout.
    behavior: scaling.Behavior = field(default_factory=scaling.Behavior)
    #: Minimum numbers of workers for certain times, such as working hours. If several apply, the
    #: highest counts; minReplicas applies as well.
    schedules: Annotated[tuple[scaling.Schedule, ...], Listed(32)] = ()
    #: What happens to a cluster that nobody uses. A cluster is in use while a worker is pinned or
    #: code requests workers.
    idle: scaling.Idle = field(default_factory=scaling.Idle)
    #: What to do while the scheduler does not answer. No worker is removed until it does.
    fallback: scaling.Fallback = field(default_factory=scaling.Fallback)
    #: Once a worker has been unschedulable for this long, no more workers are requested, apart from
    #: occasional retries.
    unschedulable_timeout_s: kinds.PositiveSeconds = 300.0
    #: When more than this share of the connected workers, and at least three, are lost at the same
    #: time, scaling stops until they are back. 100% turns this off.
    max_unready: kinds.Part = 0.45
    #: Whether P2P shuffles wait for workers that are about to join. A shuffle assigns its outputs
    #: to the workers that are connected when it begins.
    shuffle: scaling.ShuffleWait = field(default_factory=scaling.ShuffleWait)
    #: Which pins keep a worker from being removed, and for how long.
    pins: Pins = field(default_factory=Pins)
    #: How a worker leaves.
    retirement: Retirement = field(default_factory=Retirement)
    #: How many workers may be unavailable while they are replaced, and when; how the operator
    #: reacts to nodes that go away, and whether it gives hints to node autoscalers.
    disruption: Disruption = field(default_factory=Disruption)
    #: When a worker is replaced by a new one. It finishes its running tasks and hands over its
    #: results first.
    recycle: Recycle = field(default_factory=Recycle)
    #: Settings of single worker groups, which override those above. A group with maxReplicas is
    #: scaled too.
    worker_groups: scaling.WorkerGroups = ()
    #: How the agent reduces the scheduler's overhead, which Dask configuration the scheduler starts
    #: with, and how the operator connects to it.
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    #: Only operators with this name serve the policy, as with an IngressClass and its controller.
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
                "has a budget of 0 for TaskQuota: with recycle.tasks.exact, workers at their quota"
                " would never be replaced; raise it, or drop exact",
                ("disruption", "recycle"),
            )

    def _checks_of_groups(self) -> Iterator[Check]:
        """If the default group has bounds, the policy's maximum is that of all groups."""
        groups = self.own_bounds
        if all(g.name != default_group_of(self.cluster) for g in groups):
            return
        if self.min_replicas:
            words = "must not be set if spec.workerGroups has the default group: set it there"
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
