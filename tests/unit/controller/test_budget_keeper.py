"""Who is woken, what is written, and what holds before anything is known of a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from dask_adaptive.controller import budget_keeper
from dask_adaptive.controller.budget_keeper import BudgetKeeper
from dask_adaptive.controller.metrics import Metrics
from dask_adaptive.kube.api import KubeError, NotFound
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.plan import Claimed
from support import kube_objects as ko
from support.tables import table
from support.worlds import facts

SIX = {"limits": {"workers": 6}, "reclaim": {"after": "0s"}}
A, B = ClusterKey("ns", "a"), ClusterKey("ns", "b")


def cluster(name: str, held: int, **labels: str) -> list[dict[str, Any]]:
    group = ko.worker_group(f"{name}-default", held, resources={"requests": {"cpu": "2"}})
    group["spec"]["cluster"] = name
    return [ko.cluster(name, labels=labels), ko.policy(name, name), group]


def budget(spec: Any = SIX, name: str = "all", **more: Any) -> dict[str, Any]:
    meta = {**ko.meta(name, generation=2), "namespace": ""}
    return {"kind": "AdaptiveBudget", "metadata": meta, "spec": dict(spec), **more}


class Stage:
    """A keeper, the API that it writes to, and the clock of both."""

    def __init__(self, *bodies: dict[str, Any]) -> None:
        self.world = ko.world_of(*bodies)
        self.now, self.woken = 100.0, list[ClusterKey]()
        self.written, self.paths = list[dict[str, Any]](), list[str]()
        self.fails: Exception | None = None
        self.keeper = BudgetKeeper(
            self.world, self, Metrics(), wake=self.woken.append,  # type: ignore[arg-type]
            clock=lambda: self.now, wall_clock=lambda: ko.CREATED_AT + self.now,
        )  # fmt: skip

    async def patch(self, path: str, body: dict[str, Any]) -> None:
        if self.fails:
            raise self.fails
        self.paths.append(path)
        self.written.append(body["status"])

    def want(self, key: ClusterKey, needed: int, number: int | None = None) -> None:
        claim = Claimed(needed, needed if number is None else number)
        self.keeper.want(key, {f"{key.name}-default": claim})

    def allowed(self, key: ClusterKey) -> int | None:
        found = self.keeper.allowed(key, f"{key.name}-default")
        return found and found.workers

    async def pass_(self) -> None:
        await self.keeper._report(self.keeper.settle())


def wanting(*bodies: dict[str, Any], **needed: int) -> Stage:
    """A stage on which clusters want so many workers."""
    stage = Stage(*bodies)
    for name, workers in needed.items():
        stage.want(ClusterKey("ns", name), workers)
    return stage


def test_a_new_cluster_does_not_grow_before_its_part_is_known() -> None:
    stage = wanting(budget(), *cluster("a", 5), a=9)
    for body in cluster("b", 0):
        stage.world.take(ko.KIND[body["kind"]], None, body)

    assert 0 == stage.allowed(B)


def test_both_have_their_part_and_hear_of_it() -> None:
    stage = wanting(budget(), *cluster("a", 6), *cluster("b", 0), a=6, b=6)
    stage.keeper.settle()

    assert {A, B} == set(stage.woken)
    assert (3, 0) == (stage.allowed(A), stage.allowed(B)), "nothing is free yet"
    assert stage.keeper.allowed(A, "a-default") is not None
    stage.woken.clear()
    stage.keeper.settle()
    assert not stage.woken


def test_what_others_hold_wakes_nobody_whose_part_stays() -> None:
    stage = wanting(budget(), *cluster("a", 1), *cluster("b", 3), a=3, b=3)
    assert (3, 3) == (stage.allowed(A), stage.allowed(B))
    stage.woken.clear()
    for body in cluster("a", 3):
        stage.world.take(ko.KIND[body["kind"]], None, body)
    stage.keeper.settle()

    assert (3, 3) == (stage.allowed(A), stage.allowed(B))
    assert not stage.woken
    assert "shared with a (3)" in str(stage.keeper.allowed(B, "b-default"))


def test_who_shares_nothing_is_not_limited() -> None:
    team = {**SIX, "namespaceSelector": {"matchLabels": {"team": "x"}}}
    here = ko.namespace("ns", team="x")
    stage = Stage(budget(team), *cluster("a", 2))
    assert stage.allowed(A) is None

    stage.world.take(ko.KIND["Namespace"], None, here)
    stage.keeper.settle()
    assert 2 == stage.allowed(A)


def test_labels_of_a_cluster_are_its_owners_and_count_for_nothing() -> None:
    mine = [{"namespace": "other", "weight": 100, "guarantee": 5}]
    stage = wanting(
        budget({**SIX, "shares": mine}),
        *cluster("a", 0, tier="prod", namespace="other"), *cluster("b", 0), a=6, b=6,
    )  # fmt: skip

    assert (3, 3) == (stage.allowed(A), stage.allowed(B))


def test_resources_are_counted_as_the_template_requests_them() -> None:
    stage = Stage(budget({"limits": {"cpu": "8"}, "reclaim": {"after": "0s"}}), *cluster("a", 1))
    stage.want(A, 9)

    assert 4 == stage.allowed(A)


def test_a_policy_that_is_gone_wants_nothing() -> None:
    stage = wanting(budget(), *cluster("a", 1), *cluster("b", 1), a=9, b=9)
    stage.world.take(ko.KIND["AdaptivePolicy"], "DELETED", ko.policy("a", "a"))
    stage.keeper.settle()

    assert (1, 5) == (stage.allowed(A), stage.allowed(B))


def test_quotas_of_the_same_name_are_shared_in_each_namespace() -> None:
    room = ko.quota(hard={"requests.cpu": "8"}, used={"requests.cpu": "0"})
    here = [room, *cluster("a", 0), *cluster("b", 0)]
    there = [{**body, "metadata": {**body["metadata"], "namespace": "other"}} for body in here]
    stage = Stage(*here, *there)
    every = [ClusterKey(namespace, name) for namespace in ("ns", "other") for name in ("a", "b")]
    for key in every:
        stage.want(key, 9)
    stage.keeper.settle()

    assert [2, 2, 2, 2] == [stage.allowed(key) for key in every]
    assert "ResourceQuota team has 8 requests.cpu" in str(stage.keeper.allowed(A, "a-default"))


def test_one_cluster_alone_has_the_room_of_its_quota_for_itself() -> None:
    stage = Stage(ko.quota(hard={"requests.cpu": "8"}), *cluster("a", 0))

    assert stage.allowed(A) is None


async def test_its_status() -> None:
    stage = wanting(budget(), *cluster("a", 6), *cluster("b", 0), a=6, b=9)
    await stage.pass_()
    (status,) = stage.written
    assert ["/apis/dask-adaptive.dev/v1alpha1/adaptivebudgets/all/status"] == stage.paths
    (condition,) = status["conditions"]
    waiting, having = status["groups"]

    assert (6, 15, 2, 2) == tuple(
        status[key] for key in ("heldWorkers", "wantedWorkers", "waiting", "clusters")
    )
    assert {"workers": "6 workers"} == status["held"]
    assert 2 == status["observedGeneration"]
    assert ("True", "Reconciled") == (condition["status"], condition["reason"])
    assert "2 6 2" == facts(condition["message"])
    assert ("a", 6, 6, 3) == tuple(waiting[k] for k in ("cluster", "held", "wanted", "allowed"))
    assert "2026-02-01T00:01:40Z" == having["waitingSince"]


async def test_a_budget_of_another_operator_limits_nobody_here() -> None:
    stage = Stage(budget({**SIX, "controllerName": "next"}), *cluster("a", 9))
    await stage.pass_()

    assert (None, []) == (stage.allowed(A), stage.written)


async def test_it_is_written_on_news_and_not_all_the_time() -> None:
    stage = Stage(budget(), *cluster("a", 1))
    for needed, expected in ((1, 1), (2, 1), (2, 2), (2, 2)):
        stage.want(A, needed)
        await stage.pass_()
        stage.now += 3
        assert expected == len(stage.written)


async def test_since_when_one_waits() -> None:
    stage = Stage(budget(), *cluster("a", 6), *cluster("b", 0))
    for needed in (6, 7):
        stage.want(B, needed)
        await stage.pass_()
        stage.now += 9
    since = [{g["cluster"]: g.get("waitingSince") for g in s["groups"]} for s in stage.written]

    assert [{"a": None, "b": "2026-02-01T00:01:40Z"}] * 2 == since


@pytest.mark.parametrize("error", [NotFound("gone"), KubeError("busy")])
async def test_what_cannot_be_written_is_tried_again(error: KubeError) -> None:
    stage = Stage(budget(), *cluster("a", 1))
    stage.fails = error
    await stage.pass_()
    stage.fails = None
    await stage.pass_()
    assert not stage.written, "not at once"
    stage.now += 5
    await stage.pass_()

    assert 1 == len(stage.written)


@table(
    "namespace, spec, why",
    many=("", {"limits": {"cpu": "many"}}, "spec.limits: must name"),
    others=("ns", {**SIX, "namespaces": ["other"]}, "spec.namespaces: may only name ns"),
)
async def test_a_spec_that_makes_no_sense_limits_nobody(
    namespace: str, spec: dict[str, Any], why: str
) -> None:
    body = budget(spec)
    body["metadata"]["namespace"] = namespace
    stage = Stage(body, *cluster("a", 1))
    await stage.pass_()
    ((condition,),) = (status["conditions"] for status in stage.written)

    assert stage.allowed(A) is None
    assert ("False", "InvalidSpec") == (condition["status"], condition["reason"])
    assert condition["message"].startswith(why)


LONG_AGO = "2026-01-01T00:00:00Z"


async def test_after_a_restart_it_is_known_who_has_waited_since_when() -> None:
    row = {"namespace": "ns", "cluster": "b", "name": "b-default", "waitingSince": LONG_AGO}
    old = {"groups": [{**row, "held": 0, "wanted": 9, "allowed": 0}]}
    stage = wanting(budget(status=old), *cluster("a", 6), *cluster("b", 0), a=6, b=9)
    await stage.pass_()
    since = {g["cluster"]: g.get("waitingSince") for g in stage.written[0]["groups"]}

    assert LONG_AGO == since["b"]


def test_who_says_nothing_any_more_keeps_what_he_has() -> None:
    stage = wanting(budget(), *cluster("a", 2), *cluster("b", 2), a=6)
    stage.keeper.settle()
    stage.keeper.want(A, {})  # it is paused
    stage.want(B, 6)
    stage.keeper.settle()
    assert 2 == stage.allowed(B), "a may have asked for its part"
    stage.now += 10
    stage.keeper.settle()

    assert (2, 4) == (stage.allowed(A), stage.allowed(B))


@pytest.mark.parametrize("kind", ["DaskCluster", "AdaptivePolicy"])
def test_what_is_deleted_or_not_ours_any_more_counts_as_held(kind: str) -> None:
    stage = wanting(budget(), *cluster("a", 4), *cluster("b", 0), a=9, b=9)
    (body,) = (each for each in cluster("a", 4) if each["kind"] == kind)
    if kind == "DaskCluster":
        body["metadata"]["deletionTimestamp"] = ko.CREATED
    else:
        body["spec"]["controllerName"] = "next"
    stage.world.take(ko.KIND[kind], None, body)
    stage.keeper.settle()

    assert (4, 2) == (stage.allowed(A), stage.allowed(B))


def test_a_budget_that_cannot_be_divided_stops_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stage = wanting(budget(), *cluster("a", 4), *cluster("b", 4), a=9)
    stage.keeper.settle()
    before = stage.allowed(A), stage.allowed(B)

    def broken(*_: Any, **__: Any) -> Any:
        raise ArithmeticError("a bug")

    monkeypatch.setattr(budget_keeper, "divide", broken)
    stage.keeper.settle()

    assert before == (stage.allowed(A), stage.allowed(B)) != (None, None)
    assert "all can't be shared out" in caplog.text


async def test_a_status_keeps_nothing_of_another_spec() -> None:
    gpus = {"limits": {"nvidia.com/gpu": 8}}
    old = {"held": {"cpu": "4 cpu"}, "groups": [], "heldWorkers": 2, "conditions": []}
    for spec, held in ((gpus, {"cpu": None, "nvidia.com/gpu": "0 nvidia.com/gpu"}), ({}, None)):
        stage = Stage(budget(spec, status=old), *cluster("a", 1))
        await stage.pass_()
        (status,) = stage.written

        assert held == status["held"]
        assert (1 if held else None) == status["heldWorkers"]


@pytest.mark.parametrize(("later_s", "at"), [(0, "01"), (86_400, "02")])
async def test_one_of_the_same_name_has_a_status_of_its_own(later_s: float, at: str) -> None:
    stage = wanting(budget(), *cluster("a", 6), *cluster("b", 0), b=6)
    await stage.pass_()
    stage.world.take(ko.KIND["AdaptiveBudget"], "DELETED", budget())
    stage.now += later_s
    await stage.pass_()
    another = budget()
    another["metadata"]["uid"] = "another"
    stage.world.take(ko.KIND["AdaptiveBudget"], None, another)
    await stage.pass_()
    since = {g["cluster"]: g.get("waitingSince") for g in stage.written[1]["groups"]}

    assert f"2026-02-{at}T00:01:40Z" == since["b"]


def test_a_group_that_is_not_there_wants_nothing() -> None:
    stage = Stage(budget(), *cluster("a", 1))
    stage.keeper.want(A, {"another": Claimed(3, 3)})

    assert 1 == stage.allowed(A)
