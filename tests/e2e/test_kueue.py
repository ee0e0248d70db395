"""Clusters whose workers Kueue admits share places, and what it preempts hands over: kueue.sh."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from functools import partial

import pytest
import yaml

from dask_adaptive.kube.api import PODS, Json
from support.e2e_cluster import LiveCluster, Start
from support.e2e_sharing import share_six
from support.kube_server import ROOT, Kubectl

#: So long after a load has changed each has its part, within one worker.
FAIR_S = 15.0

MAX_PENDING = 3

#: A flavor, and the queue of one who shares.
FLAVOR, *QUEUE = yaml.safe_load_all((ROOT / "manifests/examples/kueue/queue.yaml").read_text())


@pytest.fixture
def queues(kubectl: Kubectl) -> Iterator[None]:
    """Six places: `urgent` owns four of them."""
    urgent = {"kind": "WorkloadPriorityClass", "metadata": {"name": "urgent"}, "value": 1000}
    objects = [FLAVOR, {"apiVersion": FLAVOR["apiVersion"], **urgent}]
    for name, places in (("a", 1), ("b", 1), ("urgent", 4)):
        queue, local = yaml.safe_load_all(yaml.safe_dump_all(QUEUE))
        flavor = queue["spec"]["resourceGroups"][0]["flavors"][0]
        flavor["resources"][0]["nominalQuota"] = f"{10 * places}m"  # a worker asks for 10m
        queue["metadata"]["name"] = local["spec"]["clusterQueue"] = name
        local["metadata"] = {"name": name}
        objects += [queue, local]
    kubectl.apply(*objects)
    yield
    kubectl("delete", "--wait=false", "-f", "-", stdin=yaml.safe_dump_all(reversed(objects)))


async def workers_of(cluster: LiveCluster) -> tuple[list[Json], list[Json]]:
    """Pods that stay, by whether they are admitted."""
    every = await cluster.api.list(
        PODS.path(cluster.namespace), selector=f"dask.org/workergroup-name={cluster.group}"
    )
    stay = [p for p in every if not p["metadata"].get("deletionTimestamp")]
    gated = [p for p in stay if p["spec"].get("schedulingGates")]
    return [p for p in stay if p not in gated], gated


async def test_three_clusters_share_six_places_of_a_cohort(start: Start, queues: None) -> None:
    def begin(name: str) -> Awaitable[LiveCluster]:
        labels = {"kueue.x-k8s.io/queue-name": name}
        if name == "urgent":
            labels["kueue.x-k8s.io/priority-class"] = name
        up = {"maxPending": MAX_PENDING}
        return start(name, labels=labels, policy={"maxReplicas": 6, "behavior": {"scaleUp": up}})

    async def held(cluster: LiveCluster) -> int:
        return len((await workers_of(cluster))[0])

    async def waits(cluster: LiveCluster) -> bool:
        _, gated = await workers_of(cluster)
        rows = (await cluster.status()).get("workers") or []
        return (
            1 <= len(gated) <= MAX_PENDING
            and ("True", "AdmissionGated") == await cluster.condition("ScalingLimited")
            and any("kueue.x-k8s.io/admission" in row["message"] for row in rows)
        )

    async def all_wait() -> None:
        for cluster in every:  # what was preempted this instant is seen in the next pass
            await cluster.until(partial(waits, cluster), "as many wait as may", patience_s=FAIR_S)

    every = await asyncio.gather(*map(begin, ("a", "b", "urgent")))
    await share_six(every, held, within_s=FAIR_S, all_wait=all_wait)
