"""The operator against a real API server: what it makes of policies, clusters and annotations."""

from __future__ import annotations

import asyncio
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from dask_adaptive.controller.lease import LeaderLease, Timing
from dask_adaptive.kube.api import KubeApi
from support.kube_bodies import autoscaler, group, policy
from support.kube_operator import free_port, running, until
from support.kube_server import ROOT, Kubectl

EXAMPLES = ROOT / "manifests/examples"
FAST = Timing(duration_s=2.0, renew_deadline_s=1.2, retry_s=0.2)


def ready(kubectl: Kubectl, name: str) -> tuple[str, str]:
    conditions = kubectl.json("get", "dap", name).get("status", {}).get("conditions", [])
    found = next((c for c in conditions if c["type"] == "Ready"), {})
    return found.get("status", ""), found.get("reason", "")


async def test_a_cluster_that_appears_later_is_served(api: KubeApi, kubectl: Kubectl) -> None:
    kubectl.apply(policy("p", "demo", minReplicas=2))
    async with running(api, kubectl.namespace):
        await until(lambda: ready(kubectl, "p") == ("False", "ClusterNotFound"))
        kubectl("apply", "-f", str(EXAMPLES / "cluster.yaml"))
        kubectl.apply(group("demo"))
        await until(lambda: ready(kubectl, "p")[0] == "True")

        def replicas() -> int:
            return int(
                kubectl.json("get", "daskworkergroup", "demo-default")["spec"]["worker"]["replicas"]
            )

        await until(lambda: replicas() == 2)


async def test_two_policies_for_one_cluster_do_nothing(api: KubeApi, kubectl: Kubectl) -> None:
    kubectl("apply", "-f", str(EXAMPLES / "cluster.yaml"))
    kubectl.apply(
        group("demo"), policy("a", "demo", minReplicas=2), policy("b", "demo", minReplicas=3)
    )
    async with running(api, kubectl.namespace):
        for name in "ab":
            await until(lambda n=name: ready(kubectl, n) == ("False", "OwnershipConflict"))
        seen = kubectl.json("get", "daskworkergroup", "demo-default")
        assert 0 == seen["spec"]["worker"]["replicas"]
        kubectl("delete", "dap", "b")
        await until(lambda: ready(kubectl, "a")[0] == "True")


async def test_an_upstream_autoscaler_is_a_conflict(api: KubeApi, kubectl: Kubectl) -> None:
    kubectl("apply", "-f", str(EXAMPLES / "cluster.yaml"))
    kubectl.apply(group("demo"), policy("p", "demo", minReplicas=2), autoscaler("demo"))
    async with running(api, kubectl.namespace):
        await until(lambda: ready(kubectl, "p") == ("False", "OwnershipConflict"))
        kubectl("delete", "daskautoscaler", "demo")
        await until(lambda: ready(kubectl, "p")[0] == "True")


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
        conditions = kubectl.json("get", "dap", "p").get("status", {}).get("conditions", [])
        return next((c for c in conditions if c["type"] == "Injected"), {})

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


async def test_of_two_replicas_one_acts(api: KubeApi, kubectl: Kubectl) -> None:
    acting: list[str] = []

    def candidate(name: str) -> LeaderLease:
        async def lead() -> None:
            acting.append(name)
            try:
                await asyncio.Event().wait()
            finally:
                acting.remove(name)

        where = kubectl.namespace
        return LeaderLease(api, namespace=where, identity=name, lead=lead, timing=FAST)

    first, second = (asyncio.create_task(candidate(n).run()) for n in ("first", "second"))
    await until(lambda: len(acting) == 1)
    await asyncio.sleep(3)
    assert 1 == len(acting)
    leader = first if acting == ["first"] else second
    leader.cancel()  # gives the lease back
    await asyncio.gather(leader, return_exceptions=True)
    assert [] == acting
    await until(lambda: len(acting) == 1, timeout_s=1.5)
    for task in (first, second):
        task.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    lease = kubectl.json("get", "lease", "dask-adaptive-operator")
    assert "" == lease["spec"].get("holderIdentity", "")


async def test_a_leader_that_is_cut_off_stops_before_another_begins(
    api: KubeApi, kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_off = await KubeApi.connect(timeout_s=0.5)
    times: dict[str, float] = {}

    def candidate(name: str, connection: KubeApi) -> LeaderLease:
        async def lead() -> None:
            times[f"{name} begins"] = asyncio.get_running_loop().time()
            try:
                await asyncio.Event().wait()
            finally:
                times[f"{name} stops"] = asyncio.get_running_loop().time()

        where = kubectl.namespace
        return LeaderLease(connection, namespace=where, identity=name, lead=lead, timing=FAST)

    old = asyncio.create_task(candidate("old", cut_off).run())
    await until(lambda: "old begins" in times)
    new = asyncio.create_task(candidate("new", api).run())
    await asyncio.sleep(1)
    monkeypatch.setattr(cut_off._client.configuration, "host", "http://127.0.0.1:1")
    await until(lambda: "new begins" in times)

    assert times["old stops"] < times["new begins"]
    for task in (old, new):
        task.cancel()
    await asyncio.gather(old, new, return_exceptions=True)
    await cut_off.close()


async def test_the_lease_goes_with_the_operators_deployment(api: KubeApi, kubectl: Kubectl) -> None:
    kubectl("create", "deployment", "operator", "--image=x")

    async def lead() -> None:
        await asyncio.Event().wait()

    lease = LeaderLease(
        api, namespace=kubectl.namespace, identity="a", lead=lead, owner="operator", timing=FAST
    )
    task = asyncio.create_task(lease.run())
    await until(lambda: lease.is_leader)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    owners = kubectl.json("get", "lease", "dask-adaptive-operator")["metadata"]["ownerReferences"]
    assert ["operator"] == [owner["name"] for owner in owners]


def test_nothing_is_left_on_objects_but_our_own(kubectl: Kubectl) -> None:
    """kopf must not mark objects: see controller/app.py."""
    text = Path(ROOT / "operator/dask_adaptive/controller/app.py").read_text()

    assert "kopf.on.event(" in text
    for marking in ("on.create", "on.update", "on.delete", "kopf.daemon", "kopf.timer"):
        assert marking not in text
