"""What `record` writes of a real scheduler."""

from __future__ import annotations

import json
from pathlib import Path

from distributed import Client, Scheduler, Worker

from dask_adaptive.cli.record import Tape, Wish
from dask_adaptive.loop.join import join
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import PlatformGroup, PlatformView, PlatformWorker
from dask_adaptive.model.trace import read_trace
from dask_adaptive.scheduler.look import Lookout
from dask_adaptive_agent.attach import install
from support.tasks import slow


async def test_a_tape_of_a_real_scheduler_holds_no_key_and_no_address(
    tmp_path: Path,
) -> None:
    key = ClusterKey("team", "etl")
    worker = PlatformWorker("w1", "uid", "etl-default", 4.0)
    view = PlatformView(groups=(PlatformGroup("etl-default", 1),), workers=(worker,))
    wish = Wish(key, 1.0, None, redact=True)
    async with (
        Scheduler(port=0, dashboard=False, host="127.0.0.1") as s,
        Client(s.address, asynchronous=True) as client,
    ):
        install(s)
        there = Lookout(s.address, timeout_s=5.0)
        with Tape(tmp_path / "t.jsonl", wish) as tape:
            tape.write(join(key, view, await there.look(demand=True)))
            async with Worker(s.address, nthreads=2, name="w1"):
                futures = client.map(slow, range(4), seconds=0.2, pure=False, key="customer")
                tape.write(join(key, view, await there.look(demand=True)))
                await client.gather(futures)
                tape.write(join(key, view, await there.look(demand=True)))
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
