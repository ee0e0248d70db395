"""What a visitor does when a pass fails, when it works again, and when its policy goes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Sequence
from typing import Any
from unittest.mock import Mock

import pytest

from dask_adaptive.backoff import end
from dask_adaptive.controller.compose import FollowingLink
from dask_adaptive.controller.metrics import Metrics
from dask_adaptive.controller.visits import (
    OVERDUE_S,
    PASS_DEADLINE_S,
    SHORTEST_REST_S,
    Visitor,
    Visits,
)
from dask_adaptive.kube.agent_config import Consent
from dask_adaptive.kube.api import ApiUnreachable, KubeError, NotLeading
from dask_adaptive.kube.cache.world import World
from dask_adaptive.kube.objects import PolicyObject
from dask_adaptive.kube.route import Routes
from dask_adaptive.loop.one_pass import PassResult
from dask_adaptive.loop.status import READY, Condition, Status
from dask_adaptive.model.observed import ObservedCluster, ObservedGroup, ObservedWorker, Retiring
from dask_adaptive.model.plan import Plan
from dask_adaptive.model.policy import ClusterRef, Policy
from dask_adaptive.model.reason import Reason
from support import kube_objects as ko
from support.agent_work import until
from support.kube_operator import QuietLink
from support.stored_api import StoredApi
from support.tables import table
from support.worlds import worker

NO_API: Any = None

FINE = Status(replicas=2, conditions=(Condition(READY, True, Reason.RECONCILED, "fine"),))


def result(*workers: ObservedWorker) -> PassResult:
    groups = (ObservedGroup("etl-default", len(workers), workers),)
    plan = Plan(Reason.DESIRED_WITHIN_RANGE, "as it should be")
    seen, policy = ObservedCluster(key=ko.KEY, groups=groups), Policy(ClusterRef("etl"), 5)
    return PassResult(seen, plan, (), FINE, 5.0, policy)


class Stage:
    """Stands in for all that a policy is given: a loop with a script, a link, a reporter."""

    def __init__(self, *script: PassResult | Exception) -> None:
        self.script = list(script)
        self.told: list[Status | Condition] = []
        self.generations: list[int] = []
        self.cancelled: list[str] = []
        self.claims_nothing_after = 0
        self.loop = self.link = self.reporter = self

    def govern(self, *_: Any) -> Any:
        return self

    async def one_pass(self, policy: Policy, generation: int) -> PassResult:
        self.generations.append(generation)
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    def claim_nothing(self) -> None:
        self.claims_nothing_after = self.claims_nothing_after or len(self.told) + 1

    async def status(self, status: Status) -> None:
        self.told.append(status)

    async def unable(self, ready: Condition, generation: int) -> None:
        self.told.append(ready)
        self.generations.append(generation)

    async def cancel(self, names: Sequence[str]) -> list[Any]:
        self.cancelled += names
        return []

    async def flush(self) -> None: ...

    async def close(self) -> None: ...


def visitor(stage: Stage, body: dict[str, Any] | None = None, **more: Any) -> Visitor:
    world = ko.world_of(body or ko.policy())
    (policy,) = world.all(PolicyObject)
    return Visitor(policy, world=world, composer=stage, metrics=Metrics(), **more)


@contextlib.asynccontextmanager
async def visiting(
    world: World, composer: Any, metrics: Metrics | None = None, **how: Any
) -> AsyncIterator[Visits]:
    """Visits of the policies of a world, while the context is open."""
    told = metrics or Metrics()

    def make(policy: PolicyObject) -> Visitor:
        return Visitor(policy, world=world, composer=composer, metrics=told, **how)

    visits = Visits(world, make, controller="dask-adaptive", metrics=told)
    running = asyncio.create_task(visits.run())
    try:
        yield visits
    finally:
        running.cancel()
        await asyncio.wait_for(asyncio.gather(running, return_exceptions=True), 5.0)


async def test_a_failed_pass_is_reported_and_what_is_so_again_afterwards() -> None:
    stage = Stage(result(), ApiUnreachable("no answer"), result())
    visits = visitor(stage)
    for _ in range(3):
        await visits._visit()

    assert [Condition(READY, False, Reason.ACTION_FAILED, "no answer"), FINE] == stage.told


async def test_while_nothing_works_rests_grow_and_soon_it_asks_nothing_of_budgets() -> None:
    stage = Stage(*[KubeError("no")] * 5, RuntimeError("a bug"))
    visits = visitor(stage)

    for longest_s in (5, 10, 20, 40, 60, 60):
        assert longest_s / 2 <= await visits._visit() <= longest_s
    assert 3 == stage.claims_nothing_after


async def test_a_spec_that_makes_no_sense_is_reported() -> None:
    body = ko.policy()
    body["spec"]["minReplicas"] = 9
    body["metadata"]["generation"] = 7
    stage = Stage()
    await visitor(stage, body)._visit()

    (told,) = stage.told
    assert isinstance(told, Condition)
    assert Reason.INVALID_SPEC is told.reason
    assert [7] == stage.generations


async def test_workers_go_back_to_service_when_their_policy_goes() -> None:
    draining = worker("w1", dask_names=("w1-0", "w1-1"), retiring=Retiring())
    stage = Stage(result(draining, worker("w2")))
    visits = visitor(stage)
    await visits._visit()
    await visits.let_go()

    assert ["w1-0", "w1-1"] == stage.cancelled


class Failing(Stage):
    """Something fails that is not part of a pass, once each."""

    def __init__(self, *names: str, error: BaseException) -> None:
        super().__init__(*[result()] * 9)
        self.names, self.error = list(names), error
        self.passes = 0

    def _fails(self, name: str) -> None:
        if name in self.names:
            self.names.remove(name)
            raise self.error

    async def one_pass(self, policy: Policy, generation: int) -> PassResult:
        self._fails("one_pass")
        self.passes += 1
        return await super().one_pass(policy, generation)

    async def status(self, status: Status) -> None:
        self._fails("status")
        await super().status(status)

    async def unable(self, ready: Condition, generation: int) -> None:
        await super().unable(ready, generation)
        self._fails("unable")

    async def changed(self) -> None:
        self._fails("changed")
        await asyncio.sleep(3600)


async def test_a_visit_survives_what_fails_outside_of_its_pass() -> None:
    stage = Failing("one_pass", "unable", "status", error=ValueError("a bug"))
    visits = visitor(stage)
    for _ in range(3):
        await visits._visit()

    wrong = Condition(READY, False, Reason.ACTION_FAILED, "internal error: ValueError('a bug')")
    assert [wrong, wrong, FINE] == stage.told


@table(
    "where, error",
    a_library_cancels_its_own_task=("one_pass", asyncio.CancelledError()),
    news=("changed", ValueError("news")),
    news_cancelled=("changed", asyncio.CancelledError()),
)
async def test_a_task_that_ends_by_itself_is_logged_and_begun_anew(
    where: str, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Failing(where, error=error)
    async with visiting(ko.world_of(ko.policy()), stage) as visits:
        await until(lambda: stage.passes and not stage.names)
        before = stage.passes
        await asyncio.sleep(SHORTEST_REST_S)
        visits.on_change(ko.KEY)
        await until(lambda: stage.passes > before)

    (record,) = caplog.records
    assert "ns/etl" in record.getMessage()
    assert record.exc_info is not None
    assert record.exc_info[1] is error


class Hanging(Stage):
    """The first pass goes well; then one never ends, whatever its deadline."""

    async def one_pass(self, policy: Policy, generation: int) -> PassResult:
        if not self.script:
            await asyncio.Event().wait()
        return await super().one_pass(policy, generation)


@table(
    "passes, later_s, overdue",
    a_visit_that_takes_its_time=(1, PASS_DEADLINE_S + 5, False),
    not_yet=(1, OVERDUE_S - 1, False),
    long_after_the_last_one=(1, OVERDUE_S + 1, True),
    the_first_one_does_not_end=(0, OVERDUE_S + 1, True),
)
async def test_a_policy_that_is_visited_no_more_is_not_ready(
    passes: int, later_s: float, overdue: bool
) -> None:
    stage, metrics, now = Hanging(*[result()] * passes), Metrics(), 0.0
    world = ko.world_of(ko.policy())
    async with visiting(world, stage, metrics, clock=lambda: now) as visits:
        watching = asyncio.create_task(visits.watch())
        await until(lambda: len(stage.generations) == passes and not stage.script)
        await asyncio.sleep(0.05)
        now = later_s
        await visits.look()

        assert overdue == metrics.registry.get_sample_value("dask_adaptive_overdue_policies")
        told = [(c.type, c.status, c.reason) for c in stage.told if isinstance(c, Condition)]
        assert [(READY, False, Reason.ACTION_FAILED)] * overdue == told
        await end([watching])
    assert 0 == metrics.registry.get_sample_value("dask_adaptive_overdue_policies")


@pytest.mark.parametrize(("rest_s", "later_s"), [(3600.0, 3 * 2600.0), (60.0, OVERDUE_S)])
async def test_who_is_to_rest_for_long_is_not_overdue(rest_s: float, later_s: float) -> None:
    long = dataclasses.replace(result(), again_in_s=1e9)
    now = 0.0
    visits = visitor(Stage(long), longest_sleep_s=rest_s, clock=lambda: now)
    now = 1e6
    assert not visits.is_overdue(), "it has not begun yet"
    task = asyncio.create_task(visits.run())
    await asyncio.sleep(0.05)
    now += later_s

    assert not visits.is_overdue()
    now += rest_s
    assert visits.is_overdue()
    await end([task])


async def test_the_link_follows_the_scheduler_and_what_people_want() -> None:
    made: list[tuple[str, bool]] = []

    def connect(address: str, *, attach: bool, **how: Any) -> Any:
        assert {"tls": None, "governs": True} == {name: how[name] for name in ("tls", "governs")}
        made.append((address, attach))
        return QuietLink(address, attach=attach)

    world = ko.world_of(ko.cluster(), ko.service("10.0.0.1"))
    routes = Routes(NO_API, world)
    consent = Consent(StoredApi(ko.namespace()), lambda: 0.0)
    link = FollowingLink(ko.KEY, world=world, routes=routes, consent=consent, connect=connect)
    policy = Policy(ClusterRef("etl"), 1)
    await link.observe(policy)
    await link.observe(policy)
    ko.take(world, "MODIFIED", ko.service("10.0.0.2"))
    await link.cancel([])  # still the scheduler that was observed
    await link.observe(policy)
    refused = {"dask-adaptive.dev/inject": "false"}
    ko.take(world, "MODIFIED", ko.cluster(annotations=refused))
    seen = await link.observe(policy)

    assert [
        ("tcp://10.0.0.1:8786", True),
        ("tcp://10.0.0.2:8786", True),
        ("tcp://10.0.0.2:8786", False),
    ] == made
    assert Reason.INJECTION_REFUSED is seen.problem
    assert "DaskCluster etl is annotated" in seen.message
    link._check = Mock(side_effect=NotLeading("another replica acts"))
    with pytest.raises(NotLeading):
        await link.cancel([])


class Stubborn(Stage):
    """A loop that swallows cancellations, as `asyncio.wait_for` did in libraries until 3.12."""

    def __init__(self, visited: list[str]) -> None:
        super().__init__()
        self.visited = visited

    def govern(self, policy: PolicyObject, *_: Any) -> Any:
        self.visited.append(policy.meta.name)
        return self

    async def one_pass(self, policy: Policy, generation: int) -> PassResult:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        raise RuntimeError("what was cancelled goes on")


async def test_a_visitor_that_swallows_its_cancellation_holds_up_nobody() -> None:
    visited: list[str] = []
    first, second = ko.policy("first", "a"), ko.policy("second", "b")
    world = ko.world_of(first)
    async with visiting(world, Stubborn(visited)) as visits:
        world.listen(visits.on_change)
        await until(lambda: visited == ["first"])
        await asyncio.sleep(0)  # its pass has begun

        ko.take(world, "DELETED", first)
        ko.take(world, "ADDED", second)
        await until(lambda: visited == ["first", "second"], timeout_s=5.0)


class Late(Stubborn):
    """A pass that ends well although it was cancelled."""

    async def one_pass(self, policy: Policy, generation: int) -> PassResult:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600 if self.visited[1:] else 0)
        self.visited.append("passed")
        return result()


async def test_who_leads_no_longer_tells_of_no_cluster() -> None:
    metrics, visited = Metrics(), list[str]()
    async with visiting(ko.world_of(ko.policy()), Late(visited), metrics) as visits:
        await until(lambda: visited[1:] == ["passed"])
        told = metrics.render()
        visits.on_change(ko.KEY)
        await asyncio.sleep(SHORTEST_REST_S + 0.2)  # the second pass has begun

    assert b'cluster="etl"' in told
    assert ["passed"] * 2 == visited[1:]
    assert b'cluster="etl"' not in metrics.render()
