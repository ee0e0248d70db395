"""How the number of workers may move: bounds, behavior, schedules, targets, what holds it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from dask_adaptive.model.recycle import Window


class Source(str, enum.Enum):
    """What asks for workers: `spec.target.source`."""

    STARTUP_AWARE = "StartupAware"  # work by prefix, durations, and how long a worker takes to come
    SCHEDULER = "Scheduler"  # the scheduler's own adaptive_target


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
    value: int  # workers, or percent of those there at the period's beginning; above 0
    period_s: float


@dataclass(frozen=True, slots=True)
class Direction:
    """
    How fast the number may move one way.

    Source:
        HorizontalPodAutoscaler (autoscaling/v2), HPAScalingRules.
    """

    window_s: float | None = 0.0  # stabilization; None (scale-down only): the group's idleTimeout
    select: Select = Select.MAX
    policies: tuple[RatePolicy, ...] = ()  # none: as fast as it likes
    tolerance: float = 0.0  # 0..1: a wish no further than this from what is there is none


@dataclass(frozen=True, slots=True)
class Behavior:
    """`spec.behavior`."""

    up: Direction = Direction()
    down: Direction = Direction(window_s=None)
    max_pending: int | None = None  # workers of a group that may be on their way at once
    delay_after_up_s: float = 0.0  # no worker leaves for so long after one was asked for


@dataclass(frozen=True, slots=True)
class GroupBounds:
    """One worker group that is scaled."""

    name: str
    maximum: int
    minimum: int = 0
    idle_timeout_s: float | None = None  # None: the policy's
    priority: int = 0  # of several that could run the same task the highest grows first


@dataclass(frozen=True, slots=True)
class Schedule:
    """A floor at certain hours. Of several that are open the highest counts."""

    window: Window
    minimum: int
    group: str = ""  # empty: the default worker group


class IdleAction(str, enum.Enum):
    NOTHING = "Nothing"
    SCALE_TO_ZERO = "ScaleToZero"  # below minReplicas, until there is work
    DELETE_CLUSTER = "DeleteCluster"


@dataclass(frozen=True, slots=True)
class Idle:
    """What becomes of a cluster that nobody uses: no task at all, and no pin."""

    after_s: float | None = None  # None: never
    action: IdleAction = IdleAction.NOTHING
    no_client_s: float | None = None  # the same action once no client is connected for so long


@dataclass(frozen=True, slots=True)
class Fallback:
    """What holds while the scheduler can't be asked. Workers are only ever added."""

    failure_threshold: int = 3  # questions in a row without an answer
    replicas: int | None = None  # None: hold what is there; else at least so many


@dataclass(frozen=True, slots=True)
class Caps:
    """What is not asked for in vain."""

    unschedulable_timeout_s: float = 300.0  # pods that find no node for longer: stop asking
    max_unready: float = 0.45  # 0..1: with more of the workers away, nothing is scaled


@dataclass(frozen=True, slots=True)
class ShuffleWait:
    """Whether a P2P shuffle that is about to begin waits for workers that are on their way."""

    enabled: bool = True
    most_s: float = 60.0


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
    replicas: int | None = None  # hold the default group at this number
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
class Scaling:
    """All of the policy that is about the number of workers, but for the default group's bounds."""

    groups: tuple[GroupBounds, ...] = ()  # those with bounds of their own
    source: Source = Source.STARTUP_AWARE
    behavior: Behavior = Behavior()
    schedules: tuple[Schedule, ...] = ()
    idle: Idle = Idle()
    fallback: Fallback = Fallback()
    caps: Caps = field(default_factory=Caps)
    shuffle_wait: ShuffleWait = ShuffleWait()
