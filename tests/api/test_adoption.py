"""
DaskAutoscalers taken over and given back, against a real API server and upstream's own autoscaler.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from dask_adaptive.kube.annotated import Adopt, suspension_notes
from dask_adaptive.kube.api import AUTOSCALERS, CLUSTERS, GROUPS, KubeApi
from dask_adaptive.kube.objects import ADOPTED, COOLDOWN
from support.kube_bodies import WORKER, body, labels_of, policy
from support.kube_operator import Team, until
from support.kube_server import Kubectl
from support.upstream_code import UpstreamTimer, make_job_components


class Notebook(Team):
    """What `KubeCluster` does, call by call (kubecluster.py), and what is to be seen of it."""

    name = "demo"

    def upstream(self, **how: Any) -> UpstreamTimer:
        return UpstreamTimer(self.api, self.namespace, **how)

    async def adapt(self, minimum: int, maximum: int) -> None:
        """`_adapt`: patch, else create; its metadata has fields that the API server drops."""
        bounds = {"minimum": minimum, "maximum": maximum}
        done = self.kubectl.run("get", "daskautoscaler", self.name)
        if done.returncode == 0:
            path = AUTOSCALERS.path(self.namespace, self.name)
            await self.api.patch(path, {"spec": bounds})
            return
        odd = labels_of("autoscaler", self.name)
        made = body(AUTOSCALERS, self.name, {"cluster": self.name, **bounds}, **odd)
        await self.api.create(AUTOSCALERS.path(self.namespace), made)

    async def scale(self, replicas: int) -> None:
        """`_scale`: delete the autoscaler, then set a number."""
        await self.api.delete(AUTOSCALERS.path(self.namespace, self.name))
        change = {"spec": {"worker": {"replicas": replicas}}}
        await self.api.patch(GROUPS.path(self.namespace, f"{self.name}-default"), change)

    def notes(self) -> dict[str, str]:
        found = self.kubectl.json("get", "daskautoscaler", self.name)
        return dict(found["metadata"].get("annotations") or {})

    def bounds(self) -> list[tuple[int, int]]:
        """Of each policy."""
        specs = [found["spec"] for found in self.policies()]
        return [(spec["minReplicas"], spec["maxReplicas"]) for spec in specs]

    def is_ours(self) -> bool:
        return self.condition(self.name, "Adopted").get("status") == "True"


@pytest.fixture
def notebook(api: KubeApi, kubectl: Kubectl) -> Notebook:
    made = Notebook(api, kubectl)
    made.apply_demo()
    return made


async def test_adapt_is_served_and_given_back(notebook: Notebook) -> None:
    upstream = notebook.upstream(wants=1)
    notebook.annotate("daskcluster", notebook.name, adopt="true")
    async with upstream.every(0.2, notebook.name), notebook.served():
        await notebook.adapt(2, 20)
        await until(notebook.is_ours)
        began = time.time()
        upstream.wants = 9
        await until(lambda: notebook.replicas() == 2 and notebook.bounds() == [(2, 20)])
        assert notebook.ready(notebook.name)[0] == "True"
        assert 300 < float(notebook.notes()[COOLDOWN]) - time.time() <= 600
        runs = upstream.runs
        await notebook.adapt(3, 5)
        await until(lambda: notebook.replicas() == 3 and notebook.bounds() == [(3, 5)])
        await until(lambda: upstream.runs > runs + 1)  # one looked after we had written
        assert [] == [n for at, n in upstream.scaled if at > began]
        assert "Adopted" in notebook.events()
        assert "OwnershipConflict" not in notebook.events()

        # It is nearer than the cluster's.
        notebook.annotate("daskautoscaler", notebook.name, adopt="false")
        await until(lambda: notebook.policies() == [])
        await until(lambda: notebook.replicas() == 5)  # 9 wanted, 5 allowed: upstream goes on
        assert not {ADOPTED} & set(notebook.notes())
        assert "Released" in notebook.events()


async def test_scale_ends_it_and_its_number_stays(notebook: Notebook) -> None:
    async with notebook.served(adopt=Adopt.ALWAYS):
        await notebook.adapt(2, 20)
        await until(notebook.is_ours)
        await until(lambda: notebook.replicas() == 2)
        await notebook.scale(3)
        await until(lambda: notebook.policies() == [])
        await asyncio.sleep(2)
        assert 3 == notebook.replicas()
        assert "Released" in notebook.events()
        await notebook.adapt(1, 4)
        await until(notebook.is_ours)


async def test_only_where_it_is_asked_for(notebook: Notebook) -> None:
    async with notebook.served():
        await notebook.adapt(0, 20)
        await asyncio.sleep(2)
        assert ([], {}) == (notebook.policies(), notebook.notes())
        notebook.annotate("daskautoscaler", notebook.name, adopt="true")
        await until(notebook.is_ours)
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
        await until(notebook.is_ours)
        upstream.takes_s = 0
        upstream.wants = 1
        await upstream.run(notebook.name)
        assert 1 == len(upstream.scaled)


async def test_upstream_goes_on_when_the_operator_is_gone_for_good(notebook: Notebook) -> None:
    upstream = notebook.upstream(wants=4)
    async with notebook.served(adopt=Adopt.ALWAYS):
        await notebook.adapt(2, 20)
        await until(notebook.is_ours)
    await upstream.run(notebook.name)
    assert [] == upstream.scaled
    # Ten minutes later; what else the annotation says stays.
    past = suspension_notes(time.time() - 1, time.time() - 601)
    path = AUTOSCALERS.path(notebook.kubectl.namespace, notebook.name)
    await notebook.api.patch(path, {"metadata": {"annotations": past}})
    await upstream.run(notebook.name)
    assert [4] == [n for _, n in upstream.scaled]


async def test_without_a_policy_upstream_does_not_rest(notebook: Notebook) -> None:
    """The policy's name is taken, by one for another cluster."""
    notebook.kubectl.apply(policy(notebook.name, "other"))
    async with notebook.served(adopt=Adopt.ALWAYS):
        await notebook.adapt(1, 2)
        await until(lambda: "exists already" in str(notebook.events()))
        assert {} == notebook.notes()
        notebook.kubectl("delete", "dap", notebook.name)
        await notebook.adapt(1, 3)
        await until(notebook.is_ours)


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


async def test_the_cluster_of_a_daskjob(team: Team) -> None:
    """Annotations of the DaskJob are its DaskCluster's, and the policy belongs to that."""
    team.kubectl.apply(job(**{"dask-adaptive.dev/max-replicas": "4"}))
    stored = team.kubectl.json("get", "daskjob", "nightly")
    async with team.served():
        await make_job_components(team.api, stored)
        await until(lambda: [p["spec"]["maxReplicas"] for p in team.policies()] == [4])
    (made,) = team.policies()
    cluster = team.kubectl.json("get", "daskcluster", "nightly")
    owners = [o["uid"] for o in cluster["metadata"]["ownerReferences"]]
    assert [stored["metadata"]["uid"]] == owners
    assert [cluster["metadata"]["uid"]] == [o["uid"] for o in made["metadata"]["ownerReferences"]]
    assert "nightly" == made["metadata"]["name"]


def test_a_daskjob_has_no_place_for_its_clusters_annotations(kubectl: Kubectl) -> None:
    """Upstream's code reads `spec.cluster.metadata`, and its CRD refuses it: so say the docs."""
    odd = job()
    odd["spec"]["cluster"]["metadata"] = {"annotations": {"a": "b"}}

    assert 'unknown field "spec.cluster.metadata"' in kubectl.refusal(odd)
