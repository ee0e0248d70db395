"""
Whatever fails, at each step of a worker's leaving: afterwards nothing is stuck, nothing is left.

The steps are those that the code itself declares: a new phase without a way to get there fails.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from distributed import wait
from distributed.active_memory_manager import RetireWorker
from distributed.core import Status
from distributed.utils_test import gen_cluster

from dask_adaptive_agent import wire
from dask_adaptive_agent.agent import install
from dask_adaptive_agent.drain.drain import Phase
from support.agent_cluster import Clock
from support.agent_quota import limit
from support.agent_work import ask, leave, nobody_fetches_from, slow, until


class Scene:
    """One scheduler with its agent, a worker that leaves, and another one."""

    def __init__(self, c: Any, s: Any, a: Any, b: Any) -> None:
        self.c, self.s, self.a, self.b = c, s, a, b
        self.clock = Clock()
        self.agent = install(s, self.clock)
        self.futures: list[Any] = []
        self.network_is_back = asyncio.Event()
        self.lifetime: asyncio.Future[None] | None = None

    async def holds_data(self) -> None:
        where: dict[str, Any] = {"pure": False}
        if self.s.workers[self.b.address] in self.s.running:
            where.update(workers=[self.a.address], allow_other_workers=True)
        results = [self.c.submit(slow, i, 0, **where) for i in range(3)]
        await wait(results)
        self.futures += results

    async def runs_a_task(self) -> None:
        where = {"workers": [self.a.address], "allow_other_workers": True, "pure": False}
        self.futures.append(self.c.submit(slow, "task", 1.0, **where))
        await until(lambda: self.a.state.executing_count)

    async def nobody_fetches(self) -> None:
        self.network_is_back = nobody_fetches_from(self.a)

    async def out_of_service(self) -> None:
        self.s.handle_worker_status_change(Status.paused, self.b.address, "test")

    @property
    def drain(self) -> Any:
        return self.agent.drains.ongoing.get(self.a.address)


#: Nothing is stolen from the worker that is to hold the data, however busy the machine is.
TWO_WORKERS = gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 1)] * 2,
    timeout=60,
    config={"distributed.scheduler.work-stealing": False},
)

Step = Callable[[Scene], Awaitable[None]]

#: What happens before a worker is asked to retire, or its end is told, so that it gets there.
RETIREMENTS: dict[Phase, tuple[Step, ...]] = {
    Phase.WAITING: (Scene.runs_a_task,),
    Phase.MOVING: (Scene.holds_data, Scene.nobody_fetches),
    Phase.DRAINED: (Scene.holds_data,),
}
TERMINATIONS: dict[Phase, tuple[Step, ...]] = {
    Phase.WAITING: (Scene.holds_data, Scene.runs_a_task),
    Phase.MOVING: (Scene.holds_data, Scene.nobody_fetches),
    Phase.CLOSING: (Scene.holds_data, Scene.runs_a_task),
    Phase.DRAINED: (Scene.holds_data,),
}
#: Only who could stay does while it is indispensable; and it does not come to its last minutes.
LIFETIMES: dict[Phase, tuple[Step, ...]] = {
    Phase.STAYING: (Scene.out_of_service, Scene.holds_data),
    **{phase: before for phase, before in TERMINATIONS.items() if phase is not Phase.CLOSING},
}


async def retires(scene: Scene) -> None:
    await ask(scene.s, wire.RETIRE, names=[str(scene.a.name)], busy_ok=True)


async def terminates(scene: Scene) -> None:
    await leave(scene.s, scene.a.name)


async def lives_out(scene: Scene) -> None:
    scene.s.handlers[wire.CONFIGURE](on_lifetime=wire.LIFETIME_DRAIN)
    scene.lifetime = asyncio.ensure_future(scene.agent.drains.lifetime(scene.a.address))
    await until(lambda: scene.drain)


def steps() -> list[Any]:
    """Every way out and phase there is, each with what leads to it."""
    ways = {retires: RETIREMENTS, terminates: TERMINATIONS, lives_out: LIFETIMES}
    return [
        pytest.param(phase, before, way, id=f"{way.__name__}-{phase.name}")
        for way, phases in ways.items()
        for phase, before in phases.items()
    ]


async def worker_is_killed(scene: Scene) -> None:
    """Its connection breaks; nothing else tells the scheduler."""
    scene.s.stream_comms[scene.a.address].comm.abort()
    await until(lambda: scene.a.address not in scene.s.workers)


async def it_is_cancelled(scene: Scene) -> None:
    await ask(scene.s, wire.CANCEL, names=[scene.a.address])


async def nobody_asks(scene: Scene) -> None:
    await ask(scene.s, wire.CONFIGURE, lease_ms=1)


async def everything_fails(scene: Scene) -> None:
    """The agent is taken out while it is in the middle of it."""
    scene.s.plugins["dask-adaptive"].uninstall()


async def scheduler_is_closed(scene: Scene) -> None:
    await scene.s.close()


FAULTS = [worker_is_killed, it_is_cancelled, nobody_asks, everything_fails, scheduler_is_closed]


def tasks_of_ours() -> list[str]:
    names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
    return [name for name in names if name.startswith(("Drain", "Cordons"))]


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
@pytest.mark.parametrize(("phase", "before", "way"), steps())
@TWO_WORKERS
async def test_nothing_is_stuck(c, s, a, b, phase, before, way, fault) -> None:
    scene = Scene(c, s, a, b)
    for step in before:
        await step(scene)
    await way(scene)
    scene.clock.ahead_s += 55 if phase is Phase.CLOSING else 0
    going = scene.drain
    await until(lambda: going.phase is phase)

    await fault(scene)

    stays_gone = way is not retires and fault in (it_is_cancelled, nobody_asks)
    if stays_gone:  # its process ends whatever anybody says: and so it does
        await asyncio.sleep(0.2)
        assert scene.drain is going
        await worker_is_killed(scene)
    await until(lambda: not scene.agent.drains.ongoing)
    await until(lambda: not tasks_of_ours())
    if fault is not scheduler_is_closed:
        await nothing_is_left(scene, is_killed=stays_gone or fault is worker_is_killed)
    gc.collect()


async def is_cordoned(scene: Scene) -> None:
    await limit(scene.s, [scene.a], 3, exact=True)
    await scene.holds_data()
    await until(lambda: scene.agent.cordons.ongoing)


async def is_cordoned_and_retired(scene: Scene) -> None:
    await is_cordoned(scene)
    await scene.nobody_fetches()
    await retires(scene)


async def its_limit_is_lifted(scene: Scene) -> None:
    await limit(scene.s, [])
    await it_is_cancelled(scene)


WAYS = [is_cordoned, is_cordoned_and_retired]


@pytest.mark.thorough
@pytest.mark.parametrize("fault", [its_limit_is_lifted, *FAULTS], ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@TWO_WORKERS
async def test_of_a_cordon_nothing_is_left(c, s, a, b, way, fault) -> None:
    scene = Scene(c, s, a, b)
    await way(scene)
    assert s.workers[a.address] not in s.running

    await fault(scene)

    if fault is it_is_cancelled:  # it is at its limit still
        await until(lambda: scene.agent.cordons.ongoing)
        assert s.workers[a.address] not in s.running
        await its_limit_is_lifted(scene)
    await until(lambda: not scene.agent.service.out_of_service())
    await until(lambda: not tasks_of_ours())
    assert not scene.agent.cordons.ongoing
    if fault is not scheduler_is_closed:
        await nothing_is_left(scene, is_killed=fault is worker_is_killed)
    gc.collect()


async def nothing_is_left(scene: Scene, *, is_killed: bool) -> None:
    s, workers = scene.s, [scene.b] if is_killed else [scene.a, scene.b]
    assert {w.name: w.address for w in workers} == s.aliases
    assert not [p for p in s.extensions["amm"].policies if isinstance(p, RetireWorker)]
    # A worker confirms what it is told: that it had been frozen may be heard after the end.
    here = (Status.running, Status.paused)
    await until(lambda: all(ws.status in here for ws in s.workers.values()))
    if not is_killed:
        await until(lambda: scene.a.status == Status.running)
        await until(lambda: s.workers[scene.a.address] in s.running)
    assert not scene.agent.pins.leases.names()
    # And work goes on, with nothing lost that a worker in service holds.
    scene.network_is_back.set()
    s.handle_worker_status_change(Status.running, scene.b.address, "test")
    assert await scene.c.submit(slow, "more", 0, pure=False)
    await scene.c.gather(scene.futures)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 3)
async def test_a_recipient_that_hangs_is_replaced(c, s, a, b, d) -> None:
    scene = Scene(c, s, a, b)
    where = {"workers": [a.address], "pure": False}
    results = [c.submit(slow, i, 0, **where) for i in range(8)]
    await wait(results)
    s.handle_worker_status_change(Status.paused, d.address, "test")
    b.state.running = False  # it fetches nothing, and nobody knows
    await leave(s, a.name)
    assert not d.data

    s.handle_worker_status_change(Status.running, d.address, "test")
    scene.clock.ahead_s += 30
    await until(lambda: {str(f.key) for f in results} <= {str(k) for k in d.data})

    await until(lambda: scene.drain.phase is Phase.DRAINED)
    b.state.running = True
