"""
The commands that ask a scheduler: a real one, with the agent, beside a real API server.

Only `kubectl port-forward` is stood in for: there is no node here that has a scheduler's pod.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from distributed import Client, Worker

from dask_adaptive.cli.main import cli
from dask_adaptive_lab.local import LocalScheduler
from dask_adaptive_lab.trace import read_trace
from support.kube_bodies import cluster_of_one
from support.kube_server import FORWARDS, ROOT, Kubectl, stand_in_kubectl
from support.tasks import slow

Run = Callable[..., Awaitable[Result]]


@pytest.fixture
async def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    """Of a scheduler that `kubectl port-forward` leads to."""
    scheduler = LocalScheduler(tmp_path)
    await scheduler.start()
    port = scheduler.address.rpartition(":")[2]
    stand_in_kubectl(tmp_path, FORWARDS.format(port=port), monkeypatch)
    try:
        async with Client(scheduler.address, asynchronous=True) as made:
            yield made
    finally:
        await scheduler.process.end()


@pytest.fixture
def run(run: Callable[..., Result], demo: None, kubectl: Kubectl, client: Client) -> Run:
    """Of a cluster with worker w1, as upstream's operator would make it."""
    kubectl.apply(*cluster_of_one("w1", name="demo")[1:])
    return lambda *words: asyncio.to_thread(run, *words)


async def unfinished(client: Client) -> int:
    def count(dask_scheduler: Any) -> int:  # sent as it is: the scheduler can't import this file
        return sum(ts.state != "memory" for ts in dask_scheduler.tasks.values())

    return int(await client.run_on_scheduler(count))


async def recorded(path: Path, kubectl: Kubectl, *, samples: int) -> None:
    """Record in a process of its own until so many samples are there; then Ctrl-C."""
    command = [sys.executable, "-m", "dask_adaptive.cli.main", "record", "demo", "-f", str(path),
               "--every", "200ms", "-n", kubectl.namespace]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    for _ in range(900):
        if path.exists() and path.read_text().count("\n") > samples:
            break
        assert process.poll() is None, process.communicate()[1]
        await asyncio.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, said = await asyncio.to_thread(process.communicate, timeout=20)
    assert process.returncode == 0, said
    assert "samples in" in said


async def test_record_until_ctrl_c_and_simulate(
    run: Run, client: Client, kubectl: Kubectl, tmp_path: Path
) -> None:
    path = tmp_path / "trace.jsonl"
    async with Worker(client.scheduler.address, name="w1", nthreads=2):
        futures = client.map(slow, range(30), seconds=4, pure=False)
        await recorded(path, kubectl, samples=6)
        assert await unfinished(client), "recorded while there was work"
    trace = read_trace(path.read_text().splitlines())

    assert {0, 1} >= {s.groups[0].connected for s in trace.samples}
    assert max(s.unfinished for s in trace.samples) > 0
    policy = str(ROOT / "manifests/examples/policy.yaml")
    told = CliRunner().invoke(cli, ["simulate", policy, "--trace", str(path), "-o", "json"])
    figures = json.loads(told.output)["runs"][1]["figures"]
    assert (0, 0, len(futures)) == (figures["redone"], figures["unfinished"], 30)


async def test_explain_names_each_worker(run: Run, client: Client, kubectl: Kubectl) -> None:
    status = {"status": {"connected": 1, "desiredReplicas": 0, "reason": "NoCandidates"}}
    kubectl("patch", "dap", "demo", "--subresource=status", "--type=merge", "-p",
            json.dumps(status))  # fmt: skip
    async with Worker(client.scheduler.address, name="w1", nthreads=1):
        future = client.submit(slow, 1, seconds=20, pure=False)
        answer: dict[str, Any] = {}
        for _ in range(50):
            told = await run("explain", "demo", "-o", "json")
            answer = json.loads(told.output)
            if any(row["reason"] == "Busy" for row in answer["workers"]):
                break
        (row,) = answer["workers"]
        assert ("w1", "Busy", "when its tasks are done") == (
            row["worker"], row["reason"], row["ends"],
        )  # fmt: skip
        assert "the scheduler was not asked" not in answer["facts"]
        await future.cancel()
