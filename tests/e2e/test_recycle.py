"""Workers whose quota has run out are replaced, and no task notices."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dask_adaptive.kube.resources import PODS
from support.e2e_cluster import LiveCluster
from support.e2e_recycle_tasks import break_machine, fails_where_broken, flavour, leak
from support.e2e_tasks import logged, result
from support.e2e_tools import dask_adaptive

Start = Callable[..., Awaitable[LiveCluster]]

MEGABYTES_25 = 25_000_000


async def test_a_leaking_function_costs_no_worker(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    # Dask pauses a worker at 80 %, whose leak is then never killed, and never ends either: both
    # clusters would wait for ever where nobody replaces workers. From the hard line to the nanny's
    # (95 %) it is ten tasks, so 10 s: a pass that a busy node delays by 4 s is in time.
    limit = {
        "args": ["--memory-limit", "700MB"],
        "env": {"DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE": "False"},
    }
    policy = {
        "minReplicas": 2,
        "recycle": {"memory": {"soft": "45%", "for": "1s", "hard": "60%"}},
    }
    ours = await start("ours", policy=policy, **limit)
    stock = await start("stock", policy=None, replicas=2, **limit)
    found = {}
    for c in (stock, ours):
        await c.until_connected(2)
        kills = asyncio.ensure_future(_nanny_kills(c))
        futures = c.client.map(leak, range(60), size=MEGABYTES_25, seconds=1.0, pure=False)
        # Stock never ends: with each worker the results that it holds are lost, and run again.
        await _until_done(futures, patience_s=60.0)
        kills.cancel()
        done = sum(future.status == "finished" for future in futures)
        found[c.name] = (done, await kills, (await c.counts())[2])
        del futures
    with capsys.disabled():
        print(f"\n60 tasks that leak 25 MB each: (done, nanny kills, redone) {found}")

    assert 0 < found["stock"][1]
    assert 0 < found["stock"][2]
    assert (60, 0, 0) == found["ours"]
    assert set(await ours.recycled()) & {"MemorySoft", "MemoryHard"}


async def test_a_worker_that_fails_everything_is_replaced(start: Start) -> None:
    recycle = {"failures": {"patterns": ["*CUDA error*"]}}
    c = await start(policy={"minReplicas": 3, "recycle": recycle})
    await c.until_connected(3)
    broken = min(await c.connected())
    address = await c.address_of(broken)
    await c.client.run(break_machine, workers=[address])

    futures = c.client.map(fails_where_broken, range(60), seconds=0.2, retries=2, pure=False)
    assert list(range(60)) == await c.client.gather(futures)

    async def is_replaced() -> bool:
        return broken not in await c.deployments()

    await c.until(is_replaced, "the broken worker is gone")
    await c.until_event("Failures", "CUDA error")
    await c.until_connected(3)
    assert (60, 60, 0) == await c.counts()
    assert {"Failures": 1} == await c.recycled()


@pytest.mark.timeout(600)
async def test_no_task_starts_that_its_pod_does_not_outlive(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tasks of 12 s in pods that live for 45 s, in place of 4 h in 5 h."""
    stock = await start(
        "stock", policy=None, replicas=2, tally=False,
        annotations={"dask-adaptive.dev/inject": "false"}, terminationGracePeriodSeconds=2,
    )  # fmt: skip
    limiting = asyncio.ensure_future(_limit_pods(stock, 45))
    await _until_pods(stock, 2)
    began = time.monotonic()
    names = [f"s{i}" for i in range(16)]
    given = stock.client.map(logged, names, seconds=12.0, pure=False)
    await _until_done(given, patience_s=100.0)  # some are given up, after four workers died
    stock_s = time.monotonic() - began
    done = sum(future.status == "finished" for future in given)
    ran = [name for _, name in await stock.client.get_events("ran")]
    wasted = len(ran) - len(set(ran))
    limiting.cancel()
    await stock.close()

    lifetime = {"minTaskDuration": "12s", "margin": "3s"}
    policy = {"minReplicas": 2, "maxReplicas": 2, "recycle": {"lifetime": lifetime}}
    c = await start("ours", policy=policy)
    limiting = asyncio.ensure_future(_limit_pods(c, 45))
    await c.until_connected(2)
    began = time.monotonic()
    futures = c.client.map(result, range(16), seconds=12.0, pure=False)
    await c.client.gather(futures)
    took_s = time.monotonic() - began
    limiting.cancel()
    with capsys.disabled():
        print(
            f"\n16 tasks of 12 s on 2 workers of 45 s: ours {took_s:.0f} s;"
            f" stock {done} done after {stock_s:.0f} s, {wasted} runs wasted"
        )

    assert 0 < wasted
    assert (16, 16, 0) == await c.counts()
    assert {"Lifetime"} == set(await c.recycled())


async def test_a_replacement_that_never_comes_leaves_the_old_worker_in_service(
    start: Start,
) -> None:
    recycle = {"drift": False, "strategy": {"readyTimeout": "8s"}}
    c = await start(policy={"minReplicas": 1, "maxReplicas": 1, "recycle": recycle})
    await c.until_connected(1)
    (old,) = await c.connected()
    await _change_workers(c, "/image", "localhost/none:1")
    await c.kubectl("annotate", "pod", await c.pod_of(old), "dask-adaptive.dev/recycle=now")

    aborted = await c.until_event("RecycleAborted", old)
    futures = c.client.map(result, range(8), seconds=0.3, pure=False)
    await c.client.gather(futures)

    assert "Image" in aborted["message"]
    assert {old} == await c.connected()
    await c.until_settled(1)  # what never came is gone
    assert (8, 8, 0) == await c.counts()


async def test_in_place_the_deployment_stays_and_the_pod_is_new(start: Start) -> None:
    recycle = {"strategy": {"type": "InPlace"}}
    c = await start(policy={"minReplicas": 2, "maxReplicas": 2, "recycle": recycle})
    await c.until_connected(2)
    before, old = await c.deployments(), min(await c.connected())
    pod = await c.pod_of(old)
    kept = c.client.map(result, range(20), seconds=0.1, pure=False)
    await c.client.gather(kept)
    futures = c.client.map(result, range(30), seconds=0.5, pure=False)
    told = await dask_adaptive(c, "recycle", pod)

    async def is_new() -> bool:
        # Between the two pods there is none.
        return not {pod} >= set(await c.pods_of(old)) and old in await c.connected()

    assert pod in told
    await c.until(is_new, "another pod stands for the worker")
    await c.client.gather(futures)
    assert [100_000] * 20 == [len(r) for r in await c.client.gather(kept)]
    assert before == await c.deployments()
    assert (50, 50, 0) == await c.counts()
    assert {"RecycleRequested": 1} == await c.recycled()


async def test_a_change_of_the_group_rolls_out(start: Start) -> None:
    c = await start(policy={"minReplicas": 3, "maxReplicas": 3})
    await c.until_connected(3)
    before = await c.deployments()
    futures = c.client.map(result, range(60), seconds=0.5, pure=False)
    await _change_workers(c, "/env", [{"name": "FLAVOUR", "value": "new"}])

    async def has_rolled_out() -> bool:
        found = await c.deployments()
        return len(found) == 3 and not set(found.values()) & set(before.values())

    await c.until(has_rolled_out, "all workers are new")
    await c.client.gather(futures)
    await c.until_settled(3)
    flavours = await c.client.run(flavour)

    assert ["new"] * 3 == list(flavours.values())
    assert (60, 60, 0) == await c.counts()
    assert {"Drifted": 3} == await c.recycled()


async def test_all_workers_are_rolled_at_an_instant(start: Start) -> None:
    c = await start(policy={"minReplicas": 2, "maxReplicas": 2})
    await c.until_connected(2)
    before = await c.deployments()
    await dask_adaptive(c, "recycle", c.name)

    async def has_rolled() -> bool:
        found = await c.deployments()
        return len(found) == 2 and not set(found.values()) & set(before.values())

    await c.until(has_rolled, "all workers are new")
    await c.until_settled(2)
    recycled = await c.recycled()
    await asyncio.sleep(8.0)  # and no more of them
    assert recycled == await c.recycled()
    assert 2 == sum(recycled.values())


async def _nanny_kills(c: LiveCluster) -> int:
    """How often the nannies of the cluster have ended a worker for its memory."""
    killed: dict[str, int] = {}
    try:
        while True:
            for pod in await c.api.list(
                PODS.path(c.namespace), selector=f"dask.org/cluster-name={c.name}"
            ):
                name = pod["metadata"]["name"]
                said = (await c.kubectl_run("logs", name)).stdout
                killed[name] = max(killed.get(name, 0), said.count("95% memory budget"))
            await asyncio.sleep(1.0)
    except asyncio.CancelledError:
        return sum(killed.values())


async def _until_done(futures: list[Any], *, patience_s: float) -> None:
    end = time.monotonic() + patience_s
    while time.monotonic() < end and not all(f.status in ("finished", "error") for f in futures):
        await asyncio.sleep(0.5)


async def _until_pods(c: LiveCluster, count: int) -> None:
    """Workers of a cluster without an agent, which nobody observes."""

    async def are_there() -> bool:
        return len(await c.client.nthreads()) == count

    await c.until(are_there, f"{count} workers are connected")


async def _limit_pods(c: LiveCluster, seconds: int) -> None:
    """Give workers' pods a deadline: Deployments cannot, so it is others who do, at admission."""
    limited: set[str] = set()
    patch = json.dumps({"spec": {"activeDeadlineSeconds": seconds}})
    selector = f"dask.org/component=worker,dask.org/cluster-name={c.name}"
    while True:
        for pod in await c.api.list(PODS.path(c.namespace), selector=selector):
            name = pod["metadata"]["name"]
            if name not in limited and not pod["metadata"].get("deletionTimestamp"):
                done = await c.kubectl_run("patch", "pod", name, "--patch", patch)
                limited |= {name} if done.returncode == 0 else set()
        await asyncio.sleep(0.3)


async def _change_workers(c: LiveCluster, path: str, value: Any) -> None:
    op = {"op": "add", "path": f"/spec/worker/spec/containers/0{path}", "value": value}
    patch = json.dumps([op])
    await c.kubectl("patch", "daskworkergroup", c.group, "--type=json", "--patch", patch)
