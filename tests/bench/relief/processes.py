"""Schedulers, workers and clients that are measured: a process each, started as people do."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distributed.core import rpc

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
PRELOAD = "DASK_DISTRIBUTED__SCHEDULER__PRELOAD"
#: Seconds in which anything that is asked of a process must come.
PATIENCE_S = 240.0


def path(*folders: Path) -> str:
    return os.pathsep.join(map(str, folders))


@dataclass(frozen=True)
class Side:
    """One way to run a scheduler; it differs from the others by its environment only."""

    name: str
    environment: Mapping[str, str]


STOCK = Side("stock", {PRELOAD: "relief_probe", "PYTHONPATH": path(HERE, ROOT / "tests")})
OURS = Side(
    "ours",
    {
        PRELOAD: '["dask_adaptive_agent.preload", "relief_probe"]',
        "PYTHONPATH": path(HERE, ROOT / "tests", ROOT / "operator"),
    },
)
SHARED = Side("shared", {**OURS.environment, "DASK_ADAPTIVE_RELIEF": "pickling=Shared"})


class Ended(Exception):
    """A process that is measured has ended, or does not answer."""


def tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]


@dataclass
class Talker:
    """A process that answers each line with one line of JSON."""

    name: str
    process: asyncio.subprocess.Process
    log: Path

    async def ask(self, line: str = "") -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n".encode())
        return await self.heard()

    async def heard(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), PATIENCE_S)
        if not line:
            raise Ended(f"{self.name} has ended: {tail(self.log)}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@dataclass
class Cluster:
    """A scheduler of one side, and whatever belongs to it."""

    side: Side
    folder: Path
    address: str = ""
    processes: list[asyncio.subprocess.Process] = field(default_factory=list)

    async def start(self) -> None:
        """A scheduler, and a worker of four threads."""
        file = self.folder / "scheduler.json"
        listens = ("--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0")
        command = ("-m", "distributed.cli.dask_scheduler", "--no-dashboard", *listens)
        await self._start("scheduler", *command, "--scheduler-file", str(file))
        self.address = await self._address(file)
        command = ("-m", "distributed.cli.dask_worker", self.address, "--no-nanny")
        await self._start("worker", *command, "--no-dashboard", "--nthreads", "4")
        await self.until("workers", 1)

    async def talker(self, program: str, *arguments: str) -> Talker:
        process = await self._start(program, str(HERE / program), *arguments, talks=True)
        log = self.folder / f"{program}.log"
        talker = Talker(f"{program} of {self.side.name}", process, log)
        await talker.heard()
        return talker

    async def call(self, handler: str, **arguments: Any) -> Any:
        async with rpc(self.address) as link:
            return await asyncio.wait_for(getattr(link, handler)(**arguments), PATIENCE_S)

    async def until(self, what: str, least: int, most: float = float("inf")) -> None:
        """Wait for a number of tasks, clients or workers."""
        for _ in range(int(PATIENCE_S * 10)):
            if least <= (await self.call("relief_cpu"))[what] <= most:
                return
            await asyncio.sleep(0.1)
        raise Ended(f"{self.side.name}: {what} are not {least} in {PATIENCE_S:.0f} s")

    async def stop(self) -> None:
        for process in reversed(self.processes):
            if process.returncode is None:
                process.kill()
        for process in self.processes:
            await process.wait()

    async def _start(self, name: str, *command: str, talks: bool = False) -> Any:
        is_scheduler = name == "scheduler"
        environment = {k: v for k, v in os.environ.items() if not k.startswith("DASK_")}
        environment["PYTHONPATH"] = str(HERE)  # workers and clients have nothing of ours
        environment["PYTHONWARNINGS"] = "ignore"
        environment |= self.side.environment if is_scheduler else {}
        pipe = asyncio.subprocess.PIPE
        with open(self.folder / f"{name}.log", "wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, *command, env=environment, cwd=self.folder, stderr=log,
                stdout=pipe if talks else log, stdin=pipe if talks else None,
            )  # fmt: skip
        self.processes.append(process)
        return process

    async def _address(self, file: Path) -> str:
        for _ in range(int(PATIENCE_S * 20)):
            if self.processes[0].returncode is not None:
                raise Ended(tail(self.folder / "scheduler.log"))
            if file.exists() and (text := file.read_text()).endswith("}"):
                address: str = json.loads(text)["address"]
                return address
            await asyncio.sleep(0.05)
        raise Ended("the scheduler does not start")


class Clusters:
    """One cluster a side, side by side: `async with Clusters(STOCK, OURS) as clusters`."""

    def __init__(self, *sides: Side) -> None:
        self._sides: Sequence[Side] = sides
        self._folder = tempfile.TemporaryDirectory(prefix="relief-")
        self._clusters: list[Cluster] = []

    async def __aenter__(self) -> list[Cluster]:
        try:
            for i, side in enumerate(self._sides):
                folder = Path(self._folder.name) / f"{i}-{side.name}"
                folder.mkdir()
                self._clusters.append(Cluster(side, folder))
            await asyncio.gather(*(one.start() for one in self._clusters))
        except BaseException:
            await self.__aexit__()
            raise
        return self._clusters

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(one.stop() for one in self._clusters))
        self._folder.cleanup()
