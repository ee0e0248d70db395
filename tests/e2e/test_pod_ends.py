"""Pods of workers end, by whoever's decision, and nothing is redone."""

from __future__ import annotations

from typing import Any

from dask_adaptive.kube.api import EVENTS, PODS
from dask_adaptive.kube.objects import INJECT
from support.e2e_cluster import LiveCluster, Start
from support.tables import table
from support.tasks import block, result, suspicions

MEGABYTES_50 = 50_000_000


@table(
    "worker, grace_s",
    process_1=({}, 300),
    below_a_shell=({"in_shell": True}, 300),
    # As one that was created while the webhook was away.
    no_webhook=({"notes": {INJECT: "false"}}, 30),
)
async def test_a_deleted_pod_hands_over_half_a_gigabyte_and_finishes_its_task(
    start: Start, worker: dict[str, Any], grace_s: int
) -> None:
    c = await start(policy=None, replicas=2, **worker)
    await c.until_connected(2)
    doomed = min(await c.connected())
    address = await c.address_of(doomed)
    pod = await c.pod_of(doomed)
    here = {"workers": [address], "pure": False}
    data = c.client.map(block, range(10), size=MEGABYTES_50, **here)
    await c.client.gather(c.client.map(len, data, **here))
    long = c.client.submit(result, 0, seconds=10.0, **here)
    await c.until(lambda: c.is_processing(doomed), "the long task runs")
    assert 500_000_000 <= await c.sole_bytes(doomed)
    spec = (await c.api.get(PODS.path(c.namespace, pod)))["spec"]
    assert grace_s == spec["terminationGracePeriodSeconds"]

    await c.kubectl("delete", "pod", pod, "--wait=false")
    await c.until(lambda: _is_named_anew(c, doomed, address), "its replacement takes the name")
    assert 100_000 == len(await long)
    await c.until(lambda: _is_gone(c, pod), "the pod has ended")
    sizes = await c.client.gather(c.client.map(len, data, pure=False))

    assert [MEGABYTES_50] * 10 == sizes
    assert (31, 31, 0) == await c.counts()
    assert 2 == len(await c.connected())
    events = await c.api.list(EVENTS.path(c.namespace))
    assert "FailedPreStopHook" not in {event["reason"] for event in events}


async def test_a_task_longer_than_the_grace_is_given_back_and_not_charged(start: Start) -> None:
    c = await start(policy=None, replicas=2, terminationGracePeriodSeconds=15)
    await c.until_connected(2)
    doomed = min(await c.connected())
    here = {"workers": [await c.address_of(doomed)], "pure": False}
    data = c.client.map(result, range(5), seconds=0.1, **here)
    await c.client.gather(c.client.map(len, data, **here))
    long = c.client.submit(result, 0, seconds=30.0, allow_other_workers=True, **here)
    await c.until(lambda: c.is_processing(doomed), "the long task runs")
    pod = await c.pod_of(doomed)
    spec = (await c.api.get(PODS.path(c.namespace, pod)))["spec"]
    assert 15 == spec["terminationGracePeriodSeconds"]

    await c.kubectl("delete", "pod", pod, "--wait=false")
    await c.until(lambda: _is_gone(c, pod), "the pod has ended")
    assert 100_000 == len(await long)  # elsewhere
    await c.client.gather(data)
    charged = await c.client.run_on_scheduler(suspicions)

    tasks, runs, redone = await c.counts()
    assert (11, 11, 1) == (tasks, runs, redone)  # the one that was given back, and no other
    assert 0 == charged


async def _is_named_anew(c: LiveCluster, worker: str, before: str) -> bool:
    found = {w.name: w.address for w in (await c.observe()).workers}
    return found.get(worker, before) != before


async def _is_gone(c: LiveCluster, pod: str) -> bool:
    selector = "dask.org/component=worker"
    pods = await c.api.list(PODS.path(c.namespace), selector=selector)
    return pod not in {p["metadata"]["name"] for p in pods}
