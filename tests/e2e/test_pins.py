"""Pins of people and of shuffles."""

from __future__ import annotations

import json
from typing import Any

from distributed import Event

from support.e2e_cluster import Start
from support.e2e_objects import autoscaler
from support.tasks import shuffled

PIN = "dask-adaptive.dev/pin"


async def test_a_pinned_worker_is_the_last_to_stay_and_explain_says_why(start: Start) -> None:
    c = await start(policy={"minReplicas": 3})
    await c.until_connected(3)
    keep = min(await c.connected())
    pod = await c.pod_of(keep)
    await c.kubectl("annotate", "pod", pod, f"{PIN}=10m", f"{PIN}-reason=a long debugging session")
    await c.until_event("PinChanged", keep)
    await c.edit(minReplicas=0)
    await c.until_settled(1)

    assert {keep} == await c.connected()
    assert 1 == (await c.status())["pinned"]
    assert ["manual"] == [row["source"] for row in (await c.status())["heldBy"]]
    said = await c.dask_adaptive("explain", f"pod/{pod}")
    assert "annotation (a long debugging session" in said
    answer = json.loads(await c.dask_adaptive("explain", c.name, "-o", "json"))
    assert ["manual"] == [pin["source"] for pin in answer["pins"]]

    await c.kubectl("annotate", "pod", pod, f"{PIN}-")
    await c.until_event("PinChanged", f"Unpinning {keep}")
    await c.until_settled(0)


async def test_a_shuffle_runs_once_while_upstreams_autoscaler_wants_fewer_workers(
    start: Start,
) -> None:
    c = await start(policy=None, replicas=3)
    await c.apply(autoscaler(c.name, minimum=3, maximum=3))
    await c.until_connected(3)
    event = Event("upstream has acted", client=c.client)
    future: Any = c.client.compute(shuffled(event.name))

    async def is_running() -> bool:
        return bool((await c.observe()).shuffles)

    await c.until(is_running, "the shuffle has begun")
    taking_part = await c.connected()
    await c.apply(autoscaler(c.name, minimum=1, maximum=1))

    async def is_wanted_smaller() -> bool:
        return await c.replicas() == 1

    await c.until(is_wanted_smaller, "upstream's autoscaler wants one worker")
    assert await is_running()
    await c.throughout(6.0, lambda: c.are_connected(taking_part), "upstream takes no worker")
    await event.set()
    found = await future

    assert taking_part == await c.connected()
    assert sum(range(12_000)) == found["total"].sum()
    tally = await c.tally()
    assert (1, 1, 0) == (tally.shuffles, tally.max_shuffle_run, tally.redone)


async def test_a_shuffle_outlives_the_lifetime_of_its_workers(start: Start) -> None:
    lifetime = ["--lifetime", "20s", "--lifetime-stagger", "3s", "--lifetime-restart"]
    c = await start(policy={"minReplicas": 3}, args=lifetime)
    await c.until_connected(3)
    before = {w.address for w in (await c.observe()).workers}
    event = Event("a lifetime is over", client=c.client)
    future: Any = c.client.compute(shuffled(event.name))

    async def has_waited() -> bool:
        departing = [w for w in (await c.observe()).workers if w.terminating]
        return bool(departing and (await c.observe()).shuffles)

    await c.until(has_waited, "a worker's lifetime is over, and the shuffle runs")
    await event.set()
    found = await future

    assert (12_000, sum(range(12_000))) == (found["rows"].sum(), found["total"].sum())

    async def are_new() -> bool:
        now = {w.address for w in (await c.observe()).workers}
        return bool(now) and not now & before

    await c.until(are_new, "all workers have been replaced")
    assert (12_000, sum(range(12_000))) == (found["rows"].sum(), found["total"].sum())
    tally = await c.tally()
    assert (1, 1, 0) == (tally.shuffles, tally.max_shuffle_run, tally.redone)
