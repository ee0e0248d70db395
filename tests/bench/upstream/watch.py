"""What happens to a cluster while a workload runs, counted the same way whoever scales it."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from distributed import Client
from distributed.diagnostics.plugin import SchedulerPlugin

from dask_adaptive.kube.api import DEPLOYMENTS, KubeApi
from dask_adaptive.kube.objects import COMPONENT_LABEL, GROUP_LABEL

LOOK_S = 0.5


class Counter(SchedulerPlugin):  # type: ignore[misc]
    """Counts in a scheduler, whoever it is scaled by: what was run, and what with no need."""

    name = "bench-counter"

    def start(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        self.keys: set[Any] = set()
        self.runs = self.killed = 0
        self.lost = 0

    def transition(self, key: Any, start: str, finish: str, *_: Any, **__: Any) -> None:
        if start == "processing" and finish == "memory":
            self.runs += 1
            self.keys.add(key)
        elif start == "memory" and finish == "released":
            ts = self.scheduler.tasks.get(key)
            self.lost += bool(ts is not None and (ts.who_wants or ts.waiters))

    def remove_worker(self, scheduler: Any, worker: str, **_: Any) -> None:
        ws = scheduler.workers.get(worker)
        self.killed += len(ws.processing) if ws is not None else 0


async def counted(dask_scheduler: Any) -> dict[str, int]:
    """For `Client.run_on_scheduler`."""
    plugin = dask_scheduler.plugins["bench-counter"]
    connected = len(dask_scheduler.workers)
    return {
        "connected": connected,
        "runs": plugin.runs,
        "tasks": len(plugin.keys),
        "killed": plugin.killed,
        "lost": plugin.lost,
    }


@dataclass
class Seen:
    """One run of one workload."""

    workload: str
    side: str
    makespan_s: float = 0.0
    samples: list[tuple[float, int, int, int]] = field(default_factory=list)  # t, made, on, others
    counts: Mapping[str, int] = field(default_factory=dict)
    waves_s: list[float] = field(default_factory=list)
    note: str = ""

    @property
    def redone(self) -> int:
        return self.counts.get("runs", 0) - self.counts.get("tasks", 0)

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

    def __init__(
        self, seen: Seen, *, api: KubeApi, namespace: str, group: str, client: Client
    ) -> None:
        self._seen, self._api, self._client = seen, api, client
        self._namespace, self._group = namespace, group
        self._began = time.monotonic()
        self._task = asyncio.create_task(self._run())

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._seen.counts = await self._client.run_on_scheduler(counted)

    async def _run(self) -> None:
        while True:
            made = await self._deployments(f"{GROUP_LABEL}={self._group}")
            others = await self._deployments(f"{GROUP_LABEL}!={self._group}")
            counts: Any = await self._client.run_on_scheduler(counted)
            row = (self.elapsed_s, made, counts["connected"], others)
            self._seen.samples.append(row)
            await asyncio.sleep(LOOK_S)

    async def _deployments(self, of: str) -> int:
        selector = f"{COMPONENT_LABEL}=worker,{of}"
        return len(await self._api.list(DEPLOYMENTS.path(self._namespace), selector=selector))
