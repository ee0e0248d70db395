"""Quotas: how long a worker may go on before it is replaced, and how that is done."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Annotated

from dask_adaptive.model.amounts import Amount
from dask_adaptive.model.codec import ITSELF, Check, Listed, one_of
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.spec import (
    Count,
    Cron,
    Glob,
    Line,
    ListedWorkers,
    Part,
    PositiveSeconds,
    Seconds,
    Surge,
    Workers,
    Zone,
    lasting,
)


class Quota(str, enum.Enum):
    """What is rationed: the label of metrics, and the field of `spec.recycle`."""

    TASKS = "tasks"
    LIFETIME = "lifetime"
    MEMORY = "memory"
    FAILURES = "failures"


class StrategyType(str, enum.Enum):
    SURGE = "Surge"  # the replacement first
    IN_PLACE = "InPlace"  # the pod is deleted once drained; its Deployment brings the next


#: Reasons for which a worker is replaced.
Replaces = Annotated[Reason, one_of({r.value: r for r in Reason if r.replaces})]


@dataclass(frozen=True, slots=True)
class TaskLimit:
    max: Count = 0  # runs; 0: no quota


@dataclass(frozen=True, slots=True)
class TaskQuota(TaskLimit):
    jitter: Part = 0.0  # a worker's own quota is up to this part lower
    exact: bool = False  # not one run more, though nobody is left to work
    from_walltime: bool = False


@dataclass(frozen=True, slots=True)
class LifetimeLimit:
    max_s: PositiveSeconds = math.inf
    walltime: bool = False  # somebody else ends workers then

    def checks(self) -> Iterator[Check]:
        if self.walltime and math.isinf(self.max_s):
            yield Check(".walltime", "needs max: how long workers have", ("walltime", "max"))


@dataclass(frozen=True, slots=True)
class LifetimeQuota(LifetimeLimit):
    jitter: Part = 0.0
    min_task_duration_s: Seconds = 0.0  # no task is expected to take less
    margin_s: Seconds = 10.0  # before a worker's end it is drained: data moves, nothing runs


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Parts of the worker's memory limit, 0..1; infinite: no quota."""

    soft: Line = math.inf
    hard: Line = math.inf  # of the whole process

    def checks(self) -> Iterator[Check]:
        if math.isfinite(self.soft) and self.soft >= self.hard:
            words = "must be lower than hard: lower the one or raise the other"
            yield Check(".soft", words, ("soft", "hard"))


@dataclass(frozen=True, slots=True)
class MemoryQuota(MemoryLimit):
    for_s: Seconds = 120.0  # so long above the soft line
    override_pins: bool = False  # the hard line beats pins of people


@dataclass(frozen=True, slots=True)
class FailureLimit:
    max: Count = 0  # 0: no quota


@dataclass(frozen=True, slots=True)
class FailureQuota(FailureLimit):
    window_s: PositiveSeconds = 600.0
    patterns: Annotated[tuple[Glob, ...], Listed(32, ITSELF)] = ()


@dataclass(frozen=True, slots=True)
class Strategy:
    """How a worker is replaced."""

    type: StrategyType = StrategyType.SURGE
    max_surge: Surge = field(default_factory=lambda: Amount(1))
    ready_timeout_s: PositiveSeconds = 600.0


@dataclass(frozen=True, slots=True)
class Recycle:
    """`spec.recycle`."""

    tasks: TaskQuota = TaskQuota()
    lifetime: LifetimeQuota = LifetimeQuota()
    memory: MemoryQuota = MemoryQuota()
    failures: FailureQuota = FailureQuota()
    drift: bool = True
    min_age_s: Seconds = 0.0
    strategy: Strategy = Strategy()
    max_per_hour: Workers | None = None  # recycles for quotas; None: no limit


@dataclass(frozen=True, slots=True)
class GroupRecycle:
    """The limits that one worker group has instead of those in `spec.recycle`."""

    tasks: TaskLimit = TaskLimit()
    lifetime: LifetimeLimit = LifetimeLimit()
    memory: MemoryLimit = MemoryLimit()
    failures: FailureLimit = FailureLimit()

    def within(self, recycle: Recycle) -> Recycle:
        """All that holds for the group: how its quotas work is the same in all groups."""
        quotas = {
            quota.name: replace(getattr(recycle, quota.name), **asdict(getattr(self, quota.name)))
            for quota in fields(self)
        }
        return replace(recycle, **quotas)


@dataclass(frozen=True, slots=True)
class Budget:
    """How many workers of a group may be missing at once for such reasons."""

    workers: ListedWorkers
    reasons: Annotated[frozenset[Replaces], Listed(16, ITSELF)] = frozenset()  # empty: all


#: Whether a window is open must follow from one opening, not far back.
OpenFor = Annotated[
    PositiveSeconds,
    lasting(
        lambda s: s <= 744 * 3600,
        "must not be longer than 744h, which are 31 days: let the schedule begin more often",
        "duration(self) <= duration('744h')",
    ),
]


@dataclass(frozen=True, slots=True)
class Window:
    """When workers may be replaced. No window at all: always."""

    schedule: Cron
    duration_s: OpenFor
    time_zone: Zone = "UTC"


@dataclass(frozen=True, slots=True)
class Use:
    """What a worker has used up; of several processes the highest of each."""

    runs: int = 0
    failures: int = 0
    match: str = ""  # text of a failure that a pattern matched
    process: float = 0.0  # memory, parts of the limit
    unmanaged: float = 0.0


#: Shared by all workers of which nothing is measured.
UNUSED = Use()


@dataclass(frozen=True, slots=True)
class Limit:
    """What the agent is told of one Dask worker."""

    runs: int = 0  # 0: no limit
    left_s: float = math.inf
    profile: int = 0


@dataclass(frozen=True, slots=True)
class Profile:
    """See `wire.LimitProfile`."""

    exact: bool = False
    failures: int = 0
    window_s: float = 600.0
    patterns: tuple[str, ...] = ()
    fresh_s: float = math.inf
    floor_s: float = 0.0
    runs: int = 0
    group: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the agent is to enforce by itself, between two passes: all of it, each time."""

    workers: Mapping[str, Limit] = field(default_factory=dict)  # by Dask worker name
    profiles: tuple[Profile, ...] = ()
    stops: int = 0
    others: int | None = None  # profile of workers that are not named; None: they have no limit
    group_stops: Mapping[str, int] = field(default_factory=dict)  # where there are several groups


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """The highest use of one quota in a group: a metric."""

    group: str
    quota: Quota
    ratio: float  # 1: at the quota
    worker: str


@dataclass(frozen=True, slots=True)
class Replacing:
    """One worker that is being replaced, or is to be: a row of the status."""

    worker: str
    reason: Reason
    message: str  # the quota and how far it is used
    state: str  # "Due" (waits for its turn) | "Surging" (its replacement starts) | "Draining"


@dataclass(frozen=True, slots=True)
class RecyclePast:
    """What is remembered of quotas from pass to pass; less of it only delays."""

    begun: tuple[float, ...] = ()  # when recycles for quotas began, this hour; seconds of `now`
    totals: Mapping[Reason, int] = field(default_factory=dict)  # recycles begun, by reason
    # These two by life, see `quotas.life_of`.
    above_since: Mapping[str, float] = field(default_factory=dict)  # over the soft line of memory
    pace: Mapping[str, tuple[float, int, float]] = field(default_factory=dict)  # (at, runs, runs/s)
    surging_since: Mapping[str, float] = field(default_factory=dict)  # asked for a replacement
    aborted: Mapping[str, tuple[float, str]] = field(default_factory=dict)  # (until, why)
    ready_s: float = 10.0  # how long a new worker takes to connect, measured
