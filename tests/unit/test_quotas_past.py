"""What is remembered of a worker for its quotas: since when, how fast, which way."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest

from dask_adaptive.model.observed import ObservedScheduler, ObservedWorker
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import GpuQuota, MemoryQuota, Recycle, RecyclePast, Use
from dask_adaptive.planner.leaks import SAMPLES, growth, with_sample
from dask_adaptive.planner.quotas import remember_quotas
from support.worlds import NOW, POLICY, cluster, pending, worker

HOUR_S, MIB = 3600.0, 2**20
SOFT = Recycle(memory=MemoryQuota(soft=0.8, leak_rate=500.0 * MIB), gpu=GpuQuota(soft=0.7))


def after(
    past: RecyclePast, *workers: ObservedWorker, at: float = NOW, recycle: Recycle = SOFT
) -> RecyclePast:
    policy = dataclasses.replace(POLICY, recycle=recycle)
    return remember_quotas(past, cluster(workers), policy, now=at)


def test_it_is_known_since_when_a_worker_is_above_a_soft_line() -> None:
    high, low = Use(unmanaged=0.8, gpu=0.7), Use(unmanaged=0.79, gpu=0.69)
    first = after(RecyclePast(), worker("a", use=high), worker("b", use=low))
    second = after(first, worker("a", use=high), worker("b", use=high), at=NOW + 5)
    third = after(second, worker("a", use=low), worker("b", use=high), at=NOW + 10)

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
    first = after(RecyclePast(), worker("a", use=Use(unmanaged=0.9, runs=5), pod_uid="1"))
    second = after(first, other, at=NOW + 300)

    assert {other.pod_uid: NOW + 300} == second.above_since
    assert [1] == [len(samples) for samples in second.samples.values()]


@pytest.mark.parametrize("gone", [(), (pending("a"),), (worker("a", going=True),)])
def test_who_is_gone_is_forgotten(gone: tuple[ObservedWorker, ...]) -> None:
    first = after(RecyclePast(), worker("a", use=Use(unmanaged=0.9)))

    assert RecyclePast() == after(first, *gone)


def test_a_scheduler_that_does_not_answer_changes_nothing() -> None:
    first = after(RecyclePast(), worker("a", use=Use(unmanaged=0.9)))
    silent = dataclasses.replace(
        cluster([pending("a")]), scheduler=ObservedScheduler(Reason.SCHEDULER_UNREACHABLE)
    )

    assert first is remember_quotas(first, silent, POLICY, now=NOW + 5)


def test_what_others_remember_is_kept() -> None:
    past = RecyclePast(begun=(1.0,), totals={Reason.LIFETIME: 2}, ready_s=33.0,
                       surging_since={"a": 1.0}, aborted={"a": (2.0, "why")})  # fmt: skip
    kept = after(past, worker("a"))

    assert past == dataclasses.replace(kept, pace={}, samples={})


def test_the_pace_follows_what_a_worker_does() -> None:
    past = after(RecyclePast(), worker("a", use=Use(runs=100), pod_age_s=100.0))
    assert {"uid-a": (NOW, 100, 1.0)} == past.pace

    for i in range(1, 61):
        past = after(past, worker("a", use=Use(runs=100 + 20 * i)), at=NOW + 5 * i)
    assert pytest.approx(4.0, rel=0.01) == past.pace["uid-a"][2]

    for i in range(61, 121):
        past = after(past, worker("a", use=Use(runs=1300)), at=NOW + 5 * i)
    assert pytest.approx(4.0, rel=0.01) == past.pace["uid-a"][2]  # it rests

    for i in range(121, 181):
        past = after(past, worker("a", use=Use(runs=1300), processing=1), at=NOW + 5 * i)
    assert pytest.approx(0.0, abs=0.01) == past.pace["uid-a"][2]  # one long task


def test_the_pace_survives_passes_in_quick_succession_and_a_new_process() -> None:
    past = RecyclePast(pace={"uid-a": (NOW, 100, 4.0)})

    assert past.pace == after(past, worker("a", use=Use(runs=101)), at=NOW + 0.01).pace
    assert {"uid-a": (NOW + 5, 3, 4.0)} == after(
        past, worker("a", use=Use(runs=3)), at=NOW + 5
    ).pace


def test_samples_are_as_many_as_a_window_needs_whatever_the_pace_of_passes() -> None:
    past = RecyclePast()
    for i in range(3000):
        past = after(past, worker("a", use=Use(unmanaged_bytes=i)), at=NOW + 5 * i)
    (samples,) = past.samples.values()

    assert SAMPLES <= len(samples) <= SAMPLES + 1
    assert NOW + 5 * 3000 - HOUR_S - 130 <= samples[0][0]


def test_nothing_is_sampled_where_no_leak_is_looked_for() -> None:
    assert {} == after(RecyclePast(), worker("a"), recycle=Recycle()).samples


def series(size: object, minutes: int = 60, every: int = 2) -> tuple[tuple[float, int], ...]:
    assert callable(size)
    return tuple((60.0 * m, int(size(m))) for m in range(0, minutes + 1, every))


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
    "nothing": (),
}


@pytest.mark.parametrize("samples", LEAKING.values(), ids=LEAKING)
def test_a_leak_is_seen(samples: tuple[tuple[float, int], ...]) -> None:
    seen = growth(samples, window_s=HOUR_S, notable=500.0 * MIB)

    assert pytest.approx(600 * MIB, rel=0.15) == seen


@pytest.mark.parametrize("samples", HEALTHY.values(), ids=HEALTHY)
def test_what_is_no_leak_is_left_alone(samples: tuple[tuple[float, int], ...]) -> None:
    assert growth(samples, window_s=HOUR_S, notable=500.0 * MIB) < 500 * MIB


def test_a_sample_is_taken_when_it_is_time_and_old_ones_go() -> None:
    step = HOUR_S / SAMPLES
    samples = with_sample((), 0.0, 1, window_s=HOUR_S)

    assert ((0.0, 1),) == samples
    assert samples is with_sample(samples, step - 1, 2, window_s=HOUR_S)
    assert ((0.0, 1), (step, 2)) == with_sample(samples, step, 2, window_s=HOUR_S)
    assert ((HOUR_S + 1, 3),) == with_sample(samples, HOUR_S + 1, 3, window_s=HOUR_S)


def test_growth_is_kept_between_samples_and_forgotten_when_it_ends() -> None:
    past, leaks = RecyclePast(), math.nan
    for i in range(0, 720):  # an hour of passes
        used = Use(unmanaged_bytes=2 * 10**9 + int(10 * MIB * i / 12))
        past = after(past, worker("a", use=used), at=NOW + 5 * i)
        leaks = past.growth.get("uid-a", 0.0)
    assert pytest.approx(600 * MIB, rel=0.01) == leaks

    for i in range(720, 1440):
        past = after(past, worker("a", use=Use(unmanaged_bytes=3 * 10**9)), at=NOW + 5 * i)
    assert {} == past.growth
