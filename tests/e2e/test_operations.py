"""What is done to the operator itself: replicas, upgrade, uninstall. Never beside other tests."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

import pytest

from dask_adaptive.kube.api import CONFIG_MAPS
from support.e2e_cluster import LiveCluster, Start, workers_in
from support.e2e_release import STAYS, Release
from support.kube_server import Kubectl
from support.tasks import result


@pytest.fixture
def release(admin: Kubectl) -> Iterator[Release]:
    """The operator's release, as it was found when the test ends."""
    found = Release(admin)
    yield found
    found.install()


async def test_an_upgrade_disturbs_nobody_and_of_two_replicas_one_acts(
    start: Start, release: Release
) -> None:
    c = await start(policy={"minReplicas": 2, "maxReplicas": 4})
    c.more_to_tell = [lambda: release.kubectl("get", "pods,leases")]
    await c.until_settled(2)
    certificate, policy, workers = release.certificate(), await c.policy(), await c.deployments()
    results = c.client.map(result, range(40), seconds=0.3, pure=False)
    await asyncio.to_thread(release.install, "--set", "replicas=2")

    assert certificate == release.certificate()
    now = await c.policy()
    assert (policy["metadata"]["uid"], policy["spec"]) == (now["metadata"]["uid"], now["spec"])
    assert workers.items() <= (await c.deployments()).items()
    new = await start("new", policy=None)  # made after the upgrade: the webhook answers
    assert "dask-adaptive.dev/injected" in (await new.scheduler_pod())["metadata"]["annotations"]
    first = release.leader()
    assert 2 == len(release.pods())
    assert f"pod/{first}" in release.pods()

    more = await c.grow_to(4, tasks=20)
    await c.client.gather([*results, *more])
    long = c.client.submit(result, 0, seconds=12.0, pure=False)
    await c.edit(minReplicas=0)
    await c.until_event("Underutilized")  # the fall has begun
    await asyncio.to_thread(
        release.kubectl, "delete", "pod", first, "--grace-period=0", "--force", "--wait=false"
    )
    await c.until(lambda: release.leader() not in ("", first), "the other one leads")
    await c.until_settled(1)

    assert 100_000 == len(await long)
    assert [100_000] * 60 == [len(r) for r in await c.client.gather([*results, *more])]
    del results, more, long
    await c.until_settled(0)
    assert (61, 61, 0) == await c.counts()
    leaving = await c.events("Underutilized")
    left = Counter(workers_in(leaving))
    assert {1} == set(left.values()) == {e["count"] for e in leaving}


async def test_without_the_operator_no_pin_is_lost_and_uninstalled_it_leaves_only_the_crds(
    start: Start, release: Release
) -> None:
    c = await start(policy={"minReplicas": 2})
    await c.until_settled(2)
    keep, ends = sorted(await c.connected())
    await c.kubectl("annotate", "pod", await c.pod_of(keep), "dask-adaptive.dev/pin=1h")
    await c.until(lambda: c.is_pinned(keep), "the agent holds the pin")
    results = c.client.map(result, range(20), seconds=0.2, pure=False)
    await c.client.gather(results)
    deployment = f"deployment/{release.deployment}"
    await asyncio.to_thread(release.kubectl, "scale", deployment, "--replicas=0")
    await c.until(lambda: not release.pods(), "the operator is away")
    running = c.client.map(result, range(4), seconds=5.0, pure=False)
    before = await c.address_of(ends)
    await c.kubectl("delete", "pod", await c.pod_of(ends), "--wait=false")

    async def is_new() -> bool:
        return before not in {w.address for w in (await c.observe()).workers} and (
            ends in await c.connected()
        )

    await c.throughout(15.0, lambda: c.is_pinned(keep), "the agent holds the pin")
    await c.until(is_new, "the next pod has come, under the same name")
    assert await c.is_pinned(keep)
    await c.client.gather(running)
    await asyncio.to_thread(release.kubectl, "scale", deployment, "--replicas=1")
    await c.edit(minReplicas=0)
    await c.until_settled(1)
    assert {keep} == await c.connected()
    await c.client.gather([*results, *running])
    assert (24, 24, 0) == await c.counts()

    await asyncio.to_thread(release.uninstall)
    await _until_only_the_crds_are_left(c, release)
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


async def _until_only_the_crds_are_left(c: LiveCluster, release: Release) -> None:
    # What belongs to DaskClusters stays with them: policies, and the agent that schedulers mount.
    # So do histories, with their policies.
    owned = [*await _owned_by("DaskCluster", c), *await _owned_by("AdaptivePolicy", c)]
    theirs = {f"ConfigMap {ns}/{name}" for ns, name in owned}
    left: set[str] = set()
    c.more_to_tell = [lambda: f"left: {sorted(left - STAYS)}"]

    async def is_clean() -> bool:
        found = await asyncio.to_thread(release.leftovers)
        left.clear()
        left.update(o for o in found - theirs if not o.startswith("AdaptivePolicy "))
        return left == STAYS

    await c.until(is_clean, "only the CRDs are left")  # pods end by and by


async def _owned_by(kind: str, c: LiveCluster) -> list[tuple[str, str]]:
    """ConfigMaps that objects of a kind own, by namespace and name."""
    found = await c.api.list(CONFIG_MAPS.path())
    return [
        (body["metadata"]["namespace"], body["metadata"]["name"])
        for body in found
        if any(o["kind"] == kind for o in body["metadata"].get("ownerReferences", []))
    ]
