"""
A preload of the schedulers that are measured, stock and ours: tells CPU time, fills the books.

It is loaded after the agent and replaces nothing, so that what is measured is as at users'.
"""

from __future__ import annotations

import copy
import gc
import time
from typing import Any

from support.agent_fakes import fake_worker

#: Seconds by which a worker that exists in the books only is ahead of the limit of silence.
LONG_S = 1e6


async def dask_setup(scheduler: Any) -> None:
    def relief_cpu(clean: bool = False) -> dict[str, Any]:
        """Seconds of CPU that this process has used so far."""
        if clean:
            gc.collect()
        return {
            "cpu_s": time.process_time(),
            "tasks": len(scheduler.tasks),
            "clients": len(scheduler.clients),
            "workers": len(scheduler.workers),
        }

    def relief_groups(count: int) -> None:
        """Finished groups of one prefix, each with one result."""
        for i in range(count):
            key = (f"load-{i:032x}", 0)
            # Keys are text before 2023.9.0.
            ts = scheduler.new_task(str(key) if KEYS_ARE_TEXT else key, None, "released")
            ts.state = "memory"

    def relief_crowd(count: int) -> None:
        """Workers that look like the one that is there."""
        (real,) = scheduler.workers.values()
        for i in range(count):
            ws = fake_worker(scheduler, i)
            ws.metrics = copy.deepcopy(real.metrics)
            ws.extra = copy.deepcopy(real.extra)
            ws.services = dict(real.services)
            ws.last_seen = time.time() + LONG_S

    for handler in (relief_cpu, relief_groups, relief_crowd):
        scheduler.handlers[handler.__name__] = handler


def keys_are_text() -> bool:
    import distributed

    year, month = distributed.__version__.split(".")[:2]
    return (int(year), int(month)) < (2023, 9)


KEYS_ARE_TEXT = keys_are_text()
