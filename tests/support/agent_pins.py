"""Pins as the scheduler tells them, and clusters in which they are made."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from distributed import Client, LocalCluster, Worker

from dask_adaptive_agent import wire
from dask_adaptive_agent.agent import install
from support.agent_work import ask, by_slot, until

#: A process that has Dask, and no copy of the agent; its last argument is the scheduler's address.
BARE_WORKER = """
import asyncio, importlib.util, os, sys
sys.path[:] = [p for p in sys.path if not os.path.isdir(os.path.join(p, "dask_adaptive_agent"))]
sys.path[:0] = [p for p in sys.argv[3:] if p]
if len(sys.argv) <= 3:
    assert importlib.util.find_spec("dask_adaptive_agent") is None
if __name__ == "__main__":
    import distributed
    async def main():
        async with getattr(distributed, sys.argv[1])(sys.argv[2], name="bare", nthreads=2) as node:
            await node.finished()
    asyncio.run(main())
"""


#: The logger that users are told of.
TOLD_BY = "dask_adaptive_agent.client.pinned"


@contextlib.contextmanager
def told() -> Iterator[list[logging.LogRecord]]:
    """What users are told."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger(TOLD_BY)
    logger.addHandler(handler)
    try:
        yield records
    finally:
        logger.removeHandler(handler)


async def pins(scheduler: Any) -> list[tuple[str, str, list[str]]]:
    """(source, reason, names) of each claim that an agent knows."""
    seen = await ask(scheduler, wire.OBSERVE)
    names = by_slot(seen)
    return [
        (row["source"], row["reason"], sorted(names[slot] for slot in row["slots"]))
        for row in seen["pins"]
        if row["slots"]
    ]


async def until_pins(scheduler: Any, expected: list[tuple[str, str, list[str]]]) -> None:
    async def are_as_expected() -> bool:
        return expected == await pins(scheduler)

    await until(are_as_expected)


class Sync:
    """A cluster in threads of this process with a client for code without `await`."""

    def __init__(self, cluster: Any, client: Any) -> None:
        self.cluster, self.client = cluster, client
        self.scheduler = cluster.scheduler

    def pins(self) -> list[tuple[str, str, list[str]]]:
        found: Any = self.client.sync(pins, self.scheduler.address)
        return list(found)

    def until_pins(self, expected: list[tuple[str, str, list[str]]]) -> None:
        self.client.sync(until_pins, self.scheduler.address, expected)

    def ask(self, message: str, **request: Any) -> Any:
        return self.client.sync(ask, self.scheduler.address, message, **request)

    @property
    def names(self) -> list[str]:
        return sorted(str(ws.name) for ws in self.scheduler.workers.values())

    @property
    def addresses(self) -> list[str]:
        return sorted(self.scheduler.workers)


@contextlib.contextmanager
def sync_cluster(*, with_agent: bool = True) -> Iterator[Sync]:
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=2, processes=False, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        if with_agent:
            in_loop(client, lambda: install(cluster.scheduler))
        yield Sync(cluster, client)


def in_loop(client: Any, call: Callable[[], Any]) -> Any:
    """Call it where the cluster lives."""

    async def there() -> Any:
        return call()

    return client.sync(there)


@contextlib.asynccontextmanager
async def bare_worker(
    scheduler: Any, cwd: Path, *, kind: str = "Worker", path: str = ""
) -> AsyncIterator[subprocess.Popen[bytes]]:
    """A worker named "bare" in a process of its own, which has no copy of the agent."""
    script = cwd / "bare_worker.py"
    script.write_text(BARE_WORKER)
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    arguments = [kind, scheduler.address, *([path] if path else [])]
    before = len(scheduler.workers)
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(script), *arguments],
        stderr=subprocess.DEVNULL,
        cwd=cwd,
        env=clean,
    )
    try:
        deadline = time.monotonic() + 60
        while len(scheduler.workers) == before:
            assert process.poll() is None, "the worker has ended"
            if time.monotonic() > deadline:
                raise TimeoutError("the worker did not register")
            await asyncio.sleep(0.05)
        yield process
    finally:
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, 20)
        finally:
            process.kill()
            process.wait()


async def named_worker(scheduler: Any, name: str) -> Any:
    return await Worker(scheduler.address, name=name, nthreads=2)
