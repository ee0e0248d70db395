"""What is killed at the worst moment: the loop at each step of a worker's leaving, and all else."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
from typing import Any

import pytest

from dask_adaptive.loop.ports import PlatformError
from dask_adaptive.model.observed import ManualPin, SchedulerWorker
from support.stage import Machines, Stage, Start
from support.tasks import slow, where


@pytest.mark.parametrize(
    ("port", "methods"),
    [
        ("link", ("retire", "retire")),  # begin to drain; ask again before deletion
        ("platform", ("delete_worker",)),
        ("platform", ("set_replicas",)),  # settle it
    ],
)
async def test_the_loop_dies_at_each_step_of_a_fall(
    stage: Start, port: str, methods: tuple[str, ...]
) -> None:
    s = await stage(workers=3)
    results = await s.work(12, 0.2)
    s.edit(minReplicas=1)
    await s.dies_at(port, *methods)
    s.go_on()
    more = await s.work(6, 0.2)
    del more
    await s.settled(1)
    await s.check(results)


@pytest.mark.parametrize("strategy", ["Surge", "InPlace"])
async def test_the_loop_dies_at_each_step_of_a_replacement(stage: Start, strategy: str) -> None:
    spec = {
        "maxReplicas": 2, "idleTimeout": "60s", "disruption": {"budgets": [{"workers": "100%"}]},
        "recycle": {"strategy": {"type": strategy}, "tasks": {"max": 1_000}},
    }  # fmt: skip
    s = await stage(workers=2, spec=spec)
    kept = s.client.map(where, range(10), seconds=0.05, pure=False)
    results = await s.client.gather(kept)
    running = s.client.map(slow, range(2), seconds=2, pure=False)
    victim = sorted(s.names())[0]
    uids = {w.name: w.pod_uid for w in (await s.rehearsal.platform.look()).workers}
    s.rehearsal.platform.annotate(victim, recycle_request="by annotation")
    if strategy == "Surge":
        await s.dies_at("platform", "set_replicas")  # asks for the replacement
        await s.dies_at("link", "limit", "retire", "retire")  # drain the old one; ask again
        await s.dies_at("platform", "delete_worker", "set_replicas")
    else:
        await s.dies_at("link", "limit", "retire", "retire")
        await s.dies_at("platform", "restart_worker")
    s.go_on()

    def is_replaced() -> bool:
        assert s.last is not None
        there = {w.platform.pod_uid for group in s.last.observed.groups for w in group.workers}
        return uids[victim] not in there

    await s.until(is_replaced, "the old process is gone")
    await s.settled(2)
    assert (victim in s.names()) is (strategy == "InPlace")
    assert results == await s.client.gather(kept)
    assert 2 == sum(await s.client.gather(running))
    assert (12, 12, 0) == await s.counts()
    assert s.recycled() in ({}, {"RecycleRequested": 1})
    for _ in range(3):
        await s.fresh_pass()
    assert 2 == s.status.connected


async def test_the_loop_dies_at_each_step_of_a_pin(stage: Start) -> None:
    """Whatever the agent was told: the next operator brings it in step with the annotation."""
    s = await stage(workers=2)
    keep = sorted(s.names())[0]
    s.rehearsal.platform.annotate(keep, manual_pin=ManualPin(time.time() + 600, "why not"))
    await s.dies_at("link", "pin")
    s.go_on()
    await s.until(lambda: [(keep,)] == [h.workers for h in s.status.held_by], "it is held")
    s.rehearsal.platform.annotate(keep, manual_pin=None)
    await s.dies_at("link", "unpin")
    s.go_on()
    await s.until(lambda: s.status.held_by == (), "nothing is pinned for ever")
    await s.change(minReplicas=0)
    await s.gone()


async def test_the_loop_dies_while_it_tells_of_the_end_of_a_worker(stage: Start) -> None:
    machines = Machines()
    s = await stage(workers=2, spec={"maxReplicas": 2}, wrap_ports=machines.wrap)
    kept = await s.work(12, 0.1)
    victim = sorted(s.names())[0]
    machines.ends_at[victim] = time.monotonic() + 60
    await s.dies_at("link", "leave")
    s.go_on()
    await s.until(lambda: bool(departing(s)) and not departing(s)[0].sole_bytes, "handed over")
    s.rehearsal.platform.process_of(victim).send(signal.SIGKILL)
    del machines.ends_at[victim]
    await s.until(lambda: s.status.connected == 2 and not departing(s), "replaced")
    await s.check(kept)


def departing(s: Stage) -> list[SchedulerWorker]:
    assert s.last is not None
    return [w for w in s.last.observed.scheduler.workers if w.terminating]


class Stubborn:
    """A platform that refuses to delete workers."""

    def __init__(self, platform: Any) -> None:
        self._platform = platform

    def __getattr__(self, name: str) -> Any:
        return getattr(self._platform, name)

    async def delete_worker(self, worker: str, uid: str) -> None:
        raise PlatformError(f"{worker} may not be deleted: quota of patience exceeded")


async def test_a_platform_that_refuses_costs_nothing(stage: Start) -> None:
    """The drained wait, the status says why, and when wanted again they work again."""
    s = await stage(workers=3, wrap_ports=lambda platform, link: (Stubborn(platform), link))
    await s.change(minReplicas=0)
    await s.until(lambda: s.status.retiring == 3, "all drained, none deleted")
    await s.until(lambda: s.condition("AbleToScale") is False, "it says so")
    assert "may not be deleted" in s.message("AbleToScale")

    await s.change(minReplicas=3)
    await s.until(lambda: s.status.retiring == 0, "back in service")
    await s.work(12, 0.1)
    assert "WantedAgain" in s.reasons()
    assert 3 == len(s.names())


async def test_a_killed_worker_is_replaced(stage: Start) -> None:
    s = await stage(workers=2, spec={"maxReplicas": 2})
    working = asyncio.ensure_future(s.work(20, 0.2))
    await s.until(lambda: s.status.busy == 2, "both work")
    s.rehearsal.platform.process_of(sorted(s.names())[0]).send(signal.SIGKILL)

    await working
    await s.connected(2)
    assert 2 == s.status.replicas


async def test_a_draining_worker_that_dies_is_not_waited_for(stage: Start) -> None:
    s = await stage(workers=2)
    await s.change(minReplicas=0)
    await s.until(lambda: s.status.retiring > 0 or not s.names(), "some leave")
    for name in s.names():
        with contextlib.suppress(StopIteration):  # gone since
            s.rehearsal.platform.process_of(name).send(signal.SIGKILL)

    await s.gone()
    await s.until(lambda: s.status.replicas == 0, "and settled")


async def test_a_killed_scheduler_takes_no_worker_with_it(stage: Start) -> None:
    """Unreachable: nothing is scaled down. Back: the agent is there again, and so is the window."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    s = await stage(workers=2, spec={"idleTimeout": "3s"}, port=port, timeout_s=1.0)
    await s.change(minReplicas=0)
    s.rehearsal.scheduler.process.send(signal.SIGKILL)
    await s.until(lambda: s.condition("SchedulerConnected") is False, "it is noticed")
    for _ in range(3):
        await s.fresh_pass()
    assert 2 == len(s.names())

    await s.rehearsal.scheduler.process.wait()
    await s.rehearsal.scheduler.start()
    await s.until(lambda: s.condition("Injected") is True, "back, with its agent")
    await s.gone()  # after the window
