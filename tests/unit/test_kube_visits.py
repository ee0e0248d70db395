"""What a visitor does when a pass fails, when it works again, and when its policy goes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from dask_adaptive.controller.compose import FollowingLink, leaving, recycled
from dask_adaptive.controller.metrics import Metrics
from dask_adaptive.controller.visits import Visitor
from dask_adaptive.kube.errors import ApiUnreachable, KubeError
from dask_adaptive.kube.objects import PolicyObject, parse_policy_object
from dask_adaptive.kube.world import KINDS
from dask_adaptive.loop.one_pass import PassResult
from dask_adaptive.loop.status import READY, Condition, Status
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import (
    Leaving,
    ObservedCluster,
    ObservedGroup,
    ObservedScheduler,
    ObservedWorker,
)
from dask_adaptive.model.plan import Outcome, Plan, Retire
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Quota, QuotaUse
from support import kube_objects as ko

KEY = ClusterKey("ns", "etl")
FINE = Status(replicas=2, conditions=(Condition(READY, True, Reason.RECONCILED, "fine"),))


def result(*workers: ObservedWorker) -> PassResult:
    groups = (ObservedGroup("etl-default", len(workers), workers),)
    plan = Plan(Reason.DESIRED_WITHIN_RANGE, "as it should be")
    return PassResult(ObservedCluster(KEY, groups=groups), plan, (), FINE, 5.0)


class Stage:
    """Stands in for all that a policy is given: a loop with a script, a link, a reporter."""

    def __init__(self, *script: PassResult | Exception) -> None:
        self.script = list(script)
        self.told: list[Status] = []
        self.cancelled: list[str] = []
        self.is_unmarked = False
        self.loop = self.link = self.reporter = self

    def govern(self, *_: Any) -> Any:
        return self

    async def one_pass(self, policy: Policy) -> PassResult:
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    async def status(self, status: Status) -> None:
        self.told.append(status)

    async def cancel(self, names: Sequence[str]) -> list[Any]:
        self.cancelled += names
        return []

    async def unmark(self) -> None:
        self.is_unmarked = True

    async def close(self) -> None: ...


def visitor(stage: Stage, body: dict[str, Any] | None = None) -> Visitor:
    world = ko.world_of(body or ko.policy())
    (policy,) = world.all(PolicyObject)
    return Visitor(policy, world=world, composer=stage, metrics=Metrics())


def ready(status: Status) -> Condition:
    return next(c for c in status.conditions if c.type == READY)


async def test_a_failed_pass_is_reported_and_what_is_so_again_afterwards() -> None:
    stage = Stage(result(), ApiUnreachable("no answer"), result())
    visits = visitor(stage)
    for _ in range(3):
        await visits._visit()

    failed, again = stage.told
    assert (False, Reason.ACTION_FAILED, "no answer") == (
        ready(failed).status,
        ready(failed).reason,
        ready(failed).message,
    )
    assert 2 == failed.replicas, "what was known before stays"
    assert FINE == again


async def test_rests_grow_while_nothing_works() -> None:
    visits = visitor(Stage(*[KubeError("no")] * 5, RuntimeError("a bug")))

    assert [5, 10, 20, 40, 60, 60] == [await visits._visit() for _ in range(6)]


async def test_a_spec_that_makes_no_sense_is_reported() -> None:
    body = ko.policy()
    body["spec"]["minReplicas"] = 9
    stage = Stage()
    await visitor(stage, body)._visit()

    assert Reason.INVALID_POLICY is ready(stage.told[0]).reason


async def test_workers_go_back_to_service_when_their_policy_goes() -> None:
    draining = ObservedWorker("w1", "u", "g", 1.0, ("w1-0", "w1-1"), leaving=Leaving.DRAINING)
    stage = Stage(result(draining, ObservedWorker("w2", "u", "g", 1.0, ("w2",))))
    visits = visitor(stage)
    await visits._visit()
    await visits.let_go()

    assert stage.is_unmarked
    assert ["w1-0", "w1-1"] == stage.cancelled


async def test_a_visit_is_made_at_once_when_something_changed() -> None:
    stage = Stage(result(), result())
    visits = visitor(stage)
    task = asyncio.create_task(visits.run())
    await asyncio.sleep(0.05)
    assert 1 == len(stage.script)
    visits.wake.set()
    await asyncio.sleep(0.6)
    task.cancel()

    assert [] == stage.script


def test_what_was_leaving_is_remembered_by_the_status() -> None:
    body = ko.policy()
    rows = [("a", "Draining"), ("b", "Active"), ("c", "Going"), ("d", "Drained")]
    body["status"] = {"workers": [{"name": n, "state": s} for n, s in rows]}

    assert ["a", "c", "d"] == leaving(parse_policy_object(body))


class Consent:
    async def refused_by_namespace(self, namespace: str) -> str:
        return ""


async def test_the_link_follows_the_scheduler_and_what_people_want() -> None:
    made: list[tuple[str, bool]] = []

    class Link(Stage):
        async def observe(self, policy: Policy, *, meters: bool = False) -> ObservedScheduler:
            return ObservedScheduler(degraded=Reason.AGENT_MISSING)

    def connect(address: str, *, timeout_s: float, attach: bool, governs: bool) -> Any:
        assert governs
        made.append((address, attach))
        return Link()

    world = ko.world_of(ko.cluster(), ko.service("10.0.0.1"))
    link = FollowingLink(KEY, world=world, consent=Consent(), connect=connect)
    policy = Policy("etl", 1)
    await link.observe(policy)
    await link.observe(policy)
    kinds = {k.resource.kind: k for k in KINDS}
    world.take(kinds["Service"], "MODIFIED", ko.service("10.0.0.2"))
    await link.cancel(["w"])  # still the scheduler that was observed
    await link.observe(policy)
    refused = {"dask-adaptive.dev/inject": "false"}
    world.take(kinds["DaskCluster"], "MODIFIED", ko.cluster(annotations=refused))
    seen = await link.observe(policy)

    assert [
        ("tcp://10.0.0.1:8786", True),
        ("tcp://10.0.0.2:8786", True),
        ("tcp://10.0.0.2:8786", False),
    ] == made
    assert Reason.INJECTION_REFUSED is seen.degraded
    assert "DaskCluster etl is annotated" in seen.degraded_message


def passed(
    metrics: Metrics, *, redone: dict[str, int], session: str = "s", ratio: float | None = None,
    outcomes: tuple[Outcome, ...] = (),
) -> str:  # fmt: skip
    scheduler = ObservedScheduler(session=session, redone=tuple(redone.items()))
    uses = () if ratio is None else (QuotaUse("etl-default", Quota.TASKS, ratio, "w"),)
    plan = Plan(Reason.DESIRED_WITHIN_RANGE, "as it should be", uses=uses)
    seen = PassResult(ObservedCluster(KEY, scheduler=scheduler), plan, outcomes, FINE, 5.0)
    metrics.passed(KEY, seen, 0.1)
    return metrics.render().decode()


def test_metrics_of_quotas() -> None:
    metrics = Metrics()
    labels = 'cluster="etl",group="etl-default",namespace="ns",quota="tasks"'
    retire = Retire("w", ("w",), Reason.TASK_QUOTA, "21 of 20 runs", busy_ok=True)
    idle = Retire("w", ("w",), Reason.UNDERUTILIZED, "idle")
    done = tuple(Outcome(a, True, a.reason, "") for a in (retire, idle))
    refused = Outcome(retire, False, Reason.PINNED, "")

    first = passed(metrics, redone={"lost": 7}, ratio=0.5, outcomes=(*done, refused))
    assert f"dask_adaptive_quota_used_ratio{{{labels}}} 0.5" in first
    counted = 'dask_adaptive_recycles_total{cluster="etl",namespace="ns",reason="TaskQuota"} 1.0'
    assert counted in first
    assert 1 == first.count("\ndask_adaptive_recycles_total{")  # not for a scale-down
    redone = 'dask_adaptive_tasks_redone_total{cause="lost",cluster="etl",namespace="ns"}'
    assert f"{redone} 0.0" in first  # before we came
    second = passed(metrics, redone={"lost": 9})
    assert f"{redone} 2.0" in second
    assert "dask_adaptive_quota_used_ratio{" not in second
    assert f"{redone} 3.0" in passed(metrics, redone={"lost": 1}, session="another")
    metrics.forget(KEY)
    assert 'cluster="etl"' not in metrics.render().decode()


def test_what_was_recycled_is_remembered_by_the_status() -> None:
    body = ko.policy()
    body["status"] = {"recycled": {"TaskQuota": 3, "FromTheFuture": 1}}

    assert {Reason.TASK_QUOTA: 3} == recycled(parse_policy_object(body))
    assert {} == recycled(parse_policy_object(ko.policy()))


@pytest.mark.parametrize("text", ["leader", "policies", "workers", "passes_total"])
def test_metrics_have_our_prefix(text: str) -> None:
    metrics = Metrics()
    metrics.passed(KEY, result(), 0.1)

    assert f"dask_adaptive_{text}" in metrics.render().decode()
    metrics.forget(KEY)
    assert 'cluster="etl"' not in metrics.render().decode()
