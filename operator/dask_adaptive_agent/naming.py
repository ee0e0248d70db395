"""What a worker is called in the scheduler, and how to free a name that another needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, WorkerState


def rename(scheduler: Scheduler, ws: WorkerState, wanted: Any) -> None:
    """
    Call a worker `wanted`, or `wanted` and a number where another worker has that name.

    `Scheduler.remove_worker` deletes `aliases[ws.name]`, so both are changed together. A worker
    without a name of its own, which is called by its address, stands in nobody's way.
    """
    if ws.name in (wanted, ws.address):
        return
    aliases: dict[Any, str] = scheduler.aliases
    free, number = wanted, 1
    while free in aliases:
        number += 1
        free = f"{wanted} {number}"
    if aliases.get(ws.name) == ws.address:
        del aliases[ws.name]
    ws.name = free
    aliases[free] = ws.address
