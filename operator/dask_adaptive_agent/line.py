"""How a claim reaches the scheduler, by a connection that is there anyway; what can go wrong."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Coroutine
from typing import Any, NamedTuple, TypeVar

import distributed
from distributed.worker import Worker, get_worker

T = TypeVar("T")


class PinRefused(RuntimeError):
    """The policy does not allow this pin; ask for less, or whoever wrote the policy for more."""


class PinUnavailable(RuntimeError):
    """Nobody there who could hold workers; the message says how to mend it."""


class Unreachable(PinUnavailable):
    """No answer; there may be one in a while."""


class Line(NamedTuple):
    """A way to the scheduler: the connection that a client or a worker has anyway."""

    node: Any  # distributed.Client or distributed.Worker
    client: str  # id of the client; empty for a worker
    own: list[str] | None  # whom `workers=None` means; None: all

    @classmethod
    def of(cls, client: Any) -> Line:
        """Through `client`, or else through the worker whose task calls this, or the client."""
        worker = None if client is not None else _worker_of_this_task()
        if worker is not None:
            return cls(worker, "", [worker.address])
        if client is None:
            try:
                client = distributed.Client.current()  # type: ignore[no-untyped-call]
            except ValueError:
                raise PinUnavailable(
                    "no Dask client here, and this is no task: make a distributed.Client first, or "
                    "hand one over as client=..."
                ) from None
        return cls(client, client.id, None)

    @property
    def id(self) -> str:
        return str(self.node.id)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Where the connection lives."""
        loop: asyncio.AbstractEventLoop = self.node.loop.asyncio_loop
        return loop

    @property
    def is_closed(self) -> bool:
        status = self.node.status  # text in a client, an enum in a worker
        return str(getattr(status, "name", status)) == "closed"

    def refuse_own_thread(self, called: str = "pinned") -> None:
        """Raises RuntimeError where a thread would wait for itself."""
        if is_on(self.loop):
            raise RuntimeError(
                f"`with {called}(...)` would stop the event loop that it needs; in async code "
                f"write `async with {called}(...)`"
            )

    def start(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Begin work on the loop; PinUnavailable where that runs no more."""
        try:
            if not self.loop.is_running():
                raise RuntimeError("its event loop has ended")
            return asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError as error:
            work.close()
            raise PinUnavailable(f"the Dask client is closed: {error}") from None

    async def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work on the loop, and wait here. Who is cancelled stops waiting, not working."""
        if is_on(self.loop):
            return await asyncio.shield(asyncio.ensure_future(work))
        return await asyncio.shield(asyncio.wrap_future(self.start(work)))

    async def ask(self, op: str, **request: Any) -> Any:
        """One message; see `wire` for the answers. Runs on the loop."""
        scheduler = self.node.scheduler  # another one after a client has reconnected
        if scheduler is None:
            raise Unreachable("the Dask client is not connected to a scheduler")
        try:
            return await getattr(scheduler, op)(**request)
        except OSError as error:  # distributed's CommClosedError is one
            raise Unreachable(f"the scheduler can't be reached: {error}") from error


def is_on(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this code runs on an event loop."""
    return _running_loop() is loop


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _worker_of_this_task() -> Any:
    """The worker that runs the calling task; None outside of tasks."""
    try:
        return get_worker()
    except ValueError:
        pass
    # get_worker knows nothing of async tasks before 2023.7; BaseWorker keeps what it runs.
    if _running_loop() is None:
        return None
    here = asyncio.current_task()
    for worker in list(Worker._instances):
        if here in getattr(worker, "_async_instructions", ()):
            return worker
    return None
