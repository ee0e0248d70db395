"""How the agent gets into schedulers, what it does there, and what their end costs."""

from __future__ import annotations

import json
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import dask.config

from dask_adaptive_agent import __version__
from support.e2e_cluster import LiveCluster, Start
from support.kube_server import Kubectl
from support.tasks import ranked, result

INJECT, INJECTED = "dask-adaptive.dev/inject", "dask-adaptive.dev/injected"
PIN = "dask-adaptive.dev/pin"
TTL = "distributed.scheduler.worker-ttl"


async def test_in_a_namespace_that_refuses_the_agent_only_the_minimum_is_kept(
    start: Start, kubectl: Kubectl
) -> None:
    kubectl("annotate", "namespace", kubectl.namespace, f"{INJECT}=false")
    c = await start(policy=None, tally=False)
    assert INJECTED not in (await c.scheduler_pod())["metadata"].get("annotations", {})
    await c.govern(minReplicas=2)

    async def are_kept() -> bool:
        return 2 == await c.replicas()

    await c.until_condition("Injected", "False", "InjectionRefused")
    assert ("False", "InjectionRefused") == await c.condition("Ready")
    await c.until(are_kept, "as many as minReplicas")
    await c.edit(minReplicas=0)
    await c.throughout(8.0, are_kept, "no worker leaves")


async def test_a_scheduler_that_is_gone_takes_no_worker_with_it_and_no_pin(start: Start) -> None:
    c = await start(policy={"minReplicas": 2})
    await c.until_connected(2)
    keep = max(await c.connected())
    await c.kubectl("annotate", "deployment", keep, f"{PIN}=1h")
    await c.until_event("PinChanged", keep)
    workers, session = await c.deployments(), (await c.observe()).session
    await c.close()
    await c.kubectl("scale", "deployment", "c-scheduler", "--replicas=0")

    async def are_there() -> bool:
        return (workers, 2) == (await c.deployments(), await c.replicas())

    await c.until_condition("SchedulerConnected", "False", "SchedulerUnreachable")
    await c.edit(minReplicas=0)
    await c.throughout(8.0, are_there, "the workers are untouched for four times idleTimeout")

    await c.edit(minReplicas=2)
    await c.kubectl("scale", "deployment", "c-scheduler", "--replicas=1")
    await c.until_ready()
    await c.open()
    await c.until_connected(2)
    assert workers == await c.deployments()
    assert session != (await c.observe()).session
    await c.until(lambda: c.is_pinned(keep), "the new scheduler's agent knows of the pin")
    assert ("True", "Reconciled") == await c.condition("Injected")
    futures = c.client.map(result, range(8), seconds=0.5, pure=False)
    assert 8 == len(await c.client.gather(futures))
    assert (8, 8, 0) == await c.counts()
    del futures
    await c.edit(minReplicas=0)
    await c.until_settled(1)
    assert {keep} == await c.connected()

    # While its pod is between two lives, the pin is taken away.
    await c.kubectl("delete", "pod", await c.pod_of(keep), "--wait=false")
    await c.kubectl("annotate", "deployment", keep, f"{PIN}-")
    await c.until_settled(0)
    assert [] == json.loads(await c.dask_adaptive("explain", c.name, "-o", "json"))["pins"]


def worker_ttl(value: str) -> dict[str, Any]:
    return {"distributed": {"scheduler": {"worker-ttl": value}}}


async def states(c: LiveCluster) -> dict[str, str]:
    """Of each relief, as the status says."""
    return ((await c.status()).get("scheduler") or {}).get("relief") or {}


async def in_scheduler(c: LiveCluster, key: str) -> Any:
    """A value of Dask's configuration, where the scheduler runs."""
    return await c.client.run_on_scheduler(dask.config.get, key)


async def until_state(c: LiveCluster, name: str, state: str) -> None:
    async def is_so() -> bool:
        return (await states(c)).get(name) == state

    await c.until(is_so, f"relief {name} is {state}")


async def test_reliefs_and_configuration_are_what_the_policy_says_and_some_change_live(
    start: Start,
) -> None:
    scheduler: dict[str, Any] = {
        "relief": {"pickling": "Shared", "clientInfo": "Disabled"},
        "config": worker_ttl("10m"),
    }
    c = await start(policy={"minReplicas": 2, "scheduler": scheduler})
    await c.until_connected(2)

    # Only the webhook can have brought the agent: it began with the configuration.
    pod, session = await c.scheduler_pod(), (await c.observe()).session
    assert __version__ == pod["metadata"]["annotations"][INJECTED]
    assert __version__ == (await c.observe()).agent
    assert "10m" == await in_scheduler(c, TTL)
    env = {e["name"]: e.get("value") for e in pod["spec"]["containers"][0]["env"]}
    assert {"pickling=Shared", "clientInfo=Disabled"} == set(env["DASK_ADAPTIVE_RELIEF"].split(","))
    await until_state(c, "pickling", "Active")
    assert "Disabled" == (await states(c))["clientInfo"]
    await c.until_condition("SchedulerConfigured", "True", "Reconciled")

    # Large, the same for all tasks, and of a class that costs: what sharing is for.
    paths = [PurePosixPath("/data") / f"{i:06d}.parquet" for i in range(2_000)]
    futures = c.client.map(partial(ranked, paths), range(200), pure=False)
    assert [str(paths[i]) for i in range(200)] == await c.client.gather(futures)
    assert (200, 200, 0) == await c.counts()
    said = await c.dask_adaptive("explain", "c")
    assert "pickling" in said
    assert "ranked" in said  # what it has cost to serialize, by function

    scheduler["relief"]["pickling"], scheduler["config"] = "Disabled", worker_ttl("20m")
    await c.edit(scheduler=scheduler)
    await until_state(c, "pickling", "Disabled")
    await c.until_condition("SchedulerConfigured", "False", "PendingRestart")
    assert session == (await c.observe()).session
    assert pod["metadata"]["uid"] == (await c.scheduler_pod())["metadata"]["uid"]

    # Nothing but a person restarts a scheduler; the next one has what waited.
    del futures
    await c.close()
    await c.kubectl("delete", "pod", pod["metadata"]["name"])
    await c.until_condition("SchedulerConfigured", "True", "Reconciled")
    await c.open()
    assert "20m" == await in_scheduler(c, TTL)
    assert "Disabled" == (await states(c))["pickling"]
