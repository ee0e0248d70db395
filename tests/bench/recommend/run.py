"""
Advice beside what then happens: record, predict, measure, follow the advice, measure again.

    make bench-recommend KUBECONFIG=FILE [WORKLOADS="waves"]

The node that KUBECONFIG names has both operators; it takes about 7 minutes.

Writes the figures in docs/contributing/benchmarks.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.pages import FOLDER, filled, into_readme, table
from dask_adaptive.kube.api import KubeApi
from dask_adaptive.model.policy import parse_policy
from dask_adaptive_lab.simulate.advice import Result, advise, changed, result_of, search
from dask_adaptive_lab.simulate.replay import recorded
from dask_adaptive_lab.trace import Trace, read_trace
from support.e2e_cluster import LiveCluster
from support.e2e_objects import adaptive_policy, dask_cluster
from support.kube_server import Kubectl, namespace

HERE = Path(__file__).parent
NAMES = ("burst-and-tail", "waves", "stages")

#: Before any advice: little room, and much patience.
TODAY = {"clusterRef": {"name": "c"}, "maxReplicas": 4, "idleTimeout": "30s"}

TRIES = 60

COLUMNS = (
    "workload", "", "policy", "makespan: predicted", "measured", "", "worker-seconds: predicted",
    "measured", "",
)  # fmt: skip


async def measured(name: str, spec: dict[str, Any]) -> Trace:
    """Run a workload in a cluster of its own on the node that KUBECONFIG names."""
    policy = adaptive_policy("c", **{k: v for k, v in spec.items() if k != "clusterRef"})
    async with contextlib.AsyncExitStack() as stack:
        kubectl = stack.enter_context(namespace(Kubectl(os.environ["KUBECONFIG"]), "bench"))
        api = await KubeApi.connect()
        stack.push_async_callback(api.close)
        c = LiveCluster(api, kubectl, "c")
        stack.push_async_callback(c.close)
        await c.create(dask_cluster("c", replicas=1), policy)
        await c.open(tally=False)
        return await _recorded(c, name)


async def _recorded(c: LiveCluster, name: str) -> Trace:
    path = Path(tempfile.mkdtemp()) / "trace.jsonl"
    words = ["record", "c", "-n", c.namespace, "-f", str(path)]
    recording = subprocess.Popen([Path(sys.executable).with_name("dask-adaptive"), *words])
    try:
        await c.until(path.exists, "the recording has begun")
        work = [sys.executable, str(HERE / "workloads.py"), name]
        environment = {**os.environ, "DASK_SCHEDULER_ADDRESS": c.client.scheduler.address}
        await asyncio.to_thread(subprocess.run, work, check=True, env=environment)
        await c.until_connected(0)
    finally:
        recording.send_signal(signal.SIGINT)
        recording.wait(30)
    return read_trace(path.read_text().splitlines())


def rows_of(name: str) -> Iterator[list[str]]:
    """Measure twice, before and after the advice; one row of the table each."""
    first = asyncio.run(measured(name, TODAY))
    tried = search(TODAY, [first], limit=TRIES)
    yield _row(name, "before", tried[0].total(), first, {})
    advice = advise(tried)
    # The first is the cheapest: what most would take.
    changes = next((dict(one.changes) for one in advice.values()), {})
    second = asyncio.run(measured(name, changed(TODAY, changes)))
    predicted = result_of(first, parse_policy(changed(TODAY, changes)))
    yield _row("", "after", predicted, second, changes)


def _row(
    name: str, when: str, predicted: Result, real: Trace, changes: dict[str, Any]
) -> list[str]:
    measured = recorded(real).figures
    policy = ", ".join(f"`{path}: {json.dumps(value)}`" for path, value in changes.items())
    cells = [name, when, policy.replace('"', "")]
    for said, was in (
        (predicted.makespan_s, measured.makespan_s), (predicted.worker_s, measured.worker_s),
    ):  # fmt: skip
        cells += [f"{said:.1f}", f"{was:.1f}", f"{said / was - 1:+.1%}"]
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", default=NAMES)
    rows = []
    for name in parser.parse_args().workloads:
        for row in rows_of(name):
            print(*row, flush=True)
            rows.append(row)
    lines = filled(__file__, rows=table(COLUMNS, rows, texts=3))
    into_readme("recommend", lines, FOLDER.parent / "contributing/benchmarks.md")


if __name__ == "__main__":
    main()
