"""Links to a scheduler through its agent: one that attaches and governs it, one that only reads."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import math
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypedDict
from uuid import uuid4

from dask_adaptive.loop.ports import AgentInvalid, LinkError, PageContent, Retired, Tls
from dask_adaptive.model.observed import ObservedScheduler
from dask_adaptive.model.plan import Arriving
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Limits
from dask_adaptive.model.scheduler_settings import flat
from dask_adaptive.planner.leave import OWNER
from dask_adaptive.scheduler.calls import LONGEST, SchedulerCalls, lenient
from dask_adaptive.scheduler.sent import (
    NOTHING,
    SentLimits,
    SentPlans,
    announce_request,
    limit_request,
    milliseconds,
)
from dask_adaptive.scheduler.snapshot import ANSWER, NoteReader, SnapshotReader
from dask_adaptive_agent import importer, wire

#: Wait before the next attempt to attach the agent.
RETRY_S = 30.0

#: Length of one wait for news. A silent scheduler is noticed that much later.
WAIT_S = 25.0

#: Longest time without an answer while waiting for news: a wait and its deadline.
LATEST_S = WAIT_S + 8.0

#: Polling interval of a scheduler whose agent does not report changes.
POLL_S = 5.0

#: How long the answer to a wait replaces a new request, unless we have acted since.
FRESH_S = 0.5

#: Interval of complete snapshots; in between only changes are sent.
WHOLE_S = 60.0

#: Workers for which a read-only link reserves memory.
MANY = 20_000

#: Types of answers.
_HELLO, _DONE, _RETIRED = lenient(wire.HelloAnswer), lenient(wire.Message), wire.RetireAnswer

#: How the agent gets into a scheduler.
WAYS = (
    "delete the scheduler's pod, and the webhook puts the agent into the next one;"
    " or turn distributed.scheduler.pickle on, and it is attached;"
    " or preload dask_adaptive_agent.preload yourself"
)

#: Reasons for the agent's vetoes.
VETOES = {
    wire.V_PINNED: Reason.PINNED,
    wire.V_BUSY: Reason.BUSY,
    wire.V_ACTORS: Reason.HOLDS_ACTORS,
    wire.V_NO_RECIPIENT: Reason.NO_RECIPIENT,
    wire.V_UNCOPYABLE: Reason.HOLDS_UNCOPYABLE,
}


class AgentGone(LinkError):
    """The scheduler answers without its agent: it was restarted without one."""


class NoAgent(LinkError):
    """The scheduler has no compatible agent, and none was attached."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass
class _Agent:
    """One agent that has answered hello, and the messages sent to it."""

    hello: Mapping[str, Any]
    reader: SnapshotReader
    settings: Mapping[str, Any] | None = None
    limits: SentLimits | None = None
    plans: SentPlans = NOTHING
    lapses: int = 0  # its count of expired leases at that time
    query: Mapping[str, Any] | None = None  # the last request to observe
    whole_at: float = -math.inf  # when the last complete snapshot was requested
    heard_at: float = -math.inf  # when it last answered a wait
    answered_at: float = -math.inf  # when it last reported changes, or none
    silence_s: float = 0.0  # longest time between such reports since the last observation

    def answered(self, at: float) -> None:
        self.silence_s = max(self.silence_s, at - self.answered_at)
        self.answered_at = at

    def observed(self, at: float) -> ObservedScheduler:
        hello, followed = self.hello, self.silence_s < LATEST_S
        self.silence_s = 0.0
        seen = self.reader.observed(agent=hello["agent"], version=hello["distributed"], at=at)
        return replace(seen, followed=followed)


class Link:
    """
    A `SchedulerLink` that finds or attaches the agent. It notices a restarted scheduler, with or
    without the agent, at the next observation.

    Args:
        attach: True if the agent may be attached to a running scheduler.
        governs: True if observing configures the agent and renews its lease; see `connect`.
        clock: Monotonic seconds; remaining times count down on it.
    """

    def __init__(
        self, calls: SchedulerCalls, *, attach: bool, governs: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._calls, self._clock = calls, clock
        self._may_attach, self._governs = attach, governs
        self._caller = uuid4().hex
        self._notes = NoteReader()
        self._peer: _Agent | None = None
        self._missing: NoAgent | None = None  # as found last
        self._retry_at = -math.inf

    async def observe(self, policy: Policy, *, meters: bool = False) -> ObservedScheduler:
        """Take a snapshot; a problem is part of the answer."""
        try:
            try:
                return await self._observe(policy, meters=meters)
            except AgentGone:
                self._peer = None
                return await self._observe(policy, meters=meters)
        except (LinkError, KeyError) as exc:
            self._peer = None
            return _problem(self._calls.address, exc)

    async def changed(self) -> None:
        agent = self._peer
        if agent is None or not agent.reader.version:
            await asyncio.sleep(POLL_S)
            return
        # The next `observe` finds and reports the problem.
        with contextlib.suppress(LinkError, KeyError):
            while agent is self._peer and not await self._hears(agent):
                pass

    async def retire(
        self, names: Sequence[str], policy: Policy, reason: Reason, *, busy_ok: bool = False,
        over_pins: bool = False, ends: str = "",
    ) -> list[Retired]:  # fmt: skip
        # A cordoned worker that is retired counts as cordoned until limits arrive that consider it,
        # so the next limits are sent even if unchanged.
        (await self._agent()).limits = None
        beaten = {"over_pins": [wire.MANUAL, wire.CLIENT]} if over_pins else {}
        return await self._let_go(
            wire.RETIRE,
            names,
            reason=reason.value,
            busy_ok=busy_ok,
            ends=ends,
            deadline_ms=round(policy.retirement.grace_period_s * 1000),
            on_timeout=policy.retirement.on_timeout.value,
            **beaten,
        )

    async def leave(self, names: Sequence[str], *, left_s: float, reason: Reason) -> list[Retired]:
        left_ms = max(1, milliseconds(left_s))
        return await self._let_go(wire.LEAVE, names, left_ms=left_ms, reason=reason.value)

    async def cancel(self, names: Sequence[str]) -> list[Retired]:
        return await self._let_go(wire.CANCEL, names)

    async def limit(self, limits: Limits) -> None:
        """Send the limits of workers, unless they equal those sent last."""
        agent, now = await self._agent(), self._clock()
        if agent.limits is not None and agent.limits.holds(limits, now):
            return
        agent.limits = None  # unknown until the agent confirms them
        await self._ask(wire.LIMIT, _DONE, session=agent.hello["session"], **limit_request(limits))
        agent.limits = SentLimits(limits, now)

    async def announce(self, arriving: Sequence[Arriving], content: PageContent) -> None:
        agent, now = await self._agent(), self._clock()
        if agent.plans.holds(arriving, content, now):
            return
        await self._ask(wire.ANNOUNCE, _DONE, **announce_request(arriving, content))
        agent.plans = SentPlans(tuple(arriving), content, now)

    async def pin(self, names: Sequence[str], *, ttl_s: float, note: str) -> None:
        await self._agent()
        await self._ask(
            wire.PIN, _DONE, names=list(names), source=wire.MANUAL, owner=OWNER,
            reason=note[: wire.MOST_LETTERS], ttl_ms=round(ttl_s * 1000),
        )  # fmt: skip

    async def unpin(self, names: Sequence[str]) -> None:
        await self._agent()
        await self._ask(wire.UNPIN, _DONE, names=list(names), source=wire.MANUAL, owner=OWNER)

    async def close(self) -> None:
        await self._calls.close()

    async def _observe(self, policy: Policy, *, meters: bool) -> ObservedScheduler:
        agent = await self._agent()
        await self._configure(agent, policy)
        query = {
            "meters": meters or agent.reader.has_lifetimes,
            "demand": True,
            "renew": self._governs,
            "target_duration_ms": round(policy.target.duration_s * 1000),
        }
        now = self._clock()
        if agent.query == query and now < agent.heard_at + FRESH_S:
            agent.heard_at = -math.inf
            return agent.observed(now)
        version = agent.reader.version
        if agent.query != query or now >= agent.whole_at + WHOLE_S:
            version, agent.whole_at = 0, now
        known = {"caller": self._caller, "version": version, **agent.reader.request}
        answer = await self._ask(wire.OBSERVE, ANSWER, **query, **known)
        if answer["session"] != agent.hello["session"]:
            raise AgentGone("the scheduler has been restarted")
        lapses = answer.get("lapses", 0)  # an agent of 0.1.0 never forgets
        if lapses != agent.lapses:
            agent.settings, agent.limits, agent.plans, agent.lapses = None, None, NOTHING, lapses
            await self._configure(agent, policy)
        now = self._clock()
        agent.reader.read(answer, at=now)
        agent.answered(now)
        agent.query, agent.heard_at = query, -math.inf
        return agent.observed(now)

    async def _hears(self, agent: _Agent) -> bool:
        """Wait for news; return True if another observation is worthwhile."""
        began, query = self._clock(), agent.query or {}
        known = {"caller": self._caller, "version": agent.reader.version, **agent.reader.request}
        wait: dict[str, Any] = {"wait_ms": round(WAIT_S * 1000), "longer_s": WAIT_S}
        answer = await self._ask(wire.OBSERVE, ANSWER, **query, **known, **wait)
        now = self._clock()
        agent.answered(now)
        if "unchanged" in answer:
            await asyncio.sleep(began + FRESH_S - now)  # however long the agent waited
            return False
        session = agent.hello["session"]
        if (agent.query, answer["session"], answer["lapses"]) != (query, session, agent.lapses):
            return True
        if answer["version"] <= agent.reader.version:
            return False  # another request was answered meanwhile
        agent.reader.read(answer, at=now)
        agent.heard_at = now
        return True

    async def _configure(self, agent: _Agent, policy: Policy) -> None:
        wait = policy.shuffle
        settings = {
            "shuffle_pins": policy.pins.shuffle.enabled,
            "shuffle_timeout_ms": round(policy.pins.shuffle.timeout_s * 1000),
            "manual_max_ms": round(policy.pins.manual.max_duration_s * 1000),
            "client_pins": policy.pins.client.enabled,
            "client_max_ms": round(policy.pins.client.max_duration_s * 1000),
            "shuffle_wait_ms": milliseconds(wait.max_wait_s) if wait.wait_for_workers else 0,
            "on_lifetime": policy.retirement.on_lifetime.value,
            "lifetime_ms": max(1, milliseconds(policy.retirement.grace_period_s)),
            "relief": policy.scheduler.relief.chosen,
            "config": flat(policy.scheduler.config),
        }
        if self._governs and agent.settings != settings:
            await self._ask(wire.CONFIGURE, _DONE, **settings)
            agent.settings = settings

    async def _let_go(self, op: str, names: Sequence[str], **request: Any) -> list[Retired]:
        await self._agent()
        answer = await self._ask(op, _RETIRED, names=list(names), **request)
        return [
            Retired(row["name"], row["state"], VETOES.get(row["veto"]), row["message"])
            for row in answer["outcomes"]
        ]

    async def _ask(self, op: str, answer: Any, **request: Any) -> Any:
        if op != wire.OBSERVE and self._peer is not None:
            self._peer.heard_at = -math.inf
        return await _answer_to(self._calls, op, answer, **request)

    async def _agent(self) -> _Agent:
        if self._peer is None:
            if self._missing is not None and self._clock() < self._retry_at:
                raise self._missing
            self._peer = await self._find()
        return self._peer

    async def _find(self) -> _Agent:
        hello = await _hello(self._calls)
        reason, why = Reason.INJECTION_REFUSED, "inject is false"
        if hello is None and self._may_attach:
            reason, why = Reason.AGENT_MISSING, f"the agent does not answer; {WAYS}"
            try:
                await attach(self._calls)
            except LinkError as exc:
                why = f"{exc}; {WAYS}"  # it may only have been slow
            hello = await _hello(self._calls)
        if hello is not None:
            return _Agent(hello, SnapshotReader(self._notes))
        self._missing, self._retry_at = NoAgent(reason, why), self._clock() + RETRY_S
        raise self._missing


def connect(
    address: str, *, tls: Tls | None = None, timeout_s: float = 5.0, attach: bool = True,
    governs: bool = False, workers: Callable[[], int] = lambda: 0,
) -> Link:  # fmt: skip
    """
    Make a link to a scheduler; nothing is sent before the first call.

    Args:
        address: As Dask writes it, e.g. `tcp://10.0.0.7:8786`.
        tls: Certificates, if the scheduler requires TLS.
        timeout_s: Deadline of each call.
        attach: True if the agent may be attached to a running scheduler.
        governs: True if observing configures the agent and renews the lease of its instructions.
            Only passes of the leading operator do that; all others just look.
        workers: Returns the number of workers, which bounds the size of answers.

    Raises:
        TlsFailed: `tls` can't be used.
    """
    calls = SchedulerCalls(address, tls=tls, timeout_s=timeout_s, workers=workers)
    return Link(calls, attach=attach, governs=governs)


async def attach(calls: SchedulerCalls) -> None:
    """Install the agent's source. On `LinkError` the scheduler is unchanged."""
    identity = await calls.call("identity", _Identity)
    text = importer.render(importer.packed(), identity["id"] if identity else "")
    await run_source(calls, text, "the agent could not be attached")


async def run_source(calls: SchedulerCalls, text: str, failed: str) -> None:
    """
    Have a scheduler execute source text.

    `builtins.exec` and source text cross Python versions, where a pickled function does not.

    Raises:
        LinkError: The scheduler forbids it (`distributed.scheduler.pickle` is off), or it failed.
            The message starts with `failed`.
    """
    # Protocol 4 is read by every Python that runs a supported distributed.
    answer = await calls.call(
        "run_function",
        _Ran,
        function=pickle.dumps(builtins.exec, protocol=4),
        args=pickle.dumps((text, {"__name__": "dask_adaptive_source"}), protocol=4),
        wait=True,
    )
    if answer is None or answer.get("status") != "OK":
        why = "" if answer is None else answer.get("exception_text", "")
        raise LinkError(f"{failed}: {why[:LONGEST]}")


class _Identity(TypedDict):
    id: str


class _Ran(TypedDict, total=False):
    status: str
    exception_text: str


class ReadOnlyLink:
    """
    Observes one scheduler repeatedly without changing it: attaches and configures no agent, renews
    no lease. A problem is part of the answer.
    """

    def __init__(self, address: str, *, tls: Tls | None = None, timeout_s: float = 5.0) -> None:
        self._calls = SchedulerCalls(address, tls=tls, timeout_s=timeout_s, workers=lambda: MANY)
        self._notes = NoteReader()
        self._agent: _Agent | None = None

    async def observe(self, *, meters: bool = False, demand: bool = False) -> ObservedScheduler:
        """Take a snapshot; a problem is part of the answer."""
        agent, self._agent = self._agent, None  # after a problem it may be another scheduler
        try:
            if agent is None:
                hello = await _hello(self._calls)
                if hello is None:
                    raise NoAgent(Reason.AGENT_MISSING, "the scheduler runs without the agent")
                agent = _Agent(hello, SnapshotReader(self._notes))
            query = {**agent.reader.request, "meters": meters, "demand": demand}
            answer = await _answer_to(self._calls, wire.OBSERVE, ANSWER, **query)
            agent.reader.read(answer, at=(now := time.monotonic()))
            seen = agent.observed(now)
        except (LinkError, KeyError) as exc:
            return _problem(self._calls.address, exc)
        self._agent = agent
        return seen

    async def close(self) -> None:
        await self._calls.close()


async def _answer_to(calls: SchedulerCalls, op: str, answer: Any, **request: Any) -> Any:
    """Return the agent's answer to one message, after a hello."""
    found = await calls.call(op, answer, protocol=wire.PROTOCOL, **request)
    if found is None:
        raise AgentGone("the scheduler has been restarted without its agent")
    return found


async def _hello(calls: SchedulerCalls) -> Mapping[str, Any] | None:
    """Return the agent's answer to the first message; None without an agent."""
    answer = await calls.call(wire.HELLO, _HELLO, protocol=wire.PROTOCOL)
    if answer is None:
        return None
    theirs = answer["protocol"]
    if theirs != wire.PROTOCOL:
        raise NoAgent(
            Reason.AGENT_MISSING,
            f"the agent in {calls.address} speaks protocol {theirs}, this program"
            f" {wire.PROTOCOL}: upgrade the older side (restart the scheduler for its agent)",
        )
    return dict(answer)


def _problem(address: str, exc: Exception) -> ObservedScheduler:
    if not isinstance(exc, LinkError):
        exc = AgentInvalid(f"{address} does not answer like a scheduler: {exc!r}")
    return ObservedScheduler(problem=exc.reason, message=str(exc))
