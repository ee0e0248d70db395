"""The history of decisions in its ConfigMap, against a real API server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dask_adaptive.kube.api import CONFIG_MAPS, POLICIES, Conflict, Invalid, Json, KubeApi
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


class CountingApi(KubeApi):
    """The real connection; `writes` are those that changed something, or tried to."""

    def __init__(self, api: KubeApi) -> None:
        self._inner, self.calls = api, [""]

    async def create(self, path: str, body: Json) -> Json:
        self.calls.append(f"create {path}")
        return await self._inner.create(path, body)

    async def patch(self, path: str, body: Json, **how: Any) -> Json:
        self.calls.append(f"patch {path}" if body else f"look {path}")
        return await self._inner.patch(path, body, **how)

    def taken(self) -> list[str]:
        """What was called since the last time, without events."""
        words = [call.split()[0] for call in self.calls if "configmaps" in call]
        self.calls.clear()
        return words


class Scene:
    """A policy, and its history as it is stored."""

    def __init__(self, api: KubeApi, kubectl: Kubectl) -> None:
        self.api, self.kubectl = CountingApi(api), kubectl

    async def policy(self) -> PolicyObject:
        path = POLICIES.path(self.kubectl.namespace)
        return parse_policy_object(await self.api._inner.create(path, policy("etl")))

    def log(self, policy: PolicyObject, *, is_new: bool = False) -> DecisionLog:
        """As a process that has just begun; a policy that is not new has had a decision."""
        if not is_new:
            policy = replace(policy, status_json=b'{"lastDecision": {"at": "earlier"}}')
        return DecisionLog(policy, self.api)

    def stored(self) -> list[float]:
        return [d.at for d in history_of(self.kubectl.json("get", "configmap", NAME))]

    async def write(self, data: dict[str, str], **more: Any) -> None:
        path = CONFIG_MAPS.path(self.kubectl.namespace, NAME)
        await self.api._inner.patch(path, {"data": data, **more})


@pytest.fixture
def scene(api: KubeApi, kubectl: Kubectl) -> Scene:
    return Scene(api, kubectl)


async def test_it_survives_a_restart_with_one_write_for_each_pass(scene: Scene) -> None:
    made = await scene.policy()
    log = scene.log(made, is_new=True)
    await log.add([decision(1), decision(2)])
    assert ["create"] == scene.api.taken()
    await log.add([decision(3)])
    assert ["patch"] == scene.api.taken()
    again = scene.log(made)
    await again.add([decision(4)])
    assert ["look", "patch"] == scene.api.taken()
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
