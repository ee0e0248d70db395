"""The link to a scheduler that runs our agent: each method is one message of the wire."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dask_adaptive.loop.ports import LinkError, Retired, Told
from dask_adaptive.model.dask_config import flat
from dask_adaptive.model.observed import ObservedScheduler
from dask_adaptive.model.plan import Arriving
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Limits
from dask_adaptive.model.scaling import ShuffleWait
from dask_adaptive.planner.pins import OWNER
from dask_adaptive.scheduler.announce import NOTHING, Announcement, announce_request
from dask_adaptive.scheduler.calls import SchedulerCalls
from dask_adaptive.scheduler.demand import asks_demand
from dask_adaptive.scheduler.limits import Told as ToldLimits
from dask_adaptive.scheduler.limits import limit_request
from dask_adaptive.scheduler.notes import NoteReader
from dask_adaptive.scheduler.snapshot import SnapshotReader
from dask_adaptive_agent import wire

logger = logging.getLogger(__name__)


class AgentGone(LinkError):
    """The scheduler answers, its agent does not: it has been restarted without one."""


#: A pod may be given any grace period; a month is as good as longer.
LONGEST_S = 30 * 24 * 3600.0

#: What the agent's vetoes are called in plans, conditions and events.
VETOES = {
    wire.V_PINNED: Reason.PINNED,
    wire.V_BUSY: Reason.BUSY,
    wire.V_ACTORS: Reason.HOLDS_ACTORS,
    wire.V_NO_RECIPIENT: Reason.NO_RECIPIENT,
    wire.V_TIMEOUT: Reason.RETIREMENT_TIMED_OUT,
}


class AgentLink:
    """
    Speaks the wire with one agent.

    Args:
        hello: Its answer to the first message.
        notes: What of its notes has been read; see `SnapshotReader`.
        governs: Whether observing configures the agent and renews its lease; see `connect`.
        clock: Seconds that never go backwards; ends that were told count down on it.
    """

    def __init__(
        self,
        calls: SchedulerCalls,
        hello: Mapping[str, Any],
        *,
        notes: NoteReader,
        governs: bool = False,
        tally: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._calls, self._hello, self._clock = calls, hello, clock
        self._reader = SnapshotReader(notes)
        self._governs = governs
        self._extra = {"tally": True} if tally else {}
        self._configured: tuple[str, dict[str, Any]] | None = None
        self._told: ToldLimits | None = None
        self._is_deaf = False  # the agent knows nothing of limits
        self._announced = NOTHING
        self._takes_announcements = True
        self._lapses = 0  # how often the agent's lease had ended when it was told what it knows

    async def observe(self, policy: Policy, *, meters: bool = False) -> ObservedScheduler:
        """Take a snapshot. Raises `LinkError`, `AgentGone` among them."""
        settings = self._settings(policy) if self._governs else self._extra
        await self._configure(settings)
        target_ms = round(policy.target_duration_s * 1000)
        request = self._reader.request
        if meters or self._reader.wants_meters:
            request["meters"] = True
        if asks_demand(policy):
            request["demand"] = True
        if self._governs:
            request["renew"] = True
        answer = await self._ask(wire.OBSERVE, target_duration_ms=target_ms, **request)
        if answer["session"] != self._hello["session"]:
            raise AgentGone("the scheduler has been restarted")
        if answer.get("lapses", 0) != self._lapses:  # an older agent keeps what it was told
            self._lapses = answer["lapses"]
            self._configured, self._told, self._announced = None, None, NOTHING
            await self._configure(settings)
        return self._reader.read(
            answer, agent=self._hello["agent"], version=self._hello["distributed"]
        )

    async def retire(
        self, names: Sequence[str], policy: Policy, reason: Reason, *, busy_ok: bool = False,
        over_pins: bool = False,
    ) -> list[Retired]:  # fmt: skip
        # A stopped worker that is retired still counts as stopped, until limits come from somebody
        # who knows of it: the next ones are sent though they be the same.
        self._told = None
        beaten = {"over_pins": [wire.MANUAL, wire.CLIENT]} if over_pins else {}
        answer = await self._ask(
            wire.RETIRE,
            names=list(names),
            reason=reason.value,
            busy_ok=busy_ok,
            deadline_ms=round(policy.retirement.grace_s * 1000),
            on_timeout=policy.retirement.on_timeout.value,
            **beaten,
        )
        return _outcomes(answer)

    async def limit(self, limits: Limits) -> None:
        """
        Say what workers may go on with, where that is not what this agent was told last.

        An agent too old to enforce limits is left alone: the planner still replaces workers, only
        later, from pass to pass.
        """
        now = self._clock()
        if self._is_deaf or (self._told is not None and self._told.is_still(limits, now)):
            return
        self._told = None  # until it is certain that the agent has heard
        answer = await self._calls.call(
            wire.LIMIT,
            protocol=wire.PROTOCOL,
            session=self._hello["session"],
            **limit_request(limits),
        )
        if answer is not None:
            _read(wire.LIMIT, answer)
            self._told = ToldLimits(limits, now)
        elif limits.workers:
            self._is_deaf = True
            text = "Agent %s in %s is too old to enforce quotas between two passes"
            logger.warning(text, self._hello["agent"], self._calls.address)

    async def announce(self, arriving: Sequence[Arriving], told: Told) -> None:
        """Say what is on its way and what was decided; an agent too old for it is left alone."""
        now = self._clock()
        if not self._takes_announcements or self._announced.is_still(arriving, told, now):
            return
        request = announce_request(arriving, told)
        answer = await self._calls.call(wire.ANNOUNCE, protocol=wire.PROTOCOL, **request)
        if answer is None:
            self._takes_announcements = False
            return
        _read(wire.ANNOUNCE, answer)
        self._announced = Announcement(tuple(arriving), told, now)

    async def leave(
        self, names: Sequence[str], *, left_s: float, reason: Reason, ending: bool = True
    ) -> list[Retired]:
        answer = await self._calls.call(
            wire.LEAVE,
            protocol=wire.PROTOCOL,
            names=list(names),
            left_ms=max(1, round(min(left_s, LONGEST_S) * 1000)),
            reason=reason.value,
            ending=ending,
        )
        if answer is None:  # an older agent of the same protocol has no such handler
            old = f"agent {self._hello['agent']} in the scheduler is too old to hear of it"
            return [Retired(name, wire.ACTIVE, None, old) for name in names]
        return _outcomes(_read(wire.LEAVE, answer))

    async def cancel(self, names: Sequence[str]) -> list[Retired]:
        return _outcomes(await self._ask(wire.CANCEL, names=list(names)))

    async def pin(self, names: Sequence[str], *, ttl_s: float, note: str) -> None:
        await self._ask(
            wire.PIN, names=list(names), source=wire.MANUAL, owner=OWNER,
            reason=note[: wire.MOST_LETTERS], ttl_ms=round(ttl_s * 1000),
        )  # fmt: skip

    async def unpin(self, names: Sequence[str]) -> None:
        await self._ask(wire.UNPIN, names=list(names), source=wire.MANUAL, owner=OWNER)

    async def explain(self, names: Sequence[str] | None = None) -> list[Mapping[str, Any]]:
        """`wire.WorkerExplanation` of each named worker, or of all."""
        request = {} if names is None else {"names": list(names)}
        return list((await self._ask(wire.EXPLAIN, **request))["workers"])

    def _settings(self, policy: Policy) -> dict[str, Any]:
        return {
            "shuffle_pins": policy.pins.shuffle,
            "shuffle_timeout_ms": round(policy.pins.shuffle_timeout_s * 1000),
            "manual_max_ms": round(policy.pins.manual_max_s * 1000),
            "client_pins": policy.pins.client,
            "client_max_ms": round(policy.pins.client_max_s * 1000),
            "shuffle_wait_ms": _shuffle_wait_ms(policy.scaling.shuffle_wait),
            "on_lifetime": policy.retirement.on_lifetime.value,
            "lifetime_ms": max(1, round(min(policy.retirement.grace_s, LONGEST_S) * 1000)),
            "relief": dict(policy.scheduler.relief),
            "config": flat(policy.scheduler.config),
            **self._extra,
        }

    async def _configure(self, settings: dict[str, Any]) -> None:
        wanted = (self._hello["session"], settings)
        if settings and self._configured != wanted:
            await self._ask(wire.CONFIGURE, **settings)
            self._configured = wanted

    async def _ask(self, op: str, **request: Any) -> Mapping[str, Any]:
        answer = await self._calls.call(op, protocol=wire.PROTOCOL, **request)
        if answer is None:
            raise AgentGone("the scheduler has been restarted without its agent")
        return _read(op, answer)


def _shuffle_wait_ms(wait: ShuffleWait) -> int:
    return round(max(0.0, min(wait.most_s, LONGEST_S)) * 1000) if wait.enabled else 0


def _read(op: str, answer: Any) -> Mapping[str, Any]:
    if not isinstance(answer, Mapping):
        raise LinkError(f"{op} answered {type(answer).__name__}, not a message")
    if answer.get("error") == wire.E_REFUSED:
        raise LinkError(answer["message"])
    if "error" in answer:
        raise LinkError(f"{op}: {answer['message']}")
    return answer


def _outcomes(answer: Mapping[str, Any]) -> list[Retired]:
    return [
        Retired(o["name"], o["state"], VETOES.get(o["veto"]), o["message"])
        for o in answer["outcomes"]
    ]
