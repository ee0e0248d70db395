"""What happens to a cluster while a workload runs, counted the same way whoever scales it."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, field

from dask_adaptive.kube.api import DEPLOYMENTS
from dask_adaptive.kube.objects import COMPONENT_LABEL, GROUP_LABEL
from dask_adaptive_lab.tally import Tally
from support.e2e_cluster import LiveCluster

LOOK_S = 0.5


@dataclass
class Seen:
    """One run of one workload."""

    workload: str
    side: str
    makespan_s: float = 0.0
    samples: list[tuple[float, int, int, int]] = field(default_factory=list)  # t, made, on, others
    tally: Tally | None = None
    waves_s: list[float] = field(default_factory=list)
    note: str = ""

    def until_done(self) -> list[tuple[float, int, int, int]]:
        return [s for s in self.samples if s[0] <= self.makespan_s]

    def worker_seconds(self, *, in_all: bool = False) -> float:
        """Of connected workers of the scaled group, until the results were there; or of all."""
        rows = self.samples if in_all else self.until_done()
        return sum((b[0] - a[0]) * (a[2] - a[3]) for a, b in itertools.pairwise(rows))

    def is_back_at(self, number: int) -> bool:
        return bool(self.samples) and self.samples[-1][2] - self.samples[-1][3] <= number

    def direction_changes(self) -> int:
        """How often the number of Deployments began to move the other way."""
        made = [row[1] for row in self.until_done()]
        signs = [1 if b > a else -1 for a, b in itertools.pairwise(made) if a != b]
        return sum(a != b for a, b in itertools.pairwise(signs))

    def reached_s(self, workers: int) -> float | None:
        return next((t for t, _, on, others in self.samples if on - others >= workers), None)

    def wrong_group(self) -> int:
        """Workers of a group that nobody scales that were taken away."""
        others = [row[3] for row in self.samples]
        return sum(max(0, a - b) for a, b in itertools.pairwise(others))


class Watch:
    """Samples a cluster until it is told to stop."""

    def __init__(self, seen: Seen, c: LiveCluster) -> None:
        self._seen, self._c = seen, c
        self._began = time.monotonic()
        self._task = asyncio.create_task(self._run())

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._seen.tally = await self._c.tally()

    async def _run(self) -> None:
        c = self._c
        while True:
            path = DEPLOYMENTS.path(c.namespace)
            found = await c.api.list(path, selector=f"{COMPONENT_LABEL}=worker")
            made = sum(body["metadata"]["labels"].get(GROUP_LABEL) == c.group for body in found)
            on = await c.client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.workers))
            self._seen.samples.append((self.elapsed_s, made, on, len(found) - made))
            await asyncio.sleep(LOOK_S)
