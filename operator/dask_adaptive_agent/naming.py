"""What a worker is called in the scheduler, and how a name becomes free when another needs it."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, WorkerState

logger = logging.getLogger(__name__)

#: How `dask worker --nworkers` calls its processes after their common name.
PROCESS = re.compile(r"-\d{1,3}")


def is_process_of(own: str, name: str) -> bool:
    """Whether a worker called `own` is one of the processes that were started as `name`."""
    return own.startswith(name) and bool(PROCESS.fullmatch(own, len(name)))


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


def registering(stock: Callable[..., Any], comes: Callable[[Any], None]) -> Callable[..., Any]:
    """The handler "register-worker" that first says which name is about to be taken."""

    @wraps(stock)
    async def register_worker(*args: Any, **kwargs: Any) -> Any:
        try:
            comes(kwargs.get("name"))
        except Exception:
            # Fail open: the scheduler refuses a name that is taken, as stock code does.
            logger.exception("Cannot free the name of a worker that comes")
        return await stock(*args, **kwargs)

    return register_worker
