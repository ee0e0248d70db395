"""The P2P shuffles that have not begun, told by their barrier tasks: which, and how much work."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from dask_adaptive_agent.protocol.operator_side import Component
from dask_adaptive_agent.shuffle.runs import BARRIER, shuffle_of

if TYPE_CHECKING:
    from distributed.scheduler import TaskState

    from dask_adaptive_agent import wire

#: Shuffles that one answer describes.
MOST = 50

#: The number of inputs and outputs that are looked at; they represent all.
SAMPLE = 200
#: The number of tasks that are followed from an output on: each runs where the one before ran.
FOLLOWED = 3
#: Of a shuffle's outputs these are looked at for what they are bound to: they are all alike.
BOUND_SAMPLE = 5


class Upcoming(NamedTuple):
    """A shuffle whose outputs are yet to be given to workers."""

    id: str
    barrier: TaskState  # its dependencies are the inputs, its dependents the outputs
    known_at: float  # on the agent's clock
    seen_at: float  # when the operator was first told of it; infinite: never


class Work(NamedTuple):
    """Seconds of work, on one thread, that a shuffle still means."""

    inputs_s: float  # before its outputs can be computed; any worker may take part
    outputs_s: float  # stays with the workers that are there when it begins


@dataclass(eq=False)
class Barriers(Component):
    """
    Barrier tasks of shuffles, as they become known.

    The scheduler keeps no list of the tasks of a prefix or a group, and to look through all tasks
    would cost a large scheduler a tenth of a second: they are noted as they pass, each of them from
    `released` to `waiting` (`Scheduler.update_graph`; `_restart_shuffle` for a shuffle's next run).
    """

    has_begun: Callable[[str], bool]  # a shuffle's outputs have been given to workers
    #: Called when the first one becomes known, before its first input is ready.
    first: Callable[[], None] | None

    def __post_init__(self) -> None:
        self._known: dict[str, float] = {}  # by key: since when it waits
        self._seen: dict[str, float] = {}  # by key: when the operator was told of it

    def start(self) -> None:
        """Find those that were there before us."""
        now = self.clock()
        for key, ts in self.scheduler.tasks.items():
            if type(key) is str and key.startswith(BARRIER) and ts.state == "waiting":
                self._add(key, now)

    def transition(self, key: Any, start: str, finish: str) -> None:
        """To be called for each one to or from `waiting`."""
        if type(key) is str and key.startswith(BARRIER):
            self._known.pop(key, None)
            self._seen.pop(key, None)
            if finish == "waiting":
                self._add(key, self.clock())

    def _add(self, key: str, now: float) -> None:
        self._known[key] = now
        first, self.first = self.first, None
        if first is not None:
            first()

    def seen(self) -> None:
        """The operator is told of all that are upcoming now."""
        now = self.clock()
        for key in self._known.keys() - self._seen.keys():
            self._seen[key] = now

    def upcoming(self) -> Iterator[Upcoming]:
        """The shuffles that have not begun, in the order in which they became known."""
        for key in list(self._known):
            one = self.get(key[len(BARRIER) :])
            if one is not None:
                yield one

    def get(self, id: str) -> Upcoming | None:
        """The shuffle of that id, unless it has begun or is no more."""
        known_at = self._known.get(BARRIER + id)
        barrier = self.scheduler.tasks.get(BARRIER + id)
        if known_at is None or barrier is None or self.has_begun(id):
            return None
        return Upcoming(id, barrier, known_at, self._seen.get(BARRIER + id, math.inf))

    def rows(self) -> list[wire.UpcomingShuffleRow]:
        """
        The first `MOST` of them, for the operator: more workers would be of use to them.

        Cheap however many tasks there are.
        """
        return [
            {
                "id": one.id,
                "inputs": len(one.barrier.waiting_on or ()),
                "outputs": len(one.barrier.dependents),
            }
            for one in islice(self.upcoming(), MOST)
        ]

    def is_known(self, id: str) -> bool:
        """Tells whether somebody still wants the shuffle's result, begun or not."""
        return (BARRIER + id) in self.scheduler.tasks

    def is_bound(self, barrier: TaskState) -> bool:
        """
        Tells whether a shuffle's outputs go to certain workers, even if others come.

        `ShuffleSchedulerPlugin._calculate_worker_for` (before 2023.8.1 `_pin_output_workers`) takes
        the barrier's workers where it is restricted to some, and those of a shuffle that has begun
        and shares outputs with it, as in a join. Outputs that are restricted themselves end up
        there.
        """
        outputs = list(islice(barrier.dependents, BOUND_SAMPLE))
        others = {
            shuffle_of(ts.key) for o in outputs for ts in islice(o.dependencies, BOUND_SAMPLE)
        }
        others -= {"", shuffle_of(barrier.key)}
        is_restricted = any(ts.worker_restrictions for ts in (barrier, *outputs))
        return is_restricted or any(map(self.has_begun, others))


def work_of(barrier: TaskState, expected_s: Callable[[TaskState], float]) -> Work:
    """Seconds of work before and behind a shuffle's barrier that is yet to run."""

    def input_s(ts: TaskState) -> float:
        return expected_s(ts) + sum(expected_s(dt) for dt in islice(ts.waiting_on or (), SAMPLE))

    def output_s(ts: TaskState) -> float:
        seconds = expected_s(ts)
        for _ in range(FOLLOWED):
            if len(ts.dependents) != 1:
                break
            (ts,) = ts.dependents
            if len(ts.dependencies) != 1:
                break
            seconds += expected_s(ts)
        return seconds

    return Work(_in_all(barrier.waiting_on or (), input_s), _in_all(barrier.dependents, output_s))


def _in_all(tasks: Collection[TaskState], seconds: Callable[[TaskState], float]) -> float:
    sample = list(islice(tasks, SAMPLE))
    return sum(map(seconds, sample)) * len(tasks) / len(sample) if sample else 0.0
