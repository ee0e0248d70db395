"""What is done to the operator itself: replicas, upgrade, uninstall. Never beside other tests."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

import pytest

from dask_adaptive.kube.resources import CONFIG_MAPS
from support.e2e_cluster import LiveCluster, workers_in
from support.e2e_release import Release
from support.e2e_tasks import result
from support.kube_server import Kubectl

Start = Callable[..., Awaitable[LiveCluster]]

#: What an uninstalled release leaves, as `Release.leftovers` names it.
CRD = {
    "CustomResourceDefinition /adaptivepolicies.dask-adaptive.dev",
    "APIService /v1alpha1.dask-adaptive.dev",  # the API server's own, for each CRD's group
}


@pytest.fixture
def release(admin: Kubectl) -> Iterator[Release]:
    """The operator's release, as it was found when the test ends."""
    found = Release(admin)
    yield found
    found.install()


async def test_of_two_replicas_one_acts_and_the_other_takes_over(
    start: Start, release: Release
) -> None:
    await asyncio.to_thread(release.install, "--set", "replicas=2")
    c = await start(policy={"maxReplicas": 4})
    c.more_to_tell = [lambda: release.kubectl("get", "pods,leases")]
    first = release.leader()
    assert 2 == len(release.pods())
    assert f"pod/{first}" in release.pods()

    results = await c.grow_to(4, tasks=40)
    await c.client.gather(results)
    long = c.client.submit(result, 0, seconds=15.0, pure=False)
    await c.until_event("Underutilized")  # the fall has begun
    await asyncio.to_thread(
        release.kubectl, "delete", "pod", first, "--grace-period=0", "--force", "--wait=false"
    )
    await c.until(lambda: release.leader() not in ("", first), "the other one leads")
    await c.until_settled(1)

    assert 100_000 == len(await long)
    assert [100_000] * 40 == [len(r) for r in await c.client.gather(results)]
    more = await c.grow_to(4, tasks=20)
    await c.client.gather(more)
    del results, more, long
    await c.until_settled(0)
    assert (61, 61, 0) == await c.counts()
    drained = await c.events("Drained")
    left = Counter(workers_in(drained))
    assert {1} == set(left.values()) == {e["count"] for e in drained}


async def test_an_upgrade_keeps_the_certificate_and_disturbs_nobody(
    start: Start, release: Release
) -> None:
    c = await start(policy={"minReplicas": 2})
    await c.until_settled(2)
    certificate, policy = release.certificate(), await c.policy()
    workers, futures = await c.deployments(), c.client.map(result, range(40), seconds=0.5)
    await asyncio.to_thread(release.install, "--set", "log.verbose=true")

    assert certificate == release.certificate()
    now = await c.policy()
    assert (policy["metadata"]["uid"], policy["spec"]) == (now["metadata"]["uid"], now["spec"])
    assert workers.items() <= (await c.deployments()).items()
    new = await start("new", policy=None)  # made after the upgrade: the webhook answers
    assert "dask-adaptive.dev/injected" in (await new.scheduler_pod())["metadata"]["annotations"]
    assert 40 == len(await c.client.gather(futures))
    await c.edit(minReplicas=0)
    del futures
    await c.until_settled(0)
    assert (40, 40, 0) == await c.counts()


async def test_two_minutes_without_the_operator_cost_no_pin_and_no_result(
    start: Start, release: Release
) -> None:
    c = await start(policy={"minReplicas": 3})
    await c.until_settled(3)
    keep, ends, _ = sorted(await c.connected())
    pod = await c.pod_of(keep)
    await c.kubectl("annotate", "pod", pod, "dask-adaptive.dev/pin=1h")
    await c.until_event("PinRequested", keep)
    results = c.client.map(result, range(30), seconds=0.2, pure=False)
    await c.client.gather(c.client.map(len, results, pure=False))
    deployment = f"deployment/{release.deployment}"
    await asyncio.to_thread(release.kubectl, "scale", deployment, "--replicas=0")
    await c.until(lambda: not release.pods(), "the operator is away")
    running = c.client.map(result, range(9), seconds=5.0, pure=False)
    before = await c.address_of(ends)
    await c.kubectl("delete", "pod", await c.pod_of(ends), "--wait=false")

    async def is_pinned() -> bool:
        return any(w.pins for w in (await c.observe()).workers if w.name == keep)

    await c.throughout(120.0, is_pinned, "the agent holds the pin")
    assert before != await c.address_of(ends)  # the next pod, under the same name
    await c.client.gather(running)
    await asyncio.to_thread(release.kubectl, "scale", deployment, "--replicas=1")
    await c.edit(minReplicas=0)
    await c.until_settled(1)

    assert {keep} == await c.connected()
    await c.client.gather([*results, *running])
    assert (69, 69, 0) == await c.counts()


async def test_what_is_uninstalled_leaves_only_the_crd_and_can_be_installed_again(
    start: Start, release: Release
) -> None:
    c = await start(policy={"minReplicas": 1})
    await c.until_settled(1)
    (worker,) = await c.connected()
    await c.kubectl("annotate", "pod", await c.pod_of(worker), "dask-adaptive.dev/pin=1h")
    await c.until(lambda: c.annotation(worker, "pinned-by"), "its pod says who holds it")
    await asyncio.to_thread(release.uninstall)
    assert "" == await c.annotation(worker, "pinned-by") == await c.annotation(worker, "hints")

    # What belongs to DaskClusters stays with them: policies, and the agent that schedulers mount.
    # So do histories, with their policies.
    owned = [*await _owned_by("DaskCluster", c), *await _owned_by("AdaptivePolicy", c)]
    theirs = {f"ConfigMap {ns}/{name}" for ns, name in owned}
    left: set[str] = set()
    c.more_to_tell = [lambda: f"left: {sorted(left - CRD)}"]

    async def is_clean() -> bool:
        found = await asyncio.to_thread(release.leftovers)
        left.clear()
        left.update(o for o in found - theirs if not o.startswith("AdaptivePolicy "))
        return left == CRD

    await c.until(is_clean, "only the CRD is left", patience_s=40.0)  # pods end by and by
    futures = c.client.map(result, range(10), seconds=0.2, pure=False)
    assert 10 == len(await c.client.gather(futures))  # the DaskCluster goes on
    assert 1 == await c.replicas()

    await asyncio.to_thread(release.install)
    await c.edit(minReplicas=2)
    await c.until_settled(2)
    assert "Succeeded" in await asyncio.to_thread(release.helm, "test", release.name)

    await c.close()
    await c.kubectl("delete", "daskcluster", c.name)

    async def has_no_agent() -> bool:
        return not [ns for ns, _ in await _owned_by("DaskCluster", c) if ns == c.namespace]

    await c.until(has_no_agent, "the agent's ConfigMap goes with the last DaskCluster")


async def _owned_by(kind: str, c: LiveCluster) -> list[tuple[str, str]]:
    """ConfigMaps that objects of a kind own, by namespace and name."""
    found = await c.api.list(CONFIG_MAPS.path())
    return [
        (body["metadata"]["namespace"], body["metadata"]["name"])
        for body in found
        if any(o["kind"] == kind for o in body["metadata"].get("ownerReferences", []))
    ]
