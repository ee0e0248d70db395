"""How the tasks that wait hang together, told from a sample of them: width, level and fan-in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskPrefix, TaskState

#: Tasks that one look passes over at most, and those that wait that it takes of them.
PASSED, TAKEN = 8_000, 500

#: A sample is kept so long.
KEPT_S = 10.0

#: Of the tasks that one waits for, so many are looked at.
FEW = 16

#: Counts of unfinished tasks by prefix: (running, ready, waiting).
Counts = Mapping["TaskPrefix", "tuple[int, int, int]"]


class Shape(NamedTuple):
    """What becomes of one prefix's tasks."""

    width: int  # so many can run at once
    level: int  # so many kinds of tasks, one after the other, come first
    fan_in: float  # unfinished tasks of other kinds that one waits for, on average


class _Sampled:
    """Tasks of one prefix that wait."""

    __slots__ = ("before", "bound", "n", "others", "own", "waits")

    def __init__(self) -> None:
        self.n = 0
        self.before: set[TaskPrefix] = set()  # kinds that they wait for
        self.own: list[frozenset[TaskPrefix]] = []  # the same for each of them
        self.waits = 0  # for so many tasks, all together
        self.others = 0  # that wait for others than their own kind
        self.bound = 0  # only some workers may run them


class Sample:
    """One look at the tasks that wait."""

    def __init__(self, waiting: Iterable[TaskState]) -> None:
        self._by_prefix: dict[TaskPrefix, _Sampled] = {}
        self.bound: list[TaskState] = []  # those that only some workers may run
        for ts in waiting:
            self._take(ts)

    def _take(self, ts: TaskState) -> None:
        one = self._by_prefix.get(ts.prefix)
        if one is None:
            one = self._by_prefix[ts.prefix] = _Sampled()
        one.n += 1
        if is_bound(ts):
            one.bound += 1
            self.bound.append(ts)
        deps: Any = ts.waiting_on or ()
        few = deps if len(deps) <= FEW else islice(deps, FEW)
        kinds = frozenset([dep.prefix for dep in few])
        one.before |= kinds
        one.own.append(kinds)
        if kinds != {ts.prefix}:
            one.others += 1
            one.waits += len(deps)

    def part_of(self, ts: TaskState, waiting: int) -> float:
        """For how many tasks that wait one of the sample stands."""
        one = self._by_prefix.get(ts.prefix)
        return waiting / one.n if one is not None and one.n else 0.0

    def bound_of(self, prefix: TaskPrefix, waiting: int) -> int:
        """Tasks of a prefix that wait, and that only some workers may run."""
        one = self._by_prefix.get(prefix)
        return round(waiting * one.bound / one.n) if one is not None and one.bound else 0

    def shapes(self, counts: Counts) -> dict[TaskPrefix, Shape]:
        """
        What becomes of each kind.

        Kinds that wait for each other (a chain, a tree of one function) are one: of them only those
        that wait for none of these kinds can run next to those that can run already.
        """
        before = {p: {d for d in one.before if d in counts} for p, one in self._by_prefix.items()}
        # Of kinds that nobody was seen to wait in, nothing more is known than how many they are.
        shapes = {p: Shape(max(1, sum(n)), 0, 1.0) for p, n in counts.items() if p not in before}
        level = dict.fromkeys(shapes, 0)
        cycles = _Cycles(before).of(p for p in before if p in counts)
        for cycle in cycles:  # those that others wait for come first
            if not before.keys() >= cycle:
                continue
            behind = {d for p in cycle for d in before[p]} - cycle
            here = 1 + max([level[d] for d in behind], default=-1)
            for prefix in cycle:
                level[prefix] = here
            shapes.update(self._of_cycle(cycle, counts, here))
        return shapes

    def _of_cycle(
        self, cycle: set[TaskPrefix], counts: Counts, level: int
    ) -> dict[TaskPrefix, Shape]:
        shapes = {}
        for prefix in cycle:
            running, ready, waiting = counts[prefix]
            one = self._by_prefix[prefix]
            first = waiting * sum([cycle.isdisjoint(kinds) for kinds in one.own]) / one.n
            fan_in = one.waits / one.others if one.others else 1.0
            width = max(1, running + ready + round(first))
            shapes[prefix] = Shape(width, level, fan_in)
        return shapes


def is_bound(ts: TaskState) -> bool:
    """Whether only some workers may run a task."""
    return bool(ts.resource_restrictions or ts.worker_restrictions or ts.host_restrictions)


class Structure:
    """
    Looks at the tasks that wait, from another place each time.

    Passing over 100,000 tasks takes 4 ms, whatever is taken of them: so a sample is kept a while,
    unless more tasks wait than when it was taken.

    Args:
        clock: Seconds that never go backwards.
    """

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float]) -> None:
        self._scheduler: Any = scheduler
        self._clock = clock
        self._offset = 0
        self._kept: tuple[float, int, Sample] | None = None

    def look(self, waiting: int) -> Sample:
        """
        Args:
            waiting: How many tasks wait.
        """
        if not waiting:
            self._kept = None
            return Sample(())
        now = self._clock()
        if self._kept is not None:
            taken_at, waited, sample = self._kept
            if waiting <= waited and now - taken_at < KEPT_S:
                return sample
        sample = self._sampled()
        self._kept = now, waiting, sample
        return sample

    def _sampled(self) -> Sample:
        tasks = self._scheduler.tasks
        # Tasks of one kind often come every so many: an even step would see some kinds only.
        step = len(tasks) // PASSED | 1
        self._offset = (self._offset + 7919) % step
        passed = islice(tasks.values(), self._offset, None, step)
        found = [ts for ts in passed if ts.state == "waiting"]
        if len(found) > TAKEN:
            thin = len(found) // TAKEN | 1
            found = found[self._offset % thin :: thin]
        return Sample(found)


class _Cycles:
    """Strongly connected kinds, those that others wait for first (Tarjan's, without recursion)."""

    def __init__(self, before: Mapping[TaskPrefix, set[TaskPrefix]]) -> None:
        self._before = before
        self._index: dict[TaskPrefix, int] = {}
        self._low: dict[TaskPrefix, int] = {}
        self._stack: list[TaskPrefix] = []
        self._held: set[TaskPrefix] = set()
        self._path: list[tuple[TaskPrefix, Iterator[TaskPrefix]]] = []
        self.found: list[set[TaskPrefix]] = []

    def of(self, prefixes: Iterable[TaskPrefix]) -> list[set[TaskPrefix]]:
        for root in prefixes:
            if root not in self._index:
                self._enter(root)
            while self._path:
                self._step()
        return self.found

    def _enter(self, prefix: TaskPrefix) -> None:
        self._index[prefix] = self._low[prefix] = len(self._index)
        self._stack.append(prefix)
        self._held.add(prefix)
        self._path.append((prefix, iter(self._before.get(prefix, ()))))

    def _step(self) -> None:
        prefix, rest = self._path[-1]
        other = next(rest, None)
        if other is None:
            self._leave(prefix)
        elif other not in self._index:
            self._enter(other)
        elif other in self._held:
            self._low[prefix] = min(self._low[prefix], self._index[other])

    def _leave(self, prefix: TaskPrefix) -> None:
        self._path.pop()
        if self._path:
            above = self._path[-1][0]
            self._low[above] = min(self._low[above], self._low[prefix])
        if self._low[prefix] == self._index[prefix]:
            at = self._stack.index(prefix)
            cycle = set(self._stack[at:])
            del self._stack[at:]
            self._held -= cycle
            self.found.append(cycle)
