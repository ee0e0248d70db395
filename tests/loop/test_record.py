"""What `record` writes of a real scheduler."""

from __future__ import annotations

import json
from pathlib import Path

from distributed import Client, Scheduler, Worker

from dask_adaptive.loop.join import join
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import ObservedGroup, PlatformView, PlatformWorker
from dask_adaptive.scheduler.link import ReadOnlyLink
from dask_adaptive_agent.loading.attach import install
from dask_adaptive_lab.trace import TraceFile, read_trace
from support.tasks import slow


async def test_a_trace_of_a_real_scheduler_holds_no_key_and_no_address(
    tmp_path: Path,
) -> None:
    key = ClusterKey("team", "etl")
    worker = PlatformWorker("w1", "uid", "etl-default", -4.0)
    view = PlatformView(groups=(ObservedGroup("etl-default", 1),), workers=(worker,))
    async with (
        Scheduler(port=0, dashboard=False, host="127.0.0.1") as s,
        Client(s.address, asynchronous=True) as client,
    ):
        install(s)
        there = ReadOnlyLink(s.address, timeout_s=5.0)
        with TraceFile(tmp_path / "t.jsonl", every_s=1.0, redact=True) as file:
            file.write(join(key, view, await there.observe(demand=True)))
            async with Worker(s.address, nthreads=2, name="w1"):
                futures = client.map(slow, range(4), seconds=0.2, pure=False, key="customer")
                file.write(join(key, view, await there.observe(demand=True)))
                await client.gather(futures)
                file.write(join(key, view, await there.observe(demand=True)))
        await there.close()
    text = (tmp_path / "t.jsonl").read_text()
    trace = read_trace(text.splitlines())

    assert 3 == len(trace.samples)
    assert ((1, 2), 4.0) == (
        (trace.samples[1].groups[0].connected, trace.samples[1].groups[0].threads),
        trace.samples[1].arrived[0][1],
    )
    for secret in ("customer", "127.0.0.1", "slow", "etl"):
        assert secret not in text
    assert all(json.loads(line) for line in text.splitlines())
