"""What a run comes to in figures, beside what was recorded. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from dask_adaptive.model.trace import Trace
from dask_adaptive.simulate.replay import Point, Run


@dataclass(frozen=True, slots=True)
class Figures:
    """One run, or the recording itself. Times in seconds; None: not known."""

    peak: int  # workers that existed at once
    worker_s: float  # sum over all workers of the time that each existed
    makespan_s: float  # from the first task to the end of the last
    lasted_s: float
    turns: int  # how often the number of workers went the other way
    mean_wait_s: float | None = None  # of a task that could have run, in the queue
    redone: int | None = None
    unfinished: int = 0  # tasks that were not done when it ended
    cost: float | None = None


def figures_of(run: Run, *, price: float | None = None) -> Figures:
    """
    The figures of a simulated run.

    Args:
        price: Of a worker for an hour.
    """
    worker_s = worker_seconds(run.points)
    return Figures(
        peak=max(p.present for p in run.points),
        worker_s=worker_s,
        makespan_s=max(0.0, run.last_work_at - run.first_work_at),
        lasted_s=run.points[-1].t,
        turns=turns([p.present - p.leaving for p in run.points]),
        mean_wait_s=run.waited_s / run.finished if run.finished else 0.0,
        redone=run.redone,
        unfinished=run.points[-1].unfinished + run.lost,
        cost=None if price is None else worker_s / 3600 * price,
    )


def recorded_points(trace: Trace) -> tuple[Point, ...]:
    """What was recorded, in the form of a run."""
    return tuple(
        Point(
            t=s.t,
            present=s.present,
            connected=sum(g.connected for g in s.groups),
            leaving=0,
            unfinished=s.unfinished,
            running=sum(p.running for p in s.prefixes),
            desired=sum(g.replicas for g in s.groups),
        )
        for s in trace.samples
    )


def figures_of_trace(trace: Trace, *, price: float | None = None) -> Figures:
    """The figures of what was recorded."""
    points = recorded_points(trace)
    at_work = [p.t for p in points if p.unfinished]
    worker_s = worker_seconds(points)
    return Figures(
        peak=max(p.present for p in points),
        worker_s=worker_s,
        makespan_s=at_work[-1] - at_work[0] if at_work else 0.0,
        lasted_s=points[-1].t,
        turns=turns([p.present for p in points]),
        unfinished=points[-1].unfinished,
        cost=None if price is None else worker_s / 3600 * price,
    )


def worker_seconds(points: Sequence[Point]) -> float:
    """Each worker counts from the look at which it was seen first to that at which it was gone."""
    return sum(a.present * (b.t - a.t) for a, b in pairwise(points))


def turns(numbers: Sequence[int]) -> int:
    """How often a number that went up goes down next, or the other way round."""
    steps = [b - a for a, b in pairwise(numbers) if b != a]
    return sum(a * b < 0 for a, b in pairwise(steps))
