"""
A worker sends with each heartbeat the time that its own `--lifetime` leaves it.

The text of this very module is sent to workers (see `worker_plugin`), so it imports what a worker
has anyway, and nothing of the package. `left_s` is the scheduler's side of it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any

#: A key of `WorkerState.metrics`. Its value is a map: a number would become a column of the
#: dashboard (`WorkerTable`).
METRIC = "dask-adaptive"


def begin(worker: Any) -> Callable[[], object]:
    """Where the worker has a lifetime; call it on the worker's loop. Returns what undoes it."""
    loop = asyncio.get_running_loop()
    ends_at = _ends_at(worker, loop)

    def left(_: Any) -> dict[str, float]:
        return {"left_s": max(0.0, ends_at - loop.time())}

    if ends_at < math.inf:
        worker.metrics[METRIC] = left
    return lambda: worker.metrics.pop(METRIC, None)


def left_s(ws: Any) -> float:
    """Seconds until the lifetime of a `WorkerState` is over; infinite: none is known."""
    metric = ws.metrics.get(METRIC)
    left = metric.get("left_s") if isinstance(metric, dict) else None
    if not isinstance(left, (int, float)) or math.isnan(left):
        return math.inf
    return max(0.0, float(left) - max(0.0, time.time() - float(ws.last_seen)))


def _ends_at(worker: Any, loop: asyncio.AbstractEventLoop) -> float:
    """
    When the worker's lifetime ends, on the clock of its loop, and no later than it does; infinite:
    it has none.

    `Worker.__init__` draws the lifetime (`--lifetime-stagger`) and starts a timer. Where the loop
    does not show its timers, the start of the process counts, which was before.
    """
    lifetime = getattr(worker, "lifetime", None)
    if not lifetime:
        return math.inf
    for handle in list(getattr(loop, "_scheduled", ())):
        if not handle.cancelled() and _is_end(handle, worker):
            return float(handle.when())
    left = worker.monitor.proc.create_time() + lifetime - time.time()
    # Else the process is older than its worker, and says nothing of it.
    return loop.time() + left if left > 0 else math.inf


def _is_end(handle: Any, worker: Any) -> bool:
    # IOLoop.call_at hands asyncio a partial of the callback.
    for arg in (getattr(handle, "_callback", None), *(getattr(handle, "_args", None) or ())):
        method = getattr(arg, "func", arg)
        if getattr(method, "__self__", None) is worker:
            return getattr(method, "__name__", "") == "close_gracefully"
    return False
