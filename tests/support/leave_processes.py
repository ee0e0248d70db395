"""A scheduler, workers and the hook of a pod as processes, for tests of how workers end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from distributed import Client

from dask_adaptive.kube.agent_zip import LEAVE_SOURCE, agent_zip
from dask_adaptive_lab import local as local_processes
from support.agent_work import ask, until

#: No single wait of a test may take longer; a machine under load is slow, a hang is a failure.
PATIENCE_S = 60.0


def _by_value() -> tuple[Callable[..., bytes], Callable[..., bytes]]:
    # Functions of a module that workers do not have go by value only when they are nested.
    def work(i: Any, runs: str, seconds: float = 0.0, until: str = "") -> bytes:
        """Run for so long, and until a file is there."""
        import os
        import time

        with open(runs, "a") as file:
            file.write(f"{i}\n")
        time.sleep(seconds)
        while until and not os.path.exists(until):
            time.sleep(0.02)
        return b"x" * 100_000

    def long_once(i: Any, runs: str, seconds: float) -> bytes:
        import time

        with open(runs, "a+") as file:
            file.seek(0)
            is_first = f"{i}\n" not in file.read()
            file.write(f"{i}\n")
        if is_first:
            time.sleep(seconds)
        return b"x"

    return work, long_once


work, long_once = _by_value()


class Processes:
    """All that a test starts; all is ended with it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.runs = str(directory / "runs")
        self.zip = directory / "agent.zip"
        self.zip.write_bytes(agent_zip())
        Path(self.runs).touch()
        self.address = ""
        self.env: dict[str, str] = {}
        self._all: list[asyncio.subprocess.Process] = []
        self._count = 0

    def ran(self) -> list[str]:
        return sorted(Path(self.runs).read_text().split())

    def logs(self) -> str:
        """What all of them have said, for messages of failures."""
        return "\n".join(f"{f}:\n{f.read_text()}" for f in sorted(self.directory.glob("*.log")))

    async def start(self, *command: str, **env: str) -> asyncio.subprocess.Process:
        """A process of its own group, in a clean environment, its output in a file."""
        self._count += 1
        base = {k: v for k, v in os.environ.items() if not k.startswith(("DASK", "KUBERNETES"))}
        with (self.directory / f"{self._count}.log").open("w") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", *command, stdout=log, stderr=log, start_new_session=True,
                env={**base, "PYTHONPATH": "operator", **self.env, **env},
            )  # fmt: skip
        self._all.append(process)
        return process

    async def start_dask(self, part: str, *options: str) -> asyncio.subprocess.Process:
        """A scheduler or a worker without a nanny, as rehearsals start theirs: which is quicker."""
        self._count += 1
        log = self.directory / f"{self._count}.log"
        command = [sys.executable, "-m", f"distributed.cli.dask_{part}", *options]
        env = {"PYTHONPATH": "operator", **self.env}
        process = await local_processes.start_child(command, log, env)
        self._all.append(process)
        return process

    async def scheduler(
        self, *, agent: bool = True, host: str = "127.0.0.1"
    ) -> asyncio.subprocess.Process:
        file = self.directory / "scheduler.json"
        preload = ["--preload", "dask_adaptive_agent.preload"] if agent else []
        process = await self.start_dask(
            "scheduler", "--port", "0", "--no-dashboard", "--host", host,
            "--scheduler-file", str(file), *preload,
        )  # fmt: skip
        await until(lambda: file.exists() and file.read_text().strip().endswith("}"), PATIENCE_S)
        import json

        self.address = json.loads(file.read_text())["address"]
        return process

    async def worker(
        self, name: str, *options: str, host: str = "127.0.0.1"
    ) -> asyncio.subprocess.Process:
        return await self.start("dask", "worker", *self.worker_options(name, host), *options)

    def worker_options(self, name: str, host: str = "127.0.0.1") -> list[str]:
        options = [
            self.address, "--name", name, "--nthreads", "1", "--no-dashboard",
            "--local-directory", str(self.directory),
        ]  # fmt: skip
        return [*options, "--host", host] if host else options

    async def hook(
        self, name: str, grace_s: float = 50, *, shared_host: bool = True, **env: str
    ) -> asyncio.subprocess.Process:
        """What the pod of worker `name` runs before it ends: the part in Python."""
        return await self._hook([sys.executable, str(self.zip)], name, grace_s, shared_host, env)

    async def script(self, name: str, grace_s: float) -> asyncio.subprocess.Process:
        """All of it, as the pod's hook starts it."""
        script = self.directory / "leave.sh"
        script.write_text(LEAVE_SOURCE.format(zip=self.zip))
        # Which Python it finds is not the question here.
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return await self._hook(["sh", str(script)], name, grace_s, True, {"PATH": path})

    async def _hook(
        self, program: list[str], name: str, grace_s: float, shared_host: bool, env: dict[str, str]
    ) -> asyncio.subprocess.Process:
        self._count += 1
        base = {k: v for k, v in os.environ.items() if not k.startswith(("DASK", "KUBERNETES"))}
        process = await asyncio.create_subprocess_exec(
            *program, *(["leave"] if program[0] != "sh" else []), "--grace", str(grace_s),
            *(["--shared-host"] if shared_host else []),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            start_new_session=True, cwd=self.directory,
            env={
                **base, "DASK_WORKER_NAME": name, "DASK_SCHEDULER_ADDRESS": self.address,
                **self.env, **env,
            },
        )  # fmt: skip
        self._all.append(process)
        return process

    async def note_kinds(self) -> list[str]:
        answer = await ask(self.address, "adaptive_observe")
        return [note["kind"] for note in answer["notes"]]

    async def close(self) -> None:
        for process in self._all:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its nanny's children too
        await asyncio.gather(*(process.wait() for process in self._all))


async def heard(process: asyncio.subprocess.Process, words: str) -> str:
    """Wait until a process says this; what it has said by then."""
    assert process.stdout
    text = ""
    while words not in text:
        line = await asyncio.wait_for(process.stdout.readline(), PATIENCE_S)
        assert line, text
        text += line.decode()
    return text


async def ended(process: asyncio.subprocess.Process) -> str:
    """Wait for a process; what it has said. It must have ended well."""
    out, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    text = (out or b"").decode()
    assert 0 == process.returncode, text
    return text


async def terminated(process: asyncio.subprocess.Process) -> None:
    """As the kubelet ends a container after its hook."""
    process.send_signal(signal.SIGTERM)
    await asyncio.wait_for(process.wait(), PATIENCE_S)


@contextlib.asynccontextmanager
async def processes(directory: Path) -> AsyncIterator[Processes]:
    started = Processes(directory)
    try:
        yield started
    finally:
        await started.close()


@contextlib.asynccontextmanager
async def cluster(directory: Path, *names: str) -> AsyncIterator[tuple[Processes, Client]]:
    """A scheduler with its agent, workers so called, and a client."""
    async with processes(directory) as p:
        await p.scheduler()
        for name in names:
            await p.start_dask("worker", *p.worker_options(name), "--no-nanny")
        async with Client(p.address, asynchronous=True) as client:
            if names:
                await client.wait_for_workers(len(names))
            yield p, client
