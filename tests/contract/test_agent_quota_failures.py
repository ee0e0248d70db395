"""Workers that fail too much, or in a way that counts at once; and failures that follow tasks."""

from __future__ import annotations

import asyncio
from time import process_time
from typing import Any

import pytest
from distributed import wait
from distributed.utils_test import gen_cluster

from dask_adaptive_agent import wire
from dask_adaptive_agent.agent import install
from dask_adaptive_agent.quotas.worker_limits import SEARCHED, glob
from support.agent_cluster import with_agent
from support.agent_quota import cordoned, fails, limit, metered, runs
from support.agent_work import MAY_END, RUNS, ask, running, until, until_state

CUDA = {"patterns": ["*CUDA error*", "*No space left*"]}


async def tell_notes(s: Any) -> list[tuple[str, str]]:
    return [(note["kind"], note["message"]) for note in (await ask(s, wire.OBSERVE))["notes"]]


def suspicious(s: Any) -> set[int]:
    return {ts.suspicious for ts in s.tasks.values()}


@with_agent()
async def test_a_pattern_cordons_a_worker_before_its_task_is_tried_again(c, s, a, b) -> None:
    await limit(s, [a, b], stops=1, **CUDA)
    where = {"workers": [a.address, b.address]}
    broken = [a.address]
    hold = c.submit(runs, "hold", 1.0, workers=[b.address])  # so that a is the freer one
    await until(lambda: b.state.executing_count)
    future = c.submit(fails, 1, "CUDA error: no", on=broken, retries=1, **where)

    assert b.address == await future
    assert [a.address, b.address] == [address for address, i in RUNS if i == 1]
    assert {a.address: wire.S_PATTERN} == await cordoned(s)
    assert {a.address: 1, b.address: 0} == await metered(s, "failures")
    ((_, text),) = (await ask(s, wire.OBSERVE, meters=True))["meters"]["matched"]
    assert "RuntimeError('CUDA error: no')" == text
    assert {0} == suspicious(s)
    ((kind, message),) = await tell_notes(s)
    assert wire.N_QUOTA_REACHED == kind
    assert message.startswith(f"{a.name} gets no more tasks: ")
    assert message.endswith(f"'*CUDA error*': {text}")
    await hold


@with_agent(4)
async def test_a_broken_worker_costs_each_task_at_most_what_it_cost_before(c, s, *workers) -> None:
    """The number of tries is the task's own, and nothing is lost."""
    broken = workers[0].address
    await limit(s, workers, stops=1, **CUDA)
    futures = c.map(fails, range(40), message="CUDA error", on=[broken], retries=1, delay_s=0.01)

    await c.gather(futures)
    await until_state(s, broken, wire.DRAINED, busy_ok=True)

    tries = [i for address, i in RUNS if address == broken]
    assert 40 + len(tries) == len(RUNS)
    assert 2 >= len(tries)  # what it had when the first one failed
    assert {0} == suspicious(s)


@with_agent(4)
async def test_workers_that_nobody_has_named_may_be_watched(c, s, *workers) -> None:
    """A new worker on a broken machine must not wait for the operator's next pass."""
    broken, other = workers[:2]
    await limit(s, [other], stops=1, others=CUDA)

    on = {"workers": [broken.address], "allow_other_workers": True}
    await wait(c.submit(fails, 1, "CUDA error", on=[broken.address], retries=1, **on))
    assert {broken.address: wire.S_PATTERN} == await cordoned(s)


@pytest.mark.parametrize("with_limits", [False, True], ids=["stock", "limits"])
@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 4)
async def test_a_task_that_fails_everywhere_is_to_blame_itself(c, s, *workers, with_limits) -> None:
    """And it fails as it does without us: after as many tries, with the same error."""
    if with_limits:
        install(s)
        await limit(s, workers, stops=4, **CUDA)
    future = c.submit(fails, 1, "CUDA error", retries=3, delay_s=0.01)
    await wait(future)

    assert 4 == len(RUNS)
    assert "error" == future.status
    assert "RuntimeError('CUDA error')" == repr(await future.exception())
    assert {0} == suspicious(s)
    if with_limits:
        assert 1 < len({address for address, _ in RUNS})
        assert {0} == set((await metered(s, "failures")).values())
        assert {} == await cordoned(s)
        assert not (await ask(s, wire.OBSERVE, meters=True))["meters"]["matched"]
        assert 4 == len(s.running)


@with_agent(4)
async def test_many_failures_cordon_a_worker_until_they_are_long_ago(c, s, *workers, clock) -> None:
    a = workers[0]
    await limit(s, workers, failures=3, window_ms=600_000)
    for i in range(2):
        await wait(c.submit(fails, i, workers=[a.address]))
    assert {} == await cordoned(s)
    await wait(c.submit(fails, 2, workers=[a.address]))

    assert {a.address: wire.S_FAILURES} == await cordoned(s)
    ((_, message),) = await tell_notes(s)
    assert message.startswith(f"{a.name} ")
    assert message.endswith("3 failures within 10 min")

    for clock.ahead_s in (200, 400, 601):  # the operator goes on asking
        await ask(s, wire.OBSERVE, renew=True)
    await until(lambda: s.workers[a.address] in s.running)
    assert 0 == (await metered(s, "failures"))[a.address]


@with_agent(4)
async def test_a_pattern_counts_even_if_all_workers_fail_so(c, s, *workers) -> None:
    await limit(s, workers, stops=3, **CUDA)
    for w in workers:
        await wait([c.submit(fails, w.name, "No space left on device", workers=[w.address])])

    assert 3 == len(await cordoned(s))  # no more are allowed
    assert 4 == len((await ask(s, wire.OBSERVE, meters=True))["meters"]["matched"])
    assert 1 == len(s.running)


@with_agent()
async def test_failing_workers_come_before_those_that_are_merely_done(c, s, a, b) -> None:
    await limit(s, [a, b], 2, stops=0, **CUDA)
    await c.gather(c.map(runs, range(3), workers=[a.address], delay_s=0))
    await wait(c.submit(fails, 1, "CUDA error", workers=[b.address]))
    assert {} == await cordoned(s)

    for stops, expected in ((1, {b.address}), (2, {a.address, b.address}), (1, {b.address})):
        await limit(s, [a, b], 2, stops=stops, **CUDA)
        assert expected == (await cordoned(s)).keys()


@with_agent()
async def test_a_report_without_a_text_is_a_failure_like_any_other(c, s, a, b) -> None:
    await limit(s, [a, b], failures=1, **CUDA)
    handler = s.stream_handlers["task-erred"]
    one, other = [await running(c, w, w.name) for w in (a, b)]

    more = {"stimulus_id": "x", "run_id": 1, "exception": None, "traceback": None}
    handler(key="unknown", worker=a.address, exception_text=None, **more)
    assert {a.address: 0, b.address: 0} == await metered(s, "failures")
    handler(key=one.key, worker=a.address, exception_text=None, **more)
    handler(key=other.key, worker=b.address, **more)
    await asyncio.sleep(0)

    assert {a.address: 1, b.address: 1} == await metered(s, "failures")
    assert {a.address, b.address} == set(await cordoned(s))
    MAY_END.set()


@with_agent()
async def test_only_the_beginning_of_a_text_is_searched(c, s, a, b) -> None:
    await limit(s, [a, b], **CUDA)

    await wait(c.submit(fails, 1, "x" * 2000 + "CUDA error", workers=[a.address]))

    assert {} == await cordoned(s)
    assert {a.address: 1, b.address: 0} == await metered(s, "failures")


@pytest.mark.parametrize(
    ("pattern", "text", "is_match"),
    [
        ("*CUDA error*", "RuntimeError('CUDA error: no')", True),
        ("*cuda error*", "RuntimeError('CUDA error: no')", False),
        ("CUDA error", "RuntimeError('CUDA error: no')", False),
        ("RuntimeError*", "RuntimeError('CUDA error: no')", True),
        ("*no')", "RuntimeError('CUDA error: no')", True),
        ("*no", "RuntimeError('CUDA error: no')", False),
        ("*Error('CUDA ?????: *')", "RuntimeError('CUDA error: no')", True),
        ("*CUDA*CUDA*", "RuntimeError('CUDA error: no')", False),
        ("?untimeError('CUDA error: no')", "RuntimeError('CUDA error: no')", True),
        ("*", "", True),
        ("", "", True),
        ("?", "", False),
        ("ab*ba", "aba", False),
        ("ab*ba", "abba", True),
        ("a*b*a", "aba", True),
        ("[a-c].+|$", "b", False),
        ("[a-c].+|$", "[a-c].+|$", True),
        ("a?c", "a\nc", True),
    ],
)
def test_a_pattern_is_a_glob_of_the_whole_text(pattern: str, text: str, is_match: bool) -> None:
    assert is_match is bool(glob(pattern).match(text))


@pytest.mark.parametrize(
    "pattern",
    [
        "*" * 256,
        "*a" * 128,
        "*?" * 128,
        "*" + "?" * 254 + "b",
        "a*" * 127 + "b",
        "*" + "a" * 254 + "b",
    ],
)
def test_no_pattern_takes_long(pattern: str) -> None:
    """The text is one that a search with backtracking takes for ever on."""
    one, text = glob(pattern), "a" * SEARCHED
    began = process_time()
    for _ in range(10):
        one.match(text)
    assert process_time() - began < 0.1  # the worst takes 2 ms a text


@with_agent()
async def test_what_stopped_a_scheduler_as_a_regular_expression_stops_nothing(c, s, a, b) -> None:
    await limit(s, [a, b], patterns=[r"\w+.*\w+Error: \d+"])
    report = {"worker": a.address, "exception_text": "a" * 500}
    report["key"] = (await running(c, a, 1)).key
    report |= {"exception": None, "traceback": None}
    began = process_time()
    s.stream_handlers["task-erred"](**report, stimulus_id="test", run_id=0)

    assert process_time() - began < 0.1
    assert 1 == (await metered(s, "failures"))[a.address]
    MAY_END.set()
