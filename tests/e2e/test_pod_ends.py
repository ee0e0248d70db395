"""Pods of workers end, by whoever's decision, and nothing is redone."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

from dask_adaptive.kube.api import Json
from dask_adaptive.kube.resources import PODS
from support.e2e_cluster import LiveCluster
from support.e2e_tasks import block, result, suspicions

Start = Callable[..., Awaitable[LiveCluster]]

MEGABYTES_50 = 50_000_000


async def test_a_deleted_pod_hands_over_half_a_gigabyte_and_finishes_its_task(start: Start) -> None:
    c = await start(policy=None, replicas=2)
    await c.until_connected(2)
    doomed = min(await c.connected())
    address = await c.address_of(doomed)
    pod = await c.pod_of(doomed)
    here = {"workers": [address], "pure": False}
    data = c.client.map(block, range(10), size=MEGABYTES_50, **here)
    await c.client.gather(c.client.map(len, data, **here))
    long = c.client.submit(result, 0, seconds=20.0, **here)
    await c.until(lambda: _is_processing(c, doomed), "the long task runs")
    assert 500_000_000 <= await c.sole_bytes(doomed)

    await c.kubectl("delete", "pod", pod, "--wait=false")
    await c.until(lambda: _is_named_anew(c, doomed, address), "its replacement takes the name")
    assert 100_000 == len(await long)
    await c.until(lambda: _is_gone(c, pod), "the pod has ended")
    sizes = await c.client.gather(c.client.map(len, data, pure=False))

    assert [MEGABYTES_50] * 10 == sizes
    assert (31, 31, 0) == await c.counts()
    assert 2 == len(await c.connected())


async def test_a_task_longer_than_the_grace_is_given_back_and_not_charged(start: Start) -> None:
    c = await start(policy=None, replicas=2, terminationGracePeriodSeconds=12)
    await c.until_connected(2)
    doomed = min(await c.connected())
    here = {"workers": [await c.address_of(doomed)], "pure": False}
    data = c.client.map(result, range(5), seconds=0.1, **here)
    await c.client.gather(c.client.map(len, data, **here))
    long = c.client.submit(result, 0, seconds=25.0, allow_other_workers=True, **here)
    await c.until(lambda: _is_processing(c, doomed), "the long task runs")
    pod = await c.pod_of(doomed)
    assert 12 == (await _pod(c, pod))["spec"]["terminationGracePeriodSeconds"]

    await c.kubectl("delete", "pod", pod, "--wait=false")
    await c.until(lambda: _is_gone(c, pod), "the pod has ended", patience_s=30.0)
    assert 100_000 == len(await long)  # elsewhere
    await c.client.gather(data)
    charged = await c.client.run_on_scheduler(suspicions)

    tasks, runs, redone = await c.counts()
    assert (11, 11, 1) == (tasks, runs, redone)  # the one that was given back, and no other
    assert 0 == charged


async def test_an_eviction_through_the_api_redoes_nothing(start: Start) -> None:
    c = await start(policy=None, replicas=2)
    await c.until_connected(2)
    doomed = min(await c.connected())
    pod = await c.pod_of(doomed)
    results = c.client.map(result, range(20), seconds=0.1, pure=False)
    await c.client.gather(c.client.map(len, results, pure=False))
    running = c.client.map(result, range(6), seconds=4.0, pure=False)
    await c.until(lambda: _is_processing(c, doomed), "it has tasks")

    assert 201 == await _evict(c, pod)
    await c.until(lambda: _is_gone(c, pod), "the pod has ended")
    await c.client.gather(running)
    await c.client.gather(results)

    assert (46, 46, 0) == await c.counts()


async def test_the_guard_puts_an_eviction_off_until_the_worker_has_drained(start: Start) -> None:
    guard = {"enabled": True, "maxDelay": "2m"}
    c = await start(policy={"minReplicas": 2, "evictionGuard": guard})
    await c.until_connected(2)
    doomed = min(await c.connected())
    address = await c.address_of(doomed)
    pod = await c.pod_of(doomed)
    here = {"workers": [address], "pure": False}
    results = c.client.map(result, range(10), seconds=0.1, **here)
    await c.client.gather(c.client.map(len, results, **here))
    running = c.client.submit(result, 0, seconds=6.0, **here)
    await c.until(lambda: _is_processing(c, doomed), "it has a task")

    assert 429 == await _evict(c, pod)
    event = await c.until_event("EvictionDelayed", doomed)
    assert not running.done()

    async def is_let_go() -> bool:
        return await _evict(c, pod) != 429

    await c.until(is_let_go, "the eviction is let through")
    assert running.done()
    await c.until(lambda: _is_gone(c, pod), "the pod has ended")
    await c.client.gather([*results, running])

    assert (21, 21, 0) == await c.counts()
    assert "Normal" == event["type"]


async def _evict(c: LiveCluster, pod: str) -> int:
    """The answer's code."""
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": c.namespace},
    }
    path = f"/api/v1/namespaces/{c.namespace}/pods/{pod}/eviction"
    done = await c.kubectl_run("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))
    if done.returncode == 0:
        return 201
    assert "is draining" in done.stderr or "not found" in done.stderr, done.stderr
    return 429 if "is draining" in done.stderr else 404


async def _is_processing(c: LiveCluster, worker: str) -> bool:
    return any(w.processing for w in (await c.observe()).workers if w.name == worker)


async def _is_named_anew(c: LiveCluster, worker: str, before: str) -> bool:
    found = {w.name: w.address for w in (await c.observe()).workers}
    return found.get(worker, before) != before


async def _is_gone(c: LiveCluster, pod: str) -> bool:
    selector = "dask.org/component=worker"
    pods = await c.api.list(PODS.path(c.namespace), selector=selector)
    return pod not in {p["metadata"]["name"] for p in pods}


async def _pod(c: LiveCluster, pod: str) -> Json:
    return await c.api.get(PODS.path(c.namespace, pod))
