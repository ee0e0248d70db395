"""Pins: of people, of shuffles, of code; and what ends them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from distributed import Event

from support.e2e_cluster import LiveCluster
from support.e2e_objects import autoscaler
from support.e2e_tasks import rechunked, shuffled
from support.e2e_tools import dask_adaptive
from support.kube_server import ROOT

Start = Callable[..., Awaitable[LiveCluster]]

PIN = "dask-adaptive.dev/pin"


async def test_a_pinned_worker_is_the_last_to_stay_and_explain_says_why(start: Start) -> None:
    c = await start(policy={"minReplicas": 3})
    await c.until_connected(3)
    keep = min(await c.connected())
    pod = await c.pod_of(keep)
    await c.kubectl("annotate", "pod", pod, f"{PIN}=10m", f"{PIN}-reason=a long debugging session")
    await c.until_event("PinRequested", keep)
    await c.edit(minReplicas=0)
    await c.until_settled(1)

    assert {keep} == await c.connected()
    assert 1 == (await c.status())["pinned"]
    assert [{"source": "manual", "workers": 1}] == (await c.status())["pins"]
    said = await dask_adaptive(c, "explain", pod)
    assert "Pinned: pinned by annotation (a long debugging session" in said
    answer = json.loads(await dask_adaptive(c, "explain", c.name, "-o", "json"))
    assert ["held by manual", "1"] in answer["facts"]

    await c.kubectl("annotate", "pod", pod, f"{PIN}-")
    await c.until_event("PinRemoved", keep)
    await c.until_settled(0)


async def test_a_malformed_pin_pins_and_an_event_says_how_to_mend_it(start: Start) -> None:
    c = await start(policy={"minReplicas": 2})
    await c.until_connected(2)
    keep = max(await c.connected())
    pod = await c.pod_of(keep)
    await c.kubectl("annotate", "pod", pod, f"{PIN}=four hours")
    event = await c.until_event("InvalidPin", keep)
    await c.edit(minReplicas=0)
    await c.until_settled(1)

    assert {keep} == await c.connected()
    assert "Warning" == event["type"]
    assert "a duration such as 4h" in event["message"]
    assert "InvalidPin" in await dask_adaptive(c, "explain", pod)

    await dask_adaptive(c, "unpin", pod)
    await c.until_settled(0)


@pytest.mark.parametrize("work", [shuffled, rechunked])
async def test_a_shuffle_runs_once_while_upstreams_autoscaler_wants_fewer_workers(
    start: Start, work: Callable[..., Any]
) -> None:
    c = await start(policy=None, replicas=3)
    await c.apply(autoscaler(c.name, minimum=3, maximum=3))
    await c.until_connected(3)
    event = Event("upstream has acted", client=c.client)
    future: Any = c.client.compute(work(slow_s=2.0, event=event.name))

    async def is_running() -> bool:
        return bool((await c.observe()).shuffles)

    await c.until(is_running, "the shuffle has begun")
    taking_part = await c.connected()
    await c.apply(autoscaler(c.name, minimum=1, maximum=1))

    async def is_wanted_smaller() -> bool:
        return await c.replicas() == 1

    await c.until(is_wanted_smaller, "upstream's autoscaler wants one worker")
    assert await is_running()
    await c.throughout(12.0, lambda: _are_connected(c, taking_part), "upstream takes no worker")
    await event.set()
    found = await future

    assert taking_part == await c.connected()
    total = found["total"].sum() if work is shuffled else found
    assert (sum(range(12_000)) if work is shuffled else 12 * 1200) == total
    tally = (await c.observe()).tally
    assert tally is not None
    assert (1, 1, 0) == (tally.shuffles, tally.max_shuffle_run, tally.redone)


async def test_a_shuffle_outlives_the_lifetime_of_its_workers(start: Start) -> None:
    lifetime = ["--lifetime", "25s", "--lifetime-stagger", "5s", "--lifetime-restart"]
    c = await start(policy=None, replicas=3, args=lifetime)
    await c.until_connected(3)
    before = {w.address for w in (await c.observe()).workers}
    future: Any = c.client.compute(shuffled(slow_s=16.0))

    async def has_waited() -> bool:
        departing = [w for w in (await c.observe()).workers if w.departing]
        return bool(departing and (await c.observe()).shuffles)

    await c.until(has_waited, "a worker's lifetime is over, and the shuffle runs")
    found = await future

    assert (12_000, sum(range(12_000))) == (found["rows"].sum(), found["total"].sum())

    async def are_new() -> bool:
        now = {w.address for w in (await c.observe()).workers}
        return bool(now) and not now & before

    await c.until(are_new, "all workers have been replaced")
    assert (12_000, sum(range(12_000))) == (found["rows"].sum(), found["total"].sum())
    tally = (await c.observe()).tally
    assert tally is not None
    assert (1, 1, 0) == (tally.shuffles, tally.max_shuffle_run, tally.redone)


PINNING = """
import sys, time
from distributed import Client
from dask_adaptive_agent import pinned

client = Client(sys.argv[1])
with pinned(workers=[sys.argv[2]], ttl="15s", reason="a notebook"):
    print("pinned", flush=True)
    time.sleep(600)
"""


async def test_pins_of_a_killed_client_end_within_their_ttl(start: Start) -> None:
    c = await start(policy={"minReplicas": 2})
    await c.until_connected(2)
    keep = min(await c.connected())
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PINNING, c.client.scheduler.address, keep,
        stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT / "operator")},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert b"pinned\n" == await asyncio.wait_for(process.stdout.readline(), 60)
        await c.edit(minReplicas=0)
        await c.until_settled(1)
        await c.throughout(20.0, lambda: _are_connected(c, {keep}), "renewed beyond its TTL")
        assert "a notebook" in await dask_adaptive(c, "pins", c.name)
        assert "client" in await c.annotation(keep, "pinned-by")
    finally:
        process.kill()
        await process.wait()
    killed_at = time.monotonic()
    await c.until_settled(0)

    assert time.monotonic() - killed_at < 60  # TTL, idleTimeout, drain, and the pod's own end
    assert "No pins" in await dask_adaptive(c, "pins", c.name)


async def _are_connected(c: LiveCluster, names: set[str]) -> bool:
    return names == await c.connected()


async def test_pins_are_back_within_a_pass_when_the_scheduler_was_killed(start: Start) -> None:
    c = await start(policy={"minReplicas": 2})
    await c.until_connected(2)
    keep = max(await c.connected())
    await c.kubectl("annotate", "deployment", keep, f"{PIN}=1h")
    await c.until_event("PinRequested", keep)
    scheduler = (await c.scheduler_pod())["metadata"]["name"]
    await c.kubectl("delete", "pod", scheduler, "--grace-period=0", "--force")

    async def is_pinned_again() -> bool:
        workers = {w.name: w for w in (await c.observe()).workers}
        return keep in workers and bool(workers[keep].pins)

    await c.until(is_pinned_again, "the new scheduler's agent knows of the pin")
    await c.edit(minReplicas=0)
    await c.until_settled(1)
    assert {keep} == await c.connected()

    pod = await c.pod_of(keep)
    await c.kubectl("delete", "pod", pod, "--wait=false")
    await c.kubectl("annotate", "deployment", keep, f"{PIN}-")
    await c.until_settled(0)
    assert "No pins" in await dask_adaptive(c, "pins", c.name)
