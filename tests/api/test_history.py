"""The history of decisions in its ConfigMap, against a real API server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.scale.runner import CountingApi
from dask_adaptive.kube.api import CONFIG_MAPS, POLICIES, Conflict, Invalid
from dask_adaptive.kube.objects import PolicyObject, parse_policy_object
from dask_adaptive.kube.reporter import DecisionLog
from dask_adaptive.kube.status_json import KEY, history_of
from dask_adaptive.model.plan import Decision
from dask_adaptive.model.reason import Reason
from support.kube_bodies import policy
from support.kube_server import Kubectl

NAME = "etl-adaptive-history"


def decision(at: float) -> Decision:
    return Decision(at, "etl-default", 1, 2, 2, Reason.RECONCILED, f"number {at:g}")


class Scene:
    """A policy, and its history as it is stored."""

    def __init__(self, api: CountingApi, kubectl: Kubectl) -> None:
        self.api, self.kubectl = api, kubectl

    def taken(self) -> dict[str, int]:
        """What was asked about ConfigMaps since the last time."""
        found = {what: n for what, n in self.api.counts.items() if what.endswith(" configmaps")}
        self.api.counts.clear()
        return found

    async def policy(self) -> PolicyObject:
        path = POLICIES.path(self.kubectl.namespace)
        return parse_policy_object(await self.api.create(path, policy("etl")))

    def log(self, policy: PolicyObject, *, is_new: bool = False) -> DecisionLog:
        """As a process that has just begun; a policy that is not new has had a decision."""
        if not is_new:
            policy = replace(policy, status_json=b'{"lastDecision": {"at": "earlier"}}')
        return DecisionLog(policy, self.api)

    def stored(self) -> list[float]:
        return [d.at for d in history_of(self.kubectl.json("get", "configmap", NAME))]

    async def write(self, data: dict[str, str], **more: Any) -> None:
        path = CONFIG_MAPS.path(self.kubectl.namespace, NAME)
        await self.api.patch(path, {"data": data, **more})


@pytest.fixture
def scene(counting: CountingApi, kubectl: Kubectl) -> Scene:
    return Scene(counting, kubectl)


async def test_it_survives_a_restart_with_one_write_for_each_pass(scene: Scene) -> None:
    made = await scene.policy()
    log = scene.log(made, is_new=True)
    await log.add([decision(1), decision(2)])
    assert {"POST configmaps": 1} == scene.taken()
    await log.add([decision(3)])
    assert {"PATCH configmaps": 1} == scene.taken()
    again = scene.log(made)
    await again.add([decision(4)])
    assert {"GET configmaps": 1, "PATCH configmaps": 1} == scene.taken()
    assert [1, 2, 3, 4] == scene.stored()
    owner = scene.kubectl.json("get", "configmap", NAME)["metadata"]["ownerReferences"]
    assert [made.meta.uid] == [o["uid"] for o in owner]


async def test_one_that_somebody_deleted_is_made_anew(scene: Scene) -> None:
    log = scene.log(await scene.policy())
    await log.add([decision(1)])
    scene.kubectl("delete", "configmap", NAME)
    await log.add([decision(2)])

    assert [1, 2] == scene.stored()


async def test_what_somebody_else_wrote_meanwhile_is_kept_a_pass_later(scene: Scene) -> None:
    made = await scene.policy()
    log, other = scene.log(made), scene.log(made)
    await log.add([decision(1)])
    await other.add([decision(2)])
    with pytest.raises(Conflict):
        await log.add([decision(3)])
    assert [1, 2] == scene.stored()
    await log.add([decision(3)])  # the next pass

    assert [1, 2, 3] == scene.stored()


@pytest.mark.parametrize("restarted", [False, True])
async def test_rubbish_is_replaced(scene: Scene, restarted: bool) -> None:
    made = await scene.policy()
    log = scene.log(made)
    await log.add([decision(1)])
    await scene.write({KEY: "rubbish"})
    if restarted:
        log = scene.log(made)
    else:
        with pytest.raises(Conflict):
            await log.add([decision(2)])
    await log.add([decision(2)])

    assert ([2] if restarted else [1, 2]) == scene.stored()


async def test_a_config_map_of_somebody_else_stays(scene: Scene) -> None:
    scene.kubectl("create", "configmap", NAME, "--from-literal=mine=1")
    log = scene.log(await scene.policy())
    for _ in range(2):
        with pytest.raises(Invalid):
            await log.add([decision(1), decision(2)])
    assert {"mine": "1"} == scene.kubectl.json("get", "configmap", NAME)["data"]
    scene.kubectl("delete", "configmap", NAME)
    await log.add([decision(1), decision(2)])

    assert [1, 2] == scene.stored()


async def test_one_that_nobody_may_write_stops_nothing(scene: Scene) -> None:
    log = scene.log(await scene.policy())
    await log.add([decision(1)])
    await scene.write({}, immutable=True)
    for expected in (Conflict, Invalid, Invalid):
        with pytest.raises(expected):
            await log.add([decision(2), decision(3)])
    scene.kubectl("delete", "configmap", NAME)
    await log.add([decision(2), decision(3)])

    assert [1, 2, 3] == scene.stored()


async def test_a_policy_made_anew_begins_anew(scene: Scene) -> None:
    await scene.log(await scene.policy()).add([decision(1)])
    scene.kubectl("delete", "dap", "etl")
    made = await scene.policy()
    await scene.log(made).add([decision(2)])

    assert [2] == scene.stored()
    owner = scene.kubectl.json("get", "configmap", NAME)["metadata"]["ownerReferences"]
    assert [made.meta.uid] == [o["uid"] for o in owner]
