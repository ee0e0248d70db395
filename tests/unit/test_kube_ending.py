"""Visitors end when their policy goes, whatever becomes of their cancellation."""

from __future__ import annotations

import asyncio
from typing import Any

from dask_adaptive.controller.metrics import Metrics
from dask_adaptive.controller.visits import Visitor, Visits
from dask_adaptive.kube.objects import PolicyObject
from dask_adaptive.kube.world import KINDS
from support import kube_objects as ko
from support.agent_work import until

POLICIES = next(kind for kind in KINDS if kind.type is PolicyObject)


class Stubborn:
    """A loop that swallows cancellations, as `asyncio.wait_for` did in libraries until 3.12."""

    def __init__(self, visited: list[str]) -> None:
        self.visited = visited
        self.loop = self.link = self.reporter = self

    def govern(self, policy: PolicyObject, *_: Any) -> Any:
        self.visited.append(policy.meta.name)
        return self

    async def one_pass(self, policy: Any) -> Any:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            raise RuntimeError("what was cancelled goes on") from None

    async def status(self, status: Any) -> None: ...

    async def close(self) -> None: ...


async def test_a_visitor_that_swallows_its_cancellation_holds_up_nobody() -> None:
    visited: list[str] = []
    first, second = ko.policy("first", "a"), ko.policy("second", "b")
    world = ko.world_of(first)

    def make(policy: PolicyObject) -> Visitor:
        composer: Any = Stubborn(visited)
        return Visitor(policy, world=world, composer=composer, metrics=Metrics())

    visits = Visits(world, make, metrics=Metrics())
    world.listen(visits.on_change)
    running = asyncio.create_task(visits.run())
    await until(lambda: visited == ["first"])
    await asyncio.sleep(0)  # its pass has begun

    world.take(POLICIES, "DELETED", first)
    world.take(POLICIES, "ADDED", second)
    await until(lambda: visited == ["first", "second"], timeout_s=5.0)
    running.cancel()
    await asyncio.wait_for(asyncio.gather(running, return_exceptions=True), 5.0)
    assert running.done()
