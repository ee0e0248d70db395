"""No task begins that is not expected to end before its worker; and nobody waits for nothing."""

from __future__ import annotations

import asyncio
import math
import re
import time
from typing import Any

import pytest
from distributed import Event, Worker, secede, wait
from distributed.core import Status
from distributed.utils_test import gen_cluster
from distributed.worker import get_worker

from dask_adaptive_agent import wire
from dask_adaptive_agent.agent import install, uninstall
from support.agent_cluster import with_agent
from support.agent_fakes import fake_worker
from support.agent_quota import limit, limit_ends, meters, notes
from support.agent_work import MAY_END, RUNS, ask, held, pin, running, slow, until, within

#: With and without a queue in the scheduler.
SATURATIONS = (1.1, float("inf"))
#: (tasks, words): a group larger than twice the threads is root-like.
SIZES = (pytest.param(2, id="few"), pytest.param(12, id="root-like"))

#: So long that it stays long, though each run of the test takes no time: averages are halved.
LONG_S = 1e6
LEFT_S = 60.0


def brief(i: int, *_: Any) -> int:
    RUNS.append(i)
    return i


async def known(c, s, prefix: str = "slow", seconds: float = LONG_S) -> None:
    """Have a kind of task take so long on average, as far as the scheduler knows."""
    await c.submit(slow, "first", 0, key=f"{prefix}-0")
    RUNS.clear()
    s.task_prefixes[prefix].duration_average = seconds


def ran_on(s: Any, futures: list[Any]) -> set[str]:
    return {str(ws.name) for f in futures for ws in s.tasks[f.key].who_has}


async def announce(s, workers: int, ms: int = 1_000, **more: Any) -> None:
    answer = await ask(s, wire.ANNOUNCE, arriving=[(workers, ms)], can_grow=0, policy="p", **more)
    assert "error" not in answer, answer


@pytest.mark.parametrize("saturation", SATURATIONS)
@pytest.mark.parametrize("count", SIZES)
@with_agent()
async def test_a_worker_that_ends_too_soon_gets_no_task(c, s, a, b, saturation, count) -> None:
    """Also of a kind that nobody has asked for when its end is told."""
    s.WORKER_SATURATION = saturation
    await known(c, s)
    await limit_ends(s, {a.name: LEFT_S})
    await c.gather(c.map(brief, range(20)))
    assert [] == (await meters(s))["too_short"]  # what is there is short enough

    futures = c.map(slow, range(count), delay_s=0)
    await wait(futures)

    assert {str(b.name)} == ran_on(s, futures)


@pytest.mark.long
@with_agent(1)
async def test_nor_does_one_that_joins(c, s, a) -> None:
    """A nanny starts a worker anew, but its pod ends when it ends; nobody else has an end."""
    await known(c, s)
    await limit_ends(s, {"w": LEFT_S})
    futures = [c.submit(slow, i, 0.2, key=f"slow-{i}") for i in range(1, 12)]
    async with Worker(s.address, name="w", nthreads=1) as w:
        await wait(futures)
        assert {str(a.name)} == ran_on(s, futures)
        await until(lambda: s.workers[w.address] in s.running)  # nothing is too long any more


@with_agent(0)
async def test_one_that_joins_alone_runs_what_is_there(c, s) -> None:
    future = c.submit(slow, 1, 0, key="slow-1")
    await until(lambda: "slow" in s.task_prefixes)
    s.task_prefixes["slow"].duration_average = LONG_S
    await limit_ends(s, {"w": LEFT_S})
    async with Worker(s.address, name="w", nthreads=1):
        await asyncio.wait_for(wait(future), 5)


@pytest.mark.long
@with_agent(
    1,
    config={
        "distributed.scheduler.work-stealing": False,
        "distributed.scheduler.active-memory-manager.start": False,
    },
)
async def test_hundreds_that_come_short_of_time_at_once(c, s, a) -> None:
    """Pods that were made together end together, and no task waits until it is the turn of one."""
    await known(c, s, seconds=0.01)
    many = [fake_worker(s, i) for i in range(500)]
    await limit_ends(s, {ws.name: LEFT_S for ws in many})
    futures = c.map(held, range(2), key=["slow-1", "slow-2"], workers=[a.address])
    await asyncio.sleep(0.6)  # they have been looked at
    assert not any(ws.status == Status.closing_gracefully for ws in many)

    s.task_prefixes["slow"].duration_average = LONG_S
    await until(lambda: any(ws.status == Status.closing_gracefully for ws in many))
    with within(2.0):  # 10 s and more where each look took twenty
        await until(lambda: all(ws.status == Status.closing_gracefully for ws in many))

    for ws in many:
        del s.workers[ws.address], s.aliases[ws.name]
    MAY_END.set()
    await wait(futures)


@with_agent()
async def test_data_does_not_bind_a_task_to_a_worker_that_ends_too_soon(c, s, a, b) -> None:
    await known(c, s)
    data = c.submit(brief, 1, workers=[a.address])
    await wait(data)
    await limit_ends(s, {a.name: LEFT_S})

    future = c.submit(slow, 2, 0, data)
    await wait(future)

    assert str(b.name) in ran_on(s, [future])


@with_agent()
async def test_what_waits_for_others_counts_too(c, s, a, b) -> None:
    """It is assigned in the instant in which the last of those is done."""
    await known(c, s)
    await limit_ends(s, {a.name: LEFT_S})
    before = c.submit(slow, "before", 0.2, key="before-1")
    after = c.submit(slow, "after", 0, before)
    await until(lambda: s.workers[a.address] not in s.running)

    assert [str(a.name)] == (await meters(s))["too_short"]
    await wait(after)
    assert {str(b.name)} == ran_on(s, [after])
    await until(lambda: s.workers[a.address] in s.running)  # nothing is too long any more
    assert [] == (await meters(s))["too_short"]


@pytest.mark.long
@with_agent()
async def test_a_worker_whose_end_has_just_passed_may_be_gone_any_moment(c, s, a, b, clock) -> None:
    await known(c, s)
    await limit_ends(s, {a.name: LEFT_S})
    await c.gather(c.map(slow, range(12), delay_s=0))
    keys = ["slow-101", "slow-102"]  # such tasks are there
    waiting = c.map(held, keys, key=keys, workers=[b.address])
    await until(lambda: s.workers[b.address].processing)
    clock.ahead_s = LEFT_S + 1
    await ask(s, wire.OBSERVE)
    assert [str(a.name)] == (await meters(s))["too_short"]

    await limit_ends(s, {a.name: 0})  # by the operator's clock it has passed, too: nothing new
    assert [str(a.name)] == (await meters(s))["too_short"]

    clock.ahead_s = LEFT_S + 11
    await until(lambda: s.workers[a.address] in s.running)
    MAY_END.set()
    await wait(waiting)


@pytest.mark.long
@with_agent()
async def test_within_the_margin_a_worker_gets_no_task_however_long_that_is(
    c, s, a, b, clock
) -> None:
    """The operator then says, time and again, that next to nothing is left."""
    await known(c, s)
    await c.gather(c.map(slow, range(12), delay_s=0))
    keys = ["slow-101", "slow-102"]
    waiting = c.map(held, keys, key=keys, workers=[b.address])
    await until(lambda: waiting[1].key in s.tasks)
    for at_s in (0.0, 8.0, 16.0, 24.0):
        clock.ahead_s = at_s
        await limit_ends(s, {a.name: 0.001})
        assert [str(a.name)] == (await meters(s))["too_short"]
    MAY_END.set()
    await wait(waiting)


@pytest.mark.parametrize("saturation", SATURATIONS)
@with_agent(4)
async def test_an_end_that_has_passed_is_none(c, s, *workers, saturation) -> None:
    """0.1.0: 0 of 24 tasks in 20 s."""
    s.WORKER_SATURATION = saturation
    await limit_ends(s, {w.name: 0 for w in workers}, fresh_ms=3_600_000)
    futures = c.map(slow, range(24), delay_s=0.1)
    await wait(futures, timeout=20)

    assert {str(w.name) for w in workers} == ran_on(s, futures)
    assert [] == (await meters(s))["too_short"]


@with_agent(4)
async def test_without_an_operator_the_work_is_spread_as_by_upstream(c, s, *workers) -> None:
    """0.1.0 gave 65 of 160 tasks to one of 16 workers."""
    await ask(s, wire.CONFIGURE, lease_ms=300)
    await known(c, s, seconds=50.0)
    left = {w.name: 10.0 + 10 * i for i, w in enumerate(workers)}
    await limit_ends(s, left, fresh_ms=60_000)
    futures = c.map(slow, range(4), delay_s=0.01)
    await wait(futures)
    await until(lambda: (not s.stream_handlers) or len(s.running) == 4)

    futures = c.map(slow, range(4, 44), delay_s=0.05)
    await wait(futures)
    assert {str(w.name) for w in workers} == ran_on(s, futures)


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("why", ["nobody comes", "a new one is short", "it would be failed"])
@with_agent()
async def test_what_nobody_finishes_runs_where_the_scheduler_likes(c, s, a, b, count, why) -> None:
    await known(c, s)
    if why.startswith("it"):
        s.no_workers_timeout = 60.0
    if not why.startswith("nobody"):
        await announce(s, 1)
    fresh_ms = 80_000 if why.startswith("a new") else -1
    await limit_ends(s, {a.name: 30.0, b.name: 60.0}, fresh_ms=fresh_ms)

    futures = c.map(slow, range(count), delay_s=0.05)
    await wait(futures)

    assert {str(a.name), str(b.name)} == ran_on(s, futures)
    assert count == len(RUNS)


@pytest.mark.long
@with_agent()
async def test_a_kind_of_task_that_is_too_long_for_everybody_is_told_of_once(c, s, a, b) -> None:
    await known(c, s)
    await limit_ends(s, {a.name: 30.0, b.name: 60.0}, fresh_ms=80_000)
    future = c.submit(slow, 1, 1.2)
    await wait(future)
    await asyncio.sleep(0.6)

    (told,) = await notes(s)
    assert told.startswith("tasks slow are expected")
    assert "277.8 h" in told
    assert "(a new one: 80 s)" in told


@pytest.mark.parametrize("saturation", SATURATIONS)
@with_agent()
async def test_all_may_wait_for_workers_that_are_on_their_way(c, s, a, b, saturation) -> None:
    s.WORKER_SATURATION = saturation
    await known(c, s)
    await announce(s, 1)
    await limit_ends(s, {a.name: 30.0, b.name: 60.0})
    futures = c.map(slow, range(12), delay_s=0)
    await until(lambda: not s.running)

    seen = await meters(s)
    assert sorted([str(a.name), str(b.name)]) == seen["too_short"]
    assert (12, LONG_S * 1000) == (seen["held"], seen["expected_ms"])
    assert [] == RUNS
    async with Worker(s.address, nthreads=1, name="new"):
        await wait(futures)
        assert {"new"} == ran_on(s, futures)
        assert [] == await notes(s)


@with_agent()
async def test_nobody_waits_for_workers_that_do_not_come(c, s, a, b) -> None:
    await known(c, s)
    await announce(s, 1)
    await limit_ends(s, {a.name: 30.0, b.name: 60.0})
    futures = c.map(slow, range(12), delay_s=0)
    await until(lambda: not s.running)

    await announce(s, 0)

    await wait(futures)


@pytest.mark.long
@with_agent()
async def test_what_a_worker_has_not_begun_is_moved_away(c, s, a, b) -> None:
    await known(c, s, seconds=0.3)
    where = {"workers": [a.address], "allow_other_workers": True}
    futures = c.map(slow, range(12), delay_s=0.3, **where)
    await until(lambda: a.state.executing_count)
    begun = len(s.workers[a.address].processing)
    assert begun > 1

    await limit_ends(s, {a.name: 1.25})  # it takes 0.3 s, and the slack is one

    await until(lambda: s.workers[a.address] not in s.running)
    await until(lambda: len(s.workers[a.address].processing) <= 1)
    await wait(futures)
    assert 12 == len(RUNS)
    assert str(b.name) in ran_on(s, futures)


@with_agent()
async def test_what_nobody_in_service_takes_waits_for_those_on_their_way(c, s, a, b) -> None:
    """Of tasks of unknown duration a worker gets more than it has threads, as upstream does."""
    await known(c, s, seconds=0.5)
    mine = list(range(100, 112))  # a thread of the test before may add its own a moment later
    where = [a.address, b.address]
    futures = c.map(held, mine, key=[f"slow-{i}" for i in mine], workers=where)
    await until(lambda: a.state.executing_count and b.state.executing_count)
    for future in futures:  # anybody may have them now
        s.tasks[future.key].worker_restrictions = set()
    await announce(s, 1)
    await limit_ends(s, {a.name: 1.45, b.name: 1.45})
    await until(lambda: not s.running)
    await until(lambda: len(s.unrunnable) + len(s.queued) >= 8)
    begun = len(RUNS)

    MAY_END.set()
    async with Worker(s.address, nthreads=4, name="new"):
        await wait(futures)
        ran = [i for i in RUNS if i in mine]  # once it ends, what only it has runs again

    assert begun <= 4
    assert mine == sorted(ran)


def long(how: str) -> None:
    if how == "seceded":
        secede()
    if how != "first":
        Event("long enough").wait()


@pytest.mark.parametrize("how", ["running", "seceded", "wants a resource"])
@with_agent(nthreads=[("127.0.0.1", 1), ("127.0.0.1", 1, {"resources": {"GPU": 1}})])
async def test_what_it_will_not_be_given_keeps_no_worker_from_short_tasks(c, s, a, b, how) -> None:
    """200 of 0.2 s took 59 s beside a long task on a worker that lasts; stock Dask takes 15."""
    await limit_ends(s, {a.name: LEFT_S})
    resources = {"GPU": 1} if how.startswith("wants") else {}
    await c.submit(long, "first", key="long-0", resources=resources)
    s.task_prefixes["long"].duration_average = LONG_S
    where = {"workers": [b.address], "resources": resources}
    count = 1 + len(resources)  # the second one waits
    longs = [c.submit(long, how, key=f"long-{i}", **where) for i in range(1, count + 1)]
    await until(lambda: b.state.executing_count or b.state.long_running)
    await until(lambda: s.workers[a.address] in s.running)

    short = c.map(brief, range(20), key="brief")
    await wait(short)

    assert [] == (await meters(s))["too_short"]
    assert str(a.name) in ran_on(s, short)
    assert not any(future.done() for future in longs)
    await Event("long enough").set()
    await wait(longs)


@with_agent()
async def test_who_is_too_short_for_the_head_of_the_queue_runs_what_fits(c, s, a, b) -> None:
    await c.submit(long, "first", key="long-0")
    s.task_prefixes["long"].duration_average = LONG_S
    await limit_ends(s, {a.name: LEFT_S})
    longs = c.map(long, range(12))
    await until(lambda: s.queued and s.workers[a.address] not in s.running)

    short = c.map(brief, range(20), key="brief")
    await wait(short)

    assert {str(a.name)} == ran_on(s, short)
    assert [str(a.name)] == (await meters(s))["too_short"]
    await Event("long enough").set()
    await wait(longs)
    assert {str(b.name)} == ran_on(s, longs)


@with_agent(nthreads=[("127.0.0.1", 4), ("127.0.0.1", 1)])
async def test_who_is_too_short_is_given_no_more_than_an_exact_quota_allows(c, s, a, b) -> None:
    """It has four threads for what fits, and three runs left."""
    await c.submit(long, "first", key="long-0", workers=[b.address], allow_other_workers=True)
    s.task_prefixes["long"].duration_average = LONG_S
    await limit(s, [a], 3, left_ms=int(LEFT_S * 1000), exact=True)
    longs = c.map(long, range(12))
    await until(lambda: s.queued and s.workers[a.address] not in s.running)

    short = c.map(brief, range(20), key="brief")
    await until(lambda: 3 <= a.state.executed_count)
    await Event("long enough").set()
    await wait(longs + short)

    assert 3 == a.state.executed_count


@with_agent()
async def test_a_long_task_that_begins_again_goes_to_who_can_finish_it(c, s, a, b) -> None:
    """It ran, so it kept nobody from anything, until its worker was lost."""
    await known(c, s)
    await limit_ends(s, {a.name: LEFT_S})
    future = await running(c, b, 1, key="slow-1", allow_other_workers=True)
    await until(lambda: s.workers[a.address] in s.running)
    async with Worker(s.address, nthreads=1, name="new"):
        await until(lambda: len(s.running) == 3)
        await s.remove_worker(b.address, stimulus_id="test", close=False)
        MAY_END.set()
        await future
        assert {"new"} == ran_on(s, [future])


@with_agent()
async def test_a_pinned_worker_stays_in_service(c, s, a, b) -> None:
    await known(c, s)
    await pin(s, a.address)
    await limit_ends(s, {a.name: LEFT_S})
    futures = c.map(slow, range(12), delay_s=0.02)
    await wait(futures)

    assert {str(a.name), str(b.name)} == ran_on(s, futures)


@with_agent()
async def test_what_is_bound_runs_where_it_must(c, s, a, b) -> None:
    await known(c, s)
    await known(c, s, "loose")
    await limit_ends(s, {a.name: 20.0})

    bound = c.submit(slow, 1, 0, workers=[a.address])
    loose = c.submit(slow, 3, 0, key="loose-1", workers=[a.address], allow_other_workers=True)
    await wait([bound, loose])

    assert {str(a.name)} == ran_on(s, [bound])
    assert {str(b.name)} == ran_on(s, [loose])


@pytest.mark.parametrize(("arriving", "group"), [(0, ""), (1, "x-gpu"), (1, "x-cpu")])
@with_agent(0)
async def test_a_task_that_wants_a_resource_runs_on_the_only_one_that_has_it(
    c, s, arriving, group
) -> None:
    """Or waits for one of its group that is on its way."""
    gpu: dict[str, Any] = {"nthreads": 1, "resources": {"GPU": 1}}
    async with (
        Worker(s.address, name="x-gpu-worker-0", **gpu) as a,
        Worker(s.address, name="x-cpu-worker-0", nthreads=1),
    ):
        await known(c, s)
        await announce(s, arriving, groups=[group])
        await limit_ends(s, {a.name: LEFT_S})

        future = c.submit(slow, 1, 0, resources={"GPU": 1})

        if group != "x-gpu":
            await wait(future)
            assert {a.name} == ran_on(s, [future])
            return
        await until(lambda: s.unrunnable)
        assert [a.name] == (await meters(s))["too_short"]
        async with Worker(s.address, name="new", **gpu):
            await wait(future)
            assert {"new"} == ran_on(s, [future])


@pytest.mark.long
@with_agent()
async def test_a_worker_that_is_short_of_time_is_not_at_a_limit(c, s, a, b, agent) -> None:
    """It is named as too short; it can be retired, and comes back to where it was."""
    await known(c, s)
    await limit_ends(s, {a.name: LEFT_S})
    futures = c.map(held, range(2), key=["slow-1", "slow-2"])
    await until(lambda: s.workers[a.address] not in s.running)

    seen = await ask(s, wire.OBSERVE, meters=True)
    assert not seen["stops"]
    assert {a.address} == set(agent.service.out_of_service())
    assert re.search(
        r"ends in (60|5\d) s, .* may take \d", agent.cordons.ongoing[a.address].why.message
    )
    await ask(s, wire.RETIRE, names=[str(a.name)])
    assert [] == (await meters(s))["too_short"]
    await ask(s, wire.CANCEL, names=[str(a.name)])
    assert [str(a.name)] == (await meters(s))["too_short"]
    MAY_END.set()
    await wait(futures)


@pytest.mark.parametrize("how", ["lifted", "uninstalled"])
@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_without_ends_all_is_as_upstream_has_it(c, s, a, b, how) -> None:
    before = set(s.__dict__), dict(s.stream_handlers)
    install(s)
    await known(c, s)
    await announce(s, 1)
    without_ends = set(s.__dict__), dict(s.stream_handlers)
    await limit_ends(s, {a.name: LEFT_S, b.name: LEFT_S})
    now = set(s.__dict__), dict(s.stream_handlers)
    assert not without_ends[0] ^ now[0]
    changed = {k for k in now[1] if now[1][k] != without_ends[1].get(k)}
    assert changed <= {"worker-status-change"}  # what any gate needs
    futures = c.map(slow, range(12), delay_s=0)
    await until(lambda: not s.running)

    if how == "lifted":
        await limit_ends(s, {})
    else:
        uninstall(s)
        assert before == (set(s.__dict__), dict(s.stream_handlers))

    await wait(futures)


def timed(i: int, seconds: float) -> tuple[str, float, float]:
    began = time.time()
    time.sleep(seconds)
    run = str(get_worker().address), began, time.time()
    RUNS.append(run)
    return run


@pytest.mark.long
@with_agent(4, threads=2, timeout=60)
async def test_no_task_begins_that_does_not_end_before_its_worker(c, s, *workers) -> None:
    """And a worker rests no longer than the longest task before it ends."""
    longest_s = 0.8
    margin_s = 0.5  # as in a policy: for what a task waits on its way to a worker's thread
    for prefix, seconds in (("brief", 0.1), ("long", longest_s)):
        for i in range(3):
            await c.submit(timed, i, seconds, key=f"{prefix}-first-{i}")
    RUNS.clear()
    left_s = {w.name: 3.0 + i for i, w in enumerate(workers[1:])}
    ends = {w.address: time.time() + left_s[w.name] + margin_s for w in workers[1:]}
    await limit_ends(s, left_s)
    futures = [c.submit(timed, i, 0.1, key=f"brief-{i}") for i in range(60)]
    futures += [c.submit(timed, i, longest_s, key=f"long-{i}") for i in range(40)]
    for w in workers[1:]:
        await asyncio.sleep(max(0.0, ends[w.address] - time.time()))
        ends[w.address] = time.time()  # later on a machine that stands still for a second
        await w.close()  # as its pod is: nothing of it is saved
    await wait(futures)

    lost = [r for r in RUNS if r[2] > ends.get(r[0], r[2])]
    assert not lost, (lost, ends)
    assert len(futures) == len({f.key for f in futures})
    for address, end in ends.items():
        last = max(r[2] for r in RUNS if r[0] == address)
        assert end - last < margin_s + 2 * longest_s + 1.5  # a look, and a slow machine


@with_agent()
async def test_durations_are_means_and_spreads(c, s, a, b, agent) -> None:
    durations = agent.durations
    await c.submit(timed, 0, 0.01)
    assert math.inf == durations.next_at
    await limit_ends(s, {a.name: 60.0}, floor_ms=10_000)
    assert math.inf > durations.next_at
    runs = [await c.submit(timed, i, (0.1, 0.3)[i % 2], workers=[b.address]) for i in range(4)]
    took_s = [end - began for _, began, end in runs]  # more than asked on a busy machine

    prefix = s.task_prefixes["timed"]
    mean_s = prefix.duration_average
    assert 0.1 < mean_s < max(took_s) + 0.05
    spread_s = (durations.expected_s(prefix, 0.0) - mean_s) / 2
    assert 0.05 < spread_s < max(took_s) - min(took_s) + 0.05
    assert 10.0 == durations.expected_s(prefix, 10.0)
    await limit_ends(s, {})
    assert math.inf == durations.next_at


@pytest.mark.long
@with_agent(1, config={"distributed.worker.heartbeat": "50ms"})
async def test_without_a_finished_run_those_that_run_count(c, s, a) -> None:
    await limit_ends(s, {a.name: 60.0})
    may_end = Event("may end")
    future = c.submit(lambda: may_end.wait(), key="slow-1")
    await until(lambda: "slow" in s.task_prefixes)
    assert (await meters(s))["expected_ms"] <= 600

    while (await meters(s))["expected_ms"] <= 1000:
        await asyncio.sleep(0.02)
    await may_end.set()
    await future
