"""One observation of a cluster, at one instant. Times are seconds, sizes are bytes."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar, dataclass_transform

from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import UNUSED, Quota, Use
from dask_adaptive.model.scaling import NO_PAUSE, Allowance, Pause, Room

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def row(of: type[T]) -> type[T]:
    """
    A dataclass that mypy takes for frozen, and that is not: of each worker several are made in a
    pass, and with 30 fields a frozen one takes two and a half times as long to make.
    """
    return dataclass(slots=True, unsafe_hash=True)(of)


@dataclass(frozen=True, slots=True)
class PrefixWork:
    """Unfinished tasks of one prefix."""

    name: str
    mean_s: float | None  # measured; None: none has finished yet
    running: int  # assigned to workers
    ready: int  # queued, or without a worker that may run them
    waiting: int  # for other tasks
    longest_s: float = 0.0  # so long has one of its running tasks been at it
    done: int = 0  # runs that have finished since the scheduler started
    # How its tasks hang on others: as the agent tells it from a sample of those that wait.
    width: int | None = None  # so many can run at once; None: nobody looked
    level: int = 0  # so many kinds of tasks, one after the other, come first; 0: it can begin now
    fan_in: float = 1.0  # unfinished tasks of other kinds that one of them waits for, on average
    bound: int = 0  # of all: only some workers may run them (`Need`)

    @property
    def unfinished(self) -> int:
        return self.running + self.ready + self.waiting


@dataclass(frozen=True, slots=True)
class Need:
    """Tasks that only some workers may run. They are part of `Demand.prefixes` as well."""

    tasks: int  # assigned, or without a worker
    seconds: float  # expected, of all of them
    resources: Mapping[str, float]  # what each claims
    workers: tuple[str, ...] = ()  # names or addresses; at most 50
    hosts: tuple[str, ...] = ()
    loose: bool = False  # allow_other_workers
    waiting: int = 0  # for other tasks, beyond `tasks`; `seconds` does not count them
    able: tuple[str, ...] = ()  # connected workers that may run them; at most 50


@dataclass(frozen=True, slots=True)
class UpcomingShuffle:
    """A P2P shuffle whose inputs are not all there: its outputs are yet to be given to workers."""

    inputs: int  # that have not finished
    outputs: int


@dataclass(frozen=True, slots=True)
class Want:
    """A floor that a client's code asks for, as long as its lease lasts."""

    workers: int
    left_s: float
    owner: str
    group: str = ""  # empty: the default worker group


@dataclass(frozen=True, slots=True)
class Demand:
    """All that asks for workers, at one instant."""

    prefixes: tuple[PrefixWork, ...] = ()  # at most 200; what is beyond is one row named "…"
    needs: tuple[Need, ...] = ()  # at most 50 kinds
    shuffles: tuple[UpcomingShuffle, ...] = ()
    incoming: float = 0.0  # seconds of work a second that have come again and again of late
    every_s: float = 0.0  # from one time to the next
    trickle_s: float = 0.0  # that have come so into a queue that has not been empty since
    unknown_s: float = 0.5  # `distributed.scheduler.unknown-task-duration`
    age_s: float = 0.0  # since it was measured

    @property
    def has_work(self) -> bool:
        is_asked = self.needs or self.shuffles or self.incoming
        return bool(is_asked) or any(row.unfinished for row in self.prefixes)


@dataclass(frozen=True, slots=True)
class Quiet:
    """For how long nobody has used the cluster. 0: it is in use."""

    no_task_s: float = 0.0
    no_client_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Pin:
    """One claim that a worker must stay, as the scheduler's agent holds it."""

    source: str  # "shuffle" | "manual" | "client"
    owner: str
    reason: str
    until: float  # instants are on the clock of `ObservedScheduler.at`
    latest: float = 0.0  # it ends then, however often it is renewed
    since: float = 0.0  # it was first set


@dataclass(frozen=True, slots=True)
class Note:
    """Something that happened in the scheduler, to be told once."""

    number: int  # ascending within a session
    kind: Reason
    message: str
    names: tuple[str, ...] = ()  # Dask workers that it is about


@dataclass(frozen=True, slots=True)
class ManualPin:
    """A pin that a person asked for by annotation."""

    until: float  # seconds since 1970; not yet capped by the policy
    reason: str
    problem: str = ""  # not empty: the annotation could not be read, so it pins (fail safe)


class Leaving(enum.Enum):
    """The state of a retirement."""

    NO = "active"
    DRAINING = "draining"
    DRAINED = "drained"


@dataclass(frozen=True, slots=True)
class Cordon:
    """Why the agent keeps new tasks from a worker."""

    quota: Quota
    message: str


@row
class SchedulerWorker:
    """
    One Dask worker process, as its scheduler sees it.

    Its instants are seconds on the clock of `ObservedScheduler.at`: of a worker about which nothing
    has changed there is one such object for all observations.
    """

    name: str
    address: str
    status: str  # distributed's Status, by name
    nthreads: int
    processing: int
    idle_since: float  # as long as it has no task
    sole_bytes: int  # results that no other worker holds
    memory: int = 0
    memory_limit: int = 0
    joined_at: float | None = field(default=None, compare=False)  # told once; None: not known
    closable: bool = False  # offered by workers_to_close
    actors: bool = False
    pins: tuple[Pin, ...] = ()
    leaving: Leaving = Leaving.NO
    leaving_message: str = ""
    leaving_reason: Reason | None = None  # why we let it go; None: not leaving, or not by us
    terminating: str = ""  # not empty: its process is about to end; what it waits for
    terminates_at: float = math.inf  # it ends, whatever is still there
    use: Use = UNUSED
    lifetime_ends_at: float = math.inf  # by Dask's own --lifetime
    cordon: Cordon | None = None  # the agent keeps new tasks from it
    too_short: bool = False  # gets no more tasks: it ends too soon for some of those that wait
    stuck: int = 0  # threads that have taken no task for seconds: paused, or held by cancelled runs

    @property
    def is_cordoned(self) -> bool:
        """The agent gives it the status of a closing worker, so that it gets no new tasks."""
        return self.cordon is not None or self.too_short

    @property
    def is_paused(self) -> bool:
        """It starts nothing, and takes no data: Dask pauses workers short of memory."""
        return self.status == "paused"


#: What is known of the processes of a worker that has none.
NOBODY = SchedulerWorker(
    "", "", "init", nthreads=0, processing=0, idle_since=math.inf, sole_bytes=0
)


@dataclass(frozen=True, slots=True)
class Shuffle:
    """A P2P shuffle that runs now."""

    run_id: int
    workers: int


@dataclass(frozen=True, slots=True)
class ReliefState:
    """One load that is taken off the scheduler, or not, and why."""

    name: str
    state: str  # "Active" | "NotNeeded" | "Disabled" | "Failed"
    message: str = ""
    counts: Mapping[str, int] = field(default_factory=dict, compare=False)  # what it has done


@dataclass(frozen=True, slots=True)
class SerializedFunction:
    """The cost so far of serializing the tasks of one function."""

    function: str
    calls: int
    seconds: float
    sent_bytes: int
    largest_bytes: int


@dataclass(frozen=True, slots=True)
class Serialized:
    """The cost of serializing tasks since the agent started."""

    calls: int = 0
    seconds: float = 0.0
    sent_bytes: int = 0
    share: float = 0.0  # of the scheduler's CPU time, over the last minute
    top: tuple[SerializedFunction, ...] = ()  # at most 10, the dearest first


@dataclass(frozen=True, slots=True)
class ObservedScheduler:
    """The scheduler's answer. `problem` not None: it gave none, and `message` says why."""

    problem: Reason | None = None
    message: str = ""
    at: float = 0.0  # when this was so, in seconds on a clock of the observer's
    followed: bool = False  # since the observation before nothing has changed unnoticed
    session: str = ""
    distributed: str = ""
    agent: str = ""  # version
    tls_secret: str = ""  # by which it is reached; empty: without TLS
    target: int = 0  # adaptive_target over all groups, in Dask workers
    workers: tuple[SchedulerWorker, ...] = ()
    shuffles: tuple[Shuffle, ...] = ()
    notes: tuple[Note, ...] = ()  # new since the last observation
    pins_expired: Mapping[str, int] = field(default_factory=dict)  # by source, this session
    redone: Mapping[str, int] = field(default_factory=dict)  # by cause, this session
    held: int = 0  # tasks that wait for a worker that lives longer
    expected_s: float = 0.0  # how long the longest of the unfinished tasks is expected to take
    queued: int = 0
    processing: int = 0
    relief: tuple[ReliefState, ...] = ()
    #: Dask's configuration in force, for keys that the policy sets: a value's JSON by key, without
    #: those that have no value. None: nobody there can say.
    config: tuple[tuple[str, str], ...] | None = None
    serialized: Serialized | None = None  # None: not measured
    demand: Demand | None = None  # None: the agent can't say, or was not asked
    wants: tuple[Want, ...] = ()
    quiet: Quiet = field(default_factory=Quiet)
    results: int = 0  # bytes of results in memory of workers, each counted once a copy
    unanswered: int = 0  # questions in a row, this one included, that it did not answer

    @property
    def is_connected(self) -> bool:
        return self.problem is None

    @property
    def lacks_agent(self) -> bool:
        """It answers, but only the agent knows what a worker is needed for."""
        return self.problem in (
            Reason.AGENT_MISSING, Reason.AGENT_INVALID, Reason.INJECTION_REFUSED
        )  # fmt: skip


@row
class PlatformWorker:
    """One worker as the platform knows it: a Deployment and its pod, or a local process."""

    name: str
    uid: str
    group: str
    made_at: float  # seconds since 1970, as all its instants
    pod: str = ""
    pod_uid: str = ""
    pod_made_at: float = 0.0  # that of the Deployment, where nothing is known of a pod
    deleting: bool = False  # deletion has begun
    addresses: tuple[str, ...] = ()  # IPs, to match workers that are named by address
    waiting: str = ""  # why its pod does not run, in the platform's words; empty: it runs
    node: str = ""  # the machine under it; empty: none, or not known
    node_terminating: str = ""  # not empty: that machine is about to go; who says so
    manual_pin: ManualPin | None = None
    ends_at: float = math.inf  # by its pod's deadline, or an annotation
    annotation_problem: str = ""  # not empty: what can't be read, and how to correct it
    recycle_request: str = ""  # not empty: somebody wants it replaced; who
    drift: str = ""  # not empty: what differs from what its group asks for by now
    unscheduled_at: float | None = None  # since then no node has had room for its pod
    refused: str = ""  # not empty: its pod can't even be made (quota, admission); who says so
    gated: bool = False  # somebody is yet to admit its pod: no node is looked for

    @property
    def is_held_up(self) -> bool:
        """There is no telling when it comes."""
        return self.gated or bool(self.refused) or self.unscheduled_at is not None


@dataclass(frozen=True, slots=True)
class TerminatingPod:
    """A worker's pod that is being deleted, by whoever's decision. Its Deployment may stay."""

    worker: str
    pod: str
    addresses: tuple[str, ...]  # its IPs, none of them another pod's
    left_s: float  # until it is killed
    dask_names: tuple[str, ...] = ()  # addresses of the Dask workers that are still in it
    known_left_s: float = math.inf  # what the agent knows of `left_s`; infinite: nothing
    manual_pin: ManualPin | None = None  # a person's, on it or above it


@dataclass(frozen=True, slots=True)
class PlacedCluster:
    """The platform's part of a cluster, without groups and workers."""

    found: bool = True
    conflict: str = ""  # somebody else scales this cluster: who, and how to mend it
    at: float = 0.0  # seconds since 1970, when this was seen
    pause: Pause = NO_PAUSE
    uid: str = ""  # of the cluster
    losses: tuple[str, ...] = ()  # what can't be seen there, and what is not done for want of it
    changes_in_s: float = math.inf  # until an annotation means something else by itself


@dataclass(frozen=True, slots=True)
class PlatformView(PlacedCluster):
    """All that the platform knows of one cluster."""

    groups: tuple[ObservedGroup, ...] = ()  # without their workers
    workers: tuple[PlatformWorker, ...] = ()
    terminating: tuple[TerminatingPod, ...] = ()


@dataclass(frozen=True, slots=True)
class Pending:
    """A worker is not connected: it starts, or its process has ended and the next one comes."""

    terminating: str = ""  # see `ObservedWorker.terminating`


@dataclass(frozen=True, slots=True)
class Serving:
    """A worker is connected, and nobody is closing it."""


@dataclass(frozen=True, slots=True)
class Retiring:
    """The agent retires a worker on our behalf."""

    reason: Reason | None = None  # None: not known to this version
    message: str = ""
    is_drained: bool = False  # no task, no last copy; it may be deleted

    @property
    def word(self) -> str:
        return "drained" if self.is_drained else "draining"


@dataclass(frozen=True, slots=True)
class Closing:
    """Somebody else closes a worker."""


@dataclass(frozen=True, slots=True)
class Deleting:
    """The deletion of a worker's Deployment has begun."""


#: Where a worker stands between its Deployment's creation and deletion: one of these at a time.
Lifecycle: TypeAlias = Pending | Serving | Retiring | Closing | Deleting


@row
class ObservedWorker:
    """
    One worker: a Deployment joined with the Dask workers that run in it.

    A Deployment of `--nworkers 2` has two Dask workers that come and go together: in `process`
    counts and bytes are their sums, `idle_since` is that of the one that worked last.

    Instants are on one of the two clocks of `Clocks`: an unchanged worker stays the same value.
    """

    name: str  # that of its Deployment
    platform: PlatformWorker
    process: SchedulerWorker = NOBODY  # that of its Dask workers, see above
    dask_names: tuple[str, ...] = ()  # empty: not connected
    lifecycle: Lifecycle = Serving()

    @property
    def is_connected(self) -> bool:
        return bool(self.dask_names)

    @property
    def idle_since(self) -> float:
        """On the scheduler's clock; infinite: it is busy, or not connected."""
        return math.inf if self.process.processing else self.process.idle_since

    @property
    def use(self) -> Use:
        return self.process.use

    @property
    def waiting(self) -> str:
        """Why it is not connected, in the platform's words; empty: nothing is known."""
        ending = f"its pod is ending: {self.terminating}" if self.terminating else ""
        return self.platform.waiting or ending

    @property
    def absence(self) -> tuple[Reason, str]:
        """Why it is not connected; one that is gated may have been."""
        reason = Reason.ADMISSION_GATED if self.platform.gated else Reason.NEVER_CONNECTED
        return reason, self.waiting or "starting"

    @property
    def has_end(self) -> bool:
        """Others have set an end for it."""
        return self.platform.ends_at < math.inf or self.process.lifetime_ends_at < math.inf

    @property
    def takes_tasks(self) -> bool:
        """It is of use for new work."""
        process = self.process
        return process.cordon is None and not process.too_short and not process.is_paused

    @property
    def retiring(self) -> Retiring | None:
        return self.lifecycle if isinstance(self.lifecycle, Retiring) else None

    @property
    def retires_for(self) -> Reason | None:
        return self.lifecycle.reason if isinstance(self.lifecycle, Retiring) else None

    @property
    def is_replaced(self) -> bool:
        """It is retiring to make room for another."""
        return self.retires_for is not None and self.retires_for.replaces

    @property
    def is_draining(self) -> bool:
        return isinstance(self.lifecycle, Retiring) and not self.lifecycle.is_drained

    @property
    def is_drained(self) -> bool:
        return isinstance(self.lifecycle, Retiring) and self.lifecycle.is_drained

    @property
    def terminating(self) -> str:
        """Not empty: its last process is about to end, and the next comes; what it waits for."""
        return self.lifecycle.terminating if isinstance(self.lifecycle, Pending) else ""

    @property
    def is_deleting(self) -> bool:
        return isinstance(self.lifecycle, Deleting)

    @property
    def is_pinned(self) -> bool:
        return bool(self.process.pins) or self.platform.manual_pin is not None


@dataclass(frozen=True, slots=True)
class Clocks:
    """
    One instant on both clocks, for durations: those change all the time, so nobody stores them.

    Neither clock is converted to the other, which would give another value each time.
    """

    platform: float = 0.0  # seconds since 1970: `ObservedCluster.at`
    scheduler: float = 0.0  # `ObservedScheduler.at`

    def age_s(self, worker: ObservedWorker) -> float:
        return max(0.0, self.platform - worker.platform.made_at)

    def pod_age_s(self, worker: ObservedWorker) -> float:
        age_s = self.platform - worker.platform.pod_made_at
        return age_s if age_s > 0.0 else 0.0  # `max` takes longer, and of all workers this is asked

    def idle_s(self, worker: ObservedWorker) -> float:
        """For how long it has had no task; 0: it has one, or is not connected."""
        return max(0.0, self.scheduler - worker.idle_since)

    def unplaced_s(self, worker: ObservedWorker) -> float:
        """For how long no node has had room for its pod; negatively infinite: that is not so."""
        since = worker.platform.unscheduled_at
        return -math.inf if since is None else self.platform - since

    def ends_in_s(self, worker: ObservedWorker) -> float:
        """Until the end that others have set for it; negative: it is overdue."""
        left_s = worker.platform.ends_at - self.platform
        return min(left_s, worker.process.lifetime_ends_at - self.scheduler)


@dataclass(frozen=True, slots=True)
class ObservedGroup:
    """One worker group: what is asked for, and what is there."""

    name: str
    replicas: int  # asked for: spec.worker.replicas
    workers: tuple[ObservedWorker, ...] = ()
    handled: int | None = None  # the number that upstream has acted on last; None: unknown
    room: Room | None = None  # what the namespace's quotas leave for more workers; None: no quota
    allowance: Allowance | None = None  # its part of what it shares; None: it shares nothing
    threads: int = 0  # of one worker, by its command line or CPU limit; 0: unknown
    resources: tuple[tuple[str, float], ...] = ()  # Dask's, that one worker offers, as started


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedCluster(PlacedCluster):
    """One cluster, platform and scheduler joined."""

    key: ClusterKey
    groups: tuple[ObservedGroup, ...] = ()
    scheduler: ObservedScheduler = ObservedScheduler()
    strangers: tuple[str, ...] = ()  # Dask workers that belong to no Deployment of the cluster
    terminating: tuple[TerminatingPod, ...] = ()

    @property
    def clocks(self) -> Clocks:
        return Clocks(self.at, self.scheduler.at)

    def group(self, name: str) -> ObservedGroup | None:
        return next((g for g in self.groups if g.name == name), None)
