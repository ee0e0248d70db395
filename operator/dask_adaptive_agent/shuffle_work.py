"""How much a shuffle has yet to do, and whether its outputs may go to workers that come later."""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import islice
from typing import TYPE_CHECKING

from dask_adaptive_agent.shuffles import shuffle_of
from dask_adaptive_agent.worth import Work

if TYPE_CHECKING:
    from distributed.scheduler import TaskState

#: So many inputs and outputs are looked at, and stand for all.
SAMPLE = 200
#: So many tasks are followed from an output on: each runs where the one before it has run.
FOLLOWED = 3
#: Of a shuffle's outputs these are looked at for what they are bound to: they are all alike.
BOUND_SAMPLE = 5


def work_of(barrier: TaskState, unknown_s: float) -> Work:
    """
    Seconds of work before and behind a shuffle's barrier, by the durations of prefixes.

    Args:
        barrier: That is yet to run.
        unknown_s: How long a task of a prefix is taken to run of which none has finished.
    """

    def expected_s(ts: TaskState) -> float:
        mean: float = ts.prefix.duration_average  # -1: none has finished
        return mean if mean >= 0 else unknown_s

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


def is_bound(barrier: TaskState, has_begun: Callable[[str], bool]) -> bool:
    """
    Whether its outputs go to certain workers, whoever comes.

    `ShuffleSchedulerPlugin._calculate_worker_for` (before 2023.8.1 `_pin_output_workers`) takes the
    barrier's workers where it is restricted to some, and those of a shuffle that has begun and
    shares outputs with it, as in a join. Outputs that are restricted themselves end up there.
    """
    if barrier.worker_restrictions:
        return True
    for output in islice(barrier.dependents, BOUND_SAMPLE):
        if output.worker_restrictions:
            return True
        for other in islice(output.dependencies, BOUND_SAMPLE):
            id = shuffle_of(other.key)
            if other is not barrier and id and has_begun(id):
                return True
    return False


def _in_all(tasks: Collection[TaskState], seconds: Callable[[TaskState], float]) -> float:
    sample = list(islice(tasks, SAMPLE))
    return sum(seconds(ts) for ts in sample) * len(tasks) / len(sample) if sample else 0.0
