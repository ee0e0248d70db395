"""
The case that users tell of: tasks of 4 h on workers of 5 h, each kept in seconds here.

Workers are processes that are killed at the end of their time. What the operator does with them
is done by the test: it says when they end and that others come, and replaces those that get no
more tasks.
"""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from dask_adaptive_agent import wire
from support.agent_work import ask, by_slot
from support.leave_processes import Processes, processes

#: Workers live for ten seconds here, and stock needs several generations of them.
pytestmark = pytest.mark.thorough

#: A worker takes up to a second until its first task begins, on a machine under load.
TASK_S, LIFE_S = 8.0, 11.0
WORKERS, TASKS = 2, 4


def _by_value() -> Any:
    # Functions of a module that workers do not have go by value only when they are nested.
    def walk(i: int, runs: str, seconds: float) -> int:
        import time

        with open(runs, "a") as file:
            file.write(f"begun-{i}\n")
        time.sleep(seconds)
        with open(runs, "a") as file:
            file.write(f"ended-{i}\n")
        return i

    return walk


walk = _by_value()


class Pods:
    """Keeps so many workers running, each of which is killed `LIFE_S` after it has joined."""

    def __init__(self, p: Processes, client: Client, *, is_ours: bool) -> None:
        self.p = p
        self.client = client
        self.is_ours = is_ours
        self.running: dict[str, tuple[Any, float]] = {}  # process, when it ends; by name
        self.short: set[str] = set()  # those that get no more tasks: others come, then they leave
        self.count = self.killed = 0

    async def run(self) -> None:
        while True:
            serving = len(self.running.keys() - self.short)
            await asyncio.gather(*[self.start() for _ in range(WORKERS - serving)])
            if self.is_ours:
                await self.replace()
            now = time.monotonic()
            for name, (process, ends_at) in list(self.running.items()):
                if now >= ends_at:
                    self.kill(name, process)
            await asyncio.sleep(0.05)

    async def start(self) -> None:
        self.count += 1
        name = f"w{self.count}"
        process = await self.p.worker(name, "--no-nanny")

        def has_joined(dask_scheduler: Any) -> bool:
            return any(ws.name == name for ws in dask_scheduler.workers.values())

        while not await self.client.run_on_scheduler(has_joined):
            await asyncio.sleep(0.05)
        self.running[name] = process, time.monotonic() + LIFE_S

    async def replace(self) -> None:
        snapshot = await ask(self.p.address, wire.OBSERVE, meters=True)
        names = by_slot(snapshot)
        for slot in snapshot["meters"]["too_short"]:
            self.short.add(names[slot])
        for name in self.short & self.running.keys():
            if await self.is_drained(name):
                self.kill(name, self.running[name][0])
        arriving = [(WORKERS, 2_000)]  # whoever ends is replaced at once
        await ask(self.p.address, wire.ANNOUNCE, arriving=arriving, policy="p")
        now, left = time.monotonic(), self.running
        await ask(
            self.p.address,
            wire.LIMIT,
            session=snapshot["session"],
            names=list(left),
            runs=[0] * len(left),
            left_ms=[max(0, int((ends_at - now) * 1000)) for _, ends_at in left.values()],
            profile=[0] * len(left),
            profiles=[{"fresh_ms": int(LIFE_S * 1000)}],
            stops=0,
        )

    async def is_drained(self, name: str) -> bool:
        """Ask for it, or again: it is refused while nobody could take what the worker has."""
        answer = await ask(self.p.address, wire.RETIRE, names=[name], busy_ok=True)
        return answer["outcomes"][0]["state"] in (wire.DRAINED, "gone")

    def kill(self, name: str, process: Any) -> None:
        del self.running[name]
        self.killed += 1
        process.send_signal(signal.SIGKILL)


async def interrupted(directory: Path, *, is_ours: bool) -> int:
    async with processes(directory) as p:
        await p.scheduler(agent=is_ours)
        async with Client(p.address, asynchronous=True) as client:
            pods = Pods(p, client, is_ours=is_ours)
            running = asyncio.ensure_future(pods.run())
            while len(pods.running) < WORKERS:
                await asyncio.sleep(0.05)

            async def one(i: int) -> int:
                # Each result is fetched at once: what dies with a worker is a task that runs.
                return int(await client.submit(walk, i, p.runs, TASK_S, retries=5))

            done = asyncio.gather(*map(one, range(TASKS)))
            await asyncio.wait([done, running], timeout=150, return_when="FIRST_COMPLETED")
            assert done.done(), pods.running
            running.cancel()
            assert pods.killed
        ran = p.ran()
        begun = [line for line in ran if line.startswith("begun")]
        assert TASKS <= len(ran) - len(begun)
        return 2 * len(begun) - len(ran)


@pytest.mark.parametrize("is_ours", [True, False], ids=["ours", "stock"])
def test_each_worker_runs_what_it_can_finish(
    tmp_path: Path, is_ours: bool, record_property: Any
) -> None:
    count = asyncio.run(interrupted(tmp_path, is_ours=is_ours))

    record_property("interrupted", count)
    print(f"{'ours' if is_ours else 'stock'}: {count} of {TASKS} tasks interrupted")
    assert (count == 0) is is_ours
