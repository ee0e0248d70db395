"""Runs a task for each policy that visits its cluster, and retries failed visits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

from dask_adaptive.backoff import Backoff, begun_anew, end, heard
from dask_adaptive.controller.compose import Composer
from dask_adaptive.controller.metrics import Metrics
from dask_adaptive.kube.cache.world import World
from dask_adaptive.kube.objects import PolicyObject
from dask_adaptive.loop.one_pass import PassResult
from dask_adaptive.loop.ports import LinkError, PlatformError, PlatformUnread
from dask_adaptive.loop.status import READY, Condition
from dask_adaptive.model.amounts import format_duration
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.policy import InvalidPolicy, Policy, parse_policy
from dask_adaptive.model.reason import Reason

logger = logging.getLogger(__name__)

#: Shortest time between two visits of a cluster.
SHORTEST_REST_S = 0.5

#: First wait after a failure.
FIRST_BACKOFF_S = 5.0

#: Concurrent first visits. A thousand would block the event loop until the lease is lost; of these,
#: some dozens may wait for silent schedulers.
FIRST_AT_ONCE = 64

#: Consecutive failures after which a cluster's budget claim is withdrawn.
SILENT_AFTER = 3

#: Deadline of a pass, calls to a hanging scheduler included.
PASS_DEADLINE_S = 60.0

#: A policy is overdue after three times its planned interval, but not before this: even a slow
#: visit takes much less.
OVERDUE_S = 300.0

#: Interval of checks for overdue policies.
LOOK_S = 30.0

#: Time to write pending statuses and histories when this process stops.
FLUSH_S = 2.0

#: Longest wait after repeated failures; it doubles up to this.
LONGEST_BACKOFF_S = 60.0


_AT_ONCE = contextlib.nullcontext()


class Visitor:
    """Visits one policy's cluster repeatedly until cancelled."""

    def __init__(
        self, policy: PolicyObject, *, world: World, composer: Composer, metrics: Metrics,
        longest_sleep_s: float = 60.0, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._name = (policy.meta.namespace, policy.meta.name)
        self._world, self._metrics, self._clock = world, metrics, clock
        self._policy: Policy | None = None
        self._parsed: tuple[bytes, Policy] | None = None  # the last spec, parsed
        self._generation = 0  # of the last spec
        self._governed = composer.govern(policy, lambda: self._policy)
        self._key = policy.key
        self._last: PassResult | None = None
        self._longest_sleep_s = longest_sleep_s
        self._visited_at = math.inf  # when the last visit ended, or the first one began
        self._sleep_s = 0.0  # after the last one
        self._failures = 0
        self._backoff = Backoff(FIRST_BACKOFF_S, LONGEST_BACKOFF_S)
        self._log = logging.LoggerAdapter(logger, {"cluster": str(policy.key)})
        self._is_over = False
        self.wake = asyncio.Event()
        self._passed = asyncio.Event()  # a first pass was made, so news can be waited for

    def end(self) -> None:
        """Make no more visits. Needed besides cancelling: a library may swallow a cancellation."""
        self._is_over = True
        self.wake.set()

    async def run(self, first: contextlib.AbstractAsyncContextManager[Any] = _AT_ONCE) -> None:
        """Until it is ended; the first visit is made within `first`."""
        hearing = asyncio.create_task(begun_anew(f"news of {self._key}", self._hear))
        within = first
        try:
            while not self._is_over:
                self.wake.clear()
                async with within:
                    self._visited_at = min(self._visited_at, self._clock())
                    self._sleep_s = await self._visit()
                within, self._visited_at = _AT_ONCE, self._clock()
                self._passed.set()
                await asyncio.sleep(SHORTEST_REST_S)
                await heard(self.wake, within_s=self._sleep_s - SHORTEST_REST_S)
        finally:
            await end([hearing])
            await self._flush()
            await self._governed.link.close()

    def is_overdue(self) -> bool:
        """True if no visit has ended for too long. The first one may start late."""
        return self._clock() - self._visited_at > max(3 * self._sleep_s, OVERDUE_S)

    async def tell_overdue(self) -> None:
        """Report a visit that does not end, or does not start."""
        longest = format_duration(max(3 * self._sleep_s, OVERDUE_S))
        message = f"no pass for over {longest}; the operator's log may say why"
        await self._failed("overdue", Reason.ACTION_FAILED, message)

    async def _hear(self) -> None:
        """Trigger visits when the scheduler reports changes."""
        while True:
            await self._passed.wait()
            self._passed.clear()
            await self._governed.link.changed()
            self.wake.set()

    async def _flush(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await self._governed.loop.flush()

    async def let_go(self) -> None:
        """After the policy is deleted, try to return its draining workers to service."""
        if self._last is None:
            return
        names = [
            name
            for worker in self._last.observed.workers
            if worker.retiring is not None
            for name in worker.dask_names
        ]
        if not names:
            return
        try:
            async with asyncio.timeout(10.0):
                await self._governed.link.cancel(names)
        except (TimeoutError, LinkError) as exc:
            self._log.warning("Can't put %s back into service: %s", ", ".join(names), exc)
        finally:
            await self._governed.link.close()

    async def _visit(self) -> float:
        """Make one pass; return seconds until the next. Raises only when cancelled."""
        began = self._clock()
        try:
            self._policy = self._read()
            async with asyncio.timeout(PASS_DEADLINE_S):
                result = await self._governed.loop.one_pass(self._policy, self._generation)
            await self._recovered(result)
            self._note(result, self._clock() - began)
        except InvalidPolicy as exc:
            return await self._failed("invalid", Reason.INVALID_SPEC, str(exc))
        except PlatformUnread as exc:
            return await self._failed("unread", Reason.UNREADABLE, str(exc))
        except PlatformError as exc:
            return await self._failed("error", Reason.ACTION_FAILED, str(exc))
        except TimeoutError:
            late = f"a pass did not end within {PASS_DEADLINE_S:g} s"
            return await self._failed("timeout", Reason.ACTION_FAILED, late)
        except Exception as exc:  # one cluster's error must not affect others
            self._log.exception("A pass failed")
            return await self._failed("error", Reason.ACTION_FAILED, f"internal error: {exc!r}")
        # Spread visits, so that visitors started together do not stay in step.
        return min(result.again_in_s, self._longest_sleep_s * random.uniform(0.75, 1.0))

    def _read(self) -> Policy:
        policy = self._world.get(PolicyObject, *self._name)
        if policy is None:
            raise InvalidPolicy("the AdaptivePolicy is gone")
        self._generation = policy.generation
        if self._parsed is None or self._parsed[0] != policy.spec_json:
            self._parsed = (policy.spec_json, parse_policy(policy.spec))
        return self._parsed[1]

    async def _recovered(self, result: PassResult) -> None:
        if not self._failures:
            return
        try:  # the loop does not know that another status was written meanwhile
            await self._governed.reporter.status(result.status)
        except PlatformError as exc:
            self._log.warning("The status can't be reported: %s", exc)
        else:
            self._failures = 0
            self._backoff.good()

    def _note(self, result: PassResult, seconds: float) -> None:
        before, self._last = self._last, result
        self._metrics.passed(self._key, result, seconds)
        fields = {"reason": str(result.plan.reason), "desired": result.plan.desired}
        is_new = before is None or before.plan.reason is not result.plan.reason
        level = logging.INFO if is_new or result.outcomes else logging.DEBUG
        self._log.log(level, "%s: %s", result.plan.reason, result.plan.message, extra=fields)
        for outcome in result.outcomes:
            done = "Done" if outcome.done else "Not done"
            self._log.info("%s: %s: %s", done, outcome.reason, outcome.message, extra=fields)

    async def _failed(self, outcome: str, reason: Reason, message: str) -> float:
        self._failures += 1
        self._metrics.failed(outcome)
        self._log.warning("The pass failed: %s: %s", reason, message)
        if self._failures >= SILENT_AFTER:
            self._governed.loop.claim_nothing()
        ready = Condition(READY, False, reason, message)
        try:
            await self._governed.reporter.unable(ready, self._generation)
        except PlatformError as exc:
            self._log.warning("The failure can't be reported: %s", exc)
        except Exception:  # as above
            self._log.exception("The failure can't be reported")
        return self._backoff.next_s()


async def _ended(visitor: Visitor, task: asyncio.Task[None]) -> None:
    visitor.end()
    await end([task])


class Visits:
    """
    Keeps one `Visitor` running for each policy in the namespaces that are served whose
    `controllerName` is ours, while this process leads.
    """

    def __init__(
        self,
        world: World,
        make: Callable[[PolicyObject], Visitor],
        *,
        controller: str,
        metrics: Metrics,
    ) -> None:
        self._world, self._make, self._metrics = world, make, metrics
        self._controller = controller
        self._running: dict[str, tuple[PolicyObject, Visitor, asyncio.Task[None]]] = {}
        self._of: dict[ClusterKey, dict[str, Visitor]] = defaultdict(dict)  # the same, by cluster
        self._changed = asyncio.Event()
        self._first = asyncio.Semaphore(FIRST_AT_ONCE)
        self._farewells: set[asyncio.Task[None]] = set()

    def on_change(self, key: ClusterKey) -> None:
        """Wake the visitors of a changed cluster."""
        self._changed.set()
        for visitor in self._of.get(key, {}).values():
            visitor.wake.set()

    async def run(self) -> None:
        """Start and end visitors as policies come and go, until cancelled."""
        try:
            while True:
                self._changed.clear()
                await self._settle()
                await self._changed.wait()
                await asyncio.sleep(0.1)  # changes come in bursts
        finally:
            ended = list(self._running.values())
            self._running.clear()
            self._of.clear()
            self._metrics.watched.set(0)
            await asyncio.gather(*(_ended(visitor, task) for _, visitor, task in ended))
            self._metrics.forget_all()  # the next leader reports them; a last pass may, too

    async def watch(self) -> None:
        """Report overdue policies until cancelled."""
        try:
            while True:
                await self.look()
                await asyncio.sleep(LOOK_S)
        finally:
            self._metrics.overdue.set(0)

    async def look(self) -> None:
        """Report the policies that are overdue now."""
        overdue = [v for _, v, _ in self._running.values() if v.is_overdue()]
        self._metrics.overdue.set(len(overdue))
        await asyncio.gather(*(visitor.tell_overdue() for visitor in overdue))

    async def _settle(self) -> None:
        # By uid: a recreated policy is another one.
        there = {p.meta.uid: p for p in self._world.all(PolicyObject) if self._is_ours(p)}
        for uid in set(self._running) - set(there):
            policy, visitor, task = self._running.pop(uid)
            self._of[policy.key].pop(uid)
            if not self._of[policy.key]:
                del self._of[policy.key]
            await _ended(visitor, task)
            farewell = asyncio.create_task(visitor.let_go())  # may hang; others must not wait
            self._farewells.add(farewell)
            farewell.add_done_callback(self._farewells.discard)
            self._metrics.forget(policy.key)
        for uid, policy in there.items():
            if uid not in self._running:
                visitor = self._make(policy)
                name = f"visits of {policy.key}"
                visiting = begun_anew(name, partial(visitor.run, self._first))
                task = asyncio.create_task(visiting, name=name)
                self._running[uid] = (policy, visitor, task)
                self._of[policy.key][uid] = visitor
                await asyncio.sleep(0)  # others must continue
        self._metrics.watched.set(len(self._running))

    def _is_ours(self, policy: PolicyObject) -> bool:
        return (
            policy.controller == self._controller
            and not policy.meta.deleting
            and self._world.serves(policy.meta.namespace)
        )
