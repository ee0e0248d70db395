"""
The same workloads under upstream's autoscaler and under ours, on a real node, side by side.

    make bench-upstream                                  all, three times each
    make bench-upstream WORKLOADS=p2p,slow-step REPEATS=1

Writes a line of JSON a run to docs/benchmarks/upstream.jsonl, in place of those of its workload;
`report.py` makes the tables. Needs a cluster with both operators (`make node-up install`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import sys
from operator import itemgetter
from pathlib import Path
from typing import Any

from upstream.watch import Seen, Watch
from upstream.workloads import WORKLOADS, Workload

from bench.pages import digest, take_over
from dask_adaptive.kube.api import NODES, KubeApi
from support.e2e_cluster import LiveCluster
from support.e2e_objects import adaptive_policy, autoscaler, dask_cluster, worker_group
from support.kube_server import Kubectl, namespace

SIDES = ("upstream", "ours")


async def one_run(api: KubeApi, admin: Kubectl, name: str, side: str) -> Seen:
    with namespace(admin, "bench") as kubectl:
        return await _in(api, kubectl, name, WORKLOADS[name], side)


async def _in(api: KubeApi, kubectl: Kubectl, name: str, workload: Workload, side: str) -> Seen:
    requests = await _share(api, workload.node_room)
    cluster = dask_cluster("c", replicas=1, requests=requests)
    if side == "upstream":  # nothing of ours may be in its scheduler
        cluster["metadata"]["annotations"] = {"dask-adaptive.dev/inject": "false"}
    c = LiveCluster(api, kubectl, "c")
    await c.create(cluster)
    try:
        await c.open()
        if workload.second_group:
            await c.apply(worker_group("c", "second", replicas=workload.second_group))
        await asyncio.wait_for(c.client.wait_for_workers(1 + workload.second_group), 120)
        await c.apply(_scaler(side, workload))
        await asyncio.sleep(8)  # either has had its first look
        return await _watched(c, Seen(name, side), workload)
    finally:
        await c.close()


async def _watched(c: LiveCluster, seen: Seen, workload: Workload) -> Seen:
    watch = Watch(seen, c)
    try:
        seen.waves_s = await asyncio.wait_for(workload.run(c.client), workload.patience_s) or []
    except TimeoutError:
        seen.note = f"not done within {workload.patience_s:.0f} s"
    seen.makespan_s = watch.elapsed_s
    while watch.elapsed_s - seen.makespan_s < workload.fall_s and not seen.is_back_at(1):
        await asyncio.sleep(1)
    await watch.stop()
    return seen


def _scaler(side: str, workload: Workload) -> dict[str, Any]:
    if side == "upstream":
        return autoscaler("c", minimum=1, maximum=workload.maximum)
    spec = {"minReplicas": 1, "maxReplicas": workload.maximum}
    policy = adaptive_policy("c", **spec, **workload.policy)
    for field in ("target", "idleTimeout"):
        del policy["spec"][field]  # the default
    return policy


async def _share(api: KubeApi, room: int) -> dict[str, str]:
    if not room:
        return {}
    nodes = await api.list(NODES.path())
    kibibytes = max(int(n["status"]["allocatable"]["memory"].removesuffix("Ki")) for n in nodes)
    return {"memory": f"{math.floor(kibibytes * 0.9 / room)}Ki"}


def _line(seen: Seen, run: int) -> dict[str, Any]:
    tally = seen.tally
    assert tally is not None
    is_down = WORKLOADS[seen.workload].fall_s > 0 and seen.is_back_at(1)
    return {
        "workload": seen.workload,
        "side": seen.side,
        "run": run,
        "makespan_s": round(seen.makespan_s, 1),
        "worker_seconds": round(seen.worker_seconds()),
        **({"in_all": round(seen.worker_seconds(in_all=True))} if is_down else {}),
        **({"wave_s": round(max(seen.waves_s[1:]), 1)} if seen.waves_s else {}),
        "redone": tally.repeated,
        "killed": tally.interrupted,
        "wrong_group": seen.wrong_group(),
        "direction_changes": seen.direction_changes(),
        "all_there_s": seen.reached_s(min(6, WORKLOADS[seen.workload].maximum)),
        "peak": max((row[1] for row in seen.samples), default=0),
        "tasks": tally.tasks,
        "note": seen.note,
        "code": digest("upstream"),
        "samples": [[round(t, 1), made, on - others] for t, made, on, others in seen.samples],
    }


async def _both(api: KubeApi, admin: Kubectl, name: str, run: int) -> list[dict[str, Any]]:
    """At the same time, so that the machine is as busy for the one as for the other."""
    sides = SIDES if run % 2 == 0 else SIDES[::-1]
    runs = [one_run(api, admin, name, side) for side in sides]
    if WORKLOADS[name].node_room:  # the one must not take the other's room
        seen = [await each for each in runs]
    else:
        seen = list(await asyncio.gather(*runs))
    return [_line(each, run) for each in seen]


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("workloads", nargs="*", default=list(WORKLOADS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks/upstream.jsonl"))
    options = parser.parse_args()
    unknown = set(options.workloads) - set(WORKLOADS)
    if unknown:
        parser.error(f"no workload {', '.join(sorted(unknown))}; there are {', '.join(WORKLOADS)}")
    admin = Kubectl(os.environ["KUBECONFIG"])
    api = await KubeApi.connect()
    lines: list[dict[str, Any]] = []
    for run in range(options.repeats):
        for name in options.workloads:
            for line in await _both(api, admin, name, run):
                lines.append(line)
                told = {k: v for k, v in line.items() if k != "samples"}
                print(json.dumps(told), flush=True)
            take_over(options.out, lines, itemgetter("workload", "side"))
    await api.close()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
