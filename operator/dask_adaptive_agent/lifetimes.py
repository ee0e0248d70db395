"""Which workers end by their own `--lifetime`, and when: as they report (see `lifespan`)."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from dask_adaptive_agent.lifespan import METRIC

if TYPE_CHECKING:
    from distributed.scheduler import WorkerState


def left_s(ws: WorkerState) -> float:
    """Seconds until a worker's own lifetime is over; infinite: it has none that is known."""
    left = _reported(ws, "left_s")
    return left if math.isinf(left) else max(0.0, left - max(0.0, time.time() - ws.last_seen))


def lifetime_s(ws: WorkerState) -> float:
    """How long a worker lives in all; infinite: as above."""
    return _reported(ws, "lifetime_s")


def _reported(ws: WorkerState, what: str) -> float:
    metric = ws.metrics.get(METRIC)
    value = metric.get(what) if isinstance(metric, dict) else None
    if not isinstance(value, (int, float)) or math.isnan(value):
        return math.inf
    return float(value)
