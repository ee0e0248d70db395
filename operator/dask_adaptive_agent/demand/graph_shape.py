"""The shape of the graph of waiting tasks, from a sample of them: width, level and fan-in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from distributed.scheduler import TaskPrefix, TaskState


#: Tasks that one look passes over at most, and those that wait that it takes of them.
PASSED, TAKEN = 8_000, 500

#: Tasks looked at of those that one waits for.
FEW = 16

#: Counts of unfinished tasks by prefix: (running, ready, waiting).
Counts = Mapping["TaskPrefix", "tuple[int, int, int]"]


#: The kinds that each kind waits for, or that wait for it.
Edges = Mapping["TaskPrefix", "AbstractSet[TaskPrefix]"]


class GraphShape(NamedTuple):
    """The place of one prefix's tasks in the graph."""

    width: int  # tasks that can run at once
    level: int  # kinds of tasks that come first, one after the other
    fan_in: float  # unfinished tasks of other kinds that one waits for, on average, to 0.001


@dataclass
class _Sampled:
    """Tasks of one prefix that wait."""

    #: Kinds that each of them waits for.
    before: list[frozenset[TaskPrefix]] = field(default_factory=list)
    waits: int = 0  # tasks that they wait for, all together
    others: int = 0  # that wait for others than their own kind
    bound: int = 0  # only some workers may run them


class WaitingSample:
    """One look at the tasks that wait."""

    def __init__(self, waiting: Iterable[TaskState]) -> None:
        self._by_prefix: dict[TaskPrefix, _Sampled] = {}
        self.bound: list[TaskState] = []  # those that only some workers may run
        for ts in waiting:
            self._take(ts)

    def _take(self, ts: TaskState) -> None:
        one = self._by_prefix.setdefault(ts.prefix, _Sampled())
        if is_bound(ts):
            one.bound += 1
            self.bound.append(ts)
        deps: Any = ts.waiting_on or ()
        few = deps if len(deps) <= FEW else islice(deps, FEW)
        kinds = frozenset([dep.prefix for dep in few])
        one.before.append(kinds)
        if kinds != {ts.prefix}:
            one.others += 1
            one.waits += len(deps)

    def part_of(self, ts: TaskState, waiting: int) -> float:
        """The number of waiting tasks that one of the sample represents."""
        one = self._by_prefix.get(ts.prefix)
        return waiting / len(one.before) if one is not None else 0.0

    def bound_of(self, prefix: TaskPrefix, waiting: int) -> int:
        """Tasks of a prefix that wait, and that only some workers may run."""
        one = self._by_prefix.get(prefix)
        return round(waiting * one.bound / len(one.before)) if one is not None else 0

    def shapes(self, counts: Counts) -> dict[TaskPrefix, GraphShape]:
        """
        The shape of each kind of task.

        Kinds that wait for each other (a chain, a tree of one function) are one: of them only those
        that wait for none of these kinds can run next to those that can run already.
        """
        before = {
            prefix: frozenset().union(*one.before) & counts.keys()
            for prefix, one in self._by_prefix.items()
        }
        # Of kinds that nobody was seen to wait in, nothing more is known than how many they are.
        shapes = {
            p: GraphShape(max(1, sum(n)), 0, 1.0) for p, n in counts.items() if p not in before
        }
        level = dict.fromkeys(shapes, 0)
        for cycle in _cycles({p: others for p, others in before.items() if p in counts}):
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
    ) -> dict[TaskPrefix, GraphShape]:
        shapes = {}
        for prefix in cycle:
            running, ready, waiting = counts[prefix]
            one = self._by_prefix[prefix]
            first = waiting * sum(map(cycle.isdisjoint, one.before)) / len(one.before)
            fan_in = round(one.waits / one.others, 3) if one.others else 1.0
            width = max(1, running + ready + round(first))
            shapes[prefix] = GraphShape(width, level, fan_in)
        return shapes


def is_bound(ts: TaskState) -> bool:
    """Tells whether only some workers may run a task."""
    return bool(ts.resource_restrictions or ts.worker_restrictions or ts.host_restrictions)


def waiting_sample(tasks: Mapping[Any, TaskState], look: int) -> WaitingSample:
    """
    A sample of the tasks that wait, from another place at each look (by its number).

    Passing over 100,000 takes 4 ms, whatever is taken of them.
    """
    # Tasks of one kind often come every so many: an even step would see some kinds only.
    step = len(tasks) // PASSED | 1
    passed = islice(tasks.values(), 7919 * look % step, None, step)
    found = [ts for ts in passed if ts.state == "waiting"]
    if len(found) > TAKEN:
        thin = len(found) // TAKEN | 1
        found = found[look % thin :: thin]
    return WaitingSample(found)


def _cycles(before: Edges) -> Iterator[set[TaskPrefix]]:
    """Kinds that wait for each other (Kosaraju's), those that others wait for first."""
    after: dict[TaskPrefix, set[TaskPrefix]] = {}
    for prefix, others in before.items():
        for other in others:
            after.setdefault(other, set()).add(prefix)
    order = [prefix for found in _walks(after, [*after, *before]) for prefix in found]
    return map(set, _walks(before, reversed(order)))


def _walks(edges: Edges, roots: Iterable[TaskPrefix]) -> Iterator[list[TaskPrefix]]:
    """Yields the kinds reached from each root and from none before it, the farthest first."""
    seen = set()
    for root in roots:
        if root in seen:
            continue
        found, path = [], [(root, iter(edges.get(root, ())))]
        seen.add(root)
        while path:
            other = next((one for one in path[-1][1] if one not in seen), None)
            if other is None:
                found.append(path.pop()[0])
            else:
                seen.add(other)
                path.append((other, iter(edges.get(other, ()))))
        yield found
