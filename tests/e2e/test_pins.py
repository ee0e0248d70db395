"""Pins that people set on pods."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

from support.e2e_cluster import LiveCluster
from support.e2e_tools import dask_adaptive

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
