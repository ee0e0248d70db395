"""Rules for the number of workers: bounds, behavior, schedules, targets, pauses."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from dask_adaptive.model import kinds
from dask_adaptive.model.amounts import parse_duration
from dask_adaptive.model.codec import Check, Kind, Listed, Must, one_of
from dask_adaptive.model.recycle import GroupRecycle, OpenFor, Window

#: The longest that a direction is stabilized, and the periods of its policies, are HPA's own limits
#: (`maxStabilizationWindowSeconds`, `maxPeriodSeconds` in its validation).
Stabilization = Annotated[kinds.Seconds, kinds.at_most("1h")]
Period = Annotated[
    kinds.Seconds,
    kinds.lasting(
        lambda s: 1 <= s <= 1800,
        "must be from 1s to 30m",
        "duration(self) >= duration('1s') && duration(self) <= duration('30m')",
    ),
]

#: `idleTimeout: Auto`. Whoever takes it for a number keeps each worker.
AUTO_S = math.inf

#: `Auto` stays within these: a start that is measured is no promise for the next one, and people
#: at a notebook come back within ten seconds.
LEAST_S, MOST_S = 12.0, 300.0


def _idle_timeout(value: Any) -> float:
    return AUTO_S if value == "Auto" else parse_duration(value)


_IDLE_WORDS = "must be Auto, or a duration such as 90s, 15m or 1h30m, not negative, at most 87600h"
_IS_IDLE = f"self == 'Auto' || {kinds.IS_DURATION}"
IdleTimeout = Annotated[float, Kind(_idle_timeout, _IDLE_WORDS, 32, lambda s: "Auto", _IS_IDLE)]

MAX_PRIORITY = 1000
Priority = Annotated[
    kinds.Whole,
    Must(
        lambda n: abs(n) <= MAX_PRIORITY,
        f"must be from -{MAX_PRIORITY} to {MAX_PRIORITY}",
        schema={"minimum": -MAX_PRIORITY, "maximum": MAX_PRIORITY},
    ),
]


class Select(str, enum.Enum):
    """Of several rate policies: the one that allows most, least, or none at all."""

    MAX = "Max"
    MIN = "Min"
    DISABLED = "Disabled"


class RateType(str, enum.Enum):
    PODS = "Pods"
    PERCENT = "Percent"


@dataclass(frozen=True, slots=True)
class RatePolicy:
    """So many workers may come (or go) within a period."""

    #: Pods: value is a number of workers. Percent: value is a percentage of the workers at the
    #: start of the period.
    type: RateType
    #: Number of workers, or percent: with Percent, 100 doubles the number in a period.
    value: kinds.Positive
    #: The time in which at most value workers are added or removed; from 1s to 30m.
    period_s: Period


@dataclass(frozen=True, slots=True)
class Direction:
    """
    Limits of the speed at which the number may move one way.

    Source:
        HorizontalPodAutoscaler (autoscaling/v2), HPAScalingRules.
    """

    #: The number rises to the lowest that was needed within this window; at most 1h.
    stabilization_window_s: Stabilization | None = 0.0
    #: Of several policies, Max uses the one that allows the largest change, Min the smallest;
    #: Disabled allows no change in this direction.
    select_policy: Select = Select.MAX
    #: How many workers may be added or removed in a period. Without policies there is no limit.
    policies: Annotated[tuple[RatePolicy, ...], Listed(16)] = ()
    #: Changes of up to this fraction of the current number are ignored: a percentage such as
    #: 10%, or, as in HPA, a fraction in quotes such as "0.1".
    tolerance: kinds.Tolerance = 0.0


@dataclass(frozen=True, slots=True)
class ScaleUp(Direction):
    #: How many workers of a group may be pending at the same time; no more are requested until some
    #: of them have connected. Without it there is no limit.
    max_pending: kinds.Positive | None = None


@dataclass(frozen=True, slots=True)
class ScaleDown(Direction):
    #: The number falls to the highest that was needed within this window; at most 1h. Without
    #: it, the idleTimeout of the group.
    stabilization_window_s: Stabilization | None = None
    #: How long after a scale-up no worker is removed for lack of work.
    delay_after_scale_up_s: kinds.Seconds = 0.0


@dataclass(frozen=True, slots=True)
class Behavior:
    """`spec.behavior`."""

    #: How fast workers are added.
    scale_up: ScaleUp = ScaleUp()
    #: How fast workers are removed.
    scale_down: ScaleDown = ScaleDown()


@dataclass(frozen=True, slots=True)
class GroupBounds:
    """One worker group that is scaled, with all that it takes from its policy."""

    name: str
    maximum: int
    minimum: int
    idle_timeout_s: float  # without a task, after which a worker may leave; or `AUTO_S`
    priority: int  # of several that could run the same task the highest grows first


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """One of `spec.workerGroups`; it is scaled if it has a maximum."""

    #: Name of the DaskWorkerGroup, such as etl-gpu. It need not exist yet.
    name: kinds.ObjectName
    #: Maximum number of workers of the group. Without it the group is not scaled, except for the
    #: default group, to which minReplicas and maxReplicas of the policy apply.
    max_replicas: kinds.Count | None = None
    #: Minimum number of workers of the group. Default 0.
    min_replicas: kinds.Count | None = None
    #: How long a worker of the group must be idle before it may be removed, or Auto. Without it,
    #: spec.idleTimeout.
    idle_timeout_s: IdleTimeout | None = None
    #: If several groups can do the same work, the one with the highest priority grows first. It
    #: also gets its workers first if maxReplicas is not enough for all. Default 0.
    priority: Priority | None = None
    #: The limits of this group, which replace all of those in spec.recycle: a limit that is not set
    #: here is off for the group. All other settings of spec.recycle (jitter, exact, fromWalltime,
    #: margin, for, window, patterns, drift, minAge, strategy) apply to every group.
    recycle: GroupRecycle | None = None

    def checks(self) -> Iterator[Check]:
        if self.max_replicas is None:
            for key, value in (
                ("minReplicas", self.min_replicas),
                ("idleTimeout", self.idle_timeout_s),
                ("priority", self.priority),
            ):
                if value is not None:
                    words = "needs maxReplicas: a group without it is not scaled"
                    yield Check(f".{key}", words, ("maxReplicas", key))
        elif (self.min_replicas or 0) > self.max_replicas:
            yield not_above("maxReplicas", self.min_replicas, self.max_replicas)


def not_above(limit: str, minimum: int | None, maximum: int) -> Check:
    words = f"({minimum}) must not be greater than {limit} ({maximum}): lower the one or raise"
    return Check(".minReplicas", f"{words} the other", ("minReplicas", "maxReplicas"))


WorkerGroups = Annotated[tuple[WorkerGroup, ...], Listed(32, "name")]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A floor at certain hours. Of several that are open the highest counts."""

    #: When it begins, as a cron expression of five fields.
    cron: kinds.Cron
    #: How long it lasts; at most 744h, which are 31 days.
    duration_s: OpenFor
    #: Minimum number of workers of the group during this time.
    min_replicas: kinds.Positive
    #: The time zone of the cron expression, such as Europe/Berlin.
    time_zone: kinds.Zone = "UTC"
    #: Name of the DaskWorkerGroup. Without it, the default group.
    worker_group: str = ""

    @property
    def window(self) -> Window:
        return Window(self.cron, self.duration_s, self.time_zone)


class IdleAction(str, enum.Enum):
    NOTHING = "Nothing"
    SCALE_TO_ZERO = "ScaleToZero"  # below minReplicas, until there is work
    DELETE_CLUSTER = "DeleteCluster"


@dataclass(frozen=True, slots=True)
class Idle:
    """Rules for an unused cluster: one without any task or pin."""

    #: The cluster counts as unused when it has had no task (waiting, queued or running) for this
    #: long. Without it, this is not checked.
    after_s: kinds.PositiveSeconds | None = None
    #: ScaleToZero removes all workers, even below minReplicas, until there is work again or a
    #: schedule begins. DeleteCluster deletes the DaskCluster, unless a client still holds results
    #: there. Nothing does nothing.
    action: IdleAction = IdleAction.NOTHING
    #: The cluster counts as unused when no client has been connected for this long and no task is
    #: left. Without it, this is not checked.
    no_client_timeout_s: kinds.PositiveSeconds | None = None

    def checks(self) -> Iterator[Check]:
        if (
            self.action is not IdleAction.NOTHING
            and self.after_s is self.no_client_timeout_s is None
        ):
            words = "needs idle.after or idle.noClientTimeout: when to do it"
            yield Check(".action", words, ("after", "noClientTimeout", "action"))


class FallbackBehavior(str, enum.Enum):
    HOLD = "Hold"
    REPLICAS = "Replicas"


@dataclass(frozen=True, slots=True)
class Fallback:
    """Rules while the scheduler does not answer. Workers are only ever added."""

    #: How many requests in a row must fail before the fallback applies.
    failure_threshold: kinds.Positive = 3
    #: Number of workers with behavior Replicas.
    replicas: kinds.Count | None = None
    #: Hold keeps the current number of workers; Replicas raises the default group to the number in
    #: replicas if it has fewer.
    behavior: FallbackBehavior = FallbackBehavior.HOLD

    def checks(self) -> Iterator[Check]:
        if (self.behavior is FallbackBehavior.REPLICAS) is not (self.replicas is not None):
            verb = "is required with" if self.replicas is None else "needs"
            words = f"{verb} fallback.behavior: Replicas"
            yield Check(".replicas", words, ("behavior", "replicas"))


#: No client waits longer than this for a shuffle to begin.
MaxWait = Annotated[kinds.Seconds, kinds.at_most("10m")]


@dataclass(frozen=True, slots=True)
class ShuffleWait:
    """Rules by which a P2P shuffle waits for workers that are on their way."""

    #: Auto delays a shuffle until workers have joined if that makes it finish earlier; Disabled
    #: never delays it.
    wait_for_workers: Annotated[bool, one_of({"Auto": True, "Disabled": False})] = True
    #: Maximum time that a shuffle is delayed; at most 10m.
    max_wait_s: MaxWait = 60.0


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """The amount of work that each worker is to have."""

    #: Target time to finish the queued work.
    duration_s: kinds.PositiveSeconds = 5.0


@dataclass(frozen=True, slots=True)
class Pause:
    """
    A pause by annotation, on the policy or its cluster. Ends by itself where it says so.

    `problem` not empty: an annotation can't be read. It pauses all the same (when in doubt the
    worker stays), and this says how to mend it.
    """

    all: bool = False
    scale_in: bool = False
    scale_out: bool = False
    left_s: float | None = None  # until it ends; None: until it is taken back
    message: str = ""  # who holds it, in words
    problem: str = ""


NO_PAUSE = Pause()


@dataclass(frozen=True, slots=True)
class Room:
    """The number of workers of one group that the namespace still has room for."""

    workers: int
    message: str  # what is short, in words: names the ResourceQuota


@dataclass(frozen=True, slots=True)
class Allowance:
    """The number of workers that one group may have of a shared budget."""

    workers: int
    message: str  # with whom it is shared, in words: names the budget
