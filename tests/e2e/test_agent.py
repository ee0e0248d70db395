"""How the agent gets into schedulers, and what happens where it may not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from distributed import Event

from dask_adaptive_agent import __version__
from support.e2e_cluster import LiveCluster
from support.e2e_tasks import held, logged, result
from support.kube_server import Kubectl

Start = Callable[..., Awaitable[LiveCluster]]

INJECT, INJECTED = "dask-adaptive.dev/inject", "dask-adaptive.dev/injected"


async def test_a_scheduler_has_the_agent_from_the_start(start: Start) -> None:
    c = await start(policy=None)  # nobody attaches it: only the webhook can have brought it

    pod = await c.scheduler_pod()
    assert __version__ == pod["metadata"]["annotations"][INJECTED]
    observed = await c.observe()
    assert (__version__, None) == (observed.agent, observed.problem)


async def test_a_namespace_that_refuses_the_agent_is_served_by_stock_rpc(
    start: Start, kubectl: Kubectl
) -> None:
    kubectl("annotate", "namespace", kubectl.namespace, f"{INJECT}=false")
    c = await start(tally=False)
    assert INJECTED not in (await c.scheduler_pod())["metadata"].get("annotations", {})
    assert ("False", "InjectionRefused") == await c.condition("Injected")

    first = await c.grow_to(3, tasks=12)
    names = [f"short-{i}" for i in range(12)]
    short = c.client.map(logged, names, seconds=1.0)
    long = c.client.submit(held, 7, "go")
    await c.client.gather(first)
    assert names == await c.client.gather(short)
    del first, short
    await c.until_settled(1)
    assert not long.done()
    await Event("go", c.client).set()
    assert b"\x07" == await long
    del long
    await c.until_settled(0)
    ran = [name for _, name in await c.client.get_events("ran")]
    assert sorted(names) == sorted(ran)


async def test_a_scheduler_that_is_gone_takes_no_worker_with_it(start: Start) -> None:
    c = await start(policy={"minReplicas": 2})
    other = await start("other", policy={"maxReplicas": 1})
    await c.until_connected(2)
    workers, session = await c.deployments(), (await c.observe()).session
    theirs = other.client.map(result, range(40), seconds=0.5, pure=False)

    await c.close()
    await c.kubectl("scale", "deployment", "c-scheduler", "--replicas=0")

    async def is_noticed() -> bool:
        return await c.condition("SchedulerConnected") == ("False", "SchedulerUnreachable")

    async def are_there() -> bool:
        return (workers, 2) == (await c.deployments(), await c.replicas())

    await c.until(is_noticed, "SchedulerConnected is False")
    await c.edit(minReplicas=0)
    await c.throughout(8.0, are_there, "the workers are untouched for four times idleTimeout")
    assert ("True", "Connected") == await other.condition("SchedulerConnected")
    assert 40 == len(await other.client.gather(theirs))

    await c.edit(minReplicas=2)
    await c.kubectl("scale", "deployment", "c-scheduler", "--replicas=1")
    await c.until_ready()
    await c.open()
    await c.until_connected(2)
    assert workers == await c.deployments()
    assert ("True", "Connected") == await c.condition("Injected")
    assert session != (await c.observe()).session
    futures = c.client.map(result, range(8), seconds=0.5, pure=False)
    assert 8 == len(await c.client.gather(futures))
    assert (8, 8, 0) == await c.counts()
    assert (40, 40, 0) == await other.counts()
