"""What an agent says of the work that waits, against real schedulers of each release."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any

import distributed
import pytest
from distributed import Client, Event, Worker

from dask_adaptive_agent import wire
from dask_adaptive_agent.demand import demand as view
from dask_adaptive_agent.demand.demand import NOBODY
from support.agent_cluster import with_agent
from support.agent_work import ask, until

ON_ONE = with_agent(1)

Columns = dict[str, list[Any]]


def hold(_: Any, event: str) -> int:
    Event(event).wait()
    return 1


def add(*values: Any) -> int:
    return 1


@pytest.fixture(autouse=True)
def every_answer_is_a_new_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one that took long, on a busy machine, serves for a while."""
    monkeypatch.setattr(view, "LOOK_PART", math.inf)


async def demand(scheduler: Any) -> dict[str, Any]:
    found: dict[str, Any] = (await ask(scheduler, wire.OBSERVE, demand=True))["demand"]
    return found


def rows(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What is said of each prefix, by its name."""
    columns: Columns = found["prefixes"]
    assert set(wire.PrefixColumns.__annotations__) == set(columns)
    assert 1 == len({len(column) for column in columns.values()})
    return {
        name: {key: column[i] for key, column in columns.items()}
        for i, name in enumerate(columns["name"])
    }


async def until_running(scheduler: Any, tasks: int) -> None:
    await until(lambda: sum(len(w.processing) for w in scheduler.workers.values()) >= tasks)


@ON_ONE
async def test_it_is_said_only_to_those_who_ask(c, s, a) -> None:
    seen = await ask(s, wire.OBSERVE)

    assert seen["demand"] is None
    assert not seen["wants"]
    assert not (await demand(s))["prefixes"]["name"]


@ON_ONE
async def test_tasks_are_counted_by_prefix_and_state(c, s, a) -> None:
    event = Event("go", client=c)
    source = c.map(hold, range(10), event="go", key=[f"source-{i}" for i in range(10)])
    step = [c.submit(add, f, key=f"step-{i}") for i, f in enumerate(source)]
    await until_running(s, 1)
    await until(lambda: len(s.tasks) == 20)

    found = rows(await demand(s))

    said = found["source"]
    assert 10 == said["running"] + said["ready"]
    assert 0 == said["waiting"]
    assert -1 == said["mean_ms"]
    assert (10, 0, 0) == (said["width"], said["level"], said["done"])
    said = found["step"]
    assert (0, 0, 10) == (said["running"], said["ready"], said["waiting"])
    # Each waits for one: all ten can run side by side, one after its own source.
    assert (10, 1, 1.0) == (said["width"], said["level"], said["fan_in"])

    await event.set()
    await c.gather(step)
    assert {} == rows(await demand(s))


def chain(c: Client, name: Callable[[int], str], n: int) -> list[Any]:
    links: list[Any] = [c.submit(hold, 0, event="go", key=name(0))]
    for i in range(1, n):
        links.append(c.submit(add, links[-1], key=name(i)))
    return links


def tree(c: Client) -> list[Any]:
    row = every = c.map(hold, range(32), event="go", key=[f"leaf-{i}" for i in range(32)])
    while len(row) > 1:
        pairs = list(zip(row[::2], row[1::2]))
        row = [c.submit(add, *pair, key=f"sum-{len(row)}-{i}") for i, pair in enumerate(pairs)]
        every = every + row
    return list(every)


def gathered(c: Client) -> list[Any]:
    parts = c.map(hold, range(40), event="go", key=[f"part-{i}" for i in range(40)])
    return [*parts, c.submit(add, *parts, key="end-0")]


#: Graphs, and of some prefixes: those that wait, width, level, fan-in.
SHAPES: dict[str, tuple[Callable[[Client], list[Any]], dict[str, tuple[Any, ...]]]] = {
    "a chain": (lambda c: chain(c, "link-{}".format, 100), {"link": (99, 1, 0, 1.0)}),
    "two kinds by turns": (
        lambda c: chain(c, lambda i: f"{'odd' if i % 2 else 'even'}-{i}", 60),
        {"even": (29, 1, 0, 1.0), "odd": (30, 1, 0, 1.0)},
    ),
    "a tree": (tree, {"leaf": (0, 32, 0, 1.0), "sum": (31, 16, 1, 2.0)}),
    "one that waits for all": (gathered, {"end": (1, 1, 1, 40.0)}),
}


@pytest.mark.parametrize("graph", SHAPES)
@ON_ONE
async def test_the_shape_of_what_waits(c, s, a, graph) -> None:
    make, expected = SHAPES[graph]
    futures = make(c)
    await until(lambda: len(s.tasks) >= len(futures))
    await until_running(s, 1)

    found = rows(await demand(s))

    shapes = {n: tuple(found[n][k] for k in ("waiting", "width", "level", "fan_in")) for n in found}
    assert expected.items() <= shapes.items()
    await Event("go", client=c).set()
    await c.gather(futures)


@ON_ONE
async def test_means_are_of_all_late_runs_not_of_the_last(c, s, a) -> None:
    """`duration_average` is half the newest run: what rare long tasks make of it is no mean."""
    quick = c.map(time.sleep, [0.01] * 30, key=[f"task-{i}" for i in range(30)])
    await c.gather(quick)
    await c.submit(time.sleep, 1.0, key="task-30")
    assert s.task_prefixes["task"].duration_average > 0.4 or (
        s.task_prefixes["task"].duration_average == -1
    )
    event = Event("go", client=c)
    last = c.submit(hold, 0, event="go", key="task-31")
    await until_running(s, 1)

    said = rows(await demand(s))["task"]

    assert 30 < said["mean_ms"] < 100  # (30 x 10 ms + 1 s) / 31
    assert 31 == said["done"]
    await event.set()
    await last
    del quick


@ON_ONE
async def test_how_long_a_task_runs_is_as_heartbeats_say(c, s, a) -> None:
    event = Event("go", client=c)
    future = c.submit(hold, 0, event="go", key="long-0")
    await until_running(s, 1)
    await asyncio.sleep(0.3)
    await a.heartbeat()

    said = rows(await demand(s))["long"]

    assert said["longest_ms"] >= 200
    await event.set()
    await future


@ON_ONE
async def test_a_slow_step_of_its_quick_sources_name_is_of_another_kind(c, s, a) -> None:
    """`client.map` of one function twice: the mean of the first says nothing of the second."""
    await a.heartbeat()  # knows the scheduler's clock better than the first message did
    quick = c.map(time.sleep, [0.01] * 30, key=[f"step-{i}" for i in range(30)])
    await c.gather(quick)
    event = Event("go", client=c)
    slow = c.map(hold, range(20), event="go", key=[f"step-{i}" for i in range(30, 50)])
    await until_running(s, 1)
    assert 0 < rows(await demand(s))["step"]["mean_ms"] < 100, "it may be as quick"
    await asyncio.sleep(0.5)
    await a.heartbeat()

    assert -1 == rows(await demand(s))["step"]["mean_ms"]
    await event.set()
    await c.gather(slow)


@with_agent()
async def test_one_slow_task_among_many_does_not_unsay_their_mean(c, s, a, b) -> None:
    event = Event("go", client=c)
    slow = c.submit(hold, 0, event="go", key="step-0", workers=[a.address])
    await until_running(s, 1)
    quick = c.map(
        time.sleep, [0.01] * 80, key=[f"step-{i}" for i in range(1, 81)], workers=[b.address]
    )
    await until(lambda: s.task_prefixes["step"].state_counts.get("memory", 0) >= 50)
    await a.heartbeat()

    said = rows(await demand(s))["step"]

    assert said["longest_ms"] >= 200
    assert 0 <= said["mean_ms"] < 100
    await event.set()
    await c.gather([slow, *quick])


@ON_ONE
async def test_what_needs_a_resource_is_told_by_kind(c, s, a) -> None:
    gpu = [c.submit(add, i, key=f"gpu-{i}", resources={"GPU": 1}) for i in range(5)]
    big = c.submit(add, 0, key="big-0", resources={"MEM": 7.5})
    await until(lambda: len(s.unrunnable) == 6)

    found = await demand(s)

    first, second = found["needs"]
    assert (5, {"GPU": 1.0}) == (first["tasks"], first["resources"])
    assert (1, {"MEM": 7.5}) == (second["tasks"], second["resources"])
    assert 5 * found["unknown_ms"] == first["ms"]
    assert ([], [], False) == (list(first["workers"]), list(first["able"]), first["loose"])
    assert (5, 5) == (rows(found)["gpu"]["ready"], rows(found)["gpu"]["bound"])
    async with Worker(s.address, name="g", resources={"GPU": 1, "MEM": 8}):
        await c.gather([*gpu, big])


@with_agent(worker_kwargs={"resources": {"GPU": 2}})
async def test_assigned_tasks_with_needs_are_told_and_who_may_run_them(c, s, a, b) -> None:
    """`is_rootish` leaves them out in each release: however many there are, none is queued."""
    event = Event("go", client=c)
    keys = [f"gpu-{i}" for i in range(50)]
    futures = c.map(hold, range(50), event="go", key=keys, resources={"GPU": 1})
    await until_running(s, 50)
    assert not s.queued

    (need,) = (await demand(s))["needs"]

    assert (50, {"GPU": 1.0}) == (need["tasks"], need["resources"])
    assert {str(a.name), str(b.name)} == set(need["able"])
    await event.set()
    await c.gather(futures)


@with_agent()
async def test_tasks_that_name_workers_are_told_with_their_names(c, s, a, b) -> None:
    event = Event("go", client=c)
    here = c.submit(hold, 0, event="go", key="here-0", workers=[a.address])
    loose = c.submit(
        hold, 1, event="go", key="loose-0", workers=["127.0.0.99"], allow_other_workers=True
    )
    behind = c.submit(add, here, key="behind-0", workers=[a.address])
    await until_running(s, 2)
    await until(lambda: "behind-0" in s.tasks)

    found = await demand(s)

    by_loose = {need["loose"]: need for need in found["needs"]}
    assert [str(a.name)] == list(by_loose[False]["workers"])
    assert (1, 1) == tuple(by_loose[False][k] for k in ("tasks", "waiting"))
    assert ["127.0.0.99"] == list(by_loose[True]["hosts"])
    assert 1 == rows(found)["behind"]["bound"]
    await event.set()
    await c.gather([here, loose, behind])


@ON_ONE
async def test_a_task_that_has_seceded_takes_no_thread(c, s, a) -> None:
    def outer() -> int:
        with distributed.worker_client():
            Event("go").wait()
        return 1

    event = Event("go", client=c)
    future = c.submit(outer, key="outer-0")
    await until(lambda: any(w.long_running for w in s.workers.values()))

    assert "outer" not in rows(await demand(s))
    await event.set()
    await future


@ON_ONE
async def test_many_prefixes_are_added_up(c, s, a) -> None:
    event = Event("go", client=c)
    first = c.submit(hold, 0, event="go", key="first-0")
    many = [c.submit(add, first, key=f"kind{i:03}-0") for i in range(300)]
    await until(lambda: len(s.tasks) >= 301)

    found = rows(await demand(s))

    assert 200 == len(found)
    assert 300 == sum(row["waiting"] for row in found.values())
    assert 102 == found["…"]["waiting"] + found["…"]["running"]
    await event.set()
    await c.gather(many)


@pytest.mark.parametrize("is_queue", [False, True])
@ON_ONE
async def test_work_that_comes_again_and_again_is_noted(c, s, a, agent, is_queue) -> None:
    clock = [100.0]
    incoming = agent.demand
    incoming.clock = lambda: clock[0]

    def look() -> tuple[float, float, float]:
        incoming._count_arrivals(lambda _: 1.0, is_queue=is_queue)
        return coming()

    def coming() -> tuple[float, float, float]:
        return tuple(incoming._batches.coming(clock[0]))

    look()
    for k in range(4):
        await c.gather(c.map(add, range(10), key=[f"cell-{k}-{i}" for i in range(10)]))
        clock[0] += 20.0
        known = look()
        if not k:  # it came at once, or tasks have waited since before
            assert ((0.5, 20.0, 10.0) if is_queue else (0.0, 0.0, 0.0)) == known

    assert (0.5, 20.0, 40.0 if is_queue else 0.0) == known
    clock[0] += 39.0
    assert 0.5 == coming()[0]
    clock[0] += 2.0  # twice the usual time has passed: it may not come again
    assert 0.0 == coming()[0]
    clock[0] += 400.0
    assert (0.0, 0.0, 0.0) == look()


@with_agent(1, client=False)
async def test_a_cluster_is_quiet_since_its_last_task_and_client(s, a, agent) -> None:
    clock = [0.0]
    quiet = agent.demand
    quiet.clock = lambda: clock[0]
    quiet._task_at = quiet._client_at = 0.0

    async def seen(at: float) -> tuple[int, int]:
        clock[0] = at
        answer = (await ask(s, wire.OBSERVE))["quiet"]
        return answer["no_task_ms"], answer["no_client_ms"]

    await seen(1.0)
    assert (9_000, 10_000) >= await seen(10.0)
    async with Client(s.address, asynchronous=True) as c:
        assert 0 == (await seen(20.0))[1]
        await c.submit(add, 1)  # came and went between two looks
        assert (0, 0) == await seen(30.0)
        event = Event("go", client=c)
        future = c.submit(hold, 0, event="go")
        await until_running(s, 1)
        assert (0, 0) == await seen(40.0)
        await event.set()
        await future
        clock[0] = 50.0
        await seen(50.0)
        future.release()
        await until(lambda: not [ts for ts in s.tasks.values() if ts.state == "memory"])
        # Letting go of a result is no task.
        assert (10_000, 0) == await seen(60.0)
        clock[0] = 70.0
    await until(lambda: not s.clients.keys() - {NOBODY})
    assert (30_000, 10_000) == await seen(80.0)
