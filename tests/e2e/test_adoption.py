"""`KubeCluster(...).adapt()` from a notebook, unmodified, served by us."""

from __future__ import annotations

import asyncio
import sys
import time

from support.e2e_cluster import LiveCluster, Start

NOTE = "dask-adaptive.dev"


async def _in_a_notebook(c: LiveCluster, line: str) -> None:
    """Run a line with `cluster`, dask-kubernetes' own object, in a process of its own."""
    program = (
        "from dask_kubernetes.operator import KubeCluster\n"
        f"cluster = KubeCluster.from_name({c.name!r}, namespace={c.namespace!r},"
        " shutdown_on_close=False, quiet=True)\n"
        f"{line}\ncluster.close()\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "ignore", "-c", program, stderr=asyncio.subprocess.PIPE
    )
    _, err = await process.communicate()
    assert 0 == process.returncode, f"{line}: {err.decode()[-2000:]}"


async def test_adapt_from_a_notebook_is_served_by_us_and_given_back(start: Start) -> None:
    c = await start(policy=None, annotations={f"{NOTE}/adopt": "true"})
    await _in_a_notebook(c, "cluster.adapt(minimum=0, maximum=2)")
    await c.until_ready()
    policy = await c.policy()
    assert (0, 2) == (policy["spec"]["minReplicas"], policy["spec"]["maxReplicas"])
    rest_until = await c.kubectl(
        "get", "daskautoscaler", c.name, "-o",
        r"jsonpath={.metadata.annotations.kubernetes\.dask\.org/cooldown-until}",
    )  # fmt: skip
    assert float(rest_until) > time.time() + 60

    await c.edit(idleTimeout="2s")
    futures = await c.grow_to(2, tasks=30)
    assert 30 == len(await c.client.gather(futures))
    await _in_a_notebook(c, "cluster.adapt(minimum=1, maximum=3)")  # people change their minds

    async def is_in_step() -> bool:
        spec = (await c.policy())["spec"]
        return (spec.get("minReplicas"), spec["maxReplicas"]) == (1, 3)

    await c.until(is_in_step, "the policy follows")
    del futures
    await c.until_connected(1)
    assert (30, 30, 0) == await c.counts()

    await c.kubectl("annotate", "daskcluster", c.name, f"{NOTE}/adopt=false", "--overwrite")

    async def is_given_back() -> bool:
        notes = await c.kubectl(
            "get", "daskautoscaler", c.name, "-o", "jsonpath={.metadata.annotations}"
        )
        return (
            "cooldown-until" not in notes
            and not (await c.kubectl("get", "dap", "-o", "name")).strip()
        )

    await c.until(is_given_back, "upstream's autoscaler goes on, and nothing of ours is left")
