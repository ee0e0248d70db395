"""
A preload of the schedulers that are measured, stock and ours: tells CPU time, fills the books.

It is loaded after the agent and replaces nothing, so that what is measured is as at users'.
"""

from __future__ import annotations

import copy
import gc
import random
import time
import timeit
from typing import Any

from support.agent_fakes import fake_worker
from support.relief_driven import key_of

#: Seconds by which a worker that exists in the books only is ahead of the limit of silence.
LONG_S = 1e6


class Probe:
    """Each method is a message to the scheduler, `relief_` before its name."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler

    def cpu(self, clean: bool = False) -> dict[str, Any]:
        """Seconds of CPU that this process has used so far."""
        if clean:
            gc.collect()
        return {
            "cpu_s": time.process_time(),
            "tasks": len(self._scheduler.tasks),
            "clients": len(self._scheduler.clients),
            "workers": len(self._scheduler.workers),
        }

    def reads_us(self) -> dict[str, float]:
        """What a scheduler reads of itself, and how long each read takes: the fastest of 20."""
        s = self._scheduler
        workers = list(s.workers.values())
        reads = {
            "WorkerState.host": lambda: [ws.host for ws in workers],
            "get_task_prefix_states": s.get_task_prefix_states,
        }
        took = {name: min(timeit.repeat(read, number=1, repeat=20)) for name, read in reads.items()}
        took["WorkerState.host"] /= max(1, len(workers))
        return {name: seconds * 1e6 for name, seconds in took.items()}

    def groups(self, count: int) -> None:
        """Finished groups of one prefix, each with one result."""
        for i in range(count):
            ts = self._scheduler.new_task(key_of(f"load-{i:032x}", 0), None, "released")
            ts.state = "memory"

    def crowd(self, count: int) -> None:
        """Workers like the one that is there, with numbers of their own."""
        (real,) = self._scheduler.workers.values()
        for i in range(count):
            ws = fake_worker(self._scheduler, i)
            ws.metrics = perturbed(real.metrics)
            ws.extra = copy.deepcopy(real.extra)
            ws.services = dict(real.services)
            ws.last_seen = time.time() + LONG_S


def perturbed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: perturbed(one) for key, one in value.items()}
    return type(value)(value * random.uniform(0.5, 2)) if type(value) in (int, float) else value


async def dask_setup(scheduler: Any) -> None:
    probe = Probe(scheduler)
    for message in (probe.cpu, probe.reads_us, probe.groups, probe.crowd):
        scheduler.handlers[f"relief_{message.__name__}"] = message
