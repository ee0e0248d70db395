"""Counts what each worker reports. Runs once a task: every line is paid 1,000 times a second."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dask_adaptive_agent import patching
from dask_adaptive_agent.answering import whole
from dask_adaptive_agent.patching import Patches

if TYPE_CHECKING:
    from distributed.scheduler import WorkerState

    from dask_adaptive_agent.durations import Durations
    from dask_adaptive_agent.roster import Entry

#: Reports of a worker that a run ended, whether or not the scheduler accepts its result. A run that
#: raised `Reschedule` is reported by the third (`worker_state_machine.RescheduleMsg`). A run whose
#: task was cancelled meanwhile is reported by none.
REPORTS = (patching.TASK_FINISHED, patching.TASK_ERRED, patching.RESCHEDULE)
FAILED = patching.TASK_ERRED

#: What users of RAPIDS call the metric of a worker's GPUs: a number, or a list of them, by key.
GPU = "gpu"


class Meters:
    """
    Counts what workers report.

    Args:
        entries: The roster's, by address; the same dict for ever.
        clock: Seconds that never go backwards.
        reached: Called with a worker that has come to its number of runs, before the scheduler
            hears of the last one. Must not raise.
        failed: Called with a worker and its report of a failure, before the scheduler hears of it.
            Must not raise.
        durations: Takes a report from time to time.
    """

    def __init__(
        self,
        entries: Mapping[str, Entry],
        clock: Callable[[], float],
        durations: Durations,
        *,
        reached: Callable[[Entry], None],
        failed: Callable[[Entry, dict[str, Any]], None],
    ) -> None:
        self._entries = entries
        self._clock = clock
        self._durations = durations
        self._reached = reached
        self._failed = failed

    def install(self, patches: Patches) -> None:
        for target in REPORTS:
            patches.listen(target, self._count_failure if target is FAILED else self._count)

    def _count(self, msg: dict[str, Any]) -> None:
        entry = self._entries.get(msg["worker"])
        if entry is not None:  # else a late report of a worker that has left
            entry.active_at = now = self._clock()
            if now >= self._durations.next_at:
                self._durations.report(msg, now)
            entry.runs = runs = entry.runs + 1
            if runs >= entry.stop_at:
                self._reached(entry)

    def _count_failure(self, msg: dict[str, Any]) -> None:
        entry = self._entries.get(msg["worker"])
        if entry is not None:
            entry.active_at = self._clock()
            entry.runs += 1
            self._failed(entry, msg)
            if entry.runs >= entry.stop_at:
                self._reached(entry)


def managed_bytes(ws: WorkerState) -> int:
    """
    Results in a worker's memory, not on its disk.

    `WorkerState.memory` says the same, slowly. A worker may have reported nothing yet.
    """
    spilled = ws.metrics.get("spilled_bytes")
    on_disk = spilled.get("memory") if spilled else 0
    return max(0, ws.nbytes - on_disk) if on_disk else ws.nbytes


def gpu_bytes(ws: WorkerState) -> tuple[int, int] | None:
    """
    (used, in all) of the fullest GPU of a worker; None: it has none, or does not say.

    Source:
        `distributed.worker.add_gpu_metrics`: `diagnostics.nvml.real_time` at each heartbeat,
        `one_time` at the start. Numbers; lists of them, one for each device, where a worker has
        many (dask-cuda).
    """
    used = _numbers(ws.metrics.get(GPU), "memory-used")
    total = _numbers((ws.extra or {}).get(GPU), "memory-total")
    devices = [(u, t) for u, t in zip(used, total) if t > 0]
    return max(devices, key=lambda device: device[0] / device[1], default=None)


def _numbers(metric: Any, key: str) -> list[int]:
    value = metric.get(key) if isinstance(metric, dict) else None
    values = value if isinstance(value, (list, tuple)) else [value]
    return [whole(one) if isinstance(one, (int, float)) else 0 for one in values]
