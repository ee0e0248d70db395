"""
Advice beside what then happens: record, predict, measure, follow the advice, measure again.

    make bench-recommend                         on this machine, in rehearsals: about 7 minutes
    make bench-recommend WORKLOADS="waves"
    make bench-recommend KUBECONFIG=FILE         on a node with both operators

Writes the figures in docs/contributing/benchmarks.md.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.pages import FOLDER, filled, into_readme, table
from dask_adaptive.kube.api import KubeApi
from dask_adaptive.model.policy import parse_policy
from dask_adaptive_lab.local import Machine
from dask_adaptive_lab.rehearse.rehearsal import rehearse
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

Measure = Callable[[str, dict[str, Any]], Trace]


def locally(name: str, spec: dict[str, Any]) -> Trace:
    """Run a workload in a rehearsal on this machine."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path = Path(folder) / "trace.jsonl"
        code, _ = rehearse(
            parse_policy(spec), [str(HERE / "workloads.py"), name], Path(folder), Machine(16, 1),
            name="policy.yaml", trace=path,
        )  # fmt: skip
        if code:
            raise SystemExit(f"{name} ended with {code}")
        return read_trace(path.read_text().splitlines())


def on_a_node(name: str, spec: dict[str, Any]) -> Trace:
    """Run a workload in a cluster of its own on the node that KUBECONFIG names."""
    return asyncio.run(_on_a_node(name, spec))


async def _on_a_node(name: str, spec: dict[str, Any]) -> Trace:
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
    words = ["record", "c", "-n", c.namespace, "-o", str(path)]
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


def rows_of(name: str, measure: Measure) -> Iterator[list[str]]:
    """Measure twice, before and after the advice; one row of the table each."""
    first = measure(name, TODAY)
    tried = search(TODAY, [first], limit=TRIES)
    yield _row(name, "before", tried[0].total(), first, {})
    advice = advise(tried)
    # The first is the cheapest: what most would take.
    changes = next((dict(one.changes) for one in advice.values()), {})
    second = measure(name, changed(TODAY, changes))
    yield _row(
        "", "after", result_of(first, parse_policy(changed(TODAY, changes))), second, changes
    )


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
    chosen = parser.parse_args().workloads
    node = bool(os.environ.get("KUBECONFIG"))
    rows = []
    for name in chosen:
        for row in rows_of(name, on_a_node if node else locally):
            print(*row, flush=True)
            rows.append(row)
    where = "on a node" if node else "on one machine, in rehearsals"
    lines = filled(__file__, where=where, rows=table(COLUMNS, rows, texts=3))
    into_readme("recommend", lines, FOLDER.parent / "contributing/benchmarks.md")


if __name__ == "__main__":
    main()
