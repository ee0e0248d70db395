"""What tasks waited because a shuffle's creation waited is no part of how long they took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from dask_adaptive_agent.shuffles import BARRIER

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler


class _Hold(NamedTuple):
    """A worker's tasks of one shuffle waited then; seconds since 1970 on the scheduler's clock."""

    begin: float
    end: float
    prefix: str  # of the one that has asked, if it is known


class HeldTransfers:
    """
    Leaves such waits out of the durations that workers report.

    Else the mean duration of a shuffle's inputs would be that of the wait, and for some runs to
    come everything that reckons with it (`adaptive_target`, occupancy, stealing) would ask for far
    too many workers. Workers report durations on the scheduler's clock (`Worker.scheduler_delay`).
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._holds: dict[str, dict[str, _Hold]] = {}  # by shuffle, by worker

    def add(self, id: str, worker: str, key: Any, begin: float, end: float) -> None:
        """
        Tasks of one worker, all that are inputs of the shuffle, have waited so long.

        One of them has asked for all (`_ShuffleRunManager._refresh_locks`): the others are of its
        prefix. It need not be what the barrier depends on. Before 2023.8 it is not named, and is.
        """
        ts = self._scheduler.tasks.get(key)
        prefix = ts.prefix.name if ts is not None else ""
        holds = self._holds.setdefault(id, {})
        before = holds.get(worker, _Hold(begin, end, prefix))
        holds[worker] = _Hold(min(begin, before.begin), max(end, before.end), prefix)

    def shorten(self, msg: dict[str, Any]) -> None:
        """Leave the wait out of a report of a run that has succeeded."""
        if self._holds:
            msg["startstops"] = self._startstops(msg)

    def _startstops(self, msg: dict[str, Any]) -> Any:
        tasks: Any = self._scheduler.tasks
        startstops = msg.get("startstops")
        for id in list(self._holds):
            barrier = tasks.get(BARRIER + id)
            if barrier is None or barrier.state != "waiting":
                del self._holds[id]  # all its inputs are there
                continue
            ts, hold = tasks.get(msg.get("key")), self._holds[id].get(msg.get("worker", ""))
            if hold is None or ts is None:
                continue
            if ts.prefix.name == hold.prefix or ts in barrier.dependencies:
                return [_cut(one, hold) for one in startstops or ()]
        return startstops


def _cut(one: dict[str, Any], hold: _Hold) -> dict[str, Any]:
    waited = min(one["stop"], hold.end) - max(one["start"], hold.begin)
    if one["action"] != "compute" or waited <= 0:
        return one
    return {**one, "start": one["start"] + waited}
