"""
The operator is killed at each step of a worker's leaving, and started again.

The chart's operator is put to rest; operators run on this machine, each for one namespace, so the
tests can run side by side. Upstream's operator acts on `replicas` all the while.
"""

from __future__ import annotations

import asyncio
import fcntl
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from support.e2e_cluster import LiveCluster
from support.e2e_tasks import result
from support.e2e_tools import operator_here, until_killed
from support.kube_server import Kubectl

Start = Callable[..., Awaitable[LiveCluster]]

OPERATOR = ("deployment", "--selector", "app.kubernetes.io/name=dask-adaptive-operator")


@pytest.fixture(scope="module", autouse=True)
def chart_operator_at_rest(admin: Kubectl) -> Iterator[None]:
    """No replica of the chart's Deployment, until the last test process is done."""
    where = admin.json("get", *OPERATOR, "--all-namespaces")["items"][0]["metadata"]["namespace"]
    kubectl = admin.within(where)
    with (Path(tempfile.gettempdir()) / "dask-adaptive-e2e.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        kubectl("scale", *OPERATOR, "--replicas=0")
        kubectl("wait", "pods", *OPERATOR[1:], "--for=delete", "--timeout=60s")
        yield
        try:  # whoever is the last gets it
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        kubectl("scale", *OPERATOR, "--replicas=1")
        kubectl("rollout", "status", *OPERATOR, "--timeout=90s")


@pytest.mark.parametrize("point", ["retire", "recheck", "delete", "settle", "report"])
async def test_killed_before_and_after(start: Start, point: str, tmp_path: Path) -> None:
    c = await start(policy=None, replicas=3, tally=False)
    log = tmp_path / "operator.log"
    async with operator_here(c, log):  # its agent is attached by this operator
        await c.govern(minReplicas=3)
        await c.until_ready()
    await c.count()
    await c.until_connected(3)
    results = c.client.map(result, range(12), seconds=0.2, pure=False)
    await c.client.gather(results)
    long = c.client.submit(result, 0, seconds=10.0, pure=False)

    await c.edit(minReplicas=1)
    for when in ("before", "after"):
        async with operator_here(c, log, fatal=(point, when)) as process:
            await until_killed(c, process)
    async with operator_here(c, log):
        more = c.client.map(result, range(3), seconds=0.2, pure=False)
        assert 3 == len(await c.client.gather(more))
        del more
        await c.until_settled(1)
        assert 100_000 == len(await asyncio.wait_for(long, 60))
        assert [100_000] * 12 == [len(r) for r in await c.client.gather(results)]
        assert (16, 16, 0) == await c.counts()


SURGE_POINTS = ["surge", "retire", "recheck", "delete", "settle", "report", "limit"]


@pytest.mark.parametrize(
    ("kind", "point"),
    [
        *(("Surge", point) for point in SURGE_POINTS),
        *(("InPlace", point) for point in ("retire", "recheck", "restart", "report")),
    ],
)
async def test_killed_while_a_worker_is_replaced(
    start: Start, kind: str, point: str, tmp_path: Path
) -> None:
    c = await start(policy=None, replicas=2, tally=False)
    log = tmp_path / "operator.log"
    strategy = {"type": kind, "readyTimeout": "2m"}
    policy = {"minReplicas": 2, "maxReplicas": 2, "recycle": {"strategy": strategy}}
    async with operator_here(c, log):
        await c.govern(**policy)
        await c.until_ready()
    await c.count()
    await c.until_connected(2)
    old = min(await c.connected())
    pod, before = await c.pod_of(old), await c.deployments()
    kept = c.client.map(result, range(12), seconds=0.2, pure=False)
    await c.client.gather(kept)
    long = c.client.map(result, range(2), seconds=10.0, pure=False)

    await c.kubectl("annotate", "pod", pod, "dask-adaptive.dev/recycle=now")
    for when in ("before", "after"):
        async with operator_here(c, log, fatal=(point, when)) as process:
            await until_killed(c, process)
    async with operator_here(c, log):

        async def is_replaced() -> bool:
            if kind == "InPlace":
                return not {pod} >= set(await c.pods_of(old))  # between the two there is none
            return old not in await c.deployments()

        await c.until(is_replaced, "the worker is replaced")
        await c.until_settled(2)
        await asyncio.wait_for(c.client.gather(long), 60)
        assert [100_000] * 12 == [len(r) for r in await c.client.gather(kept)]
        assert (14, 14, 0) == await c.counts()
    same = len(before.items() & (await c.deployments()).items())
    assert (2 if kind == "InPlace" else 1) == same  # one was replaced, and only one
