"""The link to one scheduler: through its agent if it has one or takes one, else by stock RPC."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distributed.security import Security

from dask_adaptive.loop.ports import LinkError, Retired, Told
from dask_adaptive.model.observed import ObservedScheduler
from dask_adaptive.model.plan import Arriving
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Limits
from dask_adaptive.scheduler.agent_link import AgentGone, AgentLink
from dask_adaptive.scheduler.attach import attach as attach_agent
from dask_adaptive.scheduler.calls import SchedulerCalls
from dask_adaptive.scheduler.notes import NoteReader
from dask_adaptive.scheduler.stock_link import StockLink
from dask_adaptive_agent import wire

#: How long to go on with stock RPC before the agent is tried again.
RETRY_S = 60.0

#: For retire_workers, which answers only when all data has moved.
MOVE_S = 3600.0


class ProtocolMismatch(LinkError):
    """The agent speaks another protocol; upgrading the older side mends it."""


@dataclass(frozen=True, slots=True)
class _Degraded:
    reason: Reason
    message: str


class Link:
    """
    A `SchedulerLink` that finds out by itself how the scheduler can be talked to.

    A scheduler that was restarted, with or without the agent, is noticed at the next observation.
    """

    def __init__(
        self,
        calls: SchedulerCalls,
        long_calls: SchedulerCalls,
        *,
        attach: bool,
        governs: bool = False,
        tally: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._calls, self._long_calls = calls, long_calls
        self._may_attach, self._governs = attach, governs
        self._tally, self._clock = tally, clock
        self._link: AgentLink | StockLink | None = None
        self._retry_at = 0.0
        self._notes = NoteReader()

    async def observe(self, policy: Policy, *, meters: bool = False) -> ObservedScheduler:
        """Take a snapshot; a problem is part of the answer."""
        try:
            try:
                return await (await self._open()).observe(policy, meters=meters)
            except AgentGone:
                self._link = None
                return await (await self._open()).observe(policy, meters=meters)
        except ProtocolMismatch as exc:
            return self._problem(Reason.PROTOCOL_MISMATCH, exc)
        except LinkError as exc:
            return self._problem(Reason.SCHEDULER_UNREACHABLE, exc)
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            odd = LinkError(f"{self._calls.address} does not answer like a scheduler: {exc!r}")
            return self._problem(Reason.SCHEDULER_UNREACHABLE, odd)

    async def retire(
        self, names: Sequence[str], policy: Policy, reason: Reason, *, busy_ok: bool = False,
        over_pins: bool = False,
    ) -> list[Retired]:  # fmt: skip
        link = await self._open()
        return await link.retire(names, policy, reason, busy_ok=busy_ok, over_pins=over_pins)

    async def limit(self, limits: Limits) -> None:
        try:
            await (await self._open()).limit(limits)
        except AgentGone:
            self._link = None  # the next observation finds out what is there now
            raise

    async def announce(self, arriving: Sequence[Arriving], told: Told) -> None:
        await (await self._open()).announce(arriving, told)

    async def leave(
        self, names: Sequence[str], *, left_s: float, reason: Reason, ending: bool = True
    ) -> list[Retired]:
        link = await self._open()
        return await link.leave(names, left_s=left_s, reason=reason, ending=ending)

    async def cancel(self, names: Sequence[str]) -> list[Retired]:
        return await (await self._open()).cancel(names)

    async def pin(self, names: Sequence[str], *, ttl_s: float, note: str) -> None:
        await (await self._open()).pin(names, ttl_s=ttl_s, note=note)

    async def unpin(self, names: Sequence[str]) -> None:
        await (await self._open()).unpin(names)

    async def explain(self, names: Sequence[str] | None = None) -> list[Mapping[str, Any]]:
        """What the agent says of workers; empty without an agent. Raises `LinkError`."""
        link = await self._open()
        return await link.explain(names) if isinstance(link, AgentLink) else []

    async def close(self) -> None:
        await self._drop()
        await self._calls.close()
        await self._long_calls.close()

    def _problem(self, reason: Reason, exc: LinkError) -> ObservedScheduler:
        self._link = self._link if isinstance(self._link, StockLink) else None
        return ObservedScheduler(problem=reason, message=str(exc))

    async def _open(self) -> AgentLink | StockLink:
        if isinstance(self._link, StockLink) and self._clock() >= self._retry_at:
            await self._drop()
        if self._link is None:
            self._link = await self._find()
        return self._link

    async def _drop(self) -> None:
        if isinstance(self._link, StockLink):
            await self._link.close()
        self._link = None

    async def _find(self) -> AgentLink | StockLink:
        hello = await self._hello()
        why = _Degraded(Reason.INJECTION_REFUSED, "inject is false: served by stock RPC")
        if hello is None and self._may_attach:
            try:
                await attach_agent(self._calls)
                hello = await self._hello()
                why = _Degraded(Reason.AGENT_MISSING, "the agent was attached and does not answer")
            except LinkError as exc:
                why = _Degraded(Reason.AGENT_MISSING, f"{exc}; served by stock RPC")
        if hello is not None:
            return AgentLink(
                self._calls, hello, notes=self._notes, governs=self._governs, tally=self._tally,
                clock=self._clock,
            )  # fmt: skip
        self._retry_at = self._clock() + RETRY_S
        return StockLink(self._calls, self._long_calls, degraded=why.reason, message=why.message)

    async def _hello(self) -> Mapping[str, Any] | None:
        answer = await self._calls.call(wire.HELLO, protocol=wire.PROTOCOL)
        if answer is None:
            return None
        theirs = answer["protocol"]
        if theirs != wire.PROTOCOL:
            raise ProtocolMismatch(
                f"the agent in {self._calls.address} speaks protocol {theirs}, this operator"
                f" {wire.PROTOCOL}: upgrade the older side (restart the scheduler for its agent)"
            )
        return dict(answer)


def connect(
    address: str,
    *,
    security: Security | None = None,
    timeout_s: float = 5.0,
    attach: bool = True,
    governs: bool = False,
    tally: bool = False,
) -> Link:
    """
    Make a link to a scheduler; nothing is sent before the first call.

    Args:
        address: As Dask writes it, e.g. `tcp://10.0.0.7:8786`.
        security: TLS, if the scheduler wants it.
        timeout_s: For each call.
        attach: Whether the agent may be put into a scheduler that runs without it.
        governs: Whether observing configures the agent and renews the lease of all that it was
            told. Only the leading operator's passes do that; everybody else just looks.
        tally: Have the agent count runs by key: for rehearsals and tests.
    """
    return Link(
        SchedulerCalls(address, security=security, timeout_s=timeout_s),
        SchedulerCalls(address, security=security, timeout_s=MOVE_S),
        attach=attach,
        governs=governs,
        tally=tally,
    )
