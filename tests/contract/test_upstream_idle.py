"""`spec.idleTimeout` of a DaskCluster: what dask-kubernetes 2026.3.0 does to a scheduler for it."""

from __future__ import annotations

import asyncio
from typing import Any

from distributed import Client, Event, Scheduler, Status, Worker
from distributed.core import rpc
from distributed.protocol.pickle import dumps
from distributed.utils_test import gen_cluster

from support.tasks import held


def _idle_since(dask_scheduler: Any) -> Any:
    """The last resort of `check_scheduler_idle` in dask_kubernetes/operator/controller."""
    if not dask_scheduler.idle_timeout:
        dask_scheduler.idle_timeout = 300
    dask_scheduler.check_idle()
    assert dask_scheduler.idle_since
    return dask_scheduler.idle_since


@gen_cluster(client=True)
async def test_a_busy_scheduler_is_told_to_close_itself_when_idle(
    c: Client, s: Scheduler, a: Worker, b: Worker
) -> None:
    running = c.submit(held, 0, event="go")
    while not any(ws.processing for ws in s.workers.values()):
        await asyncio.sleep(0.01)
    async with rpc(s.address) as upstream:
        assert s.idle_timeout is None
        assert await upstream.check_idle() is None  # float(None) fails: so it tries the next way
        await upstream.run_function(function=dumps(_idle_since))
        assert 300 == s.idle_timeout

        await Event("go", client=c).set()
        await running
        s.idle_timeout = 0.01  # five minutes later
        while s.status == Status.running:
            await upstream.check_idle()
            await asyncio.sleep(0.05)
