"""Computes with work and workers: threads needed, workers available, workers to add."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from dask_adaptive.model.amounts import counted
from dask_adaptive.model.observed import (
    Clocks,
    Demand,
    Need,
    ObservedCluster,
    ObservedGroup,
    ObservedWorker,
    Pending,
    PrefixWork,
    SchedulerWorker,
    Serving,
    WorkerTable,
)
from dask_adaptive.model.past import Past
from dask_adaptive.model.recycle import RecyclePast
from dask_adaptive.model.scaling import GroupBounds
from dask_adaptive.planner.context import PassContext, scaled_groups

#: Fraction of a thread whose lack goes unnoticed. Of a worker's own threads it is whole tasks, and
#: a lasting one would wait forever.
SLACK = 0.25

#: Threads needed at an instant, from (seconds from now, thread-seconds available until then).
ThreadsNeeded = Callable[[float, float], float]

#: A worker that connects this long after its creation was delayed by more than its start.
TOO_LONG_S = 3600.0

#: Time within which a new Deployment is seen: without a watch, the interval of passes.
SEEN_S = 60.0

#: Weight of the newest start in the average. A replacement that is requested too late costs
#: capacity or overruns quotas; one too early costs only its idle seconds.
SLOWER, FASTER = 0.6, 0.15

#: Time before the Deployment is created and after its worker has connected: a pass of ours,
#: upstream's turn, another pass.
OVERHEAD_S = 3.0

#: Assumed before any start was measured. It is short: a worker that is not requested is never
#: measured.
ASSUMED_S = 3.0

#: Assumed time of a replacement before any was measured (`RecyclePast.ready_s`).
READY_S = RecyclePast().ready_s

_STAYING = (Serving, Pending)

_Known = TypeVar("_Known", float, "float | None")

#: The time that a running task has taken goes on in steps of at least so many seconds: shorter
#: ones where it is all that is known of how long such tasks take. Powers of 2, as all steps.
UNKNOWN_STEP_S, KNOWN_STEP_S = 1.0, 4.0

#: A task that waits for at least this fraction of the tasks before it counts as waiting for all.
BARRIER = 0.5


@dataclass(frozen=True, slots=True)
class Part:
    """Tasks of one kind that can begin at about the same time."""

    seconds: float  # seconds of work for a single thread
    width: float  # threads that it can use
    level: int = 0
    begins_s: float = 0.0  # from now; infinite: unknown


def parts_of(demand: Demand, *, threads: int, duration_s: float) -> tuple[Part, ...]:
    """
    Return all unrestricted work, by kind.

    Args:
        threads: Of connected workers: so many tasks run, others that are assigned have not begun.
        duration_s: `target.duration`: in which time work is to be done once workers are there.
    """
    rows = [_lasting(r, demand.age_s) for r in demand.prefixes if r.unfinished > 0]
    flow = sum(row.running + row.ready for row in rows)
    known: list[Part] = []
    previous: list[tuple[PrefixWork, Part]] = []
    begins_s = 0.0
    for level in sorted({row.level for row in rows}):
        here: list[tuple[PrefixWork, Part]] = []
        for row in (r for r in rows if r.level == level):
            starts_s = begins_s + _held_up_s(row, previous, demand.unknown_s, threads, duration_s)
            here.append((row, _part(row, demand.unknown_s, threads, flow, starts_s)))
        known += [part for _, part in here]
        begins_s = min(part.begins_s for _, part in here)
        previous = here
    return tuple(part for part in known if part.seconds > 0)


def stepped_s(row: PrefixWork, age_s: float) -> tuple[float, float]:
    """
    Return the assumed duration of a kind's longest running task, and the seconds to its next step.
    """
    lasts_s = row.longest_s + age_s
    shortest_s = UNKNOWN_STEP_S if row.mean_s is None else KNOWN_STEP_S
    step_s = max(shortest_s, 2.0 ** (math.frexp(lasts_s)[1] - 4))
    stepped = step_s * math.floor(lasts_s / step_s)
    return stepped, stepped + step_s - lasts_s


def _lasting(row: PrefixWork, age_s: float) -> PrefixWork:
    """
    Age the same work by some time in which no task has ended.

    The time that the longest task has taken goes on in steps of an eighth to a sixteenth: it is no
    more than a hint at its end, and a task of hours need not be looked at each second.
    """
    if not row.running or age_s <= 0:
        return row
    return replace(row, longest_s=max(row.longest_s, stepped_s(row, age_s)[0]))


def left_after(parts: Iterable[Part], at_s: float, thread_seconds: float) -> tuple[Part, ...]:
    """Return the work left at `at_s`, after so many thread-seconds were spent on it."""
    pairs = [(p, min(p.seconds, p.width * max(0.0, at_s - p.begins_s))) for p in parts]
    total = sum(could for _, could in pairs)
    share = min(1.0, thread_seconds / total) if total else 0.0
    return tuple(
        replace(p, seconds=p.seconds - could * share, begins_s=max(0.0, p.begins_s - at_s))
        for p, could in pairs
    )


def threads_for(parts: Sequence[Part], duration_s: float) -> float:
    """
    Return the threads that finish the work within `duration_s`, or as near to it as possible.

    Never more than can run at once: of one kind no more than its width, of all kinds no more than
    the widest level, because tasks behind each other do not run at the same time.
    """
    soon = [p for p in parts if p.begins_s <= duration_s and p.seconds > 0]
    needed = sum(min(p.width, p.seconds / duration_s) for p in soon)
    return min(needed, widest_level(soon))


def widest_level(parts: Sequence[Part]) -> float:
    """Return the most threads that tasks without dependencies on each other keep busy."""
    by_level: dict[int, float] = {}
    for part in parts:
        by_level[part.level] = by_level.get(part.level, 0.0) + part.width
    return max(by_level.values(), default=0.0)


def expected_s(row: PrefixWork, unknown_s: float) -> float:
    """
    Return the expected duration of one run of a kind.

    Without a finished run it is what the scheduler assumes, and twice what the longest has taken
    so far: half-way through is the best guess for something nobody has seen the end of.
    """
    if row.mean_s is not None:
        return max(row.mean_s, 0.001)
    return max(unknown_s, 2 * row.longest_s, 0.001)


def running_s(row: PrefixWork, unknown_s: float, threads: int) -> float:
    """Return the seconds of work left in a kind's assigned tasks."""
    each_s = expected_s(row, unknown_s)
    begun = min(row.running, max(threads, 1))
    waiting_s = (row.running - begun) * each_s
    if row.mean_s is None:
        return waiting_s + begun * max(unknown_s, row.longest_s)
    # They began one after another, the first of them `longest_s` ago.
    lasts_s = row.longest_s * (1 + 1 / max(begun, 1)) / 2
    left_s = begun * (each_s - lasts_s if lasts_s < each_s else each_s / 2)
    if row.running and row.longest_s > 1.5 * each_s:
        left_s += row.longest_s  # a task far beyond the mean takes as long again
    return waiting_s + left_s


def _part(row: PrefixWork, unknown_s: float, threads: int, flow: int, begins_s: float) -> Part:
    each_s = expected_s(row, unknown_s)
    seconds = running_s(row, unknown_s, threads) + (row.ready + row.waiting) * each_s
    free = 1 - min(1.0, row.bound / row.unfinished)
    return Part(seconds * free, _width(row, flow) * free, row.level, begins_s)


def _width(row: PrefixWork, flow: int) -> float:
    if row.width is not None:
        return max(min(row.width, row.unfinished), row.running + row.ready, 1)
    # Dependencies are unknown: waiting tasks can run about as wide as there are tasks before them.
    # For a chain that is one, for a map behind a source all of it.
    return max(min(row.unfinished, flow), 1)


def _held_up_s(
    row: PrefixWork, before: Sequence[tuple[PrefixWork, Part]], unknown_s: float,
    threads: int, duration_s: float,
) -> float:  # fmt: skip
    """Return the seconds between the earliest starts of the previous level and of this kind."""
    if not before:
        return 0.0
    first_s = min(_first_s(r, unknown_s) for r, _ in before)
    tasks = sum(r.unfinished for r, _ in before)
    if row.fan_in / tasks < BARRIER:
        return first_s
    if any(r.mean_s is None for r, _ in before):
        return math.inf  # it may take a second or a day
    every = [p for _, p in before]
    could = max(threads, threads_for([replace(p, begins_s=0.0) for p in every], duration_s), 1.0)
    lasting = [p.seconds / min(could, p.width) for p in every if p.seconds > 0]
    return max([first_s, sum(p.seconds for p in every) / could, *lasting])


def _first_s(row: PrefixWork, unknown_s: float) -> float:
    """Return the seconds until the first task of a kind ends."""
    each_s = expected_s(row, unknown_s)
    if row.mean_s is None:
        return unknown_s
    return max(each_s - row.longest_s, 0.0) if row.running else each_s


@dataclass(frozen=True, slots=True)
class Supply:
    """One scaled worker group."""

    name: str
    maximum: int
    priority: int
    threads: float  # of one worker
    connected: int  # in service
    busy: int  # of them: those that have tasks
    pending: tuple[float, ...]  # seconds until each is expected, the soonest first
    arrival_s: float  # start time of a worker requested now
    is_assumed: bool = False  # true until one was measured
    grows: bool = True  # True if workers are added, not only kept
    stuck: float = 0.0  # threads of connected workers that can take no task now

    @property
    def free(self) -> float:
        """Threads that can take a task now, or once their running task ends."""
        return max(0.0, self.connected * self.threads - self.stuck)

    @property
    def serving(self) -> int:
        return self.connected + len(self.pending)


def supplies(context: PassContext) -> tuple[Supply, ...]:
    """Return the scaled groups, in the order in which they grow."""
    default, groups = context.default_group, scaled_groups(context.observed, context.policy)
    clocks = context.clocks
    every = [_supply(bounds, group, context.past, clocks) for group, bounds in groups]
    return tuple(sorted(every, key=lambda s: (-s.priority, s.name != default, s.name)))


def _supply(bounds: GroupBounds, group: ObservedGroup, past: Past, clocks: Clocks) -> Supply:
    usual, notable = group.table.usual, group.table.notable
    there = [w for w in notable if isinstance(w.lifecycle, _STAYING)]
    connected = [w for w in there if w.dask_names]
    arrival_s = arrival_of(past, group.name)
    pending = [_comes_in_s(w, arrival_s, clocks) for w in there if not w.dask_names]
    return Supply(
        name=group.name,
        maximum=bounds.maximum,
        priority=bounds.priority,
        threads=threads_of(group),
        connected=usual.workers + len(connected),
        busy=usual.busy + sum(w.process.processing > 0 for w in connected),
        pending=tuple(sorted(pending)),
        arrival_s=arrival_s,
        is_assumed=is_assumed(past, group.name),
        stuck=float(sum(w.process.stuck for w in connected)),
    )


def is_assumed(past: Past, group: str) -> bool:
    """True if the start time of workers has not been measured."""
    return not past.of(group).starts and past.recycle.ready_s == READY_S


def arrival_of(past: Past, group: str) -> float:
    """Return the seconds that a worker takes to start if requested now."""
    known_s = ASSUMED_S if is_assumed(past, group) else past.recycle.ready_s
    measured_s = past.of(group).arrival_s
    return max(0.0, known_s if measured_s is None else measured_s)


def _comes_in_s(worker: ObservedWorker, arrival_s: float, clocks: Clocks) -> float:
    """Return whole seconds, so that thousands requested together arrive at one instant."""
    if worker.platform.is_held_up:
        return arrival_s  # it arrives no later than a new one
    age_s = clocks.pod_age_s(worker) or clocks.age_s(worker)
    # A late worker is expected to be as late again: this cannot be predicted, and is no reason to
    # request another.
    return float(round(min(abs(arrival_s - age_s), arrival_s)))


def threads_of(group: ObservedGroup) -> float:
    """Return the threads of one worker: measured, configured, or one."""
    usual = group.table.usual
    notable = [w.process.nthreads for w in group.table.notable if w.process.nthreads > 0]
    known = usual.workers + len(notable)
    return (usual.threads + sum(notable)) / known if known else float(max(group.threads, 1))


def other_threads(observed: ObservedCluster, every: Sequence[Supply]) -> int:
    """Count threads of connected workers in unscaled groups."""
    return sum(w.nthreads - w.stuck for w in serving_elsewhere(observed, [s.name for s in every]))


def serving_elsewhere(
    observed: ObservedCluster, groups: Collection[str]
) -> Iterator[SchedulerWorker]:
    """Count serving Dask workers that belong to no scaled group."""
    ours = _dask_names(observed, groups)
    for worker in observed.scheduler.workers:
        if worker.name not in ours and worker.retiring is None and not worker.terminating:
            yield worker


def _dask_names(observed: ObservedCluster, groups: Collection[str]) -> Collection[str]:
    every = [g.table.owners for g in observed.groups if g.name in groups]
    return every[0] if len(every) == 1 else set().union(*every)  # to copy thousands takes a while


def fill(every: Sequence[Supply], need: ThreadsNeeded, *, other: float) -> dict[str, int]:
    """
    Assign the needed threads to workers: existing, then expected, then new ones; each kind in the
    order of the groups.

    A worker counts from the instant on at which it is expected: what those before it have done by
    then is done, and if nothing is left for it, it is not needed.
    """
    connected = other + sum(s.free for s in every)
    coming = sorted((at, s.threads, s.name) for s in every for at in s.pending)
    needs = _needs(every, need, connected, coming)

    wanted: dict[str, int] = {}
    left = max(needs.values()) - other
    for one in every:
        # Which worker is stuck is unknown here: keep all while any is needed.
        stuck = one.stuck if left > 0 else 0.0
        wanted[one.name] = min(one.connected, _workers(left + stuck, one.threads))
        left -= max(0.0, wanted[one.name] * one.threads - stuck)
    there = connected
    for at, threads, name in coming:
        needed = max(n for t, n in needs.items() if t >= at)
        # With no worker at all, the first one is kept until it has connected, however little work
        # there is.
        if not _workers(needed - there, threads, or_one=not there):
            break
        wanted[name] += 1
        there += threads
    for one in every:
        if not one.grows or wanted[one.name] < one.serving:
            continue
        more = _workers(needs[one.arrival_s] - there, one.threads, or_one=not there)
        more = max(0, min(more, one.maximum - wanted[one.name]))
        wanted[one.name] += more
        there += more * one.threads
    return wanted


def _needs(
    every: Sequence[Supply],
    need: ThreadsNeeded,
    connected: float,
    coming: Sequence[tuple[float, float, str]],
) -> Mapping[float, float]:
    """Return the threads needed at each relevant instant."""
    instants = {0.0, *(at for at, _, _ in coming), *(s.arrival_s for s in every)}
    return {
        t: need(t, connected * t + sum(max(0.0, t - at) * n for at, n, _ in coming))
        for t in instants
    }


def _workers(threads: float, each: float, *, or_one: bool = False) -> int:
    if threads <= 0:
        return 0
    return max(math.ceil((threads - SLACK) / each), int(or_one))


@dataclass(frozen=True, slots=True)
class Bound:
    """The workers that restricted tasks need."""

    workers: Mapping[str, int]  # needed for them, by group
    messages: Mapping[str, str] = field(default_factory=dict)  # by group
    nobody: str = ""  # not empty: tasks that no group which is scaled can run


def bound_workers(
    observed: ObservedCluster, every: Sequence[Supply], demand: Demand, duration_s: float
) -> Bound:
    """Return each group's workers for tasks that only they may run."""
    workers = dict.fromkeys((s.name for s in every), 0)
    kinds: dict[str, list[str]] = {}
    nobody: list[str] = []
    # Waiting tasks need no workers yet: it may take hours until they can run.
    for need in (n for n in demand.needs if n.tasks > 0 and is_strict(n)):
        message = f"{counted(need.tasks, 'task')} in need of {described(need)}"
        able = [a for s in every if (a := _able(observed, s, need)) is not None]
        able = [replace(s, maximum=max(0, s.maximum - workers[s.name])) for s in able]
        # So many of them run at once on workers of unscaled groups.
        other = float(len(set(need.able).difference(_dask_names(observed, workers))))
        if not able and not other:
            nobody.append(f"{message}, which no worker of a scaled group has")
        for name, number in _shares(able, need, duration_s, other).items():
            if number:
                workers[name] += number
                kinds.setdefault(name, []).append(message)
    return Bound(workers, {n: ", ".join(k[:3]) for n, k in kinds.items()}, "; ".join(nobody[:3]))


def _shares(
    able: Sequence[Supply], need: Need, duration_s: float, other: float
) -> Mapping[str, int]:
    if not able:
        return {}
    part = Part(max(need.seconds, 0.001), need.tasks)

    def threads(at_s: float, done: float) -> float:
        return threads_for(left_after([part], at_s, done), duration_s)

    return fill(able, threads, other=other)


def is_strict(need: Need) -> bool:
    """Distinguish a need from a preference: `allow_other_workers` relaxes all but resources."""
    return bool(need.resources) or (bool(need.workers or need.hosts) and not need.loose)


def described(need: Need) -> str:
    parts = [f"{name}={amount:g}" for name, amount in sorted(need.resources.items())]
    if not need.loose:
        named = [*need.workers, *need.hosts]
        if named:
            parts.append("one of " + ", ".join(named[:3]) + (", …" if len(named) > 3 else ""))
    return " and ".join(parts)


def _able(observed: ObservedCluster, supply: Supply, need: Need) -> Supply | None:
    """Return the group's capacity for a need: how many such tasks one worker runs at once."""
    group = observed.group(supply.name)
    at_once = None if group is None else _at_once(group, supply, need)
    if group is None or at_once is None:
        return None
    named = [*need.workers, *need.hosts]
    if not named or need.loose or group.name in named:
        stuck = supply.stuck * at_once / supply.threads
        return replace(supply, threads=at_once, stuck=stuck)
    # A named worker is unique: another one of its group does not help.
    here = _named(group, named)
    if not here:
        return None
    return replace(
        supply, threads=at_once, connected=min(supply.connected, here), pending=(), grows=False,
        stuck=0.0,
    )  # fmt: skip


def _at_once(group: ObservedGroup, supply: Supply, need: Need) -> float | None:
    offered = dict(group.resources)
    requests = {name: amount for name, amount in need.resources.items() if amount > 0}
    if all(offered.get(name, 0.0) >= amount for name, amount in requests.items()):
        fits = (math.floor(offered[name] / amount) for name, amount in requests.items())
        return float(max(1, min([math.floor(supply.threads), *fits])))
    # Its workers' resources are unknown, and some may run such tasks.
    return None if group.table.owners.keys().isdisjoint(need.able) else 1.0


def _named(group: ObservedGroup, names: Collection[str]) -> int:
    return sum(
        w.name in names or any(name in names for name in w.dask_names)
        for w in group.workers
        if w.is_connected
    )


def arrival_s(known_s: _Known, new: Iterable[float]) -> _Known:
    """
    Return the seconds from requesting a worker until it serves, after `starts`; None: unknown.
    """
    for took_s in new:
        if known_s is None:
            known_s = took_s
        else:
            known_s += (SLOWER if took_s > known_s else FASTER) * (took_s - known_s)
    return known_s


def starts(past: Past, workers: WorkerTable, clocks: Clocks, *, now: float) -> list[float]:
    """
    Measure the seconds from requesting each newly connected worker until it serves.

    Only first pods count: of workers that an earlier pass has waited for, and of those that the
    first pass has found, the ones that joined soon after they were made. Any other may be in its
    second pod, or have met its second scheduler.

    Args:
        now: Our own clock, as `past.awaited`.
    """
    ages = []
    for worker in workers.unseen(past.seen):
        joined_at = worker.process.joined_at
        age_s = clocks.age_s(worker) - (0.0 if joined_at is None else clocks.scheduler - joined_at)
        if worker.name in past.awaited:
            ages.append(_watched_s(worker, past, age_s, now=now))
        elif joined_at is not None and age_s < SEEN_S:
            ages.append(max(0.0, age_s))
    return [age_s + OVERHEAD_S for age_s in ages if age_s < TOO_LONG_S]


def _watched_s(worker: ObservedWorker, past: Past, age_s: float, *, now: float) -> float:
    """Bound a time of the platform's clock, which may be wrong, by our own."""
    watched_s = now - past.awaited.get(worker.name, now)
    return max(0.0, min(age_s, watched_s + SEEN_S))


def at_least_as_long(
    known_s: float | None, past: Past, workers: Iterable[ObservedWorker], clocks: Clocks,
    *, now: float,
) -> float | None:  # fmt: skip
    """
    Return the same time, but at least what expected workers have already taken.

    Workers that take longer than anybody has measured would otherwise be given up again and again
    before the first of them has come.
    """
    made = [
        (w, clocks.age_s(w))
        for w in workers
        if not (w.dask_names or w.is_deleting or w.platform.is_held_up or w.name in past.seen)
    ]
    ages = [_watched_s(w, past, age_s, now=now) for w, age_s in made if age_s < TOO_LONG_S]
    longest_s = max(ages, default=0.0) + OVERHEAD_S
    return longest_s if longest_s > (ASSUMED_S if known_s is None else known_s) else known_s
