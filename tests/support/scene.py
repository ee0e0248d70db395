"""A scheduler in the middle of its work: workers in every state, pins, quotas, a shuffle's wait."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator
from typing import Any

from distributed import Client, Scheduler, Worker

from dask_adaptive.loop.ports import PageContent
from dask_adaptive.model.plan import Arriving
from dask_adaptive.scheduler.link import connect
from dask_adaptive_agent import wire
from dask_adaptive_agent.agent import install
from support.agent_work import ask, until

NAMES = [
    f"etl-default-worker-{tail}"
    for tail in ("1c0f3a9b", "2d77e410", "3b9a66f2", "4e01c8d5", "5a3f7b21", "6f8d2c94", "7e52a0cc")
]
PINNED, BY_TASK, DRAINING, STOPPED, QUIET, HELD, FREE = NAMES

TOLD = PageContent(
    policy="etl",
    message="6 workers wanted for 31 queued tasks; 2 more asked for",
    workers=(
        (QUIET, "planned to leave: idle for 48 s, and 5 workers do the work that is left"),
        (HELD, "stays: the idle timeout of 60 s has 38 s left"),
    ),
    decisions=(
        (1795000000.0, "etl-default", "LoadIncreased", "0 → 4: 120 tasks queued, 96 s of work"),
        (1795000042.0, "etl-default", "LoadIncreased", "4 → 7: 64 tasks queued, 180 s of work"),
        (1795000301.0, "etl-gpu", "LoadIncreased", "0 → 1: 3 tasks need GPU 1"),
        (1795000365.0, "etl-default", "ScaleDownStabilized", "7 held: 5 wanted, 41 s of 60 s left"),
        (1795000402.0, "etl-default", "Underutilized", f"7 → 6: {DRAINING} leaves, idle for 61 s"),
    ),
)


#: Ends the long tasks; the workers run in this process.
OVER = threading.Event()


def work(seconds: float) -> bytes:
    OVER.wait(seconds)
    return b"x" * 3_000_000


@contextlib.asynccontextmanager
async def scene(**options: Any) -> AsyncIterator[Any]:
    """The scheduler, once all is as above. It stays so for a minute at least."""
    kwargs = {"port": 0, "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", **options}
    async with contextlib.AsyncExitStack() as stack:
        OVER.clear()
        s: Any = await stack.enter_async_context(Scheduler(**kwargs))
        install(s)
        for name in NAMES:
            worker: Any = Worker(s.address, name=name, nthreads=1, memory_limit="4GiB")
            await stack.enter_async_context(worker)
        client = await stack.enter_async_context(Client(s.address, asynchronous=True))
        link = connect(s.address)
        stack.push_async_callback(link.close)
        await _fill(s, client)
        await link.announce([Arriving(2, 25.0)], TOLD)
        stack.callback(OVER.set)
        yield s


async def _fill(s: Any, client: Client) -> None:
    held = [
        client.submit(work, 0.05, key=f"block-{n}", workers=[NAMES[n % len(NAMES)]])
        for n in range(35)
    ]
    await client.gather(held, direct=False)
    s.held_by_test = held
    busy = [
        client.submit(work, 120.0, key=f"train-{n}", workers=[name])
        for n, name in enumerate((PINNED, DRAINING, BY_TASK))
    ]
    s.busy_by_test = busy
    await until(lambda: all(f.key in s.tasks and s.tasks[f.key].processing_on for f in busy))
    await ask(
        s, wire.PIN, names=[PINNED], source=wire.MANUAL, owner="annotation", ttl_ms=4 * 3_600_000,
        reason="model is being inspected",
    )  # fmt: skip
    await ask(
        s, wire.PIN, names=[BY_TASK], source=wire.CLIENT, owner="notebook-7f3a", ttl_ms=600_000,
        reason="holds a database connection",
    )  # fmt: skip
    session = s.handlers[wire.HELLO]()["session"]
    await ask(
        s, wire.LIMIT, session=session, names=NAMES, runs=[1000, 1000, 1000, 5, 1000, 1000, 1000],
        left_ms=[-1, -1, -1, -1, 5_400_000, -1, -1], profile=[0] * len(NAMES),
        profiles=[{"exact": False}], stops=1,
    )  # fmt: skip
    await ask(s, wire.WANT, workers=4, ttl_ms=1_800_000, owner="notebook-7f3a")
    await ask(s, wire.RETIRE, names=[DRAINING], reason="Underutilized", busy_ok=True)
