"""What the webhook knows of a pod, and what it asks for."""

from __future__ import annotations

from typing import Any

import pytest

from dask_adaptive.controller.metrics import Metrics
from dask_adaptive.controller.webhook import Injector
from dask_adaptive.kube.agent_config import AgentConfig, Consent, bundle
from dask_adaptive.kube.api import ApiUnreachable
from dask_adaptive.kube.inject import GRACE, HINTS
from support import kube_objects as ko
from support.json_patch import apply
from support.kube_bodies import dask_pod
from support.stored_api import StoredApi
from support.tables import table

POLLING = "DASK_DISTRIBUTED__CLIENT__SCHEDULER_INFO_INTERVAL"


def pod(**spec: Any) -> dict[str, Any]:
    return dask_pod("worker", **{"terminationGracePeriodSeconds": 30, **spec})


def api_of(*bodies: dict[str, Any]) -> StoredApi:
    return StoredApi(ko.namespace(), *bodies)


class Scene:
    def __init__(self, api: StoredApi, *watched: dict[str, Any]) -> None:
        config = AgentConfig(api, bundle())
        consent = Consent(api, lambda: 0.0, ttl_s=1e9)
        world = ko.world_of(*watched)
        self.injector = Injector(api, world, config, consent, Metrics(), grace_s=300)

    async def spec(self, body: dict[str, Any], **more: Any) -> dict[str, Any]:
        """Of the pod, once it is injected."""
        outcome = await self.injector._decide({"object": body, "namespace": "ns", **more})
        assert outcome.patch, outcome.lacks
        return dict(apply(body, outcome.patch)["spec"])

    async def grace(self, body: dict[str, Any], **more: Any) -> int | None:
        """The grace period that the pod is given; None: its own."""
        after = (await self.spec(body, **more))["terminationGracePeriodSeconds"]
        return None if after == body["spec"]["terminationGracePeriodSeconds"] else int(after)

    async def variables(self, body: dict[str, Any]) -> dict[str, str]:
        entries = (await self.spec(body))["containers"][0].get("env", [])
        others = ("PRELOAD", GRACE)
        return {e["name"]: e["value"] for e in entries if not e["name"].endswith(others)}


def group(grace_s: int | None) -> dict[str, Any]:
    body = ko.group()
    grace = {} if grace_s is None else {"terminationGracePeriodSeconds": grace_s}
    body["spec"]["worker"]["spec"] = grace
    return body


@table(
    "of_pod, of_group, given",
    nobody_asked_for_30=(30, None, 300),
    somebody_did=(30, 30, None),
    their_own=(45, 45, None),
    set_by_somebody_else=(3600, None, None),
)
@pytest.mark.parametrize("watched", [True, False])
async def test_grace(of_pod: int, of_group: int | None, given: int | None, watched: bool) -> None:
    objects = [ko.cluster(), group(of_group)]
    scene = Scene(api_of(*objects), *(objects if watched else []))

    assert given == await scene.grace(pod(terminationGracePeriodSeconds=of_pod))


EVICT, DISRUPT = HINTS


@table(
    "disruption, own, expected",
    by_default=({}, {}, HINTS),
    not_wanted=({"hints": False}, {}, {}),
    not_understood=({"hints": "?"}, {}, {}),
    no_policy=(None, {}, {}),
    one_is_the_users=({}, {EVICT: "true"}, {EVICT: "true", DISRUPT: "true"}),
    both_are=({}, dict.fromkeys(HINTS, "mine"), dict.fromkeys(HINTS, "mine")),
)
async def test_pods_of_new_workers_bear_the_hints(
    disruption: dict[str, Any] | None, own: dict[str, str], expected: dict[str, str]
) -> None:
    policy = ko.policy()
    policy["spec"]["disruption"] = disruption
    scene = Scene(api_of(), *([ko.cluster()] if disruption is None else [ko.cluster(), policy]))
    body = pod()
    body["metadata"] |= {"annotations": own} if own else {}
    outcome = await scene.injector._decide({"object": body, "namespace": "ns"})
    after = apply(body, outcome.patch)["metadata"]["annotations"]

    assert expected == {name: after[name] for name in HINTS if name in after}


async def test_the_pods_own_grace_stays_where_its_group_cannot_be_read() -> None:
    scene = Scene(api_of(ko.cluster()))

    assert await scene.grace(pod()) is None


async def test_a_burst_of_workers_is_no_write() -> None:
    api = api_of()
    scene = Scene(api, ko.cluster(), group(None))
    for _ in range(300):
        assert 300 == await scene.grace(pod())

    assert (0, 1) == (api.count("patch"), api.count("get")), "the namespace's consent, once"


async def test_a_config_map_that_cannot_be_written_is_tried_again_by_the_next_scheduler() -> None:
    api = api_of(ko.cluster())
    scene = Scene(api, ko.cluster())
    await scene.spec(dask_pod("scheduler"), dryRun=True)
    assert 0 == api.count("patch")
    api.errors["patch configmaps"] = ApiUnreachable("no answer")
    with pytest.raises(AssertionError, match="can't be created or checked"):
        await scene.spec(dask_pod("scheduler"))
    api.errors.clear()

    assert (await scene.spec(dask_pod("scheduler")))["volumes"]


def policy_with(name: str = "p", *, relief: str = "Disabled", **metadata: Any) -> dict[str, Any]:
    made = ko.policy(name, **metadata)
    made["spec"]["scheduler"] = {"relief": {"clientInfo": relief}}
    return made


OFF = {"DASK_ADAPTIVE_RELIEF": "clientInfo=Disabled"}
MANAGED = {"dask-adaptive.dev/managed-by": "annotations"}


@pytest.fixture
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dask_adaptive.controller.webhook.SECOND_LOOK_S", 0.0)


@pytest.mark.usefixtures("_no_wait")
@table(
    "watched, listed, expected",
    watched=([policy_with()], [], OFF),
    younger_than_the_watch=([], [policy_with()], OFF),
    none=([], [], {}),
    another_clusters=([], [ko.policy("p", for_="other")], {}),
    going=([policy_with(deletionTimestamp="x")], [], {}),
    makes_no_sense=([policy_with(relief="Sometimes")], [], {}),
    two_contradict=([policy_with("a"), policy_with("b")], [], {}),
    one_of_annotations_goes=([policy_with(), ko.policy("m", labels=MANAGED)], [], OFF),
)
async def test_a_scheduler_starts_with_what_its_policy_says(
    watched: list[dict[str, Any]], listed: list[dict[str, Any]], expected: dict[str, str]
) -> None:
    api = api_of(ko.cluster(), *listed)
    scene = Scene(api, ko.cluster(), *watched)

    assert expected == await scene.variables(dask_pod("scheduler"))
    assert bool(watched) == (0 == api.count("list adaptivepolicies"))


async def test_a_worker_starts_with_what_the_watch_has_said() -> None:
    api = api_of()

    assert {POLLING: "600s"} == await Scene(api, ko.cluster()).variables(pod())
    assert {} == await Scene(api, ko.cluster(), policy_with()).variables(pod())
    assert 0 == api.count("list")


async def test_policies_that_cannot_be_listed_keep_no_agent_out() -> None:
    api = api_of(ko.cluster())
    api.errors["list adaptivepolicies"] = ApiUnreachable("no answer")

    assert {} == await Scene(api, ko.cluster()).variables(dask_pod("scheduler"))


@pytest.mark.usefixtures("_no_wait")
async def test_a_scheduler_is_sure_of_its_config_map_each_time() -> None:
    api = api_of(ko.cluster())
    scene = Scene(api, ko.cluster())
    for _ in range(2):
        await scene.variables(dask_pod("scheduler"))

    assert (2, 2) == (api.count("patch"), api.count("get daskclusters etl"))
