"""How much work there is, when it can begin, and how many threads it can keep busy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from dask_adaptive.model.demand import Demand, PrefixWork

#: Where each task waits for at least this part of those before it, it waits for all of them.
BARRIER = 0.5


@dataclass(frozen=True, slots=True)
class Part:
    """Tasks of one kind that can begin at about the same time."""

    seconds: float  # one thread alone would take so long
    width: float  # threads that it can keep busy
    level: int = 0
    begins_s: float = 0.0  # from now; infinite: nobody can tell


def parts_of(demand: Demand, *, threads: int, duration_s: float) -> tuple[Part, ...]:
    """
    All work that any worker may do, by kind.

    Args:
        demand: As the agent tells it.
        threads: Of the workers that are connected: so many tasks run, the rest of those that are
            assigned has not begun.
        duration_s: `target.duration`: in which time work is to be done once workers are there.
    """
    rows = [row for row in demand.prefixes if row.unfinished > 0]
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


def left_after(parts: Iterable[Part], at_s: float, thread_seconds: float) -> tuple[Part, ...]:
    """What is left of the work when so many thread-seconds were there for it until `at_s`."""
    pairs = [(p, min(p.seconds, p.width * max(0.0, at_s - p.begins_s))) for p in parts]
    total = sum(could for _, could in pairs)
    share = min(1.0, thread_seconds / total) if total else 0.0
    return tuple(
        replace(p, seconds=p.seconds - could * share, begins_s=max(0.0, p.begins_s - at_s))
        for p, could in pairs
    )


def threads_for(parts: Sequence[Part], duration_s: float) -> float:
    """
    Threads that the work needs to be done within `duration_s`, or as near to that as it can.

    Never more than can run at once: of one kind no more than its width, of all kinds no more than
    the widest level, because tasks behind each other do not run at the same time.
    """
    soon = [p for p in parts if p.begins_s <= duration_s and p.seconds > 0]
    needed = sum(min(p.width, p.seconds / duration_s) for p in soon)
    by_level: dict[int, float] = {}
    for part in soon:
        by_level[part.level] = by_level.get(part.level, 0.0) + part.width
    return min(needed, max(by_level.values(), default=0.0))


def expected_s(row: PrefixWork, unknown_s: float) -> float:
    """
    How long one run of a kind takes.

    Without a finished run it is what the scheduler assumes, and twice what the longest has taken
    so far: half-way through is the best guess for something nobody has seen the end of.
    """
    if row.mean_s is not None:
        return max(row.mean_s, 0.001)
    return max(unknown_s, 2 * row.longest_s, 0.001)


def running_s(row: PrefixWork, unknown_s: float, threads: int) -> float:
    """What is left of the tasks of a kind that are assigned to workers."""
    each_s = expected_s(row, unknown_s)
    begun = min(row.running, max(threads, 1))
    waiting_s = (row.running - begun) * each_s
    if row.mean_s is None:
        return waiting_s + begun * max(unknown_s, row.longest_s)
    # They began one after the other, the first of them `longest_s` ago.
    lasts_s = row.longest_s * (1 + 1 / max(begun, 1)) / 2
    left_s = begun * (each_s - lasts_s if lasts_s < each_s else each_s / 2)
    if row.running and row.longest_s > 1.5 * each_s:
        left_s += row.longest_s  # one that is far beyond the mean: as long again
    return waiting_s + left_s


def _part(row: PrefixWork, unknown_s: float, threads: int, flow: int, begins_s: float) -> Part:
    each_s = expected_s(row, unknown_s)
    seconds = running_s(row, unknown_s, threads) + (row.ready + row.waiting) * each_s
    free = 1 - min(1.0, row.bound / row.unfinished)
    return Part(seconds * free, _width(row, flow) * free, row.level, begins_s)


def _width(row: PrefixWork, flow: int) -> float:
    if row.width is not None:
        return max(min(row.width, row.unfinished), row.running + row.ready, 1)
    # Nobody looked how tasks hang together: those that wait can run about as wide as the tasks
    # before them are many. For a chain that is one, for a map behind a source all of it.
    return max(min(row.unfinished, flow), 1)


def _held_up_s(
    row: PrefixWork, before: Sequence[tuple[PrefixWork, Part]], unknown_s: float,
    threads: int, duration_s: float,
) -> float:  # fmt: skip
    """How long after the tasks of the level before could begin those of this kind can."""
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
    """When the first of them ends."""
    each_s = expected_s(row, unknown_s)
    if row.mean_s is None:
        return unknown_s
    return max(each_s - row.longest_s, 0.0) if row.running else each_s
