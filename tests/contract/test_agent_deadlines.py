"""No task starts that is not expected to finish, whichever way the scheduler would give it."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from distributed import Worker, wait
from distributed.utils_test import gen_cluster as gen

from dask_adaptive_agent import wire
from dask_adaptive_agent.attach import install, uninstall
from support.agent_deadlines import limit, meters, notes
from support.agent_work import RUNS, ask, slow, until

#: No wait of a test may take longer: a hang is a failure.
gen_cluster = partial(gen, timeout=10)

ONE = [("127.0.0.1", 1)]
TWO = [("127.0.0.1", 1)] * 2
#: With and without a queue in the scheduler.
SATURATIONS = (1.1, float("inf"))
#: (tasks, words): a group larger than twice the threads is root-like.
SIZES = (pytest.param(2, id="few"), pytest.param(9, id="root-like"))


#: So long that it stays long, though each run of the test takes no time: averages are halved.
LONG_S = 1e6
LEFT_S = 60.0


def brief(i: int, *_: Any) -> int:
    RUNS.append(i)
    return i


def sum_of(*_: Any) -> int:
    RUNS.append("sum")
    return 1


async def known(c: Any, s: Any, prefix: str = "slow", seconds: float = LONG_S) -> None:
    """Have a kind of task take so long on average, as far as the scheduler knows."""
    await c.submit(slow, "first", 0, key=f"{prefix}-0")
    RUNS.clear()
    s.task_prefixes[prefix].duration_average = seconds


def ran_on(s: Any, futures: list[Any]) -> set[str]:
    return {str(ws.name) for f in futures for ws in s.tasks[f.key].who_has}


@pytest.mark.parametrize("saturation", SATURATIONS)
@pytest.mark.parametrize("count", SIZES)
def test_a_worker_that_ends_too_soon_is_passed_over(saturation: float, count: int) -> None:
    @gen_cluster(
        client=True, nthreads=TWO, config={"distributed.scheduler.worker-saturation": saturation}
    )
    async def run(c: Any, s: Any, a: Any, b: Any) -> None:
        install(s)
        await known(c, s)
        await limit(s, {a.name: LEFT_S})

        futures = c.map(slow, range(count), delay_s=0)
        await wait(futures)

        assert {str(b.name)} == ran_on(s, futures)
        assert 0 == (await meters(s))["held"]

    run()


@gen_cluster(client=True, nthreads=TWO)
async def test_data_does_not_bind_a_task_to_a_worker_that_ends_too_soon(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    install(s)
    await known(c, s)
    data = c.submit(brief, 1, workers=[a.address])
    await wait(data)
    await limit(s, {a.name: LEFT_S})

    future = c.submit(slow, 2, 0, data)
    await wait(future)

    assert str(b.name) in ran_on(s, [future])


@pytest.mark.parametrize("saturation", SATURATIONS)
@pytest.mark.parametrize("count", SIZES)
def test_what_no_worker_would_finish_waits_for_a_new_one(saturation: float, count: int) -> None:
    @gen_cluster(
        client=True, nthreads=ONE, config={"distributed.scheduler.worker-saturation": saturation}
    )
    async def run(c: Any, s: Any, a: Any) -> None:
        install(s)
        await known(c, s)
        await limit(s, {a.name: LEFT_S})
        futures = c.map(slow, range(count), delay_s=0)
        await until(lambda: len(s.queued) + len(s.unrunnable) == count)

        seen = await meters(s)
        assert (count, [str(a.name)]) == (seen["held"], seen["too_short"])
        assert LONG_S * 1000 == seen["expected_ms"]
        await c.submit(brief, 1)  # what is short enough goes on
        async with Worker(s.address, nthreads=1, name="new"):
            await wait(futures)
            assert {"new"} == ran_on(s, futures)
            seen = await meters(s)
            assert (0, []) == (seen["held"], seen["too_short"])
        assert [] == await notes(s)

    run()


@gen_cluster(client=True, nthreads=ONE)
async def test_it_runs_when_it_turns_out_to_take_less_time(c: Any, s: Any, a: Any) -> None:
    install(s)
    await known(c, s)
    await limit(s, {a.name: LEFT_S})
    few, many = c.map(slow, range(2), delay_s=0), c.map(slow, range(2, 9), delay_s=0)
    await until(lambda: s.queued and s.unrunnable)

    s.task_prefixes["slow"].duration_average = 0.01

    await wait([*few, *many])


@pytest.mark.parametrize("how", ["lifted", "uninstalled"])
def test_without_ends_all_is_as_upstream_has_it(how: str) -> None:
    @gen_cluster(client=True, nthreads=ONE)
    async def run(c: Any, s: Any, a: Any) -> None:
        before = set(s.__dict__), dict(s.stream_handlers)
        stealing = s.extensions["stealing"]
        agent = install(s)
        without_ends = set(s.__dict__), dict(s.stream_handlers), set(stealing.__dict__)
        await known(c, s)
        await limit(s, {a.name: LEFT_S})
        assert "decide_worker_non_rootish" in s.__dict__
        futures = [*c.map(slow, range(2), delay_s=0), *c.map(slow, range(2, 9), delay_s=0)]
        await until(lambda: s.queued and s.unrunnable)

        if how == "lifted":
            await limit(s, {})
            # The handler may be measured no more, but not the loop's timer stop.
            assert without_ends == (
                set(s.__dict__), dict(s.stream_handlers), set(stealing.__dict__),
            )  # fmt: skip
            assert not agent.endings.assigning.is_in_place
        else:
            uninstall(s)
            assert before == (set(s.__dict__), dict(s.stream_handlers))

        await wait(futures)

    run()


@pytest.mark.parametrize("first", ["idle", "ends"])
@pytest.mark.parametrize("gone", ["idle", "ends"])
def test_ends_and_the_relief_idle_share_the_table_of_transitions(first: str, gone: str) -> None:
    @gen_cluster(client=True, nthreads=ONE)
    async def run(c: Any, s: Any, a: Any) -> None:
        agent = install(s)

        async def relieve(choice: str) -> None:
            await ask(s, wire.CONFIGURE, relief={"idle": choice})

        if first == "ends":
            await relieve(wire.DISABLED)
        await known(c, s)
        await limit(s, {a.name: LEFT_S})
        await relieve(wire.AUTO)
        assert agent.endings.assigning.is_in_place
        (row,) = (row for row in agent.reliefs.rows() if row["name"] == "idle")
        assert row["state"] in (wire.R_ACTIVE, wire.R_NOT_NEEDED)

        await (relieve(wire.DISABLED) if gone == "idle" else limit(s, {}))
        assert (gone == "idle") is agent.endings.assigning.is_in_place
        futures = c.map(slow, range(4), delay_s=0)
        await until(lambda: not getattr(s, "is_idle", False))
        await limit(s, {})
        await wait(futures)
        assert getattr(s, "is_idle", True)
        uninstall(s)
        assert "_TRANSITIONS_TABLE" not in s.__dict__

    run()


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("why", ["a new one lives no longer", "nobody brings a new one", "pinned"])
def test_what_would_finish_nowhere_runs_on_the_longest_lived(count: int, why: str) -> None:
    @gen_cluster(client=True, nthreads=TWO)
    async def run(c: Any, s: Any, a: Any, b: Any) -> None:
        agent = install(s)
        await known(c, s)
        fresh_ms = 80_000 if why.startswith("a new") else -1
        if why == "pinned":  # none of them can leave, so none comes: a shuffle may wait for these
            everybody = {"names": [a.address, b.address], "source": wire.MANUAL, "owner": "me"}
            await ask(s, wire.PIN, reason="", ttl_ms=60_000, **everybody)
        await limit(s, {a.name: 30.0, b.name: 60.0}, fresh_ms=fresh_ms)
        if why.startswith("nobody"):
            agent.endings._lease_s = lambda: -1.0  # its lease is over

        first, *others = c.map(slow, range(count), delay_s=0)
        await wait([first, *others])

        assert {str(b.name)} == ran_on(s, [first])
        assert count == len(RUNS)
        (told,) = await notes(s)  # once for all of them
        assert told.startswith("tasks slow are expected to take 277.8 h, and no worker lives so")
        assert f"on {b.name}, which has 60 s left" in told

    run()


@gen_cluster(client=True, nthreads=TWO)
async def test_a_head_that_waits_does_not_keep_back_the_others(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    install(s)
    await known(c, s)
    await known(c, s, "other")
    await limit(s, {a.name: LEFT_S, b.name: LEFT_S})
    first = c.map(slow, range(20), delay_s=0, priority=2)
    second = c.map(
        slow, range(20, 40), delay_s=0, key=[f"other-{i}" for i in range(20)], priority=1
    )
    await until(lambda: 40 == len(s.queued))

    behind = c.map(brief, range(40, 80))
    await wait(behind)

    assert set(range(40, 80)) == set(RUNS)
    assert 40 == len(s.queued) == (await meters(s))["held"]
    await limit(s, {})
    await wait([*first, *second])


@gen_cluster(client=True, nthreads=TWO)
async def test_what_is_bound_runs_where_it_must(c: Any, s: Any, a: Any, b: Any) -> None:
    install(s)
    for prefix in ("slow", "shuffle-transfer", "loose"):
        await known(c, s, prefix)
    await limit(s, {a.name: 20.0, b.name: 30.0})

    bound = c.submit(slow, 1, 0, workers=[a.address])
    shuffled = c.submit(slow, 2, 0, key="shuffle-transfer-1")
    loose = c.submit(slow, 3, 0, key="loose-1", workers=[a.address], allow_other_workers=True)
    await wait([bound, shuffled])

    assert {str(a.name)} == ran_on(s, [bound])
    assert [] == await notes(s)
    await until(lambda: s.unrunnable)  # the loose one waits
    async with Worker(s.address, nthreads=1, name="new"):
        await wait(loose)
        assert {"new"} == ran_on(s, [loose])


@gen_cluster(
    client=True,
    nthreads=[("127.0.0.1", 1, {"resources": {"GPU": 1}}), ("127.0.0.1", 1)],
)
async def test_a_task_that_wants_a_resource_waits_for_who_has_it(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    install(s)
    await known(c, s)
    await limit(s, {a.name: LEFT_S})
    future = c.submit(slow, 1, 0, resources={"GPU": 1})
    await until(lambda: s.unrunnable)

    assert [str(a.name)] == (await meters(s))["too_short"]
    async with Worker(s.address, nthreads=1, name="new", resources={"GPU": 1}):
        await wait(future)
        assert {"new"} == ran_on(s, [future])


@gen_cluster(client=True, nthreads=TWO)
async def test_nothing_is_stolen_by_a_worker_that_ends_too_soon(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    install(s)
    await known(c, s)
    await limit(s, {a.name: LEFT_S})
    where = {"workers": [b.address], "allow_other_workers": True}
    futures = c.map(slow, range(10), delay_s=0.1, **where)
    await until(lambda: b.state.executing_count)
    for future in futures:  # anybody may have them now
        s.tasks[future.key].worker_restrictions = set()

    while not all(f.done() for f in futures):
        s.extensions["stealing"].balance()
        await asyncio.sleep(0.01)

    assert {str(b.name)} == ran_on(s, futures)


@gen_cluster(client=True, nthreads=ONE, config={"distributed.worker.heartbeat": "50ms"})
async def test_a_task_that_has_not_begun_is_taken_back(c: Any, s: Any, a: Any) -> None:
    """Of tasks of unknown duration a worker gets more than it has threads, as upstream does."""
    install(s)
    await limit(s, {a.name: 4.0})
    futures = c.map(slow, range(4), delay_s=3.0)
    await until(lambda: 2 == len(s.workers[a.address].processing))

    await until(lambda: 1 == len(s.workers[a.address].processing))
    assert 1 == a.state.executing_count
    await wait(futures, return_when="FIRST_COMPLETED")
    await asyncio.sleep(0.1)

    assert 1 == len(RUNS)  # 1 s is left, and each takes 3
    seen = await meters(s)
    assert (3, [str(a.name)]) == (seen["held"], seen["too_short"])
    for future in futures:
        future.release()


@gen_cluster(client=True, nthreads=ONE)
async def test_a_task_is_not_failed_for_its_waiting(c: Any, s: Any, a: Any) -> None:
    """With `no-workers-timeout` set, the scheduler fails what is unrunnable for so long."""
    install(s)
    await known(c, s)
    await limit(s, {a.name: LEFT_S})
    s.no_workers_timeout = 2.0
    future = c.submit(slow, 1, 0)
    await until(lambda: s.unrunnable)

    await future

    assert 1 == len(await notes(s))


@gen_cluster(client=True, nthreads=TWO)
async def test_durations_are_means_and_spreads(c: Any, s: Any, a: Any, b: Any) -> None:
    agent = install(s)
    durations = agent.endings.durations
    await c.submit(slow, 0, 0.01)
    assert not durations.is_on
    await limit(s, {a.name: 60.0}, measure=True, floor_ms=10_000)
    assert durations.is_on
    prefix = s.task_prefixes["slow"]

    for i, delay_s in enumerate((0.1, 0.3, 0.1, 0.3)):
        await c.submit(slow, i + 1, delay_s, workers=[b.address], pure=False)

    mean_s = prefix.duration_average
    assert 0.1 < mean_s < 0.35
    spread_s = (durations.expected_s(prefix, 2.0, 0.0) - mean_s) / 2
    assert 0.05 < spread_s < 0.25
    assert 10.0 == durations.expected_s(prefix, 2.0, 10.0)
    seen = await meters(s)
    of_b = seen["mean_ms"][[ws.name for ws in s.workers.values()].index(b.name)]
    assert 200 <= of_b <= 350
    assert 1 == sum(1 for ms in seen["mean_ms"] if ms)


@gen_cluster(client=True, nthreads=ONE, config={"distributed.worker.heartbeat": "50ms"})
async def test_without_a_finished_run_those_that_run_count(c: Any, s: Any, a: Any) -> None:
    agent = install(s)
    await limit(s, {a.name: 60.0})
    future = c.submit(slow, 1, 1.5)
    await until(lambda: "slow" in s.task_prefixes)
    prefix = s.task_prefixes["slow"]
    assert agent.endings.durations.mean_s(prefix) <= 0.6

    await until(lambda: agent.endings.durations.mean_s(prefix) > 1.0)

    assert not future.done()
    await future
