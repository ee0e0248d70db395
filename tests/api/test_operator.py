"""The operator against a real API server: what it makes of policies, clusters and annotations."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from dask_adaptive.controller.lease import Timing, lease_name
from dask_adaptive.kube.api import KubeApi
from dask_adaptive.model.policy import DEFAULT_CONTROLLER
from support.kube_bodies import autoscaler, group, policy
from support.kube_operator import running, until
from support.kube_server import ROOT, Kubectl
from support.ports import free_port
from support.tables import table

EXAMPLES = ROOT / "manifests/examples"
FAST = Timing(duration_s=2.0, renew_deadline_s=1.2, retry_s=0.2)


def condition(kubectl: Kubectl, name: str, kind: str) -> dict[str, str]:
    """Nothing also of a policy that is still to be made."""
    found = [p for p in kubectl.json("get", "dap")["items"] if p["metadata"]["name"] == name]
    conditions = [c for p in found for c in p.get("status", {}).get("conditions", [])]
    return next((c for c in conditions if c["type"] == kind), {})


def ready(kubectl: Kubectl, name: str) -> tuple[str, str]:
    found = condition(kubectl, name, "Ready")
    return found.get("status", ""), found.get("reason", "")


def replicas(kubectl: Kubectl) -> int:
    found = kubectl.json("get", "daskworkergroup", "demo-default")
    return int(found["spec"]["worker"]["replicas"])


async def test_a_cluster_that_appears_later_is_served(api: KubeApi, kubectl: Kubectl) -> None:
    kubectl.apply(policy("p", "demo", minReplicas=2))
    async with running(api, kubectl.namespace):
        await until(lambda: ready(kubectl, "p") == ("False", "ClusterNotFound"))
        kubectl("apply", "-f", str(EXAMPLES / "cluster.yaml"))
        kubectl.apply(group("demo"))
        await until(lambda: ready(kubectl, "p")[0] == "True")
        await until(lambda: replicas(kubectl) == 2)


async def test_who_waits_for_a_spec_that_changes_no_number_is_answered(
    api: KubeApi, kubectl: Kubectl
) -> None:
    """As `kubectl wait` and kstatus do: by the generation of the status and of the condition."""
    kubectl("apply", "-f", str(EXAMPLES / "cluster.yaml"))
    kubectl.apply(group("demo"), policy("p", "demo"))

    def generations() -> set[int]:
        status = kubectl.json("get", "dap", "p").get("status", {})
        rows = status.get("conditions", [])
        return {status.get("observedGeneration", 0), *(c["observedGeneration"] for c in rows)}

    async with running(api, kubectl.namespace):
        await until(lambda: generations() == {1})
        kubectl("patch", "dap", "p", "--type=merge", "-p", '{"spec": {"maxUnready": "50%"}}')
        wait = ("wait", "dap/p", "--for=condition=Ready", "--timeout=10s")
        await asyncio.to_thread(kubectl, *wait)
        await until(lambda: generations() == {2})


@pytest.mark.usefixtures("one_divides")
async def test_only_namespaces_with_the_labels_are_served(api: KubeApi, kubectl: Kubectl) -> None:
    """Whatever the operator that serves all of them sees besides."""
    mine = f"team={kubectl.namespace}"
    kubectl("apply", "-f", str(EXAMPLES / "cluster.yaml"))
    kubectl("annotate", "daskcluster", "demo", "dask-adaptive.dev/max-replicas=3")
    kubectl.apply(group("demo"))

    def label(change: str) -> None:
        kubectl("label", "namespace", kubectl.namespace, change)

    async with running(api, kubectl.namespace, namespaces=(), namespace_selector=mine) as operator:
        await asyncio.sleep(3.0)
        assert not kubectl.json("get", "dap")["items"], "none is made of annotations either"
        label(mine)
        await until(lambda: ready(kubectl, "demo")[0] == "True")
        label("team-")
        await until(lambda: not operator.visits._running)
        kubectl("patch", "dap", "demo", "--type=merge", "-p", '{"spec": {"minReplicas": 2}}')
        await asyncio.sleep(2.0)
        assert 0 == replicas(kubectl)


@table(
    "rival, what",
    another_policy=(policy("b", "demo", minReplicas=3), "dap/b"),
    upstreams_autoscaler=(autoscaler("demo"), "daskautoscaler/demo"),
)
async def test_where_two_would_scale_a_cluster_the_policy_does_nothing(
    api: KubeApi, kubectl: Kubectl, rival: dict[str, Any], what: str
) -> None:
    kubectl("apply", "-f", str(EXAMPLES / "cluster.yaml"))
    kubectl.apply(group("demo"), policy("a", "demo", minReplicas=2), rival)
    async with running(api, kubectl.namespace):
        await until(lambda: ready(kubectl, "a") == ("False", "OwnershipConflict"))
        assert 0 == replicas(kubectl)
        kubectl("delete", what)
        await until(lambda: ready(kubectl, "a")[0] == "True")


async def test_of_two_operators_of_one_name_one_serves_until_it_has_gone(
    api: KubeApi, kubectl: Kubectl
) -> None:
    kubectl("apply", "-f", str(EXAMPLES / "cluster.yaml"))
    kubectl.apply(group("demo"), policy("p", "demo", minReplicas=2))
    async with contextlib.AsyncExitStack() as first:
        await first.enter_async_context(running(api, kubectl.namespace, identity="first"))
        await until(lambda: replicas(kubectl) == 2)
        async with running(api, kubectl.namespace, identity="second", timing=FAST) as second:
            await asyncio.sleep(4.0)
            assert not second.visits._running
            await first.aclose()
            kubectl("patch", "dap", "p", "--type=merge", "-p", '{"spec": {"minReplicas": 3}}')
            await until(lambda: replicas(kubectl) == 3)
    lease = kubectl.json("get", "lease", lease_name(DEFAULT_CONTROLLER))
    assert "" == lease["spec"].get("holderIdentity", ""), "whoever ends gives it back"


async def test_of_two_operators_of_two_names_one_makes_the_policy_and_serves_it(
    api: KubeApi, kubectl: Kubectl
) -> None:
    kubectl("apply", "-f", str(EXAMPLES / "cluster.yaml"))
    kubectl.apply(group("demo"))

    def policies() -> list[tuple[str, str]]:
        found = kubectl.json("get", "dap")["items"]
        return [(p["metadata"]["uid"], p["spec"]["controllerName"]) for p in found]

    def complaints() -> list[str]:
        found = kubectl.json("get", "events")["items"]
        return [e["message"] for e in found if e["reason"] == "InvalidSpec"]

    async with (
        running(api, kubectl.namespace, controller_name="a") as one,
        running(api, kubectl.namespace, controller_name="b") as other,
    ):
        kubectl("annotate", "daskcluster", "demo", "dask-adaptive.dev/max-replicas=3")
        await until(lambda: ready(kubectl, "demo")[0] == "True")
        made = policies()
        kubectl(
            "annotate", "--overwrite", "daskcluster", "demo", "dask-adaptive.dev/min-replicas=2"
        )
        await until(lambda: replicas(kubectl) == 2)
        await asyncio.sleep(2.0)

        assert made == policies()
        assert [] == complaints()
        assert 1 == len(one.visits._running) + len(other.visits._running)


async def test_a_policy_goes_from_one_operator_to_another_by_its_name(
    api: KubeApi, kubectl: Kubectl
) -> None:
    kubectl("apply", "-f", str(EXAMPLES / "cluster.yaml"))
    kubectl.apply(group("demo"), policy("p", "demo", minReplicas=2))

    async with (
        running(api, kubectl.namespace) as first,
        running(api, kubectl.namespace, controller_name="team-b") as second,
    ):
        await until(lambda: replicas(kubectl) == 2)
        spec = '{"spec": {"controllerName": "team-b", "minReplicas": 4}}'
        kubectl("patch", "dap", "p", "--type=merge", "-p", spec)
        await until(lambda: replicas(kubectl) == 4)
        assert (0, 1) == (len(first.visits._running), len(second.visits._running))


async def test_annotations_make_a_policy_and_take_it_away(api: KubeApi, kubectl: Kubectl) -> None:
    kubectl("apply", "-f", str(EXAMPLES / "annotated-cluster.yaml"))

    def spec() -> dict[str, Any]:
        found = kubectl.json("get", "dap")["items"]
        return dict(found[0]["spec"]) if found else {}

    def annotate(value: str) -> None:
        key = "dask-adaptive.dev/max-replicas"
        word = f"{key}={value}" if value else f"{key}-"
        kubectl("annotate", "--overwrite", "daskcluster", "annotated", word)

    async with running(api, kubectl.namespace):
        await until(lambda: (spec().get("maxReplicas"), spec().get("idleTimeout")) == (20, "2m"))
        annotate("7")
        await until(lambda: spec().get("maxReplicas") == 7)
        annotate("seven")
        await until(lambda: "such as" in kubectl("get", "events"))
        assert 7 == spec()["maxReplicas"]
        annotate("7")
        kubectl.apply(policy("by-hand", "annotated"))
        await until(lambda: spec().get("maxReplicas") == 5)  # a person's wins, ours is gone
        kubectl("delete", "dap", "by-hand")
        await until(lambda: spec().get("maxReplicas") == 7)
        annotate("")
        await until(lambda: spec() == {})


async def test_people_who_refuse_the_agent_are_heard(api: KubeApi, kubectl: Kubectl) -> None:
    kubectl("apply", "-f", str(EXAMPLES / "cluster.yaml"))
    kubectl("annotate", "daskcluster", "demo", "dask-adaptive.dev/inject=false")
    kubectl.apply(group("demo"), policy("p", "demo"))

    def injected() -> dict[str, str]:
        return condition(kubectl, "p", "Injected")

    async with running(api, kubectl.namespace):
        await until(lambda: injected().get("reason") == "InjectionRefused")
        assert "DaskCluster demo is annotated" in injected()["message"]
        kubectl("annotate", "daskcluster", "demo", "dask-adaptive.dev/inject-")
        await until(lambda: injected().get("status") == "True")


async def test_probes_and_metrics(api: KubeApi, kubectl: Kubectl) -> None:
    kubectl.apply(policy("p", "demo"))
    port = free_port()

    def fetch(path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                return str(answer.read().decode())
        except OSError as exc:
            return str(exc)

    async with running(api, kubectl.namespace, http_port=port):
        await until(lambda: fetch("/readyz") == "ok\n")
        assert "ok\n" == await asyncio.to_thread(fetch, "/healthz")
        await until(lambda: "dask_adaptive_passes_total" in fetch("/metrics"))
        await until(lambda: "dask_adaptive_leader 1.0" in fetch("/metrics"))


def test_nothing_is_left_on_objects_but_our_own(kubectl: Kubectl) -> None:
    """kopf must not mark objects: see controller/kopf_watch.py."""
    text = Path(ROOT / "operator/dask_adaptive/controller/kopf_watch.py").read_text()

    assert "kopf.on.event(" in text
    for marking in ("on.create", "on.update", "on.delete", "kopf.daemon", "kopf.timer"):
        assert marking not in text
