"""
Who serves a policy, where two operators of one name would: exactly one.

Whoever serves a policy has written its name into the status once (`servedBy`), and then nothing
more. Another operator contests that: it writes its own name and a question (`contestedBy`), which
the first one, while it lives, repeats as its answer. Where none comes for `patience_s`, the other
one takes over. Each of these writes carries the version of the object that it was decided from, so
two never believe that they have it. No clock of another machine is read, and no right is needed but
that on the status.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import math
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from dask_adaptive.kube.api import POLICIES, Json, KubeApi, KubeError, NotFound
from dask_adaptive.kube.cache.world import KINDS, World
from dask_adaptive.kube.objects import NOBODY, Party, PolicyObject
from dask_adaptive.kube.reporter import EventPoster, News, Subject
from dask_adaptive.loop.ports import EventType
from dask_adaptive.model.amounts import instant
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.reason import Reason

logger = logging.getLogger(__name__)

#: An operator that is upgraded, or moves to another machine, may take so long to answer.
PATIENCE_S = 120.0

#: Who has been answered asks again after so long; who has not asked for twice as long is gone.
ASK_EVERY_S = 300.0

#: After a write that failed, or came too late.
RETRY_S = 2.0

#: Policies that are looked at at a time.
AT_ONCE = 16

_POLICIES = next(kind for kind in KINDS if kind.type is PolicyObject)


class Move(enum.Enum):
    """What one operator does about one policy."""

    REST = "rest"
    CLAIM = "claim"
    RELEASE = "release"  # it is for operators of another name now
    CONTEST = "contest"
    ANSWER = "answer"
    FORGET = "forget"  # who contested it has gone


@dataclass(frozen=True, slots=True)
class Memory:
    """The last question about a policy, whoever asked it: when, and who served then."""

    question: Party
    served_by: Party
    at: float


class Tenures:
    """
    Sees to it that each policy for operators of our name is served by one. Runs while we lead.

    Args:
        me: What this installation is called, the same for all its replicas.
        controller: The name that policies say.
    """

    def __init__(
        self, world: World, api: KubeApi, events: EventPoster, *, me: str, controller: str,
        patience_s: float = PATIENCE_S, clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._world, self._api, self._events = world, api, events
        self._me, self._controller, self._patience_s = me, controller, patience_s
        self._clock, self._wall_clock = clock, wall_clock
        self._memories: dict[tuple[str, str], Memory] = {}  # by the policy's namespace and name
        self._due: dict[ClusterKey, float] = {}  # when to look
        self._changed = asyncio.Event()

    def on_change(self, key: ClusterKey) -> None:
        self._due[key] = -math.inf
        self._changed.set()

    def holds(self, policy: PolicyObject) -> bool:
        return self._is_for_us(policy) and policy.served_by.operator == self._me

    def may_make(self, policies: Iterable[PolicyObject]) -> bool:
        """Whether no other operator of our name serves one of a cluster's policies."""
        ours = (p for p in policies if p.controller == self._controller)
        return all(p.served_by.operator in ("", self._me) for p in ours)

    async def run(self) -> None:
        self._memories.clear()
        self._due.update((p.key, -math.inf) for p in self._world.all(PolicyObject))
        while True:
            self._changed.clear()
            # After an installation there may be a thousand, and each waits for the API server.
            left_s = min(await asyncio.gather(*(self.settle() for _ in range(AT_ONCE))))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if math.isinf(left_s) else max(left_s, 0.0)):
                    await self._changed.wait()

    async def settle(self) -> float:
        """Do what is due; returns in how long something is again."""
        now = self._clock()
        while (key := next((k for k, at in self._due.items() if at <= now), None)) is not None:
            del self._due[key]
            await self._settle_all(key)
        return min(self._due.values(), default=math.inf) - self._clock()

    async def _settle_all(self, key: ClusterKey) -> None:
        policies = self._world.of(PolicyObject, key)
        for policy in policies:
            await self._settle(policy)
        if not policies:
            there = (n for n in self._memories if self._world.get(PolicyObject, *n))
            self._memories = {name: self._memories[name] for name in there}

    async def _settle(self, policy: PolicyObject) -> None:
        move, at = self._next(policy)
        if move is not Move.REST and at <= self._clock():
            at = self._clock() + RETRY_S  # if it fails; else what is written brings us back
            try:
                await self._make(move, policy)
            except NotFound:
                return
            except KubeError as exc:
                logger.info("Who serves %s can't be written: %s", policy.key, exc)
        if at < math.inf:
            self._due[policy.key] = min(at, self._due.get(policy.key, math.inf))

    def _next(self, policy: PolicyObject) -> tuple[Move, float]:
        """What to do, and when."""
        serving = policy.served_by
        if policy.meta.deleting or not self._is_for_us(policy):
            held = serving.operator == self._me and not policy.meta.deleting
            return (Move.RELEASE, -math.inf) if held else (Move.REST, math.inf)
        if serving == NOBODY:
            return Move.CLAIM, -math.inf
        name = (policy.meta.namespace, policy.meta.name)
        memory = self._memories.get(name)
        if serving.operator == self._me:
            return self._next_of_ours(policy, name, memory)
        if memory is None:
            return Move.CONTEST, -math.inf
        if serving != memory.served_by:  # it has answered somebody, or another one serves now
            return Move.CONTEST, memory.at + ASK_EVERY_S
        return Move.CLAIM, memory.at + self._patience_s

    def _next_of_ours(
        self, policy: PolicyObject, name: tuple[str, str], memory: Memory | None
    ) -> tuple[Move, float]:
        asked = policy.contested_by
        if asked == NOBODY:
            self._memories.pop(name, None)
            return Move.REST, math.inf
        if asked.word != policy.served_by.word:
            return Move.ANSWER, -math.inf
        if memory is None or memory.question != asked:
            memory = self._memories[name] = Memory(asked, policy.served_by, self._clock())
        return Move.FORGET, memory.at + 2 * ASK_EVERY_S

    def _is_for_us(self, policy: PolicyObject) -> bool:
        return policy.controller == self._controller and self._world.serves(policy.meta.namespace)

    async def _make(self, move: Move, policy: PolicyObject) -> None:
        serving, asked = policy.served_by, policy.contested_by
        mine: Json = {"operator": self._me}
        if move is Move.CLAIM:
            since = instant(self._wall_clock())
            await self._write(policy, servedBy={**mine, "since": since, "answer": None},
                              contestedBy=None)  # fmt: skip
            logger.info("AdaptivePolicy %s is served from now on", policy.key)
        elif move is Move.RELEASE:
            await self._write(policy, servedBy=None, contestedBy=None)
        elif move is Move.FORGET:
            await self._write(policy, contestedBy=None)
        elif move is Move.ANSWER:
            await self._write(policy, servedBy={"answer": asked.word})
            await self._tell(policy, asked.operator, _CONTESTED)
        elif move is Move.CONTEST:
            name, word = (policy.meta.namespace, policy.meta.name), uuid.uuid4().hex[:8]
            if name in self._memories:
                await self._tell(policy, serving.operator, _YIELDED)
            logger.info("AdaptivePolicy %s: does operator %s live?", policy.key, serving.operator)
            await self._write(policy, contestedBy={**mine, "question": word})
            self._memories[name] = Memory(Party(self._me, word), serving, self._clock())

    async def _write(self, policy: PolicyObject, **status: Json | None) -> None:
        meta = policy.meta
        body = {
            "metadata": {"uid": meta.uid, "resourceVersion": str(meta.version)}, "status": status
        }  # fmt: skip
        answer = await self._api.patch(POLICIES.path(meta.namespace, meta.name, "status"), body)
        self._world.take(_POLICIES, "MODIFIED", answer)

    async def _tell(self, policy: PolicyObject, other: str, message: str) -> None:
        message = message.format(other=other, me=self._me, name=self._controller)
        logger.warning("AdaptivePolicy %s: %s", policy.key, message)
        news = News(EventType.WARNING, str(Reason.OWNERSHIP_CONFLICT), message)
        await self._events.post(Subject.of(POLICIES, policy.meta), news)


_FIX = "uninstall one of the two, or give one another controllerName"
_CONTESTED = "operator {other} would serve this policy, too, and waits: " + _FIX
_YIELDED = (
    "operator {other} serves this policy, so operator {me}, which has the controllerName {name},"
    " too, does nothing: " + _FIX
)
