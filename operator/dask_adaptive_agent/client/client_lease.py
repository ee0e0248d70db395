"""
A lease that users' code holds: claimed, renewed in the background, given up; and the connection
over which it reaches the scheduler.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import math
import re
from collections.abc import Coroutine, Iterator, Sequence
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from uuid import uuid4

import distributed
from distributed.worker import Worker, get_worker

from dask_adaptive_agent import wire

if TYPE_CHECKING:
    from typing_extensions import Self

#: The documented logger, so that users can silence it.
logger = logging.getLogger("dask_adaptive_agent.client.pinned")

#: A third of the lease is left to miss two renewals in; and a restarted scheduler is told so soon.
RENEW_S = 20.0
#: After a renewal that was not answered.
RETRY_S = 5.0
#: How long the beginning of a block waits for an answer, and its end.
PATIENCE_S, FAREWELL_S = 30.0, 5.0
#: A worker that is not there is asked for no longer: until then its scheduler may have restarted.
RETURN_S = 300.0

#: Python 3.9 and 3.10 have one for threads and one for tasks.
TIMEOUTS = (concurrent.futures.TimeoutError, asyncio.TimeoutError)

SHORTEST_S = 1.0
_UNITS_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|[dhms]))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[dhms])")

T = TypeVar("T")


class PinRefused(RuntimeError):
    """The policy does not allow this pin; ask for less, or whoever wrote the policy for more."""


class PinUnavailable(RuntimeError):
    """Nothing there can hold workers; the message says how to fix it."""


class Unreachable(PinUnavailable):
    """No answer; there may be one in a while."""


class SchedulerConnection(NamedTuple):
    """The connection to the scheduler that a client or a worker has anyway."""

    node: Any  # distributed.Client or distributed.Worker
    client: str  # id of the client; empty for a worker
    own: list[str] | None  # whom `workers=None` means; None: all

    @classmethod
    def of(cls, client: Any) -> SchedulerConnection:
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
    def is_own_loop(self) -> bool:
        """Tells whether this code runs on the event loop of the connection."""
        return _running_loop() is self.node.loop.asyncio_loop

    @property
    def is_closed(self) -> bool:
        status = self.node.status  # text in a client, an enum in a worker
        return str(getattr(status, "name", status)) == "closed"

    def refuse_own_thread(self, called: str = "pinned") -> None:
        """Raises RuntimeError where a thread would wait for itself."""
        if self.is_own_loop:
            raise RuntimeError(
                f"`with {called}(...)` would stop the event loop that it needs; in async code "
                f"write `async with {called}(...)`"
            )

    def start(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Begin work on the loop; PinUnavailable where that runs no more."""
        try:
            loop: asyncio.AbstractEventLoop = self.node.loop.asyncio_loop
            if not loop.is_running():
                raise RuntimeError("its event loop has ended")
            return asyncio.run_coroutine_threadsafe(work, loop)
        except RuntimeError as error:
            work.close()
            raise PinUnavailable(f"the Dask client is closed: {error}") from None

    async def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work on the loop, and wait here. Who is cancelled stops waiting, not working."""
        if self.is_own_loop:
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


class Pin:
    """The value of `with pinned(...) as pin`; this class holds nothing (`required=False`)."""

    #: The workers that are held, as they were asked for.
    workers: tuple[str, ...] = ()

    @property
    def left_s(self) -> float:
        """Seconds until it would end if it were renewed no more."""
        return 0.0

    def release_from_thread(self) -> None:
        """Give it up."""

    async def release(self) -> None:
        """Give it up."""


class ClientLease(Pin):
    """A claim on workers, with an owner of its own. Its state changes on its connection's loop."""

    #: What users have called to get here.
    called = "pinned"

    def __init__(
        self,
        connection: SchedulerConnection,
        workers: Sequence[str] | None,
        *,
        ttl_s: float,
        reason: str,
    ) -> None:
        self.connection = connection
        self._requested = None if workers is None else [str(name) for name in workers]
        self._names: list[str] = []
        self._ttl_s = ttl_s
        self._every_s = min(ttl_s / 3, RENEW_S)
        self._reason = reason
        self._owner = f"{connection.node.id}/{uuid4().hex[:12]}"
        self._until = -math.inf
        self._complete_at = monotonic()
        self._turn: asyncio.Lock | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._is_over = False
        self._has_warned = False

    @property
    def left_s(self) -> float:
        return max(0.0, self._until - monotonic())

    def acquire_from_thread(self) -> Self:
        """Raises as `pinned` says."""
        with self._acquiring():
            # Begun in here: Ctrl-C may come when the claim is on its way and nobody waits yet.
            self.connection.start(self._acquire()).result(PATIENCE_S)
        return self

    async def acquire(self) -> Self:
        """Raises as `pinned` says."""
        with self._acquiring():
            await asyncio.wait_for(self.connection.wait_for(self._acquire()), PATIENCE_S)
        return self

    def release_from_thread(self) -> None:
        with self._ending_anyway():
            self.connection.start(self._release()).result(FAREWELL_S)

    async def release(self) -> None:
        with self._ending_anyway():
            await asyncio.wait_for(self.connection.wait_for(self._release()), FAREWELL_S)

    def give_up(self) -> None:
        """Begin to release it, without waiting."""
        with self._ending_anyway():
            self.connection.start(self._release())

    @contextlib.contextmanager
    def _acquiring(self) -> Iterator[None]:
        try:
            yield
        except TIMEOUTS:
            self.give_up()  # it may be granted all the same, later
            raise PinUnavailable(f"the scheduler did not answer within {PATIENCE_S:g} s") from None
        except Exception:
            raise  # nothing was granted
        except BaseException:  # cancelled, KeyboardInterrupt: the request may be on its way
            self.give_up()
            raise

    @contextlib.contextmanager
    def _ending_anyway(self) -> Iterator[None]:
        """Ignore errors: the lease ends by its time limit."""
        self._is_over = True
        try:
            yield
        except (PinUnavailable, *TIMEOUTS) as problem:
            logger.debug("Pin %s will end by its time limit: %r", self._owner, problem)

    async def _acquire(self) -> None:
        # Messages of one owner must not overtake each other: a claim that arrives after the
        # release would hold the workers for a whole ttl. So none is cancelled, each waits for its
        # turn, and it is the caller who stops waiting. Python 3.9's locks belong to a loop.
        self._turn = asyncio.Lock()
        async with self._turn:
            await self._hold(is_first=True)
            self._schedule(self._every_s)

    async def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._turn is None:
            return
        async with self._turn:
            self._until = -math.inf
            with self._ending_anyway():
                await self._farewell()

    async def _farewell(self) -> None:
        request = {"source": wire.CLIENT, "owner": self._owner, "protocol": wire.PROTOCOL}
        await self.connection.ask(wire.UNPIN, **request)

    async def _targets(self) -> list[str]:
        if self._requested is not None:
            return self._requested
        if self.connection.own is not None:
            return self.connection.own
        # Scheduler.get_ncores: the smallest message that names all workers.
        everybody = list(await self.connection.ask("ncores"))
        if not everybody:
            raise PinUnavailable("no worker is connected: client.wait_for_workers(1) waits for one")
        return everybody

    async def _hold(self, *, is_first: bool = False) -> None:
        """Claim the workers, or those that are still there; PinUnavailable if none is."""
        if is_first:
            self._names = await self._targets()
        requested_at = monotonic()
        try:
            granted = await self._pin(self._names)
            self._complete_at = requested_at
        except ValueError:
            if is_first and self._requested is not None:
                raise
            granted = await self._pin_those_here(self._names)
            if not granted:
                raise PinUnavailable("none of the workers is still connected") from None
            if requested_at - self._complete_at > RETURN_S:
                self._names = [name for name, _ in granted]
        self.workers = tuple(name for name, _ in granted)
        self._until = requested_at + min([ms for _, ms in granted], default=0) / 1000

    async def _pin_those_here(self, names: list[str]) -> list[tuple[str, int]]:
        try:
            return await self._pin(names)
        except ValueError:
            # The agent pins nobody where a name has no worker: halves lead to that name.
            if len(names) == 1:
                return []
            half = len(names) // 2
            first = await self._pin_those_here(names[:half])
            return [*first, *await self._pin_those_here(names[half:])]

    async def _pin(self, names: list[str]) -> list[tuple[str, int]]:
        """Each name and for how many milliseconds; ValueError if one has no worker."""
        answer = await self._answer(
            wire.PIN,
            names=names,
            client=self.connection.client,
            source=wire.CLIENT,
            owner=self._owner,
            reason=self._reason,
            ttl_ms=math.ceil(self._ttl_s * 1000),
        )
        return [(str(name), ms) for name, ms in answer["pinned"]]

    async def _answer(self, op: str, **request: Any) -> Any:
        answer = await self.connection.ask(op, protocol=wire.PROTOCOL, **request)
        if not isinstance(answer, dict):  # None: Scheduler.handle_comm has no such handler
            raise PinUnavailable(
                "no dask-adaptive agent in this scheduler: install the operator and write an "
                "AdaptivePolicy for this cluster, or go on without it with "
                f"{self.called}(required=False)"
            )
        code = answer.get("error")
        if code == wire.E_REFUSED:
            raise PinRefused(answer["message"])
        if code == wire.E_INVALID:
            raise ValueError(answer["message"])
        if code is not None:
            raise PinUnavailable(answer["message"])
        return answer

    def _schedule(self, delay_s: float) -> None:
        # A timer, not a task that sleeps: it may be left behind when the loop ends.
        if not self._is_over:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._start_renewal)

    def _start_renewal(self) -> None:
        self._renewing = asyncio.ensure_future(self._renew())

    async def _renew(self) -> None:
        assert self._turn is not None
        async with self._turn:
            if self._is_over:
                return
            try:
                await self._hold()
                self._schedule(self._every_s)
            except PinRefused as refused:
                self._warn(refused)
            except Unreachable as problem:
                if not self.left_s:
                    self._warn(f"the scheduler does not answer ({problem})")
                self._retry(min(self._every_s, RETRY_S))
            except Exception as problem:  # nobody else could catch it; the block goes on
                self._warn(problem)
                self._retry(self._every_s)

    def _retry(self, delay_s: float) -> None:
        if self.connection.is_closed:
            self._warn("the Dask client was closed")
        else:
            self._schedule(delay_s)

    def _warn(self, problem: object) -> None:
        if not self._has_warned:
            self._has_warned = True
            held = ", ".join(self._names[:3]) + (", …" if len(self._names) > 3 else "")
            logger.warning("Workers may leave although they are pinned (%s): %s", held, problem)


def seconds(ttl: Any) -> float:
    """Reads the length of a lease; ValueError says how to write one."""
    if isinstance(ttl, timedelta):
        ttl = ttl.total_seconds()
    if isinstance(ttl, str) and _DURATION.fullmatch(text := ttl.replace(" ", "")):
        ttl = sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(text))
    if isinstance(ttl, bool) or not isinstance(ttl, (int, float)) or not math.isfinite(ttl):
        raise ValueError(f"ttl={ttl!r} is not a duration; write one like '90s', '30m' or '1h30m'")
    if ttl < SHORTEST_S:
        raise ValueError(
            f"ttl={ttl:g} s is too short to be renewed in time; ask for {SHORTEST_S:g} s or more: "
            "the pin ends with the block anyway"
        )
    return float(ttl)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def current_task() -> asyncio.Task[Any] | None:
    """None also where no event loop runs."""
    return None if _running_loop() is None else asyncio.current_task()


def _worker_of_this_task() -> Any:
    """The worker that runs the calling task; None outside of tasks."""
    try:
        return get_worker()
    except ValueError:
        pass
    # get_worker knows nothing of async tasks before 2023.7; BaseWorker keeps what it runs.
    here = current_task()
    if here is None:
        return None
    for worker in list(Worker._instances):
        if here in getattr(worker, "_async_instructions", ()):
            return worker
    return None
