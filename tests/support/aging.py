"""Makes an observation older: what is known of an instant that has passed, if nothing happened."""

from __future__ import annotations

from dataclasses import replace

from dask_adaptive.model.observed import (
    ManualPin,
    ObservedCluster,
    ObservedScheduler,
    ObservedWorker,
    Pin,
    TerminatingPod,
)
from dask_adaptive.model.scaling import Pause


def aged(observed: ObservedCluster, seconds: float) -> ObservedCluster:
    """
    The same cluster, some seconds after it was observed, if nothing has happened since.

    What counts from an instant goes on, as the clocks do. What is measured (tasks, memory, runs,
    failures) stays as it was. What has run out is gone: pins, leases, annotations. News is told
    once, so an older observation has none.

    Args:
        seconds: At least 0.
    """
    if seconds <= 0:
        return observed
    older = _Older(seconds, observed.at + seconds, observed.scheduler.at + seconds)
    return replace(
        observed,
        groups=tuple(
            replace(g, workers=tuple(map(older.worker, g.workers))) for g in observed.groups
        ),
        scheduler=older.scheduler(observed.scheduler),
        terminating=tuple(map(older.terminating, observed.terminating)),
        at=observed.at + seconds,
        pause=older.pause(observed.pause),
        changes_in_s=older.left(observed.changes_in_s),
    )


class _Older:
    """The parts of an observation as they are some seconds later."""

    def __init__(self, seconds: float, at: float, seen_at: float) -> None:
        self._by_s, self._at, self._seen_at = seconds, at, seen_at

    def left(self, seconds: float) -> float:
        return max(0.0, seconds - self._by_s)

    def scheduler(self, scheduler: ObservedScheduler) -> ObservedScheduler:
        demand, by_s = scheduler.demand, self._by_s
        quiet = scheduler.quiet
        return replace(
            scheduler,
            at=self._seen_at,
            workers=tuple(
                replace(p, pins=self._held(p.pins)) if p.pins else p for p in scheduler.workers
            ),
            demand=demand and replace(demand, age_s=demand.age_s + by_s),
            wants=tuple(
                replace(w, left_s=w.left_s - by_s) for w in scheduler.wants if w.left_s > by_s
            ),
            quiet=replace(
                quiet,
                no_task_s=quiet.no_task_s and quiet.no_task_s + by_s,
                no_client_s=quiet.no_client_s and quiet.no_client_s + by_s,
            ),
            notes=(),
        )

    def terminating(self, pod: TerminatingPod) -> TerminatingPod:
        return replace(
            pod,
            left_s=self.left(pod.left_s),
            known_left_s=self.left(pod.known_left_s),
            manual_pin=self._manual(pod.manual_pin),
        )

    def pause(self, pause: Pause) -> Pause:
        if pause.left_s is None:
            return pause
        return replace(pause, left_s=self.left(pause.left_s))

    def worker(self, worker: ObservedWorker) -> ObservedWorker:
        if not worker.is_pinned:
            return worker
        manual = self._manual(worker.manual_pin)
        return replace(worker, pins=self._held(worker.pins), manual_pin=manual)

    def _manual(self, pin: ManualPin | None) -> ManualPin | None:
        return pin if pin and pin.until > self._at else None

    def _held(self, pins: tuple[Pin, ...]) -> tuple[Pin, ...]:
        return tuple(p for p in pins if p.until > self._seen_at)
