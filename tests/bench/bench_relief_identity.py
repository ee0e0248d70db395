"""
What it costs a scheduler to say who it is and which workers it has: stock and ours.

    PYTHONPATH=operator:tests python tests/bench/bench_relief_identity.py [--json]

Two schedulers run in processes of their own, one as upstream made it, one with the agent; they are
asked in turns, so that a slow minute of the machine hits both. Workers exist in their books only,
with metrics of a real one. CPU is that of the scheduler's process, all that it does included. What
idle clients cost is measured with whole clusters: relief/run.py.
"""

from __future__ import annotations

import argparse
import asyncio

from distributed import Client
from distributed.core import rpc
from measuring import Row, options, show_sides, sides
from relief.processes import OURS, STOCK, Cluster, Clusters, Side

from dask_adaptive_agent.relief.registry import VARIABLE

#: Of our reliefs only those that are about this.
ONLY_THESE = {VARIABLE: "prefixes=Disabled,pickling=Disabled"}


async def asking(cluster: Cluster, n: int) -> float:
    """The scheduler's CPU for one full answer, in ms, of `n` that are asked one by one."""
    full = {"n_workers": -1} if hasattr(Client, "_adjust_heartbeat_intervals") else {}
    async with rpc(cluster.address) as link:
        began = await link.relief_cpu()
        for _ in range(n):
            await link.identity(**full)
        ended = await link.relief_cpu()
    return float(ended["cpu_s"] - began["cpu_s"]) / n * 1000


async def run(arguments: argparse.Namespace) -> list[Row]:
    times: tuple[list[float], list[float]] = ([], [])
    hosts: tuple[list[float], list[float]] = ([], [])
    ours = Side("ours", {**OURS.environment, **ONLY_THESE})
    async with Clusters(STOCK, ours) as clusters:
        for cluster in clusters:
            await cluster.call("relief_crowd", count=arguments.workers - 1)
        for _ in range(arguments.repeat):
            for cluster, seen, host in zip(clusters, times, hosts, strict=True):
                host.append(await cluster.call("relief_host_us"))
                seen.append(await asking(cluster, arguments.asks))
    return [
        sides(f"WorkerState.host, {arguments.workers} workers", "us", *hosts),
        sides(f"identity, {arguments.workers} workers", "ms CPU", *times),
    ]


if __name__ == "__main__":
    given = options(__doc__, workers=800, asks=300, repeat=3)
    show_sides(asyncio.run(run(given)), given)
