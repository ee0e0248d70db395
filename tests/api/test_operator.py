"""The operator against a real API server: what it makes of policies, clusters and annotations."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.request
from typing import Any

import pytest

from dask_adaptive.backoff import end
from dask_adaptive.controller.lease import Timing, lease_name
from dask_adaptive.kube.api import PODS
from dask_adaptive.model.policy import DEFAULT_CONTROLLER
from support.kube_bodies import autoscaler, policy
from support.kube_operator import Team, until
from support.kube_server import ROOT
from support.ports import free_port
from support.tables import table

FAST = Timing(duration_s=2.0, renew_deadline_s=1.2, retry_s=0.2)


async def test_a_cluster_that_appears_later_is_served(team: Team) -> None:
    team.kubectl.apply(policy("p", "demo", minReplicas=2))
    async with team.served():
        await until(lambda: team.ready("p") == ("False", "ClusterNotFound"))
        team.apply_demo()
        await until(lambda: team.ready("p")[0] == "True")
        await until(lambda: team.replicas() == 2)


async def test_who_waits_for_a_spec_that_changes_no_number_is_answered(team: Team) -> None:
    """As `kubectl wait` and kstatus do: by the generation of the status and of the condition."""
    team.apply_demo(policy("p", "demo"))

    def generations() -> set[int]:
        status = team.policies()[0].get("status", {})
        rows = status.get("conditions", [])
        return {status.get("observedGeneration", 0), *(c["observedGeneration"] for c in rows)}

    async with team.served():
        await until(lambda: generations() == {1})
        team.edit("p", maxUnready="50%")
        wait = ("wait", "dap/p", "--for=condition=Ready", "--timeout=10s")
        await asyncio.to_thread(team.kubectl, *wait)
        await until(lambda: generations() == {2})


@pytest.mark.usefixtures("one_divides")
async def test_only_namespaces_with_the_labels_are_served(team: Team) -> None:
    """Whatever the operator that serves all of them sees besides."""
    mine = f"team={team.namespace}"
    team.apply_demo()
    team.annotate("daskcluster", "demo", max_replicas="3")

    def label(change: str) -> None:
        team.kubectl("label", "namespace", team.namespace, change)

    async with team.served(namespaces=(), namespace_selector=mine) as operator:
        await asyncio.sleep(3.0)
        assert not team.policies(), "none is made of annotations either"
        label(mine)
        await until(lambda: team.ready("demo")[0] == "True")
        label("team-")
        await until(lambda: not operator.visits._running)
        team.edit("demo", minReplicas=2)
        await asyncio.sleep(2.0)
        assert 0 == team.replicas()


@table(
    "rival, what",
    another_policy=(policy("b", "demo", minReplicas=3), "dap/b"),
    upstreams_autoscaler=(autoscaler("demo"), "daskautoscaler/demo"),
)
async def test_where_two_would_scale_a_cluster_the_policy_does_nothing(
    team: Team, rival: dict[str, Any], what: str
) -> None:
    team.apply_demo(policy("a", "demo", minReplicas=2), rival)
    async with team.served():
        await until(lambda: team.ready("a") == ("False", "OwnershipConflict"))
        assert 0 == team.replicas()
        team.kubectl("delete", what)
        await until(lambda: team.ready("a")[0] == "True")


async def test_of_two_operators_of_one_name_one_serves_until_it_has_gone(team: Team) -> None:
    team.apply_demo(policy("p", "demo", minReplicas=2))
    async with contextlib.AsyncExitStack() as first:
        await first.enter_async_context(team.served(identity="first"))
        await until(lambda: team.replicas() == 2)
        async with team.served(identity="second", timing=FAST) as second:
            await asyncio.sleep(4.0)
            assert not second.visits._running
            await first.aclose()
            team.edit("p", minReplicas=3)
            await until(lambda: team.replicas() == 3)
    lease = team.kubectl.json("get", "lease", lease_name(DEFAULT_CONTROLLER))
    assert "" == lease["spec"].get("holderIdentity", ""), "whoever ends gives it back"


async def test_a_busy_operator_keeps_its_lease(team: Team) -> None:
    timing = Timing(duration_s=5.0, renew_deadline_s=3.0, retry_s=0.5)
    async with team.served(timing=timing) as operator:
        await until(lambda: operator._lease.is_leader)
        endless = (team.api.text(PODS.path(team.namespace), {"watch": "1"}) for _ in range(64))
        waiting = asyncio.gather(*endless, return_exceptions=True)
        await asyncio.sleep(timing.renew_deadline_s + 0.5)
        operator._lease.check()
        await end([waiting])


async def test_of_two_operators_of_two_names_one_makes_the_policy_and_serves_it(team: Team) -> None:
    team.apply_demo()

    def policies() -> list[tuple[str, str]]:
        return [(p["metadata"]["uid"], p["spec"]["controllerName"]) for p in team.policies()]

    async with team.served(controller_name="a") as one, team.served(controller_name="b") as other:
        team.annotate("daskcluster", "demo", max_replicas="3")
        await until(lambda: team.ready("demo")[0] == "True")
        made = policies()
        team.annotate("daskcluster", "demo", min_replicas="2")
        await until(lambda: team.replicas() == 2)
        await asyncio.sleep(2.0)
        assert made == policies()
        assert "InvalidSpec" not in team.events()
        assert 1 == len(one.visits._running) + len(other.visits._running)


async def test_a_policy_goes_from_one_operator_to_another_by_its_name(team: Team) -> None:
    team.apply_demo(policy("p", "demo", minReplicas=2))
    async with team.served() as first, team.served(controller_name="team-b") as second:
        await until(lambda: team.replicas() == 2)
        team.edit("p", controllerName="team-b", minReplicas=4)
        await until(lambda: team.replicas() == 4)
        assert (0, 1) == (len(first.visits._running), len(second.visits._running))
    # kopf marks objects where it is used otherwise than in controller/kopf_watch.py.
    text = team.kubectl("get", "daskclusters,daskworkergroups,dap", "-o", "yaml")
    assert not [word for word in ("kopf", "finalizers") if word in text]


async def test_annotations_make_a_policy_and_take_it_away(team: Team) -> None:
    team.kubectl("apply", "-f", str(ROOT / "manifests/examples/annotated-cluster.yaml"))

    def spec() -> dict[str, Any]:
        found = team.policies()
        return dict(found[0]["spec"]) if found else {}

    def annotate(value: str) -> None:
        team.annotate("daskcluster", "annotated", max_replicas=value)

    async with team.served():
        await until(lambda: (spec().get("maxReplicas"), spec().get("idleTimeout")) == (20, "2m"))
        annotate("7")
        await until(lambda: spec().get("maxReplicas") == 7)
        annotate("seven")
        await until(lambda: "such as" in str(team.events()))
        assert 7 == spec()["maxReplicas"]
        annotate("7")
        team.kubectl.apply(policy("by-hand", "annotated"))
        await until(lambda: spec().get("maxReplicas") == 5)  # a person's wins, ours is gone
        team.kubectl("delete", "dap", "by-hand")
        await until(lambda: spec().get("maxReplicas") == 7)
        annotate("")
        await until(lambda: spec() == {})


async def test_people_who_refuse_the_agent_are_heard(team: Team) -> None:
    team.apply_demo(policy("p", "demo"))
    team.annotate("daskcluster", "demo", inject="false")

    def injected() -> dict[str, str]:
        return team.condition("p", "Injected")

    async with team.served():
        await until(lambda: injected().get("reason") == "InjectionRefused")
        assert "DaskCluster demo is annotated" in injected()["message"]
        team.annotate("daskcluster", "demo", inject="")
        await until(lambda: injected().get("status") == "True")


async def test_probes_and_metrics(team: Team) -> None:
    team.kubectl.apply(policy("p", "demo"))
    port = free_port()

    def fetch(path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                return str(answer.read().decode())
        except OSError as exc:
            return str(exc)

    async with team.served(http_port=port):
        await until(lambda: fetch("/readyz") == "ok\n")
        assert "ok\n" == await asyncio.to_thread(fetch, "/healthz")
        await until(lambda: "dask_adaptive_passes_total" in fetch("/metrics"))
        await until(lambda: "dask_adaptive_leader 1.0" in fetch("/metrics"))
