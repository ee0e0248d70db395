"""
DaskAutoscalers taken over and given back, against a real API server and upstream's own autoscaler.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from dask_adaptive.kube.annotated import Adopt, rest_notes
from dask_adaptive.kube.api import AUTOSCALERS, CLUSTERS, GROUPS, KubeApi
from dask_adaptive.kube.objects import ADOPT, ADOPTED, COOLDOWN
from support.kube_bodies import WORKER, body, group, policy
from support.kube_operator import running, until
from support.kube_server import ROOT, Kubectl
from support.upstream_code import UpstreamTimer, make_job_components

EXAMPLES = ROOT / "manifests/examples"


class Notebook:
    """What `KubeCluster` does, call by call (kubecluster.py), and what is to be seen of it."""

    def __init__(self, api: KubeApi, kubectl: Kubectl) -> None:
        self.api, self.kubectl, self.name = api, kubectl, "demo"
        kubectl("apply", "-f", str(EXAMPLES / "cluster.yaml"))
        kubectl.apply(group("demo"))

    def served(self, **settings: Any) -> Any:
        """By an operator, for as long as it lasts."""
        return running(self.api, self.kubectl.namespace, **settings)

    def upstream(self, **how: Any) -> UpstreamTimer:
        return UpstreamTimer(self.api, self.kubectl.namespace, **how)

    async def adapt(self, minimum: int, maximum: int) -> None:
        """`_adapt`: patch, else create; its metadata has fields that the API server drops."""
        where = self.kubectl.namespace
        bounds = {"minimum": minimum, "maximum": maximum}
        done = self.kubectl.run("get", "daskautoscaler", self.name)
        if done.returncode == 0:
            await self.api.patch(AUTOSCALERS.path(where, self.name), {"spec": bounds})
            return
        odd = {"dask.org/cluster-name": self.name, "dask.org/component": "autoscaler"}
        made = body(AUTOSCALERS, self.name, {"cluster": self.name, **bounds}, **odd)
        await self.api.create(AUTOSCALERS.path(where), made)

    async def scale(self, replicas: int) -> None:
        """`_scale`: delete the autoscaler, then set a number."""
        where = self.kubectl.namespace
        await self.api.delete(AUTOSCALERS.path(where, self.name))
        change = {"spec": {"worker": {"replicas": replicas}}}
        await self.api.patch(GROUPS.path(where, f"{self.name}-default"), change)

    def replicas(self) -> int:
        found = self.kubectl.json("get", "daskworkergroup", f"{self.name}-default")
        return int(found["spec"]["worker"]["replicas"])

    def notes(self) -> dict[str, str]:
        found = self.kubectl.json("get", "daskautoscaler", self.name)
        return dict(found["metadata"].get("annotations") or {})

    def policies(self) -> list[dict[str, Any]]:
        return list(self.kubectl.json("get", "dap")["items"])

    def bounds(self) -> tuple[int, int] | None:
        found = self.policies()
        if not found:
            return None
        return found[0]["spec"]["minReplicas"], found[0]["spec"]["maxReplicas"]

    def condition(self, kind: str) -> dict[str, str]:
        found = self.policies()
        conditions = found[0].get("status", {}).get("conditions", []) if found else []
        return next((c for c in conditions if c["type"] == kind), {})

    def annotate(self, what: str, value: str) -> None:
        word = f"{ADOPT}={value}" if value else f"{ADOPT}-"
        self.kubectl("annotate", "--overwrite", what, self.name, word)

    def told(self) -> set[str]:
        found = self.kubectl.json("get", "events")["items"]
        return {event["reason"] for event in found}


@pytest.fixture
def notebook(api: KubeApi, kubectl: Kubectl) -> Notebook:
    return Notebook(api, kubectl)


def ours(notebook: Notebook) -> Callable[[], bool]:
    return lambda: notebook.condition("Adopted").get("status") == "True"


async def test_adapt_is_served_and_given_back(notebook: Notebook) -> None:
    upstream = notebook.upstream(wants=1)
    notebook.annotate("daskcluster", "true")
    async with upstream.every(0.2, notebook.name), notebook.served():
        await notebook.adapt(2, 20)
        await until(ours(notebook))
        began = time.time()
        upstream.wants = 9
        await until(lambda: notebook.replicas() == 2 and notebook.bounds() == (2, 20))
        assert notebook.condition("Ready")["status"] == "True"
        assert 300 < float(notebook.notes()[COOLDOWN]) - time.time() <= 600
        runs = upstream.runs
        await notebook.adapt(3, 5)
        await until(lambda: notebook.replicas() == 3 and notebook.bounds() == (3, 5))
        await until(lambda: upstream.runs > runs + 1)  # one looked after we had written
        assert [] == [n for at, n in upstream.scaled if at > began]
        assert "Adopted" in notebook.told()
        assert "OwnershipConflict" not in notebook.told()

        notebook.annotate("daskautoscaler", "false")  # nearer than the cluster's
        await until(lambda: notebook.policies() == [])
        await until(lambda: notebook.replicas() == 5)  # 9 wanted, 5 allowed: upstream goes on
        assert not {ADOPTED} & set(notebook.notes())
        assert "Released" in notebook.told()


async def test_scale_ends_it_and_its_number_stays(notebook: Notebook) -> None:
    async with notebook.served(adopt=Adopt.ALWAYS):
        await notebook.adapt(2, 20)
        await until(ours(notebook))
        await until(lambda: notebook.replicas() == 2)
        await notebook.scale(3)
        await until(lambda: notebook.policies() == [])
        await asyncio.sleep(2)
        assert 3 == notebook.replicas()
        assert "Released" in notebook.told()
        await notebook.adapt(1, 4)
        await until(ours(notebook))


async def test_only_where_it_is_asked_for(notebook: Notebook) -> None:
    async with notebook.served():
        await notebook.adapt(0, 20)
        await asyncio.sleep(2)
        assert ([], {}) == (notebook.policies(), notebook.notes())
        notebook.annotate("daskautoscaler", "true")
        await until(ours(notebook))
    async with notebook.served(adopt=Adopt.NEVER):  # the chart was upgraded so
        await until(lambda: COOLDOWN not in notebook.notes())
        assert [] == notebook.policies()


async def test_a_run_of_upstream_that_was_under_way_is_waited_for(notebook: Notebook) -> None:
    """It had looked before the annotation was there, so it scales and writes its own."""
    upstream = notebook.upstream(wants=7, takes_s=3)
    await notebook.adapt(2, 20)
    late = asyncio.create_task(upstream.run(notebook.name))
    async with notebook.served(adopt=Adopt.ALWAYS):
        await late
        assert [7] == [n for _, n in upstream.scaled]
        await until(lambda: float(notebook.notes()[COOLDOWN]) > time.time() + 300)
        await until(ours(notebook))
        upstream.takes_s = 0
        upstream.wants = 1
        await upstream.run(notebook.name)
        assert 1 == len(upstream.scaled)


async def test_upstream_goes_on_when_the_operator_is_gone_for_good(notebook: Notebook) -> None:
    upstream = notebook.upstream(wants=4)
    async with notebook.served(adopt=Adopt.ALWAYS):
        await notebook.adapt(2, 20)
        await until(ours(notebook))
    await upstream.run(notebook.name)
    assert [] == upstream.scaled
    # Ten minutes later; what else the annotation says stays.
    past = rest_notes(time.time() - 1, time.time() - 601)
    path = AUTOSCALERS.path(notebook.kubectl.namespace, notebook.name)
    await notebook.api.patch(path, {"metadata": {"annotations": past}})
    await upstream.run(notebook.name)
    assert [4] == [n for _, n in upstream.scaled]


async def test_without_a_policy_upstream_does_not_rest(notebook: Notebook) -> None:
    """The policy's name is taken, by one for another cluster."""
    notebook.kubectl.apply(policy(notebook.name, "other"))
    async with notebook.served(adopt=Adopt.ALWAYS):
        await notebook.adapt(1, 2)
        await until(lambda: "exists already" in notebook.kubectl("get", "events"))
        assert {} == notebook.notes()
        notebook.kubectl("delete", "dap", notebook.name)
        await notebook.adapt(1, 3)
        await until(ours(notebook))


def job(**annotations: str) -> dict[str, Any]:
    worker = {"replicas": 1, "spec": WORKER}
    ports = [{"name": "tcp-comm", "protocol": "TCP", "port": 8786, "targetPort": "tcp-comm"}]
    service = {"type": "ClusterIP", "selector": {"a": "b"}, "ports": ports}
    scheduler = {"spec": {"containers": [{"name": "scheduler", "image": "x"}]}, "service": service}
    spec = {
        "job": {"spec": {"containers": [{"name": "job", "image": "x"}]}},
        "cluster": {"spec": {"worker": worker, "scheduler": scheduler}},
    }
    return body(CLUSTERS._replace(kind="DaskJob"), "nightly", spec, annotations=annotations)


async def test_the_cluster_of_a_daskjob(api: KubeApi, kubectl: Kubectl) -> None:
    """Annotations of the DaskJob are its DaskCluster's, and the policy belongs to that."""
    kubectl.apply(job(**{"dask-adaptive.dev/max-replicas": "4"}))

    def maximum() -> int | None:
        found = kubectl.json("get", "dap")["items"]
        return found[0]["spec"]["maxReplicas"] if found else None

    async with running(api, kubectl.namespace):
        await make_job_components(api, kubectl.json("get", "daskjob", "nightly"))
        await until(lambda: maximum() == 4)
    made = kubectl.json("get", "dap", "nightly")
    cluster = kubectl.json("get", "daskcluster", "nightly")
    stored = kubectl.json("get", "daskjob", "nightly")
    owners = [o["uid"] for o in cluster["metadata"]["ownerReferences"]]
    assert [stored["metadata"]["uid"]] == owners
    assert [cluster["metadata"]["uid"]] == [o["uid"] for o in made["metadata"]["ownerReferences"]]


def test_a_daskjob_has_no_place_for_its_clusters_annotations(kubectl: Kubectl) -> None:
    """Upstream's code reads `spec.cluster.metadata`, and its CRD refuses it: so say the docs."""
    odd = job()
    odd["spec"]["cluster"]["metadata"] = {"annotations": {"a": "b"}}

    assert 'unknown field "spec.cluster.metadata"' in kubectl.refusal(odd)
