"""What recycling remembers of a pass for the next: as `remember` keeps it."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dask_adaptive.model.observed import Leaving, ObservedCluster, ObservedScheduler, ObservedWorker
from dask_adaptive.model.past import Past
from dask_adaptive.model.plan import Action, GroupPlan, Outcome, Plan, Restart, Retire, SetReplicas
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import (
    GpuQuota,
    MemoryQuota,
    QuotaNotes,
    Recycle,
    RecyclePast,
    Strategy,
    Use,
)
from dask_adaptive.planner.memory import remember
from dask_adaptive.planner.recycling.anomalies import FEWEST_SAMPLES, SAMPLES
from support.worlds import GROUP, NOW, PAST, POLICY, busy, cluster, pending, worker

HOUR_S, MIB = 3600.0, 2**20
PLAN = Plan(Reason.RECYCLING, "", wanted=2, desired=3)


# --- of workers -----------------------------------------------------------------------------------

SOFT = Recycle(memory=MemoryQuota(soft=0.8, leak_rate=500.0 * MIB), gpu_memory=GpuQuota(soft=0.7))


def seen(
    past: RecyclePast, *workers: ObservedWorker, at: float = NOW, recycle: Recycle = SOFT
) -> RecyclePast:
    """What quotas know after one more pass."""
    policy = dataclasses.replace(POLICY, recycle=recycle)
    there = frozenset(w.name for w in workers)
    known = Past(session="s", since=at, seen=there, recycle=past)
    return remember(known, cluster(workers), policy, PLAN, [], now=at).recycle


def test_it_is_known_since_when_a_worker_is_above_a_soft_line() -> None:
    high, low = Use(unmanaged=0.8, gpu=0.7), Use(unmanaged=0.79, gpu=0.69)
    first = seen(RecyclePast(), worker("a", use=high), worker("b", use=low))
    second = seen(first, worker("a", use=high), worker("b", use=high), at=NOW + 5)
    third = seen(second, worker("a", use=low), worker("b", use=high), at=NOW + 10)

    assert {"uid-a": NOW, "uid-a gpu": NOW} == first.above_since
    assert {"uid-a": NOW, "uid-a gpu": NOW, "uid-b": NOW + 5, "uid-b gpu": NOW + 5} == (
        second.above_since
    )
    assert {"uid-b": NOW + 5, "uid-b gpu": NOW + 5} == third.above_since


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(worker("a", use=Use(unmanaged=0.9, runs=9), pod_uid="2"), id="another-pod"),
        pytest.param(worker("a", use=Use(unmanaged=0.9, runs=1), pod_uid="1"), id="begun-anew"),
    ],
)
def test_another_process_begins_with_clean_memory(other: ObservedWorker) -> None:
    first = seen(RecyclePast(), worker("a", use=Use(unmanaged=0.9, runs=5), pod_uid="1"))
    second = seen(first, other, at=NOW + 300)

    assert {other.pod_uid: NOW + 300} == second.above_since
    assert [1] == [len(samples) for samples in second.samples.values()]


def test_a_workers_own_line_counts() -> None:
    own = QuotaNotes(memory_soft=0.5)
    high = worker("a", use=Use(unmanaged=0.5), quota_notes=own)

    assert {"uid-a": NOW} == seen(RecyclePast(), high, recycle=Recycle()).above_since
    assert (
        {}
        == seen(RecyclePast(), worker("a", use=Use(unmanaged=2.0)), recycle=Recycle()).above_since
    )


@pytest.mark.parametrize("gone", [(), (pending("a"),), (worker("a", deleting=True),)])
def test_who_is_gone_is_forgotten(gone: tuple[ObservedWorker, ...]) -> None:
    first = seen(RecyclePast(), worker("a", use=Use(unmanaged=0.9)))

    assert RecyclePast() == seen(first, *gone)


def test_a_scheduler_that_does_not_answer_changes_nothing() -> None:
    silent = dataclasses.replace(
        cluster([pending("a")]), scheduler=ObservedScheduler(Reason.SCHEDULER_UNREACHABLE)
    )
    past = dataclasses.replace(PAST, recycle=RecyclePast(above_since={"uid-a": 1.0}))

    assert past is remember(past, silent, POLICY, PLAN, [], now=NOW + 5)


def test_the_pace_follows_what_a_worker_does() -> None:
    past = seen(RecyclePast(), worker("a", use=Use(runs=100), pod_age_s=100.0))
    assert {"uid-a": (NOW, 100, 1.0)} == past.pace

    for i in range(1, 61):
        past = seen(past, worker("a", use=Use(runs=100 + 20 * i)), at=NOW + 5 * i)
    assert pytest.approx(4.0, rel=0.01) == past.pace["uid-a"][2]

    for i in range(61, 121):
        past = seen(past, worker("a", use=Use(runs=1300)), at=NOW + 5 * i)
    assert pytest.approx(4.0, rel=0.01) == past.pace["uid-a"][2]  # it rests

    for i in range(121, 181):
        past = seen(past, worker("a", use=Use(runs=1300), processing=1), at=NOW + 5 * i)
    assert pytest.approx(0.0, abs=0.01) == past.pace["uid-a"][2]  # one long task


def paced(
    past: tuple[float, int, float] | None, runs: int, **changes: Any
) -> tuple[float, int, float]:
    """The pace of one worker after one more pass, averaged over 100 seconds."""
    known = RecyclePast(ready_s=100.0, pace={} if past is None else {"uid-a": past})
    return seen(known, worker("a", use=Use(runs=runs), **changes)).pace["uid-a"]


@pytest.mark.parametrize(
    ("runs", "pod_age_s", "expected"),
    [(10, 20.0, 0.5), (10, 1.0, 10.0), (10, 0.5, 20.0), (10, 0.0, 0.0), (0, 20.0, 0.0)],
)
def test_the_pace_begins_with_what_the_pod_has_done(
    runs: int, pod_age_s: float, expected: float
) -> None:
    assert (NOW, runs, expected) == paced(None, runs, pod_age_s=pod_age_s)


NEW_WEIGHT = 1 - math.exp(-1)


@pytest.mark.parametrize(
    ("past", "runs", "changes", "expected"),
    [
        pytest.param((NOW - 100, 500, 0.0), 600, {}, NEW_WEIGHT, id="averaged"),
        pytest.param((NOW - 50, 500, 3.0), 600, {}, 3.0 - (1 - math.exp(-0.5)), id="it-slows-down"),
        pytest.param((NOW - 100.5, 500, 3.0), 600, {}, 3.0, id="it-has-rested"),
        pytest.param((NOW - 10, 500, 3.0), 400, {}, 3.0, id="another-process"),
        pytest.param((NOW - 1, 500, 0.0), 600, {}, 100 * (1 - math.exp(-0.01)), id="in-a-second"),
        pytest.param((NOW - 100, 500, 0.0), 600, {"pod_age_s": 50.0}, 12.0, id="young"),
        pytest.param((NOW - 1, 500, 0.0), 600, {"pod_age_s": 1.0}, 600.0, id="just-born"),
        pytest.param((NOW - 1, 500, 0.0), 600, {"pod_age_s": 0.5}, 1200.0, id="younger-still"),
        pytest.param((NOW - 100, 500, 9.0), 600, {"pod_age_s": 250.0}, 9.0 - 8.0 * NEW_WEIGHT,
                     id="young-and-faster-of-late"),
        pytest.param((NOW - 100, 500, 0.0), 600, {"pod_age_s": 299.9}, 600 / 299.9,
                     id="just-young-enough"),
        pytest.param((NOW - 100, 500, 0.0), 600, {"pod_age_s": 300.0}, NEW_WEIGHT,
                     id="not-young-any-more"),
    ],
)  # fmt: skip
def test_the_pace_of_a_worker(
    past: tuple[float, int, float], runs: int, changes: dict[str, Any], expected: float
) -> None:
    at, before, pace = paced(past, runs, **changes)

    assert (NOW, runs) == (at, before)
    assert pytest.approx(expected) == pace


@pytest.mark.parametrize(
    ("past", "changes"),
    [
        pytest.param((NOW - 0.9, 500, 3.0), {"use": Use(runs=600)}, id="too-soon-to-tell"),
        pytest.param((NOW - 50, 600, 3.0), {"use": Use(runs=600)}, id="it-rests"),
    ],
)
def test_what_says_nothing_of_the_pace_leaves_it(
    past: tuple[float, int, float], changes: dict[str, Any]
) -> None:
    known = RecyclePast(ready_s=100.0, pace={"uid-a": past})

    assert {"uid-a": past} == seen(known, worker("a", **changes)).pace


# --- how their memory grows -----------------------------------------------------------------------

Samples = Sequence[tuple[float, int]]


def grows(samples: Samples, *, window_s: float = HOUR_S, notable: float = 500.0 * MIB) -> float:
    """What is told, in bytes an hour, when the last of these samples is seen; 0: nothing."""
    known = {"uid-a": tuple(samples[:-1])} if samples[:-1] else {}
    at, size = samples[-1]
    quota = MemoryQuota(leak_rate=notable, leak_window_s=window_s)
    past = RecyclePast(samples=known, pace={"uid-a": (at, 0, 0.0)})
    now = seen(
        past, worker("a", use=Use(unmanaged_bytes=size)), at=at, recycle=Recycle(memory=quota)
    )
    assert tuple(samples) == now.samples["uid-a"], "all of them count"
    return now.growth.get("uid-a", 0.0)


def line(n: int, *, rise: float = 60.0) -> list[tuple[float, int]]:
    """So many samples, one a minute, `rise` bytes more each time."""
    return [(NOW + i * 60.0, int(i * rise)) for i in range(n)]


def series(size: Callable[[float], float], minutes: int = 60, every: int = 2) -> Samples:
    return [(NOW + 60.0 * m, int(size(m))) for m in range(0, minutes + 1, every)]


drawn = random.Random(7)
LEAKING = {
    "steadily": series(lambda m: 2e9 + 10 * MIB * m),
    "with noise": series(lambda m: 2e9 + 10 * MIB * m + drawn.gauss(0, 100 * MIB)),
    "under a sawtooth": series(lambda m: 2e9 + 10 * MIB * m + 300 * MIB * (m % 10 > 4)),
    "with wild values": series(lambda m: 2e9 + 10 * MIB * m + (4e9 if m % 14 == 0 else 0)),
    "for half of the window": series(lambda m: 2e9 + 10 * MIB * m, minutes=30),
}
HEALTHY = {
    "level": series(lambda m: 2e9),
    "with noise": series(lambda m: 2e9 + drawn.gauss(0, 200 * MIB)),
    "a sawtooth": series(lambda m: 2e9 + 100 * MIB * (m % 13)),
    "a step": series(lambda m: 2e9 + 2e9 * (m > 48)),
    "one peak at the end": series(lambda m: 2e9 + 8e9 * (m > 56)),
    "falling": series(lambda m: 9e9 - 10 * MIB * m),
    "slowly": series(lambda m: 2e9 + 3 * MIB * m),
    "begun just now": series(lambda m: 2e9 + 50 * MIB * m, minutes=28),
    "too few to tell": series(lambda m: 2e9 + 50 * MIB * m, every=10),
}


@pytest.mark.parametrize("samples", LEAKING.values(), ids=LEAKING)
def test_a_leak_is_seen(samples: Samples) -> None:
    assert pytest.approx(600 * MIB, rel=0.15) == grows(samples)


@pytest.mark.parametrize("samples", HEALTHY.values(), ids=HEALTHY)
def test_what_is_no_leak_is_left_alone(samples: Samples) -> None:
    assert grows(samples) < 500 * MIB


def test_the_slope_is_that_of_most_pairs_in_bytes_an_hour() -> None:
    samples = line(9)

    assert pytest.approx(HOUR_S) == grows(samples, window_s=960.0, notable=1.0)
    samples[4] = (samples[4][0], 10**9)
    assert pytest.approx(HOUR_S) == grows(samples, window_s=960.0, notable=1.0)


def test_a_slope_takes_enough_samples_over_half_a_window() -> None:
    assert 0.0 < grows(line(FEWEST_SAMPLES), window_s=800.0, notable=1.0)
    assert 0.0 == grows(line(FEWEST_SAMPLES - 1), window_s=600.0, notable=1.0)

    assert 0.0 < grows(line(9), window_s=960.0, notable=1.0)  # they span 480 s
    assert 0.0 == grows(line(9), window_s=961.0, notable=1.0)


@pytest.mark.parametrize(("share", "is_told"), [(0.44, False), (0.45, True), (2.0, True)])
def test_much_less_than_what_is_notable_is_none(share: float, is_told: bool) -> None:
    # From the middle of its first third to that of its last a line of 9 rises by 6 steps of 8.
    notable = 3600.0 * 6000
    samples = line(9, rise=60 * 6000 * share)

    assert is_told == (grows(samples, window_s=960.0, notable=notable) > 0)


def test_a_third_at_each_end_is_compared_by_its_median() -> None:
    # One of three at each end is wild: the median of the three does not see it.
    sizes = [9000, 60, 120, 600, 700, 800, 1140, 1200, 0]
    samples = [(60.0 * i, size) for i, size in enumerate(sizes)]

    # 1020 bytes in 480 s, of which a third is what a notable rate would come to.
    assert 0.0 < grows(samples, window_s=960.0, notable=3600.0 * 1020 / 160)
    assert 0.0 == grows(samples, window_s=960.0, notable=3600.0 * 1020.1 / 160)


def test_an_even_number_of_slopes_has_a_median_between_two() -> None:
    samples = [(60.0 * i, i**3) for i in range(8)]  # they have 28 pairs
    slopes = sorted((b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.combinations(samples, 2))
    between = (slopes[13] + slopes[14]) / 2

    assert slopes[13] != slopes[14]
    assert pytest.approx(between * HOUR_S) == grows(samples, window_s=800.0, notable=1.0)


def test_two_looks_at_the_same_time_make_no_slope() -> None:
    samples = [(0.0, 0), *[(60.0 * i, 60 * i) for i in range(9)]]

    assert pytest.approx(HOUR_S) == grows(samples, window_s=960.0, notable=1.0)


def test_samples_are_taken_evenly_and_kept_for_the_window() -> None:
    def after(samples: Samples, at: float) -> Samples:
        quota = MemoryQuota(leak_rate=1.0, leak_window_s=300.0)
        known = {"uid-a": tuple(samples)} if samples else {}
        past = RecyclePast(samples=known, pace={"uid-a": (at, 0, 0.0)})
        one = worker("a", use=Use(unmanaged_bytes=2))
        return seen(past, one, at=at, recycle=Recycle(memory=quota)).samples["uid-a"]

    step_s, first = 300.0 / SAMPLES, ((NOW, 1),)
    assert ((NOW, 2),) == after((), NOW)
    assert first == after(first, NOW + step_s - 0.1)
    assert (*first, (NOW + step_s, 2)) == after(first, NOW + step_s)
    assert (*first, (NOW + 300.0, 2)) == after(first, NOW + 300.0)
    assert ((NOW + 300.1, 2),) == after(first, NOW + 300.1)


def test_samples_are_as_many_as_a_window_needs_whatever_the_pace_of_passes() -> None:
    past = RecyclePast()
    for i in range(3000):
        past = seen(past, worker("a", use=Use(unmanaged_bytes=i)), at=NOW + 5 * i)
    (samples,) = past.samples.values()

    assert SAMPLES <= len(samples) <= SAMPLES + 1
    assert NOW + 5 * 3000 - HOUR_S - 130 <= samples[0][0]


def test_growth_is_kept_between_samples_and_forgotten_when_it_ends() -> None:
    past, leaks = RecyclePast(), math.nan
    for i in range(0, 720):  # an hour of passes
        used = Use(unmanaged_bytes=2 * 10**9 + int(10 * MIB * i / 12))
        past = seen(past, worker("a", use=used), at=NOW + 5 * i)
        leaks = past.growth.get("uid-a", 0.0)
    assert pytest.approx(600 * MIB, rel=0.01) == leaks

    for i in range(720, 1440):
        past = seen(past, worker("a", use=Use(unmanaged_bytes=3 * 10**9)), at=NOW + 5 * i)
    assert {} == past.growth


@pytest.mark.parametrize(
    ("sampled_at", "growth", "expected"),
    [
        pytest.param(NOW - 5, {"uid-a": 0.5}, {"uid-a": 0.5}, id="as-told-from-the-same-samples"),
        pytest.param(NOW - 5, {}, {}, id="told-nothing"),
        pytest.param(NOW - 120, {"uid-a": 0.5}, {}, id="one-sample-more-and-too-few-to-tell"),
    ],
)
def test_growth_is_told_anew_with_each_sample(
    sampled_at: float, growth: dict[str, float], expected: dict[str, float]
) -> None:
    known = RecyclePast(
        pace={"uid-a": (NOW - 5, 0, 0.0)}, samples={"uid-a": ((sampled_at, 10),)}, growth=growth
    )
    leaks = Recycle(memory=MemoryQuota(leak_rate=100.0))
    found = seen(known, worker("a"), recycle=leaks)

    assert expected == found.growth
    assert (2 if sampled_at == NOW - 120 else 1) == len(found.samples["uid-a"])


# --- of recycles ----------------------------------------------------------------------------------

TASKS = Retire("a", ("a",), Reason.TASK_QUOTA, "", busy_ok=True)
BY_HAND = dataclasses.replace(TASKS, reason=Reason.RECYCLE_REQUESTED)
AB = cluster([busy("a", pod_uid="p"), busy("b")])


def after(
    world: ObservedCluster, *actions: Action, past: Past = PAST, done: bool = True,
    now: float = NOW, timeout_s: float = 600.0, **plan: Any,
) -> Past:  # fmt: skip
    policy = dataclasses.replace(
        POLICY, recycle=Recycle(strategy=Strategy(ready_timeout_s=timeout_s))
    )
    outcomes = [Outcome(a, done, a.reason, "") for a in actions]
    decided = dataclasses.replace(PLAN, **plan)
    is_frozen = decided.reason is Reason.PAUSED
    group = GroupPlan(GROUP, 2, 2, 3, decided.reason, "", is_frozen=is_frozen)
    decided = dataclasses.replace(decided, groups=(group,))
    return remember(past, world, policy, decided, outcomes, now=now)


@pytest.mark.parametrize(
    ("action", "done", "begun", "totals"),
    [
        pytest.param(TASKS, True, (NOW,), {Reason.TASK_QUOTA: 1}, id="for-a-quota"),
        pytest.param(TASKS, False, (), {}, id="refused"),
        pytest.param(BY_HAND, True, (), {Reason.RECYCLE_REQUESTED: 1}, id="by-hand"),
    ],
)  # fmt: skip
def test_recycles_are_counted(
    action: Retire, done: bool, begun: tuple[float, ...], totals: dict[Reason, int]
) -> None:
    past = after(AB, action, done=done)

    assert (begun, totals) == (past.recycle.begun, past.recycle.totals)


def test_each_pod_is_counted_once() -> None:
    once = after(AB, TASKS)
    again = after(AB, TASKS, past=once, now=NOW + 60)
    next_pod = cluster([busy("a", pod_uid="q"), busy("b")])

    assert {Reason.TASK_QUOTA: 1} == again.recycle.totals
    assert {Reason.TASK_QUOTA: 2} == after(next_pod, TASKS, past=again).recycle.totals


def test_what_else_was_done_does_not_hide_a_recycle() -> None:
    more = SetReplicas(GROUP, 3, Reason.RECYCLING, "")
    past = after(AB, more, TASKS, dataclasses.replace(TASKS, worker="b", reason=Reason.OUTLIER))

    assert {Reason.TASK_QUOTA: 1, Reason.OUTLIER: 1} == past.recycle.totals
    assert {"a": "p", "b": "uid-b"} == past.counted
    assert {"a": ""} == after(cluster([busy("b")]), TASKS).counted  # gone by now


def test_an_hour_slides() -> None:
    past = dataclasses.replace(PAST, recycle=RecyclePast(begun=(NOW - 3600, NOW - 3599)))

    assert (NOW - 3599,) == after(AB, past=past).recycle.begun


def test_it_is_known_since_when_a_replacement_is_waited_for() -> None:
    first = after(AB, waiting=frozenset("a"), floors={"a": 2})
    later = after(AB, past=first, now=NOW + 9, waiting=frozenset("ab"), floors={"a": 2, "b": 2})

    assert {"a": NOW} == first.recycle.surging_since
    assert {"a": NOW, "b": NOW + 9} == later.recycle.surging_since
    assert {"a": 2, "b": 2} == later.floors
    assert {} == after(AB, past=later).recycle.surging_since


def test_each_failure_is_waited_out_for_twice_as_long_up_to_an_hour() -> None:
    past, now, waits = PAST, NOW, []
    for _ in range(6):
        past = after(
            AB, past=past, now=now, aborting={"a": "why"}, waiting=frozenset("a"), timeout_s=300.0
        )
        until, why = past.recycle.aborted["a"]
        waits.append(until - now)
        now = until

    assert [300, 600, 1200, 2400, 3600, 3600] == waits
    assert "why" == why
    assert {} == past.recycle.surging_since


def test_a_failure_is_waited_out_until_its_time() -> None:
    failed = after(AB, aborting={"a": "why"}, timeout_s=300.0)

    assert ["a"] == list(after(AB, past=failed, now=NOW + 299).recycle.aborted)
    assert [] == list(after(AB, past=failed, now=NOW + 300).recycle.aborted)


def test_a_replacement_that_has_come_ends_the_waiting() -> None:
    failed = after(AB, aborting={"b": "why"})

    more = SetReplicas(GROUP, 3, Reason.RECYCLING, "")
    assert ["b"] == list(after(AB, more, past=failed, floors={"a": 2}).recycle.aborted)

    assert {} == after(AB, TASKS, past=failed, floors={"a": 2}).recycle.aborted
    hasty = after(AB, TASKS, past=failed, floors={"a": 2}, waiting=frozenset("a"))
    assert ["b"] == list(hasty.recycle.aborted)


def test_workers_that_are_gone_are_forgotten() -> None:
    past = after(AB, TASKS, aborting={"b": "why", "x": "gone by now"})
    later = after(cluster([busy("c")]), past=past)

    assert ["b"] == list(past.recycle.aborted)
    assert ({}, {}, {}) == (later.recycle.aborted, later.aborts, later.counted)
    assert {"c"} == later.seen


def test_the_past_of_recycles_outlives_a_session() -> None:
    past = after(AB, TASKS, aborting={"b": "why"}, waiting=frozenset("a"), floors={"a": 2})
    new = after(cluster([busy("a", pod_uid="p"), busy("b")], session="new"), TASKS, past=past)

    assert ((NOW,), {Reason.TASK_QUOTA: 1}) == (new.recycle.begun, new.recycle.totals)
    assert (["b"], {"b": 1}) == (list(new.recycle.aborted), new.aborts)
    assert ({}, {}) == (new.recycle.surging_since, new.floors)


def test_a_pod_is_deleted_once_while_its_process_is_still_known() -> None:
    drained = worker("a", leaving=Leaving.DRAINED, in_service=False)
    restart = Restart("a", "a-x", "p", ("a",), Reason.TASK_QUOTA, "")
    past = after(cluster([drained]), restart)

    assert {"a": "p"} == past.restarted == after(cluster([drained]), past=past).restarted
    assert {} == after(cluster([pending("a")]), past=past).restarted
    assert {} == after(cluster([drained]), restart, done=False).restarted
