"""What is killed at the worst moment: the loop at each step of a worker's leaving, and all else."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dask_adaptive.loop.ports import PlatformError
from dask_adaptive.model.observed import SchedulerWorker
from support.killer import Killer
from support.stage import Machines, Stage
from support.tasks import slow

Start = Callable[..., Awaitable[Stage]]


STEPS = [
    ("link", "retire", 1),  # begin to drain
    ("link", "retire", 2),  # ask again before deletion
    ("platform", "delete_worker", 1),
    ("platform", "set_replicas", 2),  # the first raised it; this one settles it
    ("link", "pin", 1),
]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("port", "method", "nth"), STEPS)
async def test_the_loop_is_killed_at_each_step(
    stage: Start, port: str, method: str, nth: int, when: str
) -> None:
    killers: list[Killer] = []

    def wrap(platform: Any, link: Any) -> tuple[Any, Any]:
        killers.append(Killer(platform if port == "platform" else link, method, when, nth))
        return (killers[0], link) if port == "platform" else (platform, killers[0])

    s = await stage(spec={"minReplicas": 3}, wrap_ports=wrap)
    results = s.client.map(slow, range(12), seconds=0.2, pure=False)
    await s.client.gather(results)
    await s.until(lambda: s.status.connected == 3, "three workers")
    if method == "pin":
        s.rehearsal.platform.annotations.set_pin(sorted(s.names())[0], "10m")
    s.edit(minReplicas=1)
    await s.until_killed(lambda: killers[0].has_struck)

    s.rehearsal.wrap_ports = lambda platform, link: (platform, link)
    s.rehearsal.start_loop(s.leaving())
    more = s.client.map(slow, range(6), seconds=0.2, pure=False)
    assert 6 == sum(await s.client.gather(more))
    del more
    await s.until(lambda: s.status.connected == s.status.replicas == 1, "settled")
    assert 12 == sum(await s.client.gather(results))
    tally = await s.final_tally()
    assert (18, 18, 0) == (tally.tasks, tally.runs, tally.redone)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("method", ["pin", "unpin"])
async def test_the_loop_is_killed_at_each_step_of_a_pin(
    stage: Start, method: str, when: str
) -> None:
    """Whatever the agent was told: the next operator brings it in step with the annotation."""
    killers: list[Killer] = []

    def wrap(platform: Any, link: Any) -> tuple[Any, Any]:
        killers.append(Killer(link, method, when, 1))
        return platform, killers[0]

    s = await stage(spec={"minReplicas": 2}, wrap_ports=wrap)
    await s.until(lambda: s.status.connected == 2, "two workers")
    keep = sorted(s.names())[0]
    s.rehearsal.platform.annotations.set_pin(keep, "10m", "why not")
    if method == "unpin":
        await s.until(lambda: bool(s.status.held_by), "it is pinned")
        s.rehearsal.platform.annotations.set_pin(keep, None)
    await s.until_killed(lambda: killers[0].has_struck)

    s.rehearsal.wrap_ports = lambda platform, link: (platform, link)
    s.rehearsal.start_loop(s.leaving())
    if method == "pin":
        await s.until(lambda: [(keep,)] == [h.workers for h in s.status.held_by], "held again")
        s.rehearsal.platform.annotations.set_pin(keep, None)
    await s.until(lambda: s.status.held_by == (), "nothing is pinned for ever")
    await s.change(minReplicas=0)
    await s.until(lambda: not s.names(), "and all may leave")


@pytest.mark.parametrize("when", ["before", "after"])
async def test_the_loop_is_killed_while_it_tells_of_the_end_of_a_worker(
    stage: Start, when: str
) -> None:
    killers: list[Killer] = []
    machines = Machines()

    def wrap(platform: Any, link: Any) -> tuple[Any, Any]:
        killers.append(Killer(link, "leave", when, 1))
        return machines.wrap(platform, killers[0])

    s = await stage(spec={"minReplicas": 2, "maxReplicas": 2}, wrap_ports=wrap)
    await s.until(lambda: s.status.connected == 2, "two workers")
    kept = s.client.map(slow, range(12), seconds=0.1, pure=False)
    await s.client.gather(kept)
    victim = sorted(s.names())[0]
    machines.ends_at[victim] = time.monotonic() + 60
    await s.until_killed(lambda: killers[0].has_struck)

    s.rehearsal.wrap_ports = machines.wrap
    s.rehearsal.start_loop(s.leaving())
    await s.until(lambda: bool(departing(s)) and not departing(s)[0].sole_bytes, "handed over")
    s.rehearsal.platform.process_of(victim).send(signal.SIGKILL)
    del machines.ends_at[victim]
    await s.until(lambda: s.status.connected == 2 and not departing(s), "replaced")

    assert 12 == sum(await s.client.gather(kept))
    tally = await s.final_tally()
    assert (12, 12, 0) == (tally.tasks, tally.runs, tally.redone)


def departing(s: Stage) -> list[SchedulerWorker]:
    assert s.last is not None
    return [w for w in s.last.observed.scheduler.workers if w.departing]


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
    s = await stage(
        spec={"minReplicas": 3}, wrap_ports=lambda platform, link: (Stubborn(platform), link)
    )
    await s.until(lambda: s.status.connected == 3, "three workers")
    await s.change(minReplicas=0)
    await s.until(lambda: s.status.retiring == 3, "all drained, none deleted")
    await s.until(lambda: s.condition("AbleToScale") is False, "it says so")
    assert "may not be deleted" in s.message("AbleToScale")

    await s.change(minReplicas=3)
    await s.until(lambda: s.status.retiring == 0, "back in service")
    futures = s.client.map(slow, range(12), seconds=0.1, pure=False)
    assert 12 == sum(await s.client.gather(futures))
    assert "WantedAgain" in s.reasons()
    assert 3 == len(s.names())


async def test_a_killed_worker_is_replaced_and_only_its_own_work_is_redone(stage: Start) -> None:
    s = await stage(spec={"minReplicas": 2, "maxReplicas": 2})
    await s.until(lambda: s.status.connected == 2, "two workers")
    futures = s.client.map(slow, range(20), seconds=0.3, pure=False)
    await s.until(lambda: s.status.busy == 2, "both work")
    victim = sorted(s.names())[0]
    s.rehearsal.platform.process_of(victim).send(signal.SIGKILL)

    assert 20 == sum(await s.client.gather(futures))
    await s.until(lambda: s.status.connected == 2, "it is back")
    assert 2 == s.status.replicas


async def test_a_draining_worker_that_dies_is_not_waited_for(stage: Start) -> None:
    s = await stage(spec={"minReplicas": 2})
    await s.until(lambda: s.status.connected == 2, "two workers")
    await s.change(minReplicas=0)
    await s.until(lambda: s.status.retiring > 0 or not s.names(), "some leave")
    for name in s.names():
        with contextlib.suppress(StopIteration):  # gone since
            s.rehearsal.platform.process_of(name).send(signal.SIGKILL)

    await s.until(lambda: not s.names(), "all gone")
    await s.until(lambda: s.status.replicas == 0, "and settled")


async def test_a_killed_scheduler_takes_no_worker_with_it(stage: Start) -> None:
    """Unreachable: nothing is scaled down. Back: the agent is there again, and so is the window."""
    s = await stage(spec={"minReplicas": 2, "idleTimeout": "3s"}, port=18786, timeout_s=1.0)
    await s.until(lambda: s.status.connected == 2, "two workers")
    await s.change(minReplicas=0)
    s.rehearsal.scheduler.process.send(signal.SIGKILL)
    await s.until(lambda: s.condition("SchedulerConnected") is False, "it is noticed")
    for _ in range(3):
        await s.fresh_pass()
    assert 2 == len(s.names())

    await s.rehearsal.scheduler.process.wait()
    await s.rehearsal.scheduler.start()
    await s.until(lambda: s.condition("Injected") is True, "back, with its agent")
    await s.until(lambda: not s.names(), "after the window the workers leave")


async def test_a_hanging_scheduler_is_unreachable_not_waited_for(stage: Start) -> None:
    s = await stage(spec={"minReplicas": 1}, timeout_s=1.0)
    await s.until(lambda: s.status.connected == 1, "one worker")
    await s.change(minReplicas=0)
    s.rehearsal.scheduler.process.send(signal.SIGSTOP)
    try:
        await s.until(lambda: s.condition("SchedulerConnected") is False, "it is noticed")
        assert "within 1 s" in s.message("SchedulerConnected")
        assert 1 == len(s.names())
    finally:
        s.rehearsal.scheduler.process.send(signal.SIGCONT)
    await s.until(lambda: not s.names(), "it answers again")
