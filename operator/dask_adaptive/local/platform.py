"""Worker groups as processes on this machine, with the manners of upstream's Deployments."""

from __future__ import annotations

import asyncio
import itertools
import math
import signal
import sys
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from dask_adaptive.deadline import timeout
from dask_adaptive.local.annotations import Annotations
from dask_adaptive.local.process import Process
from dask_adaptive.loop.ports import PlatformError
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import PlatformGroup, PlatformView, PlatformWorker

#: Pause before a worker that died is started again, as kubelet does for a crashed container.
RESTART_S = 1.0


@dataclass
class _Worker:
    name: str
    uid: str
    group: str
    process: Process
    born: float
    keeper: asyncio.Task[None] | None = None  # None: waits for room on the machine
    removed: bool = False
    pod_uid: str = ""  # a process that crashes is started again in the same pod
    pod_created_at: float = 0.0  # seconds since 1970
    is_renewed: bool = False  # its process ends, so that the next one is in a new pod

    def renew(self) -> None:
        self.pod_uid, self.pod_created_at = uuid.uuid4().hex, time.time()
        self.is_renewed = False


@dataclass
class _Group:
    replicas: int = 0
    workers: dict[str, _Worker] = field(default_factory=dict)


class LocalPlatform:
    """
    A `Platform` of processes.

    Raising `replicas` makes workers at once. As upstream, it never looks at the state again: a
    worker that is deleted does not come back by itself.

    Args:
        key: Names the cluster; its default worker group exists from the start.
        directory: For logs, and the annotations file.
        address: Of the scheduler.
        capacity: Workers this machine has room for; further ones wait, like unschedulable pods.
        nthreads, memory_limit: As `dask worker` takes them.
        python: The interpreter of the workers.
        manual_max_s: The longest that an annotation may pin, as the policy says now.
        groups: Further worker groups, by name.
        walltime_s: A worker is killed when it is so old, as by a batch system; another comes.
        nanny: Whether each worker has a nanny, which starts it again when it takes too much memory.
        env: Further variables of the workers.
    """

    def __init__(
        self,
        key: ClusterKey,
        directory: Path,
        address: str,
        *,
        capacity: int = 64,
        nthreads: int = 1,
        memory_limit: str = "1GiB",
        groups: tuple[str, ...] = (),
        python: str = sys.executable,
        manual_max_s: Callable[[], float] = lambda: math.inf,
        walltime_s: float = math.inf,
        nanny: bool = False,
        env: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._key, self._directory, self._address = key, directory, address
        self._capacity, self._nthreads, self._memory_limit = capacity, nthreads, memory_limit
        self._groups = {name: _Group() for name in (key.default_group, *groups)}
        self._python, self._manual_max_s, self._walltime_s = python, manual_max_s, walltime_s
        self._nanny = "--nanny" if nanny else "--no-nanny"
        self._env = dict(env)
        self._numbers = itertools.count(1)
        self._ending = set[asyncio.Task[None]]()
        self._uid = uuid.uuid4().hex
        self._is_deleted = False
        self.annotations = Annotations(directory)

    async def look(self) -> PlatformView:
        if self._is_deleted:
            return PlatformView(found=False)
        return PlatformView(
            groups=tuple(
                PlatformGroup(n, g.replicas, threads=self._nthreads)
                for n, g in self._groups.items()
            ),
            workers=tuple(self._view(w) for g in self._groups.values() for w in g.workers.values()),
            at=time.time(),
            uid=self._uid,
        )

    async def set_replicas(self, group: str, replicas: int) -> None:
        if self._is_deleted or group not in self._groups:
            raise PlatformError(f"there is no worker group {group}")
        row = self._groups[group]
        if len(row.workers) > replicas:
            exist = len(row.workers)
            raise PlatformError(f"{group} has {exist} workers: not lowered to {replicas} replicas")
        row.replicas = replicas
        for _ in range(replicas - len(row.workers)):
            self._create(group, row)

    async def delete_worker(self, worker: str, uid: str) -> None:
        for row in self._groups.values():
            if worker in row.workers and row.workers[worker].uid == uid:
                self._remove(row, worker)
                return

    async def delete_cluster(self, uid: str) -> None:
        """The workers end; the scheduler is who started it to end."""
        if uid == self._uid:
            self._is_deleted = True
            for row in self._groups.values():
                for name in list(row.workers):
                    self._remove(row, name)

    async def restart_worker(self, worker: str, pod: str, pod_uid: str) -> None:
        row = next((g.workers[worker] for g in self._groups.values() if worker in g.workers), None)
        if row is not None and row.pod_uid == pod_uid and not row.is_renewed:
            row.is_renewed = True
            self._later(row.process.end())

    def process_of(self, worker: str) -> Process:
        """The process of a worker, for tests that harm it."""
        return next(g.workers[worker].process for g in self._groups.values() if worker in g.workers)

    def log_of(self, worker: str) -> str:
        """What a worker has written, whether or not it still exists."""
        return (self._directory / f"{worker}.log").read_text(errors="replace")

    def resize(self, capacity: int) -> None:
        """From now on this machine has room for so many workers; those that wait start."""
        self._capacity = capacity
        self._fill()

    async def close(self) -> None:
        """End every worker; returns when all processes are gone."""
        for row in self._groups.values():
            for name in list(row.workers):
                self._remove(row, name, signal_number=signal.SIGKILL)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _view(self, worker: _Worker) -> PlatformWorker:
        full = f"Unschedulable: this machine has room for {self._capacity} workers"
        return PlatformWorker(
            name=worker.name,
            uid=worker.uid,
            group=worker.group,
            age_s=time.monotonic() - worker.born,
            pod=worker.name,
            waiting="" if worker.keeper else full,
            manual_pin=self.annotations.manual_pin(worker.name, self._manual_max_s()),
            pod_uid=worker.pod_uid,
            pod_created_at=worker.pod_created_at,
            ends_in_s=min(
                self.annotations.ends_in_s(worker.name),
                worker.pod_created_at + self._walltime_s - time.time(),
            ),
            recycle_asked=self.annotations.recycle_asked(worker.name, worker.pod_created_at),
        )

    def _create(self, group: str, row: _Group) -> None:
        name = f"{group}-worker-{next(self._numbers)}"
        command = [
            self._python, "-m", "distributed.cli.dask_worker", self._address,
            "--name", name, "--nthreads", str(self._nthreads), "--memory-limit", self._memory_limit,
            self._nanny, "--no-dashboard", "--death-timeout", "60",
            "--local-directory", str(self._directory),
        ]  # fmt: skip
        log = self._directory / f"{name}.log"
        process = Process(command, log=log, env={**self._env, "DASK_WORKER_NAME": name})
        worker = _Worker(name, uuid.uuid4().hex, group, process, time.monotonic())
        worker.renew()
        row.workers[name] = worker
        self._fill()

    def _fill(self) -> None:
        """Start waiting workers while there is room."""
        workers = [w for g in self._groups.values() for w in g.workers.values()]
        room = self._capacity - sum(w.keeper is not None for w in workers)
        for worker in [w for w in workers if w.keeper is None][: max(0, room)]:
            worker.keeper = asyncio.create_task(self._keep(worker))

    async def _keep(self, worker: _Worker) -> None:
        """Run the worker, and again whenever its process has ended."""
        while not worker.removed:
            await worker.process.start()
            if worker.removed or worker.is_renewed:  # while it was being started
                await worker.process.end()
            await self._ended(worker)
            if worker.is_renewed:
                worker.renew()
            elif not worker.removed:
                await asyncio.sleep(RESTART_S)

    async def _ended(self, worker: _Worker) -> None:
        """Wait for the end of a process, which comes with its walltime at the latest."""
        left_s = worker.pod_created_at + self._walltime_s - time.time()
        try:
            async with timeout(None if left_s == math.inf else max(0.0, left_s)):
                await worker.process.wait()
        except asyncio.TimeoutError:
            worker.is_renewed = True
            worker.process.send(signal.SIGKILL)
            await worker.process.wait()

    def _remove(
        self, row: _Group, name: str, signal_number: signal.Signals = signal.SIGTERM
    ) -> None:
        self._later(self._end(row.workers.pop(name), signal_number))

    def _later(self, ending: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(ending)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end(self, worker: _Worker, signal_number: signal.Signals) -> None:
        worker.removed = True
        worker.process.send(signal_number)
        await worker.process.end()
        if worker.keeper is not None:
            await worker.keeper
        self._fill()
