"""Loads that are taken off schedulers, and Dask's configuration: as a policy says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import dask.config

from support.e2e_cluster import LiveCluster
from support.e2e_tasks import ranked
from support.e2e_tools import dask_adaptive

Start = Callable[..., Awaitable[LiveCluster]]

TTL = "distributed.scheduler.worker-ttl"


def worker_ttl(value: str) -> dict[str, Any]:
    return {"distributed": {"scheduler": {"worker-ttl": value}}}


async def states(c: LiveCluster) -> dict[str, str]:
    """Of each relief, as the status says."""
    rows = ((await c.status()).get("scheduler") or {}).get("relief") or []
    return {row["name"]: row["state"] for row in rows}


async def in_scheduler(c: LiveCluster, key: str) -> Any:
    """A value of Dask's configuration, where the scheduler runs."""
    return await c.client.run_on_scheduler(dask.config.get, key)


async def until_state(c: LiveCluster, name: str, state: str) -> None:
    async def is_so() -> bool:
        return (await states(c)).get(name) == state

    await c.until(is_so, f"relief {name} is {state}")


async def until_configured(c: LiveCluster, status: str, reason: str) -> None:
    async def is_so() -> bool:
        return await c.condition("SchedulerConfigured") == (status, reason)

    await c.until(is_so, f"SchedulerConfigured is {status}, {reason}")


async def test_a_scheduler_begins_with_the_reliefs_and_the_configuration_of_its_policy(
    start: Start,
) -> None:
    scheduler = {
        "relief": {"pickling": "Shared", "clientInfo": "Disabled"},
        "config": worker_ttl("10m"),
    }
    c = await start(policy={"minReplicas": 2, "scheduler": scheduler})
    await c.until_connected(2)

    assert "10m" == await in_scheduler(c, TTL)
    containers = (await c.scheduler_pod())["spec"]["containers"]
    env = {e["name"]: e.get("value") for e in containers[0]["env"]}
    assert {"pickling=Shared", "clientInfo=Disabled"} == set(env["DASK_ADAPTIVE_RELIEF"].split(","))
    await until_state(c, "pickling", "Active")
    assert {"clientInfo": "Disabled", "idle": "Active"}.items() <= (await states(c)).items()
    await until_configured(c, "True", "Reconciled")

    # Large, the same for all tasks, and of a class that costs: what sharing is for.
    paths = [PurePosixPath("/data") / f"{i:06d}.parquet" for i in range(2_000)]
    futures = c.client.map(partial(ranked, paths), range(200), pure=False)
    assert [str(paths[i]) for i in range(200)] == await c.client.gather(futures)
    assert (200, 200, 0) == await c.counts()
    said = await dask_adaptive(c, "explain", "c")
    assert "pickling" in said
    assert "ranked" in said  # what it has cost to serialize, by function


async def test_a_policy_changes_what_can_be_changed_live_and_says_what_waits(start: Start) -> None:
    c = await start(policy={"minReplicas": 1})
    await c.until_connected(1)
    await until_state(c, "pickling", "Active")
    pod, session = (await c.scheduler_pod())["metadata"]["uid"], (await c.observe()).session

    await c.edit(scheduler={"relief": {"pickling": "Disabled"}, "config": worker_ttl("20m")})
    await until_state(c, "pickling", "Disabled")
    await until_configured(c, "False", "PendingRestart")
    assert session == (await c.observe()).session
    assert pod == (await c.scheduler_pod())["metadata"]["uid"]
    assert list(range(1, 9)) == await c.client.gather(c.client.map(lambda x: x + 1, range(8)))

    # Nothing but a person restarts a scheduler; the next one has what waited.
    await c.close()
    await c.kubectl("delete", "pod", (await c.scheduler_pod())["metadata"]["name"])
    await until_configured(c, "True", "Reconciled")
    await c.open()
    assert "20m" == await in_scheduler(c, TTL)
    assert "Disabled" == (await states(c))["pickling"]


async def test_configuration_that_dask_does_not_know_is_a_warning_and_nothing_worse(
    start: Start,
) -> None:
    config = {"distributed": {"scheduler": {"wroker-ttl": "10m", "worker-ttl": "10m"}}}
    c = await start(policy={"minReplicas": 1, "scheduler": {"config": config}})
    await c.until_connected(1)

    await until_configured(c, "False", "ConfigUnknown")
    conditions = {k["type"]: k for k in (await c.status())["conditions"]}
    assert "distributed.scheduler.wroker-ttl" in conditions["SchedulerConfigured"]["message"]
    assert ("True", "Reconciled") == await c.condition("Ready")
    assert "10m" == await in_scheduler(c, TTL)
    assert 2 == await c.client.submit(lambda: 2)
