"""Makes an observation older: what is known of an instant that has passed, if nothing happened."""

from __future__ import annotations

from dataclasses import replace

from dask_adaptive.model.observed import (
    ManualPin,
    ObservedCluster,
    ObservedGroup,
    ObservedScheduler,
    ObservedWorker,
    Pin,
    SchedulerWorker,
    TerminatingPod,
)
from dask_adaptive.model.scaling import Pause


def aged(observed: ObservedCluster, seconds: float) -> ObservedCluster:
    """
    The same cluster, some seconds after it was observed, if nothing has happened since.

    What counts from an instant goes on: ages, idle times, and what is left of pins, leases, pauses
    and ends. A pin or a lease that has run out is gone. What is measured (tasks, memory, runs,
    failures) stays as it was. News is told once, so an older observation has none.

    Args:
        seconds: At least 0.
    """
    if seconds <= 0:
        return observed
    older = _Older(seconds, observed.scheduler.at + seconds)
    return replace(
        observed,
        groups=tuple(map(older.group, observed.groups)),
        scheduler=older.scheduler(observed.scheduler),
        terminating=tuple(map(older.terminating, observed.terminating)),
        at=observed.at + seconds,
        pause=older.pause(observed.pause),
        changes_in_s=older.left(observed.changes_in_s),
    )


class _Older:
    """The parts of an observation as they are some seconds later."""

    def __init__(self, seconds: float, at: float) -> None:
        self._by_s, self._at = seconds, at

    def left(self, seconds: float) -> float:
        return max(0.0, seconds - self._by_s)

    def group(self, group: ObservedGroup) -> ObservedGroup:
        return replace(group, workers=tuple(map(self._worker, group.workers)))

    def scheduler(self, scheduler: ObservedScheduler) -> ObservedScheduler:
        demand, by_s = scheduler.demand, self._by_s
        quiet = scheduler.quiet
        return replace(
            scheduler,
            at=self._at,
            workers=tuple(map(self._process, scheduler.workers)),
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

    def _worker(self, worker: ObservedWorker) -> ObservedWorker:
        by_s = self._by_s
        is_idle = worker.dask_names and not worker.processing
        return replace(
            worker,
            age_s=worker.age_s + by_s,
            idle_s=worker.idle_s + by_s if is_idle else worker.idle_s,
            pins=self._held(worker.pins) if worker.pins else (),
            manual_pin=self._manual(worker.manual_pin),
            pod_age_s=worker.pod_age_s + by_s,
            ends_in_s=self.left(worker.ends_in_s),
            unschedulable_s=worker.unschedulable_s and worker.unschedulable_s + by_s,
        )

    def _process(self, process: SchedulerWorker) -> SchedulerWorker:
        return replace(process, pins=self._held(process.pins)) if process.pins else process

    def _manual(self, pin: ManualPin | None) -> ManualPin | None:
        if pin is None or pin.left_s <= self._by_s:
            return None
        return replace(pin, left_s=pin.left_s - self._by_s)

    def _held(self, pins: tuple[Pin, ...]) -> tuple[Pin, ...]:
        """Those that have not run out."""
        return (
            pins
            if all(p.until > self._at for p in pins)
            else tuple(p for p in pins if p.until > self._at)
        )
