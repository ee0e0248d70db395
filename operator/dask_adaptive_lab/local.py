"""
The Platform that is this machine: a scheduler process with the agent preloaded, and worker groups
with the manners of upstream's Deployments. A worker is a process that is started again when it
dies, as a Deployment's pod is.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dask_adaptive.loop.ports import PlatformError
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import ObservedGroup, PlatformView, PlatformWorker

#: After SIGTERM, how long a process may take before it is killed.
PATIENCE_S = 5.0


async def start_child(
    command: Sequence[str], log: Path, env: Mapping[str, str]
) -> asyncio.subprocess.Process:
    """Start a process with these further variables, whose output goes to a file."""
    with log.open("ab") as file:
        return await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={**os.environ, **env},
            start_new_session=True,  # a Ctrl-C at the terminal is for us to pass on
        )


def ending_signals() -> list[signal.Signals]:
    """Return those of Ctrl-C, `kill`, and a terminal that is closed, unless `nohup` ignores it."""
    every = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return [number for number in every if signal.getsignal(number) is not signal.SIG_IGN]


async def end(child: asyncio.subprocess.Process, patience_s: float = PATIENCE_S) -> None:
    """
    SIGTERM, then SIGKILL; returns when the process is gone, and all that it has started.

    Args:
        child: The leader of a session of its own.
    """
    if child.returncode is not None:
        return
    child.send_signal(signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience_s):
            await child.wait()
    with contextlib.suppress(ProcessLookupError):  # nothing is left of the session
        os.killpg(child.pid, signal.SIGKILL)
    await child.wait()


class Process:
    """A child process whose output goes to a file. Only ever signals the pid it started itself."""

    def __init__(self, command: Sequence[str], *, log: Path, env: Mapping[str, str]) -> None:
        self._command, self._log, self._env = list(command), log, dict(env)
        self._child: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self._child = await start_child(self._command, self._log, self._env)

    @property
    def has_ended(self) -> bool:
        return self._child is None or self._child.returncode is not None

    def send(self, number: signal.Signals) -> None:
        """Signal the process if it still runs."""
        if self._child is not None and self._child.returncode is None:
            self._child.send_signal(number)

    async def wait(self) -> int:
        """The exit code, once there is one."""
        assert self._child is not None
        return await self._child.wait()

    async def end(self, patience_s: float = PATIENCE_S) -> None:
        """End it; returns when it is gone."""
        if self._child is not None:
            await end(self._child, patience_s)

    def log_tail(self, lines: int = 20) -> str:
        if not self._log.exists():
            return ""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])


#: Time in which a scheduler must listen; imports are slow on a busy machine.
START_S = 60.0


class LocalScheduler:
    """
    `dask scheduler` on the loopback interface.

    Args:
        directory: For its log and the file that says where it listens.
        port: 0 takes a free one; a fixed one lets workers find a scheduler that is started again.
        inject: Preload the agent, as the webhook does in a cluster.
        python: The interpreter, and with it the release of distributed.
        env: Further variables, as the webhook sets them.
    """

    def __init__(
        self,
        directory: Path,
        *,
        port: int = 0,
        inject: bool = True,
        python: str = sys.executable,
        env: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._file = directory / "scheduler.json"
        preload = {"DASK_DISTRIBUTED__SCHEDULER__PRELOAD": "dask_adaptive_agent.preload"}
        self.process = Process(
            [
                python, "-m", "distributed.cli.dask_scheduler",
                "--host", "127.0.0.1", "--port", str(port), "--dashboard-address", "127.0.0.1:0",
                "--scheduler-file", str(self._file),
            ],
            log=directory / "scheduler.log",
            env={**preload, **env} if inject else env,
        )  # fmt: skip
        self.address = ""
        self.dashboard = ""

    async def start(self) -> None:
        """
        Start, or start again, and wait until it listens.

        Raises:
            RuntimeError: It ended or said nothing in time; the message holds the end of its log.
        """
        self._file.unlink(missing_ok=True)
        await self.process.start()
        for _ in range(int(START_S / 0.05)):
            if self.process.has_ended:
                break
            if (said := self._read()) is not None:
                self.address = said["address"]
                port = said.get("services", {}).get("dashboard")
                self.dashboard = f"http://127.0.0.1:{port}/status" if port else ""
                return
            await asyncio.sleep(0.05)
        raise RuntimeError(f"the scheduler did not start:\n{self.process.log_tail()}")

    def _read(self) -> dict[str, Any] | None:
        try:
            return json.loads(self._file.read_text())  # type: ignore[no-any-return]
        except (FileNotFoundError, json.JSONDecodeError):
            return None  # not written, or half written


#: Pause before a worker that died is started again, as kubelet does for a crashed container.
RESTART_S = 1.0


@dataclass(frozen=True, slots=True)
class Machine:
    """A cluster's part of this machine."""

    capacity: int = 64  # workers that there is room for; others wait, like unschedulable pods
    nthreads: int = 1  # of each worker, as `dask worker` takes it
    memory_limit: str = "1GiB"
    python: str = sys.executable  # the interpreter: another release of distributed
    groups: tuple[str, ...] = ()  # worker groups beside the default one
    resources: Mapping[str, str] = field(default_factory=dict)  # by group, as `dask worker` says
    nanny: bool = False  # starts a worker again that takes too much memory


def amounts_of(resources: str) -> tuple[tuple[str, float], ...]:
    """`GPU=1 MEM=2e9` as pairs, in the order of their names."""
    pairs = (pair.split("=") for pair in resources.replace(",", " ").split())
    return tuple(sorted((name, float(amount)) for name, amount in pairs))


@dataclass
class _Worker:
    name: str
    uid: str
    group: str
    process: Process
    made_at: float  # seconds since 1970
    keeper: asyncio.Task[None] | None = None  # None: waits for room on the machine
    removed: bool = False
    pod_uid: str = ""  # a process that crashes is started again in the same pod
    pod_created_at: float = 0.0  # seconds since 1970
    annotated: dict[str, Any] = field(default_factory=dict)  # what its pod's annotations come to
    is_renewed: bool = False  # its process ends, so that the next one is in a new pod

    def renew(self) -> None:
        self.pod_uid, self.pod_created_at = uuid.uuid4().hex, time.time()
        self.annotated, self.is_renewed = {}, False


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
        directory: For logs.
        address: Of the scheduler.
        env: Further variables of the workers.
    """

    def __init__(
        self,
        key: ClusterKey,
        directory: Path,
        address: str,
        machine: Machine,
        *,
        env: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._key, self._directory, self._address = key, directory, address
        self._machine, self._capacity = machine, machine.capacity
        self._groups = {name: _Group() for name in (key.default_group, *machine.groups)}
        self._env = dict(env)
        self._numbers = itertools.count(1)
        self._ending = set[asyncio.Task[None]]()
        self._uid = uuid.uuid4().hex
        self._is_deleted = False

    async def look(self) -> PlatformView:
        if self._is_deleted:
            return PlatformView(found=False)
        return PlatformView(
            groups=tuple(
                ObservedGroup(
                    n,
                    g.replicas,
                    handled=g.replicas,
                    threads=self._machine.nthreads,
                    resources=amounts_of(self._machine.resources.get(n, "")),
                )
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
        return self._worker(worker).process

    def annotate(self, worker: str, **seen: Any) -> None:
        """Have a worker seen as annotations of its pod would say: `PlatformWorker`'s fields."""
        self._worker(worker).annotated.update(seen)

    async def close(self) -> None:
        """End every worker; returns when all processes are gone."""
        for row in self._groups.values():
            for name in list(row.workers):
                self._remove(row, name, patience_s=0.0)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _worker(self, name: str) -> _Worker:
        return next(g.workers[name] for g in self._groups.values() if name in g.workers)

    def _view(self, worker: _Worker) -> PlatformWorker:
        full = f"Unschedulable: workers on this machine are limited to {self._capacity}"
        return PlatformWorker(
            name=worker.name,
            uid=worker.uid,
            group=worker.group,
            made_at=worker.made_at,
            pod=worker.name,
            waiting="" if worker.keeper else full,
            pod_uid=worker.pod_uid,
            pod_made_at=worker.pod_created_at,
            **worker.annotated,
        )

    def _create(self, group: str, row: _Group) -> None:
        name, machine = f"{group}-worker-{next(self._numbers)}", self._machine
        command = [
            machine.python, "-m", "distributed.cli.dask_worker", self._address, "--name", name,
            "--nthreads", str(machine.nthreads), "--memory-limit", machine.memory_limit,
            "--nanny" if machine.nanny else "--no-nanny", "--no-dashboard",
            "--death-timeout", "60",
            *(["--resources", machine.resources[group]] if group in machine.resources else []),
        ]  # fmt: skip
        log = self._directory / f"{name}.log"
        process = Process(command, log=log, env={**self._env, "DASK_WORKER_NAME": name})
        worker = _Worker(name, uuid.uuid4().hex, group, process, time.time())
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
            await worker.process.wait()
            if worker.is_renewed:
                worker.renew()
            elif not worker.removed:
                await asyncio.sleep(RESTART_S)

    def _remove(self, row: _Group, name: str, patience_s: float = PATIENCE_S) -> None:
        self._later(self._end(row.workers.pop(name), patience_s))

    def _later(self, ending: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(ending)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end(self, worker: _Worker, patience_s: float) -> None:
        worker.removed = True
        await worker.process.end(patience_s)
        if worker.keeper is not None:
            await worker.keeper
        self._fill()
