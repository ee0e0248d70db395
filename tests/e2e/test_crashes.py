"""
The operator is killed at each step of a worker's leaving, and started again.

The chart's operator is put to rest; operators run on this machine, each for one namespace, so the
tests can run side by side. Upstream's operator acts on `replicas` all the while.
"""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Event

from support.e2e_cluster import LiveCluster, Start
from support.e2e_tasks import held, result
from support.e2e_tools import operator_here, until_killed
from support.kube_server import Kubectl

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


async def _killed_at(c: LiveCluster, log: Path, *points: str) -> None:
    """An operator dies before each step, the next one right after it; none knows of the others."""
    for point in points:
        for when in ("before", "after"):
            async with operator_here(c, log, fatal=(point, when)) as process:
                await until_killed(c, process)
        if point == "report":  # until it is told of, the one that leaves is busy
            await Event("go", c.client).set()


async def _busy(
    c: LiveCluster, log: Path, tasks: int, **policy: Any
) -> tuple[list[Any], list[Any]]:
    """Have an operator attach its agent, workers hold results, and so many of them run a task."""
    async with operator_here(c, log):
        await c.govern(**policy)
        await c.until_ready()
    await c.count()
    await c.until_connected(policy["minReplicas"])
    kept = c.client.map(result, range(12), seconds=0.2, pure=False)
    await c.client.gather(kept)
    long = c.client.map(held, range(tasks), event="go", pure=False)

    async def are_busy() -> bool:
        return tasks == sum(w.processing > 0 for w in (await c.observe()).workers)

    await c.until(are_busy, "each has one")
    return kept, long


async def test_killed_in_a_fall(start: Start, tmp_path: Path) -> None:
    c = await start(policy=None, replicas=3, tally=False)
    log = tmp_path / "operator.log"
    kept, long = await _busy(c, log, 1, minReplicas=3)

    await c.edit(minReplicas=1)
    await _killed_at(c, log, "settle")
    await Event("go", c.client).set()
    async with operator_here(c, log):
        more = c.client.map(result, range(3), seconds=0.2, pure=False)
        assert 3 == len(await c.client.gather(more))
        await c.until_settled(1)
        assert [b"\x00"] == await c.client.gather(long)
        assert [100_000] * 12 == [len(r) for r in await c.client.gather(kept)]
        assert (16, 16, 0) == await c.counts()


#: `limit` is the last call of a pass: where the one that leaves is busy, nothing else goes on.
SURGE = ("surge", "retire", "limit", "report", "recheck", "delete")


@pytest.mark.parametrize(
    ("kind", "points"), [("Surge", SURGE), ("InPlace", ("retire", "report", "recheck", "restart"))]
)
async def test_killed_at_each_step_of_a_replacement(
    start: Start, kind: str, points: tuple[str, ...], tmp_path: Path
) -> None:
    c = await start(policy=None, replicas=2, tally=False)
    log = tmp_path / "operator.log"
    strategy = {"type": kind, "readyTimeout": "2m"}
    kept, long = await _busy(
        c, log, 2, minReplicas=2, maxReplicas=2, recycle={"strategy": strategy}
    )
    old, before = min(await c.connected()), await c.deployments()
    pod = await c.pod_of(old)

    await c.kubectl("annotate", "pod", pod, "dask-adaptive.dev/recycle=now")
    await _killed_at(c, log, *points)
    async with operator_here(c, log):

        async def is_replaced() -> bool:
            if kind == "InPlace":
                return not {pod} >= set(await c.pods_of(old))  # between the two there is none
            return old not in await c.deployments()

        await c.until(is_replaced, "the worker is replaced")
        await c.until_settled(2)
        assert [b"\x00", b"\x01"] == await c.client.gather(long)
        assert [100_000] * 12 == [len(r) for r in await c.client.gather(kept)]
        assert (14, 14, 0) == await c.counts()
    same = len(before.items() & (await c.deployments()).items())
    assert (2 if kind == "InPlace" else 1) == same  # one was replaced, and only one
