"""Quotas: how long a worker may go on before it is replaced, and how that is done."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Annotated

from dask_adaptive.model import kinds
from dask_adaptive.model.amounts import Amount
from dask_adaptive.model.codec import ITSELF, Check, Listed, one_of
from dask_adaptive.model.reason import Reason


class Quota(str, enum.Enum):
    """A rationed resource: the label of metrics, and the field of `spec.recycle`."""

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
    #: Number of task runs, including failed ones, after which a worker is replaced. 0: no quota
    #: (default).
    max: kinds.Count = 0


@dataclass(frozen=True, slots=True)
class TaskQuota(TaskLimit):
    #: Lowers the quota of each worker by a random share of up to this percentage, so that workers
    #: do not all reach it at the same time.
    jitter: kinds.Part = 0.0
    #: Whether a worker never runs more than max tasks, even if the cluster stands still until
    #: replacements are connected. Otherwise it runs tasks until it may be replaced.
    exact: bool = False
    #: Whether the quota is computed from the duration of tasks and the time that the worker has
    #: left (by recycle.lifetime, its pod's deadline or Dask's --lifetime); max still applies.
    from_walltime: bool = False


@dataclass(frozen=True, slots=True)
class LifetimeLimit:
    #: Age of its pod at which a worker is replaced. Without it, only the end of a pod replaces its
    #: worker.
    max_s: kinds.PositiveSeconds = math.inf
    #: Whether something else ends pods at max, such as a batch system or a spot contract. Then no
    #: task starts that is not expected to finish before max. Default false: a worker at max
    #: finishes its running tasks.
    walltime: bool = False

    def checks(self) -> Iterator[Check]:
        if self.walltime and math.isinf(self.max_s):
            yield Check(".walltime", "needs max: how long workers have", ("walltime", "max"))


@dataclass(frozen=True, slots=True)
class LifetimeQuota(LifetimeLimit):
    #: Shortens the lifetime of each worker by a random share of up to this percentage.
    jitter: kinds.Part = 0.0
    #: Lower bound of the expected duration of a task.
    min_task_duration_s: kinds.Seconds = 0.0
    #: Time before its end that a worker uses to hand over its results; it runs no tasks then.
    margin_s: kinds.Seconds = 10.0


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """Parts of the worker's memory limit, 0..1; infinite: no quota."""

    #: A worker is replaced when its unmanaged memory (everything but results of tasks) has been
    #: above this limit for the duration `for`. Without it there is no such quota.
    soft: kinds.Line = math.inf
    #: A worker is replaced as soon as its process uses more than this, regardless of windows and
    #: minAge. Set it below 95%, where Dask's nanny kills the worker. Without it there is no such
    #: quota.
    hard: kinds.Line = math.inf

    def checks(self) -> Iterator[Check]:
        if math.isfinite(self.soft) and self.soft >= self.hard:
            words = "must be lower than hard: lower the one or raise the other"
            yield Check(".soft", words, ("soft", "hard"))


@dataclass(frozen=True, slots=True)
class MemoryQuota(MemoryLimit):
    #: How long a worker must be above the soft limit.
    for_s: kinds.Seconds = 120.0
    #: Whether the hard limit overrides pins that people or code set. It never overrides those of
    #: shuffles.
    override_pins: bool = False


@dataclass(frozen=True, slots=True)
class FailureLimit:
    #: Number of failed task runs within window after which a worker is replaced. A task that fails
    #: on two workers does not count, because the fault is its own. 0: no quota (default).
    max: kinds.Count = 0


@dataclass(frozen=True, slots=True)
class FailureQuota(FailureLimit):
    #: The period in which failures are counted.
    window_s: kinds.PositiveSeconds = 600.0
    #: Case-sensitive globs, such as `*CUDA error*`. One failure whose whole `repr(exception)`
    #: matches replaces the worker; only its first 2,000 characters are compared.
    patterns: Annotated[tuple[kinds.Glob, ...], Listed(32, ITSELF)] = ()


@dataclass(frozen=True, slots=True)
class Strategy:
    """The way in which a worker is replaced."""

    #: Surge requests one more worker, waits until it is connected, and then drains the old one.
    #: InPlace drains the worker and deletes its pod; its Deployment creates the next one. Groups
    #: that are not scaled always use InPlace.
    type: StrategyType = StrategyType.SURGE
    #: How many extra workers there may be during replacements: a number, or a percentage of the
    #: group's workers, rounded up.
    max_surge: kinds.Surge = field(default_factory=lambda: Amount(1))
    #: If the new worker is not connected after this time, the old one stays in service, and an
    #: event RecycleAborted says why.
    ready_timeout_s: kinds.PositiveSeconds = 600.0


@dataclass(frozen=True, slots=True)
class Recycle:
    """`spec.recycle`."""

    #: How many tasks a worker runs before it is replaced.
    tasks: TaskQuota = TaskQuota()
    #: At what age a worker is replaced, and which tasks it no longer gets because it could not
    #: finish them.
    lifetime: LifetimeQuota = LifetimeQuota()
    #: How much memory a worker may use before it is replaced, as a percentage of its memory limit.
    memory: MemoryQuota = MemoryQuota()
    #: How many task runs may fail on a worker before it is replaced.
    failures: FailureQuota = FailureQuota()
    #: Whether a worker is replaced when its image, command, environment or resources differ from
    #: those in its DaskWorkerGroup.
    drift: bool = True
    #: A pod younger than this is not replaced for a quota, except for the hard memory limit or its
    #: end.
    min_age_s: kinds.Seconds = 0.0
    #: How a worker is replaced.
    strategy: Strategy = Strategy()
    #: How many workers quotas may replace in an hour: a number, or a percentage of all workers.
    #: Further replacements wait, and the condition AbleToScale reports RecycleStorm. Without it
    #: there is no limit.
    max_per_hour: kinds.Workers | None = None


@dataclass(frozen=True, slots=True)
class GroupRecycle:
    """The limits that one worker group has instead of those in `spec.recycle`."""

    #: How many tasks a worker runs before it is replaced.
    tasks: TaskLimit = TaskLimit()
    #: At what age a worker is replaced.
    lifetime: LifetimeLimit = LifetimeLimit()
    #: How much memory a worker may use before it is replaced, as a percentage of its memory limit.
    memory: MemoryLimit = MemoryLimit()
    #: How many task runs may fail on a worker before it is replaced.
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
    """The number of workers of a group that may be missing at once for such reasons."""

    #: Number of workers of a group, or a percentage of them, rounded up. 0 forbids these
    #: replacements.
    workers: kinds.ListedWorkers
    #: The reasons for replacement that the budget limits. Without it, all reasons.
    reasons: Annotated[frozenset[Replaces], Listed(16, ITSELF)] = frozenset()


#: Whether a window is open must follow from one opening, not far back.
OpenFor = Annotated[
    kinds.PositiveSeconds,
    kinds.at_most("744h", ", which are 31 days: let the schedule begin more often"),
]


@dataclass(frozen=True, slots=True)
class Window:
    """A time window for replacements. No window at all: always."""

    #: When it opens, as a cron expression of five fields.
    schedule: kinds.Cron
    #: How long it is open; at most 744h, which are 31 days.
    duration_s: OpenFor
    #: The time zone of the schedule, such as Europe/Berlin.
    time_zone: kinds.Zone = "UTC"


@dataclass(frozen=True, slots=True)
class Use:
    """A worker's use of its quotas; of several processes the highest of each."""

    runs: int = 0
    failures: int = 0
    match: str = ""  # text of a failure that a pattern matched
    process: float = 0.0  # memory, parts of the limit
    unmanaged: float = 0.0


#: Shared by all workers of which nothing is measured.
UNUSED = Use()


@dataclass(frozen=True, slots=True)
class Limit:
    """The limits of one Dask worker, for the agent."""

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
    """All limits that the agent enforces by itself between two passes."""

    workers: Mapping[str, Limit] = field(default_factory=dict)  # by Dask worker name
    profiles: tuple[Profile, ...] = ()
    cordons: int = 0
    others: int | None = None  # profile of workers that are not named; None: they have no limit
    group_cordons: Mapping[str, int] = field(default_factory=dict)  # where there are several groups


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
    """The memory of quotas from pass to pass; less of it only delays."""

    begun: tuple[float, ...] = ()  # when recycles for quotas began, this hour; seconds of `now`
    totals: Mapping[Reason, int] = field(default_factory=dict)  # recycles begun, by reason
    # These two by life, see `quotas.life_of`.
    above_since: Mapping[str, float] = field(default_factory=dict)  # over the soft line of memory
    pace: Mapping[str, tuple[float, int, float]] = field(default_factory=dict)  # (at, runs, runs/s)
    surging_since: Mapping[str, float] = field(default_factory=dict)  # asked for a replacement
    aborted: Mapping[str, tuple[float, str]] = field(default_factory=dict)  # (until, why)
    ready_s: float = 10.0  # how long a new worker takes to connect, measured
