"""Declares one observation of a cluster, at one instant. Times are seconds, sizes are bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, compress, count
from operator import is_not
from typing import NamedTuple, TypeAlias, TypeVar, dataclass_transform

from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import UNUSED, Quota, Use
from dask_adaptive.model.scaling import NO_PAUSE, Allowance, Pause, Room

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def row(of: type[T]) -> type[T]:
    """
    Make a dataclass that only mypy treats as frozen. Each worker needs several per pass, and with
    30 fields a frozen one takes two and a half times as long to create.
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
    longest_s: float = 0.0  # how long its longest running task has run
    done: int = 0  # runs that have finished since the scheduler started
    # Dependencies of its tasks, sampled by the agent among those that wait.
    width: int | None = None  # how many can run at once; None: unknown
    level: int = 0  # kinds of tasks that come before; 0: it can begin now
    fan_in: float = 1.0  # unfinished tasks of other kinds that one of them waits for, on average
    bound: int = 0  # restricted to some workers (`Need`)

    @property
    def unfinished(self) -> int:
        return self.running + self.ready + self.waiting


@dataclass(frozen=True, slots=True)
class Need:
    """Tasks that only some workers may run. `Demand.prefixes` includes them."""

    tasks: int  # assigned, or without a worker
    seconds: float  # expected, of all of them
    resources: Mapping[str, float]  # requirement of each task
    workers: tuple[str, ...] = ()  # names or addresses; at most 50
    hosts: tuple[str, ...] = ()
    loose: bool = False  # allow_other_workers
    waiting: int = 0  # for other tasks, beyond `tasks`; `seconds` does not count them
    able: tuple[str, ...] = ()  # connected workers that may run them; at most 50


@dataclass(frozen=True, slots=True)
class UpcomingShuffle:
    """A P2P shuffle whose inputs are incomplete: its outputs have no workers yet."""

    inputs: int  # that have not finished
    outputs: int


@dataclass(frozen=True, slots=True)
class Want:
    """A minimum that a client's code requests, until its lease ends."""

    workers: int
    left_s: float
    owner: str
    group: str = ""  # empty: the default worker group


@dataclass(frozen=True, slots=True)
class Demand:
    """Everything that needs workers, at one instant."""

    prefixes: tuple[PrefixWork, ...] = ()  # at most 200; the rest is one row named "…"
    needs: tuple[Need, ...] = ()  # at most 50 kinds
    shuffles: tuple[UpcomingShuffle, ...] = ()
    incoming: float = 0.0  # recent recurring work, in seconds per second
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
    """Seconds for which the cluster has been unused. 0: it is in use."""

    no_task_s: float = 0.0
    no_client_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Pin:
    """One pin of a worker, as the scheduler's agent holds it."""

    source: str  # "shuffle" | "manual" | "client"
    owner: str
    reason: str
    until: float  # instants are on the clock of `ObservedScheduler.at`
    latest: float = 0.0  # latest end, with all renewals
    since: float = 0.0  # it was first set


@dataclass(frozen=True, slots=True)
class Note:
    """One event in the scheduler, to be reported once."""

    number: int  # ascending within a session
    kind: Reason
    message: str
    names: tuple[str, ...] = ()  # Dask workers that it is about


@dataclass(frozen=True, slots=True)
class ManualPin:
    """A pin that a person requested by annotation."""

    until: float  # seconds since 1970; not yet capped by the policy
    reason: str
    problem: str = ""  # not empty: the annotation could not be read, so it pins (fail safe)


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
    joined_at: float | None = field(default=None, compare=False)  # sent once; None: unknown
    closable: bool = False  # offered by workers_to_close
    actors: bool = False
    pins: tuple[Pin, ...] = ()
    retiring: Retiring | None = None  # by the agent
    terminating: str = ""  # not empty: its process is about to end; what it waits for
    terminates_at: float = math.inf  # it ends then in any case
    use: Use = UNUSED
    lifetime_ends_at: float = math.inf  # by Dask's own --lifetime
    cordon: Cordon | None = None  # the agent keeps new tasks from it
    too_short: bool = False  # gets no more tasks: it ends too soon for some of those that wait
    stuck: int = 0  # threads that have taken no task for seconds: paused, or held by cancelled runs

    @property
    def is_cordoned(self) -> bool:
        """True if the agent keeps new tasks from it, by the status of a closing worker."""
        return self.cordon is not None or self.too_short

    @property
    def is_paused(self) -> bool:
        """True if it starts no tasks and takes no data: Dask pauses workers short of memory."""
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
    """One relief of the scheduler, and its state."""

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
    """The scheduler's answer. If `problem` is not None, there is none; `message` says why."""

    problem: Reason | None = None
    message: str = ""
    at: float = 0.0  # instant of the observation, on a clock of the observer's
    followed: bool = False  # nothing has changed unnoticed since the previous observation
    session: str = ""
    distributed: str = ""
    agent: str = ""  # version
    tls_secret: str = ""  # Secret for TLS; empty: without TLS
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
    unanswered: int = 0  # consecutive unanswered requests, this one included

    @property
    def is_connected(self) -> bool:
        return self.problem is None

    @property
    def lacks_agent(self) -> bool:
        """
        True if the scheduler answers without an agent, which alone knows what workers are needed
        for.
        """
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
    node: str = ""  # its node; empty: none, or unknown
    node_terminating: str = ""  # signal that the node terminates; empty: it stays
    manual_pin: ManualPin | None = None
    ends_at: float = math.inf  # by its pod's deadline, or an annotation
    annotation_problem: str = ""  # problem of an annotation, with a fix; empty: none
    recycle_request: str = ""  # who requests its replacement; empty: nobody
    drift: str = ""  # difference from its group; empty: none
    unscheduled_at: float | None = None  # since when no node has room for its pod
    refused: str = ""  # why its pod is refused (quota, admission); empty: it is not
    gated: bool = False  # its pod waits for admission: no node is sought

    @property
    def is_held_up(self) -> bool:
        """True if its arrival cannot be predicted."""
        return self.gated or bool(self.refused) or self.unscheduled_at is not None


@dataclass(frozen=True, slots=True)
class TerminatingPod:
    """A worker's pod that is being deleted by anybody. Its Deployment may stay."""

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
    conflict: str = ""  # another autoscaler of this cluster, with a fix; empty: none
    at: float = 0.0  # seconds since 1970, when this was seen
    pause: Pause = NO_PAUSE
    uid: str = ""  # of the cluster
    losses: tuple[str, ...] = ()  # unreadable kinds, and the features that are off for it
    changes_in_s: float = math.inf  # until an annotation means something else by itself


@dataclass(frozen=True, slots=True)
class PlatformView(PlacedCluster):
    """The platform's state of one cluster."""

    groups: tuple[ObservedGroup, ...] = ()  # without their workers
    workers: tuple[PlatformWorker, ...] = ()
    terminating: tuple[TerminatingPod, ...] = ()


@dataclass(frozen=True, slots=True)
class Pending:
    """The worker is not connected: it starts, or its process has ended and the next one comes."""

    terminating: str = ""  # see `ObservedWorker.terminating`


@dataclass(frozen=True, slots=True)
class Serving:
    """The worker is connected and not closing."""


@dataclass(frozen=True, slots=True)
class Retiring:
    """The agent retires the worker on our behalf."""

    reason: Reason | None = None  # None: not known to this version
    message: str = ""
    is_drained: bool = False  # no task, no last copy; it may be deleted

    @property
    def word(self) -> str:
        return "drained" if self.is_drained else "draining"


@dataclass(frozen=True, slots=True)
class Closing:
    """Another party closes the worker."""


@dataclass(frozen=True, slots=True)
class Deleting:
    """The deletion of the worker's Deployment has begun."""


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
        """Instant on the scheduler's clock; infinite if busy or not connected."""
        return math.inf if self.process.processing else self.process.idle_since

    @property
    def use(self) -> Use:
        return self.process.use

    @property
    def waiting(self) -> str:
        """Why it is not connected, in the platform's words; empty if unknown."""
        ending = f"its pod is ending: {self.terminating}" if self.terminating else ""
        return self.platform.waiting or ending

    @property
    def absence(self) -> tuple[Reason, str]:
        """Reason and message of its absence; a gated worker may have been connected before."""
        reason = Reason.ADMISSION_GATED if self.platform.gated else Reason.NEVER_CONNECTED
        return reason, self.waiting or "starting"

    @property
    def has_end(self) -> bool:
        """True if its end was set elsewhere."""
        return self.platform.ends_at < math.inf or self.process.lifetime_ends_at < math.inf

    @property
    def takes_tasks(self) -> bool:
        """True if it can take new tasks."""
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
        """True if it is retiring to make room for a replacement."""
        return self.retires_for is not None and self.retires_for.replaces

    @property
    def is_draining(self) -> bool:
        return isinstance(self.lifecycle, Retiring) and not self.lifecycle.is_drained

    @property
    def is_drained(self) -> bool:
        return isinstance(self.lifecycle, Retiring) and self.lifecycle.is_drained

    @property
    def terminating(self) -> str:
        """
        What its last process waits for before it ends and the next one comes; empty: it does not
        end.
        """
        return self.lifecycle.terminating if isinstance(self.lifecycle, Pending) else ""

    @property
    def is_deleting(self) -> bool:
        return isinstance(self.lifecycle, Deleting)

    @property
    def is_pinned(self) -> bool:
        return bool(self.process.pins) or self.platform.manual_pin is not None

    @property
    def is_notable(self) -> bool:
        """
        True unless it serves and nobody has anything to say of it: of such a worker rules read only
        its name, figures and end.
        """
        platform, process = self.platform, self.process
        return not (
            self.dask_names
            and isinstance(self.lifecycle, Serving)
            and process.status == "running"
            and process.nthreads > 0
            and process.cordon is None
            and not (process.pins or process.stuck or process.too_short)
            and platform.manual_pin is None
            and not (platform.node_terminating or platform.annotation_problem)
            and not (platform.recycle_request or platform.drift)
        )


class Usual(NamedTuple):
    """The workers that are not notable, counted."""

    workers: int
    threads: int
    busy: int  # those that have tasks


class WorkerTable(tuple[ObservedWorker, ...]):
    """
    The workers of one group, in the order of the platform, with what rules ask of all of them.

    Few are notable, and a rule that looks for something else than numbers goes over those alone.
    Each property is computed once, and `after` carries it on, changed by the workers that differ.
    """

    @cached_property
    def positions(self) -> Mapping[str, int]:
        return {worker.name: i for i, worker in enumerate(self)}

    @cached_property
    def connected(self) -> frozenset[str]:
        """Names of the connected workers."""
        return frozenset(worker.name for worker in self if worker.dask_names)

    @cached_property
    def owners(self) -> Mapping[str, str]:
        """By Dask worker."""
        return {name: worker.name for worker in self for name in worker.dask_names}

    @cached_property
    def noted(self) -> Mapping[int, ObservedWorker]:
        """The notable workers, by position."""
        return {i: worker for i, worker in enumerate(self) if worker.is_notable}

    @cached_property
    def ends(self) -> Mapping[int, ObservedWorker]:
        """The workers with an end, by position."""
        return {i: worker for i, worker in enumerate(self) if worker.has_end}

    @cached_property
    def usual(self) -> Usual:
        return _counted(worker for i, worker in enumerate(self) if i not in self.noted)

    @property
    def notable(self) -> Collection[ObservedWorker]:
        return self.noted.values()

    def named(self, names: Iterable[str]) -> list[ObservedWorker]:
        """Return the workers of these names that exist."""
        return [self[i] for i in map(self.positions.get, names) if i is not None]

    def unseen(self, seen: frozenset[str]) -> list[ObservedWorker]:
        """Return the connected workers that have other names."""
        if self.connected is seen:  # nearly always
            return []
        return [self[i] for i in sorted(self.positions[n] for n in self.connected - seen)]

    def notable_and(self, names: Iterable[str]) -> list[ObservedWorker]:
        """Return the notable workers and those of these names, in their order."""
        others = (self.positions[worker.name] for worker in self.named(names))
        return [self[i] for i in sorted({*self.noted, *others})]

    def without(self, names: Iterable[str]) -> tuple[ObservedWorker, ...]:
        stays = bytearray(b"\1" * len(self))
        for name in names:
            stays[self.positions[name]] = 0
        return tuple(compress(self, stays))

    def after(self, rows: Sequence[ObservedWorker]) -> WorkerTable:
        """Return the table of these workers; it is quick if they are the same, with changes."""
        new = WorkerTable(rows)
        changed = {i: new[i] for i in differing(self, new)}
        before = [self[i] for i in changed]
        pairs = list(zip(before, changed.values(), strict=True))
        if len(self) != len(new) or any(a.name != b.name for a, b in pairs):
            return new
        new.positions = self.positions
        if all(a.dask_names == b.dask_names for a, b in pairs):
            new.connected, new.owners = self.connected, self.owners
        new.noted = _kept(self.noted, changed, lambda worker: worker.is_notable)
        new.ends = _kept(self.ends, changed, lambda worker: worker.has_end)
        left = _counted(self[i] for i in changed if i not in self.noted)
        come = _counted(worker for i, worker in changed.items() if i not in new.noted)
        new.usual = Usual(*(a - b + c for a, b, c in zip(self.usual, left, come, strict=True)))
        return new


def differing(before: Sequence[object], now: Sequence[object]) -> list[int]:
    """Return the positions at which there is another object than before."""
    return list(compress(count(), map(is_not, before, now)))


def _kept(
    known: Mapping[int, ObservedWorker],
    changed: Mapping[int, ObservedWorker],
    is_in: Callable[[ObservedWorker], bool],
) -> Mapping[int, ObservedWorker]:
    kept = {i: worker for i, worker in known.items() if i not in changed}
    kept |= {i: worker for i, worker in changed.items() if is_in(worker)}
    return dict(sorted(kept.items()))


def _counted(workers: Iterable[ObservedWorker]) -> Usual:
    processes = [worker.process for worker in workers]
    busy = sum(p.processing > 0 for p in processes)
    return Usual(len(processes), sum(p.nthreads for p in processes), busy)


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
        return age_s if age_s > 0.0 else 0.0  # `max` is slower, and this runs for every worker

    def idle_s(self, worker: ObservedWorker) -> float:
        """Return how long it has had no task; 0 if it has one, or is not connected."""
        return max(0.0, self.scheduler - worker.idle_since)

    def unplaced_s(self, worker: ObservedWorker) -> float:
        """Return how long its pod has had no node; negative infinity if it has one."""
        since = worker.platform.unscheduled_at
        return -math.inf if since is None else self.platform - since

    def ends_in_s(self, worker: ObservedWorker) -> float:
        """Return seconds until the end that others have set; negative: it is overdue."""
        left_s = worker.platform.ends_at - self.platform
        return min(left_s, worker.process.lifetime_ends_at - self.scheduler)


@dataclass(frozen=True, slots=True)
class ObservedGroup:
    """One worker group: its requested and existing workers."""

    name: str
    replicas: int  # asked for: spec.worker.replicas
    workers: tuple[ObservedWorker, ...] = ()
    handled: int | None = None  # the number that upstream has acted on last; None: unknown
    room: Room | None = None  # what the namespace's quotas leave for more workers; None: no quota
    allowance: Allowance | None = None  # its part of what it shares; None: it shares nothing
    threads: int = 0  # of one worker, by its command line or CPU limit; 0: unknown
    resources: tuple[tuple[str, float], ...] = ()  # Dask's, that one worker offers, as started
    table: WorkerTable = field(init=False, repr=False, compare=False)  # of `workers`

    def __post_init__(self) -> None:
        known = self.workers
        table = known if isinstance(known, WorkerTable) else WorkerTable(known)
        object.__setattr__(self, "table", table)


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

    @property
    def workers(self) -> Iterator[ObservedWorker]:
        """Those of all groups."""
        return chain.from_iterable(group.workers for group in self.groups)

    @property
    def notable(self) -> Iterator[ObservedWorker]:
        """Those of all groups, see `WorkerTable`."""
        return chain.from_iterable(group.table.notable for group in self.groups)

    @property
    def connected(self) -> frozenset[str]:
        """Names of the connected workers."""
        first, *others = [group.table.connected for group in self.groups] or [frozenset()]
        return first.union(*others) if others else first  # the same object, where it can be

    def worker(self, name: str) -> ObservedWorker | None:
        return next((w for group in self.groups for w in group.table.named([name])), None)

    def group(self, name: str) -> ObservedGroup | None:
        return next((g for g in self.groups if g.name == name), None)
