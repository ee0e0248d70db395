"""Work whose executions are counted, and ways to talk to an agent, for tests in one process."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import isawaitable
from pathlib import Path
from typing import Any

import dask
from distributed import wait
from distributed.core import rpc

from dask_adaptive_agent import wire
from dask_adaptive_lab.run_counter import COUNTED, RunCounter

#: One entry an execution; workers of `gen_cluster` run in this process.
RUNS: list[Any] = []


def slow(i: Any, delay_s: float = 0.1, *_: Any) -> bytes:
    RUNS.append(i)
    time.sleep(delay_s)
    return b"x" * 1000


#: Once it is set, tasks that are `held` end.
MAY_END = threading.Event()


def held(i: Any) -> bytes:
    """Runs until the test lets it end: no machine is too slow for what comes before that."""
    RUNS.append(i)
    assert MAY_END.wait(60)
    return b"x" * 1000


def slow_block(block: Any) -> Any:
    RUNS.append(block.shape)
    time.sleep(0.05)
    return block


#: Where the agent is, for processes that are to have it.
OPERATOR = Path(__file__).resolve().parents[2] / "operator"


def ran(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A program of Python, by this release and with the agent, once it has ended."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": str(OPERATOR)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


class Counter:
    """An actor."""

    def one(self) -> int:
        return 1


#: How many blocks such a shuffle takes, and gives.
BLOCKS = 20


def rechunked(c: Any, value: int = 1, plus: int = 0, blocks: int = BLOCKS) -> Any:
    """
    A P2P rechunk with slow blocks on both sides; a future of its sum: 6400 times `value`.

    The shuffle is the same whatever is to be added to its sum.
    """
    import dask.array as da

    size = 80 // blocks
    # Small chunks, because inputs up to this size are merged into one, and all would wait for all.
    with dask.config.set({"optimization.fuse.active": False, "array.chunk-size": "2 kiB"}):
        x = da.full((80, 80), value, chunks=(size, 80)).map_blocks(slow_block, dtype=float)
        y = x.rechunk((80, size), method="p2p").map_blocks(slow_block, dtype=float)
        return c.compute(y.sum() + plus)


async def running(c: Any, worker: Any, i: Any, **how: Any) -> Any:
    """A task that runs on this worker, until somebody sets `MAY_END`."""
    MAY_END.clear()
    future = c.submit(held, i, workers=[worker.address], **how)
    await until(lambda: worker.state.executing_count)
    return future


async def holding(c: Any, worker: Any, results: int, **how: Any) -> list[Any]:
    """Results that this worker alone holds."""
    futures: list[Any] = c.map(slow, range(results), delay_s=0, workers=[worker.address], **how)
    await wait(futures)
    return futures


async def observe_once(address: str) -> Any:
    """What somebody sees who only looks, meters included."""
    from dask_adaptive.scheduler.link import ReadOnlyLink  # not in environments of old releases

    link = ReadOnlyLink(address)
    try:
        return await link.observe(meters=True)
    finally:
        await link.close()


async def ask(scheduler: Any, message: str, /, **request: Any) -> dict[str, Any]:
    """One message through the scheduler's own port, as the operator sends it."""
    address = scheduler if isinstance(scheduler, str) else scheduler.address
    async with rpc(address) as link:
        request.setdefault("protocol", wire.PROTOCOL)
        answer: dict[str, Any] = await getattr(link, message)(**request)
        return answer


def count_runs(scheduler: Any) -> None:
    """From now on."""
    RunCounter(scheduler).install()


def tally(scheduler: Any, *keys: str) -> tuple[int, ...]:
    """These figures of the runs since `count_runs`."""
    counted = scheduler.handlers[COUNTED]()
    return tuple(counted[key] for key in keys)


async def retire(scheduler: Any, *names: Any, **request: Any) -> list[tuple[str, str]]:
    """(state, veto) of each."""
    answer = await ask(scheduler, wire.RETIRE, names=[str(n) for n in names], **request)
    return [(one["state"], one["veto"]) for one in answer["outcomes"]]


async def pin(
    scheduler: Any, *workers: Any, source: str = wire.MANUAL, owner: str = "operator"
) -> None:
    """Somebody wants these workers (or names) to stay, for a minute."""
    names = [str(getattr(w, "name", w)) for w in workers]
    request = {"names": names, "source": source, "owner": owner, "reason": "test"}
    await ask(scheduler, wire.PIN, ttl_ms=60_000, **request)


async def unpin(scheduler: Any, source: str = wire.MANUAL, owner: str = "operator") -> None:
    await ask(scheduler, wire.UNPIN, source=source, owner=owner)


def by_slot(snapshot: dict[str, Any], key: str = "name") -> dict[int, str]:
    """Names, or addresses, of the workers that a snapshot introduces."""
    introduced = snapshot["introduced"]
    return dict(zip(introduced["slot"], introduced[key]))


async def until(condition: Callable[[], Any], timeout_s: float = 20.0) -> Any:
    """What it gives, or what that gives when it is awaited, once this is true."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found := await found if isawaitable(found) else found:
            return found
        if time.monotonic() > deadline:
            raise TimeoutError("did not happen in time")
        await asyncio.sleep(0.01)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """It takes no longer; `TimeoutError`, which is tried again on a crowded machine: it does."""
    began = time.monotonic()
    yield
    if (took_s := time.monotonic() - began) > seconds:
        raise TimeoutError(f"took {took_s:.1f} s instead of {seconds:g} at most")


async def until_heard(scheduler: Any, worker: Any) -> None:
    """Until the scheduler has read all that the worker has sent so far."""
    heard: list[str] = []
    scheduler.stream_handlers["test-heard"] = lambda worker: heard.append(worker)
    worker.batched_stream.send({"op": "test-heard"})
    await until(lambda: heard)


async def until_state(scheduler: Any, name: Any, expected: str, **request: Any) -> dict[str, Any]:
    """Ask for a retirement again and again until its state is `expected`; that outcome."""

    async def outcome() -> dict[str, Any] | None:
        answer = await ask(scheduler, wire.RETIRE, names=[str(name)], **request)
        (found,) = answer["outcomes"]
        return found if found["state"] == expected else None

    return dict(await until(outcome))


async def leave(scheduler: Any, *names: Any, **request: Any) -> list[str]:
    """The state of each worker that is told that its process is about to end."""
    request.setdefault("left_ms", 60_000)
    answer = await ask(scheduler, wire.LEAVE, names=[str(n) for n in names], **request)
    return [one["state"] for one in answer["outcomes"]]


async def until_left(scheduler: Any, name: Any, *, timeout_s: float = 20.0, **request: Any) -> None:
    """Ask as a worker's process does, until everything has been handed over."""

    async def has_left() -> bool:
        return set(await leave(scheduler, name, **request)) <= {wire.DRAINED, "gone"}

    await until(has_left, timeout_s)


def nobody_fetches_from(worker: Any) -> asyncio.Event:
    """Until that is set: the network is slow."""
    may_fetch = asyncio.Event()
    stock = worker.handlers["get_data"]

    async def waits(comm: Any, **request: Any) -> Any:
        await may_fetch.wait()
        return await stock(comm, **request)

    worker.handlers["get_data"] = waits
    return may_fetch


def heard(scheduler: Any, op: str) -> list[dict[str, Any]]:
    """Requests that reach a handler from now on."""
    requests: list[dict[str, Any]] = []
    handler = scheduler.handlers[op]

    def listen(**request: Any) -> Any:
        requests.append(request)
        return handler(**request)

    scheduler.handlers[op] = listen
    return requests
