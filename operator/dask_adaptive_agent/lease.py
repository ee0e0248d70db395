"""A claim on workers as its owner sees it: made, renewed while the owner lives, given up."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import math
from collections.abc import Sequence
from time import monotonic
from typing import Any
from uuid import uuid4

from dask_adaptive_agent import wire
from dask_adaptive_agent.line import Line, PinRefused, PinUnavailable, Unreachable

#: The logger that users are told of: it is they who must be able to silence it.
logger = logging.getLogger("dask_adaptive_agent.client")

#: A third of the lease is left to miss two renewals in; and a restarted scheduler is told so soon.
RENEW_S = 20.0
#: After a renewal that was not answered.
RETRY_S = 5.0
#: How long the beginning of a block waits for an answer, and its end.
PATIENCE_S, FAREWELL_S = 30.0, 5.0
#: A worker that is not there is asked for no longer: until then its scheduler may have restarted.
RETURN_S = 300.0


class Pin:
    """What `with pinned(...) as pin` gives; this very one holds nothing (`required=False`)."""

    #: The workers that are held, as they were asked for.
    workers: tuple[str, ...] = ()

    @property
    def left_s(self) -> float:
        """Seconds until it would end if it were renewed no more."""
        return 0.0

    def release_from_thread(self) -> None:
        pass

    async def release(self) -> None:
        pass


class Lease(Pin):
    """One claim, with an owner of its own. Its state changes on the loop of its line only."""

    #: What users have called to get here.
    called = "pinned"

    def __init__(
        self, line: Line, workers: Sequence[str] | None, *, ttl_s: float, reason: str
    ) -> None:
        self.line = line
        self._asked = None if workers is None else [str(name) for name in workers]
        self._names: list[str] = []
        self._ttl_s = ttl_s
        self._reason = reason
        self._owner = f"{line.id}/{uuid4().hex[:12]}"
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

    def claim_from_thread(self) -> Lease:
        """Raises as `pinned` says."""
        try:
            # Begun in here: Ctrl-C may come when the claim is on its way and nobody waits yet.
            self.line.start(self._claim()).result(PATIENCE_S)
        except concurrent.futures.TimeoutError:
            raise self._too_late() from None
        except Exception:
            raise  # nothing was granted
        except BaseException:  # KeyboardInterrupt: the request may be on its way
            self._give_up()
            raise
        return self

    async def claim(self) -> Lease:
        """Raises as `pinned` says."""
        try:
            await asyncio.wait_for(self.line.wait_for(self._claim()), PATIENCE_S)
        except asyncio.TimeoutError:
            raise self._too_late() from None
        except Exception:
            raise  # nothing was granted
        except BaseException:  # cancelled: the request may be on its way
            self._give_up()
            raise
        return self

    def release_from_thread(self) -> None:
        """Give it up; whatever goes wrong, it ends by itself."""
        self._is_over = True
        try:
            self.line.start(self._release()).result(FAREWELL_S)
        except (PinUnavailable, concurrent.futures.TimeoutError) as problem:
            logger.debug("Pin %s ends by itself: %r", self._owner, problem)

    async def release(self) -> None:
        """Give it up; whatever goes wrong, it ends by itself."""
        self._is_over = True
        try:
            await asyncio.wait_for(self.line.wait_for(self._release()), FAREWELL_S)
        except (PinUnavailable, asyncio.TimeoutError) as problem:
            logger.debug("Pin %s ends by itself: %r", self._owner, problem)

    def _too_late(self) -> PinUnavailable:
        self._give_up()  # it may be granted all the same, later
        return PinUnavailable(f"the scheduler did not answer within {PATIENCE_S:g} s")

    def _give_up(self) -> None:
        self._is_over = True
        try:
            self.line.start(self._release())
        except PinUnavailable as problem:
            logger.debug("Pin %s ends by itself: %r", self._owner, problem)

    async def _claim(self) -> None:
        # Messages of one owner must not overtake each other: a claim that arrives after the
        # release would hold the workers for a whole ttl. So none is cancelled, each waits for its
        # turn, and it is the caller who stops waiting. Python 3.9's locks belong to a loop.
        self._turn = asyncio.Lock()
        async with self._turn:
            await self._first()
            self._schedule(min(self._ttl_s / 3, RENEW_S))

    async def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._turn is None:
            return
        async with self._turn:
            self._until = -math.inf
            try:
                await self._farewell()
            except PinUnavailable as problem:
                logger.debug("Pin %s ends by itself: %r", self._owner, problem)

    async def _farewell(self) -> None:
        request = {"source": wire.CLIENT, "owner": self._owner, "protocol": wire.PROTOCOL}
        await self.line.ask(wire.UNPIN, **request)

    async def _first(self) -> None:
        self._names = await self._whom()
        try:
            await self._hold(self._names)
        except ValueError:
            if self._asked is not None:
                raise
            await self._hold(await self._those_here())  # one of all has left meanwhile

    async def _whom(self) -> list[str]:
        if self._asked is not None:
            return self._asked
        if self.line.own is not None:
            return self.line.own
        # Scheduler.get_ncores: the smallest message that names all workers.
        everybody = list(await self.line.ask("ncores"))
        if not everybody:
            raise PinUnavailable("no worker is connected: client.wait_for_workers(1) waits for one")
        return everybody

    async def _hold(self, names: list[str]) -> None:
        asked_at = monotonic()
        answer = await self._answer(
            wire.PIN,
            names=names,
            client=self.line.client,
            source=wire.CLIENT,
            owner=self._owner,
            reason=self._reason,
            ttl_ms=math.ceil(self._ttl_s * 1000),
        )
        granted = answer["pinned"]
        self.workers = tuple(str(name) for name, _ in granted)
        self._until = asked_at + min((ms for _, ms in granted), default=0) / 1000

    async def _those_here(self) -> list[str]:
        """The names that a worker has; PinUnavailable if there are none."""
        rows = (await self._answer(wire.EXPLAIN, names=self._names))["workers"]
        known = {row["name"] for row in rows} | {row["address"] for row in rows}
        here = [name for name in self._names if name in known]
        if not here:
            raise PinUnavailable("none of the workers is connected any more")
        return here

    async def _answer(self, op: str, **request: Any) -> Any:
        answer = await self.line.ask(op, protocol=wire.PROTOCOL, **request)
        if not isinstance(answer, dict):  # None: Scheduler.handle_comm has no such handler
            raise PinUnavailable(
                "no dask-adaptive agent in this scheduler: install the operator and write an "
                "AdaptivePolicy for this cluster, or go on without by "
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
            every_s = min(self._ttl_s / 3, RENEW_S)
            try:
                await self._again()
                self._schedule(every_s)
            except PinRefused as refused:
                self._warn(refused)
            except Unreachable as problem:
                if not self.left_s:
                    self._warn(f"the scheduler does not answer ({problem})")
                self._retry(min(every_s, RETRY_S))
            except Exception as problem:  # nobody else could catch it; the block goes on
                self._warn(problem)
                self._retry(every_s)

    async def _again(self) -> None:
        try:
            await self._hold(self._names)
            self._complete_at = monotonic()
        except ValueError:
            here = await self._those_here()
            await self._hold(here)
            if monotonic() - self._complete_at > RETURN_S:
                self._names = here

    def _retry(self, delay_s: float) -> None:
        if self.line.is_closed:
            self._warn("the Dask client was closed")
        else:
            self._schedule(delay_s)

    def _warn(self, problem: object) -> None:
        if not self._has_warned:
            self._has_warned = True
            held = ", ".join(self._names[:3]) + (", …" if len(self._names) > 3 else "")
            logger.warning("Workers may leave although they are pinned (%s): %s", held, problem)
