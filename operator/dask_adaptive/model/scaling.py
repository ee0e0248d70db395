"""How the number of workers may move: bounds, behavior, schedules, targets, what holds it."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from dask_adaptive.model.amounts import parse_duration
from dask_adaptive.model.codec import Check, Kind, Listed, Must, one_of
from dask_adaptive.model.recycle import GroupRecycle, OpenFor, Window
from dask_adaptive.model.spec import (
    IS_DURATION,
    Count,
    Cron,
    ObjectName,
    Positive,
    PositiveSeconds,
    Seconds,
    Tolerance,
    Whole,
    Zone,
    lasting,
)

#: The longest that a direction is stabilized, and the periods of its policies, are HPA's own limits
#: (`maxStabilizationWindowSeconds`, `maxPeriodSeconds` in its validation).
Stabilization = Annotated[
    Seconds,
    lasting(lambda s: s <= 3600, "must not be longer than 1h", "duration(self) <= duration('1h')"),
]
Period = Annotated[
    Seconds,
    lasting(
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
IdleTimeout = Annotated[
    float,
    Kind(_idle_timeout, _IDLE_WORDS, 32, lambda s: "Auto", f"self == 'Auto' || {IS_DURATION}"),
]

MAX_PRIORITY = 1000
Priority = Annotated[
    Whole,
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

    type: RateType
    value: Positive  # workers, or percent of those there at the period's beginning
    period_s: Period


@dataclass(frozen=True, slots=True)
class Direction:
    """
    How fast the number may move one way.

    Source:
        HorizontalPodAutoscaler (autoscaling/v2), HPAScalingRules.
    """

    stabilization_window_s: Stabilization | None = 0.0
    select_policy: Select = Select.MAX
    policies: Annotated[tuple[RatePolicy, ...], Listed(16)] = ()  # none: without a limit
    tolerance: Tolerance = 0.0  # smaller changes, as parts of the current number, are ignored


@dataclass(frozen=True, slots=True)
class ScaleUp(Direction):
    max_pending: Positive | None = None  # workers of a group that may be on their way at once


@dataclass(frozen=True, slots=True)
class ScaleDown(Direction):
    stabilization_window_s: Stabilization | None = None  # None: the group's idleTimeout
    delay_after_scale_up_s: Seconds = 0.0  # no worker leaves for so long after one was requested


@dataclass(frozen=True, slots=True)
class Behavior:
    """`spec.behavior`."""

    scale_up: ScaleUp = ScaleUp()
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

    name: ObjectName
    max_replicas: Count | None = None
    min_replicas: Count | None = None
    idle_timeout_s: IdleTimeout | None = None
    priority: Priority | None = None
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

    cron: Cron
    duration_s: OpenFor
    min_replicas: Positive
    time_zone: Zone = "UTC"
    worker_group: str = ""  # empty: the default worker group

    @property
    def window(self) -> Window:
        return Window(self.cron, self.duration_s, self.time_zone)


class IdleAction(str, enum.Enum):
    NOTHING = "Nothing"
    SCALE_TO_ZERO = "ScaleToZero"  # below minReplicas, until there is work
    DELETE_CLUSTER = "DeleteCluster"


@dataclass(frozen=True, slots=True)
class Idle:
    """What becomes of a cluster that nobody uses: no task at all, and no pin."""

    after_s: PositiveSeconds | None = None  # None: never
    action: IdleAction = IdleAction.NOTHING
    #: The same action once no client has been connected for so long.
    no_client_timeout_s: PositiveSeconds | None = None

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
    """What holds while the scheduler can't be asked. Workers are only ever added."""

    failure_threshold: Positive = 3  # questions in a row without an answer
    replicas: Count | None = None  # None: hold what is there; else at least so many
    behavior: FallbackBehavior = FallbackBehavior.HOLD

    def checks(self) -> Iterator[Check]:
        if (self.behavior is FallbackBehavior.REPLICAS) is not (self.replicas is not None):
            verb = "is required with" if self.replicas is None else "needs"
            words = f"{verb} fallback.behavior: Replicas"
            yield Check(".replicas", words, ("behavior", "replicas"))


#: No client waits longer than this for a shuffle to begin.
MaxWait = Annotated[
    Seconds,
    lasting(lambda s: s <= 600, "must not be longer than 10m", "duration(self) <= duration('10m')"),
]


@dataclass(frozen=True, slots=True)
class ShuffleWait:
    """Whether a P2P shuffle that is about to begin waits for workers that are on their way."""

    wait_for_workers: Annotated[bool, one_of({"Auto": True, "Disabled": False})] = True
    max_wait_s: MaxWait = 60.0


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """How much work each worker is to have."""

    duration_s: PositiveSeconds = 5.0


@dataclass(frozen=True, slots=True)
class Pause:
    """
    What people hold by annotation, on the policy or its cluster. Ends by itself where it says so.

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
    """How many more workers of one group the namespace has room for."""

    workers: int
    message: str  # what is short, in words: names the ResourceQuota


@dataclass(frozen=True, slots=True)
class Allowance:
    """How many workers one group may have of a budget that it shares."""

    workers: int
    message: str  # with whom it is shared, in words: names the budget
