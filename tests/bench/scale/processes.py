"""The processes beside the bench's own: simulated schedulers, and the operator that is measured."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from distributed.core import rpc

#: A line of JSON that names every cluster.
LONGEST_LINE = 2**24


async def start(module: str, *arguments: str, log: Path, first: Any) -> asyncio.subprocess.Process:
    """A Python process that is given one line of JSON, and ends with its standard input."""
    with log.open("ab") as stderr:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, *arguments,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=stderr,
            limit=LONGEST_LINE,
        )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(json.dumps(first).encode() + b"\n")
    await process.stdin.drain()
    return process


async def end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
        await process.wait()


class Farms:
    """The schedulers of all clusters, in a few processes; knows which is where."""

    def __init__(self) -> None:
        self.addresses: dict[str, str] = {}
        self._control: dict[str, Any] = {}
        self._processes: list[asyncio.subprocess.Process] = []

    async def start(self, names: Sequence[str], *, processes: int, log: Path) -> None:
        for i in range(processes):
            mine = names[i::processes]
            if not mine:
                continue
            process = await start("bench.scale.schedulers", log=log, first=mine)
            self._processes.append(process)
            assert process.stdout is not None
            told = json.loads(await process.stdout.readline())
            make_rpc: Any = rpc
            control = make_rpc(told["control"], timeout=30)
            self.addresses |= told["clusters"]
            self._control |= dict.fromkeys(mine, control)

    async def join(self, cluster: str, workers: Sequence[tuple[str, str]]) -> None:
        await self._do(cluster, "join", list(workers))

    async def leave(self, cluster: str, names: Sequence[str]) -> None:
        await self._do(cluster, "leave", list(names))

    async def load(self, cluster: str, tasks: int) -> float:
        """When the scheduler had so many tasks, on the monotonic clock of this machine."""
        return float(await self._do(cluster, "load", tasks))

    async def slow_down(self, cluster: str, delay_s: float) -> None:
        await self._do(cluster, "slow_down", delay_s)

    async def die(self, cluster: str) -> None:
        await self._control[cluster].sim_die(cluster=cluster)

    async def _do(self, cluster: str, what: str, about: Any) -> Any:
        return await self._control[cluster].sim_do(cluster=cluster, what=what, about=about)

    async def retires(self) -> list[tuple[str, str, float]]:
        return [row for control in self._each() for row in await control.sim_retires()]

    async def observed(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for control in self._each():
            found |= await control.sim_observed()
        return found

    def _each(self) -> list[Any]:
        return list({id(c): c for c in self._control.values()}.values())

    async def close(self) -> None:
        for control in self._each():
            await control.close_rpc()
        for process in self._processes:
            await end(process)


class MeasuredOperator:
    """The operator's process, and what it has said of itself."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.samples: list[dict[str, Any]] = []
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(
        cls, first: Mapping[str, Any], *, http_port: int, log: Path
    ) -> MeasuredOperator:
        return cls(await start("bench.scale.runner", str(http_port), log=log, first=first))

    @property
    def pid(self) -> int:
        return self._process.pid

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            self.samples.append(json.loads(line))

    def within(self, began: float, ended: float) -> dict[str, Any]:
        """CPU as a share of one core, memory in MiB, calls by kind, between two moments."""
        some = [s for s in self.samples if began <= s["at"] <= ended]
        assert len(some) > 1, f"the operator has told nothing; {self._process.returncode=}"
        first, last = some[0], some[-1]
        calls = Counter(last["counts"])
        calls.subtract(first["counts"])
        late = sorted(s["late_s"] for s in some)
        return {
            "seconds": last["at"] - first["at"],
            "cpu": (last["cpu_s"] - first["cpu_s"]) / (last["at"] - first["at"]),
            "rss": sorted(s["rss"] for s in some)[len(some) // 2],
            "peak": last["peak"],
            "late_p99_s": late[int(0.99 * (len(late) - 1))],
            "calls": {kind: count for kind, count in calls.items() if count},
        }

    async def settled(self, *, quiet_s: float, timeout_s: float) -> None:
        """Wait until it has written nothing for so long."""
        end_at = time.monotonic() + timeout_s
        while time.monotonic() < end_at:
            await asyncio.sleep(1.0)
            assert self._process.returncode is None, "the operator has ended"
            now = time.monotonic()
            is_old = self.samples and now - self.samples[0]["at"] > quiet_s
            if is_old and not writes(self.within(now - quiet_s, now)["calls"]):
                return

    async def close(self) -> None:
        await end(self._process)
        await self._reading


def together(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What several operators have used: in all, and the latest of their loops."""
    sums = {key: sum(one[key] for one in found) for key in ("cpu", "rss", "peak")}
    late_s = max(one["late_p99_s"] for one in found)
    calls = sum((Counter(one["calls"]) for one in found), Counter[str]())
    return {**found[0], **sums, "late_p99_s": late_s, "calls": calls}


def writes(calls: Mapping[str, int]) -> dict[str, int]:
    """Of all calls those that change something. Renewing the lease is no decision's."""
    return {k: n for k, n in calls.items() if not k.startswith("GET ") and "leases" not in k}
