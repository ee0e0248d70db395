"""Which workers are due, why, and in what order."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_adaptive.model.observed import Leaving, ObservedCluster, ObservedWorker
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import (
    FailureQuota,
    GpuQuota,
    LifetimeQuota,
    Limit,
    Measure,
    MemoryQuota,
    Profile,
    Quota,
    QuotaNotes,
    Recycle,
    RecyclePast,
    Selection,
    TaskQuota,
    Trait,
    Use,
)
from dask_adaptive.planner.due import RULES, Scene, due, urgency
from dask_adaptive.planner.quotas import Assessment, Due, assess, limit_of, profile_of, quota_lines
from dask_adaptive.planner.rations import own_lifetime_s, own_tasks, shares
from support.worlds import GROUP, NOW, POLICY, busy, cluster, pending, worker

AT = 1_800_000_000.0
READY = RecyclePast(ready_s=10.0)


def seen(*workers: ObservedWorker, **scheduler: Any) -> ObservedCluster:
    return dataclasses.replace(cluster(workers, **scheduler), at=AT)


def judged(
    observed: ObservedCluster, recycle: Recycle, past: RecyclePast = READY, **policy: Any
) -> Assessment:
    policy_ = dataclasses.replace(POLICY, recycle=recycle, **policy)
    return assess(observed, observed.groups[0], policy_, past, now=NOW)


TASKS = Recycle(tasks=TaskQuota(1000))
LIFETIME = Recycle(lifetime=LifetimeQuota(3600.0))
SOFT = Recycle(memory=MemoryQuota(soft=0.8))
HARD = Recycle(memory=MemoryQuota(hard=0.92))
PROCESS = Recycle(memory=MemoryQuota(soft=0.8, measure=Measure.PROCESS))
LEAK = Recycle(memory=MemoryQuota(leak_rate=500.0 * 2**20))
GPU = Recycle(gpu=GpuQuota(soft=0.8, hard=0.95))
FAILURES = Recycle(failures=FailureQuota(20, 600.0, ("CUDA error",)))
EXACT = Recycle(tasks=TaskQuota(1000, exact=True))
LAST: dict[str, Any] = {"stopped": "has its last task", "stopped_for": Quota.TASKS}
FAILED: dict[str, Any] = {"stopped": "20 failures", "stopped_for": Quota.FAILURES}
WALLTIME = Recycle(tasks=TaskQuota(from_walltime=True))
BOTH = Recycle(tasks=TaskQuota(1000, exact=True), failures=FailureQuota(20))

LONG_ABOVE = RecyclePast(above_since={"uid-a": NOW - 120, "uid-a gpu": NOW - 120})
SOON_ABOVE = RecyclePast(above_since={"uid-a": NOW - 115, "uid-a gpu": NOW - 115})
GROWING = RecyclePast(growth={"uid-a": 2.0 * 2**30})
FAST = RecyclePast(pace={"uid-a": (NOW, 960, 5.0)}, ready_s=10.0)
BREATH = RecyclePast(pace={"uid-a": (NOW - 10, 960, 5.0)}, ready_s=10.0)
RESTED = RecyclePast(pace={"uid-a": (NOW - 11, 960, 5.0)}, ready_s=10.0)

OVER, SOON = True, False


@pytest.mark.parametrize(
    ("changes", "recycle", "past", "expected"),
    [
        pytest.param({"use": Use(runs=999)}, TASKS, READY, None, id="one-task-left"),
        pytest.param({"use": Use(runs=1002)}, TASKS, READY, (
            Reason.TASK_QUOTA, OVER, "1,002 tasks run (recycle.tasks.max 1000)"), id="tasks"),
        pytest.param({"use": Use(runs=960)}, TASKS, FAST, (
            Reason.TASK_QUOTA, SOON, "will soon have run 1,000 tasks (recycle.tasks.max 1000)"),
            id="tasks-soon-at-its-pace"),
        pytest.param({"use": Use(runs=940)}, TASKS, FAST, None, id="not-so-soon"),
        pytest.param({"use": Use(runs=960)}, TASKS, BREATH, (
            Reason.TASK_QUOTA, SOON, "will soon have run 1,000 tasks (recycle.tasks.max 1000)"),
            id="tasks-soon-after-a-breath"),
        pytest.param({"use": Use(runs=999)}, TASKS, RESTED, None, id="rested-for-long"),
        pytest.param({"use": Use(runs=960), "processing": 1}, TASKS, RESTED, (
            Reason.TASK_QUOTA, SOON, "will soon have run 1,000 tasks (recycle.tasks.max 1000)"),
            id="tasks-soon-as-it-resumes"),
        pytest.param({"use": Use(runs=998), **LAST}, EXACT, READY, (
            Reason.TASK_QUOTA, OVER, "has its last task"), id="the-rest-is-assigned"),
        pytest.param({"use": Use(runs=998), "stopped": "has its last task"}, TASKS, READY, None,
            id="a-stop-that-is-lifted"),
        pytest.param({"use": Use(runs=60), "quota_notes": QuotaNotes(tasks=50)}, TASKS, READY, (
            Reason.TASK_QUOTA, OVER,
            "60 tasks run (annotation dask-adaptive.dev/recycle-tasks: 50)"), id="own-number"),
        pytest.param({"use": Use(runs=60), "quota_notes": QuotaNotes(tasks=50)}, Recycle(), READY, (
            Reason.TASK_QUOTA, OVER,
            "60 tasks run (annotation dask-adaptive.dev/recycle-tasks: 50)"), id="only-its-own"),
        pytest.param({"use": Use(runs=9999), "quota_notes": QuotaNotes(tasks=0)}, TASKS, READY,
            None, id="off-for-this-worker"),
        pytest.param({"pod_age_s": 3589.0}, LIFETIME, READY, None, id="younger"),
        pytest.param({"pod_age_s": 3590.0}, LIFETIME, READY, (
            Reason.LIFETIME, SOON, "will soon be older than 1h (recycle.lifetime.max 1h)"),
            id="old-soon"),
        pytest.param({"pod_age_s": 3600.0}, LIFETIME, READY, (
            Reason.LIFETIME, OVER, "is older than 1h (recycle.lifetime.max 1h)"), id="old"),
        pytest.param({"pod_age_s": 3600.0, "quota_notes": QuotaNotes(lifetime_s=math.inf)},
            LIFETIME, READY, None, id="old-and-may-be"),
        pytest.param({"pod_age_s": 3600.0, "quota_notes": QuotaNotes(lifetime_s=60.0)},
            LIFETIME, READY, (Reason.LIFETIME, OVER,
            "is older than 1m (annotation dask-adaptive.dev/recycle-lifetime: 1m)"), id="own-age"),
        pytest.param({"ends_in_s": 10.0}, Recycle(), READY, (
            Reason.LIFETIME, OVER, "it ends in less than 10s (recycle.lifetime.margin)"),
            id="ends-whatever-the-policy-says"),
        pytest.param({"ends_in_s": 20.0}, Recycle(), READY, (Reason.LIFETIME, SOON,
            "it ends soon, and has no time for another task of those that wait or run"),
            id="ends-soon"),
        pytest.param({"ends_in_s": 20.1}, Recycle(), READY, None, id="ends-later"),
        pytest.param({"ends_in_s": 900.0, "too_short": True}, Recycle(), READY, (Reason.LIFETIME,
            OVER, "a task waits that it is not expected to finish before it ends"), id="too-short"),
        pytest.param({"use": Use(process=0.91)}, HARD, READY, None, id="below-hard"),
        pytest.param({"use": Use(process=0.97)}, HARD, READY, (Reason.MEMORY_HARD, OVER,
            "its process takes 95% of its memory (recycle.memory.hard)"), id="hard"),
        pytest.param({"use": Use(process=0.92)}, HARD, READY, (Reason.MEMORY_HARD, OVER,
            "its process takes 92% of its memory (recycle.memory.hard)"), id="at-hard"),
        pytest.param({"use": Use(unmanaged=0.8)}, SOFT, READY, None, id="above-soft-since-now"),
        pytest.param({"use": Use(unmanaged=0.8)}, SOFT, LONG_ABOVE, (Reason.MEMORY_SOFT, OVER,
            "unmanaged memory has been above 80% of the limit for over 2m (recycle.memory.soft)"),
            id="soft"),
        pytest.param({"use": Use(unmanaged=0.8)}, SOFT, SOON_ABOVE, (Reason.MEMORY_SOFT, SOON,
            "unmanaged memory has been above 80% of the limit for long (recycle.memory.soft)"),
            id="soft-soon"),
        pytest.param({"use": Use(unmanaged=0.79)}, SOFT, LONG_ABOVE, None, id="fell-again"),
        pytest.param({"use": Use(process=0.9, unmanaged=0.1)}, SOFT, LONG_ABOVE, None,
            id="full-of-results-but-healthy"),
        pytest.param({"use": Use(process=0.9, unmanaged=0.1)}, PROCESS, LONG_ABOVE, (
            Reason.MEMORY_SOFT, OVER, "its process's memory has been above 80% of the limit for"
            " over 2m (recycle.memory.soft)"), id="measured-by-process"),
        pytest.param({"use": Use(process=0.97), "quota_notes": QuotaNotes(memory_hard=math.inf)},
            HARD, READY, None, id="hard-off"),
        pytest.param({"use": Use(unmanaged=0.5), "quota_notes": QuotaNotes(memory_soft=0.4)},
            SOFT, LONG_ABOVE, (Reason.MEMORY_SOFT, OVER, "unmanaged memory has been above 40% of"
            " the limit for over 2m (recycle.memory.soft)"), id="own-soft"),
        pytest.param({}, LEAK, GROWING, (Reason.MEMORY_LEAK, OVER, "unmanaged memory grows by"
            " 2.0 GiB an hour (recycle.memory.leakRate 500 MiB)"), id="leak"),
        pytest.param({}, Recycle(), GROWING, None, id="leaks-do-not-count"),
        pytest.param({"use": Use(gpu=0.96)}, GPU, READY, (Reason.GPU_MEMORY, OVER,
            "95% of GPU memory is taken (recycle.gpuMemory.hard)"), id="gpu-hard"),
        pytest.param({"use": Use(gpu=0.85)}, GPU, LONG_ABOVE, (Reason.GPU_MEMORY, OVER, "GPU memory"
            " has been above 80% of the limit for over 2m (recycle.gpuMemory.soft)"),
            id="gpu-soft"),
        pytest.param({"use": Use(gpu=0.85)}, GPU, READY, None, id="gpu-since-now"),
        pytest.param({"use": Use(failures=19)}, FAILURES, READY, None, id="one-failure-left"),
        pytest.param({"use": Use(failures=20)}, FAILURES, READY, (Reason.FAILURES, OVER,
            "20 runs failed within 10m (recycle.failures.max 20)"), id="failures"),
        pytest.param({"use": Use(failures=3), "quota_notes": QuotaNotes(failures=3)}, FAILURES,
            READY, (Reason.FAILURES, OVER, "3 runs failed within 10m (annotation"
            " dask-adaptive.dev/recycle-failures: 3)"), id="own-failures"),
        pytest.param({"use": Use(match="RuntimeError('CUDA error:\n" + "x" * 200)}, FAILURES, READY,
            (Reason.FAILURES, OVER, "a task failed with \"RuntimeError('CUDA error: "
            + "x" * 94 + '" (recycle.failures.patterns)'), id="pattern"),
        pytest.param({"use": Use(match="CUDA error")}, TASKS, READY, None, id="no-pattern-now"),
        pytest.param(FAILED, FAILURES, READY, (Reason.FAILURES, OVER,
            "20 failures"), id="stopped-for-failures-that-are-out-of-the-window"),
        pytest.param({**FAILED, "use": Use(runs=7)}, BOTH, READY, (Reason.FAILURES,
            OVER, "20 failures"), id="stopped-far-from-its-tasks"),
        pytest.param({**LAST, "use": Use(runs=999), "processing": 1}, BOTH,
            READY, (Reason.TASK_QUOTA, OVER, "has its last task"), id="stopped-near-its-tasks"),
        pytest.param(LAST, Recycle(), READY, None, id="stopped-by-old-limits"),
        pytest.param({"recycle_asked": "kubectl, on pod a"}, Recycle(), READY, (
            Reason.RECYCLE_REQUESTED, OVER, "its replacement was asked for: kubectl, on pod a"),
            id="asked"),
        pytest.param({"drift": "image"}, Recycle(), READY, (Reason.DRIFTED, OVER,
            "differs from its worker group: image"), id="drift"),
        pytest.param({"drift": "image"}, Recycle(drift=False), READY, None, id="drift-is-well"),
        pytest.param({"quota_notes": QuotaNotes(problem="?")}, TASKS, READY, None,
            id="what-cannot-be-read-changes-nothing"),
    ],
)  # fmt: skip
def test_a_worker_is_due(
    changes: dict[str, Any],
    recycle: Recycle,
    past: RecyclePast,
    expected: tuple[Reason, bool, str] | None,
) -> None:
    found = judged(seen(worker("a", **changes)), recycle, past).due

    assert ([] if expected is None else [expected]) == [
        (d.reason, d.is_over, d.message) for d in found
    ]


@pytest.mark.parametrize(
    ("expected_s", "ends_in_s", "expected"),
    [
        (60.0, 80.1, []),
        (60.0, 79.9, [(Reason.TASK_QUOTA, SOON), (Reason.LIFETIME, SOON)]),
        (60.0, 69.0, [(Reason.TASK_QUOTA, OVER), (Reason.LIFETIME, SOON)]),
        (0.0, 69.0, []),  # nobody knows how long a task takes
    ],
)
def test_a_worker_without_time_for_another_task_is_due(
    expected_s: float, ends_in_s: float, expected: list[tuple[Reason, bool]]
) -> None:
    observed = seen(worker("a", ends_in_s=ends_in_s), expected_s=expected_s)
    found = [d for due in judged(observed, WALLTIME).due for d in (due, *due.rest)]

    assert sorted(expected) == sorted((d.reason, d.is_over) for d in found)


@pytest.mark.parametrize(
    ("restart_at", "expected"),
    [(AT - 101, []), (AT - 100, []), (AT - 99, ["a"]), (AT, ["a"]), (AT + 1, [])],
)
def test_pods_made_before_the_restart_are_due_once_its_time_has_come(
    restart_at: float, expected: list[str]
) -> None:
    observed = seen(worker("a", pod_age_s=100.0))

    assert expected == [d.worker for d in judged(observed, Recycle(), restart_at=restart_at).due]


@pytest.mark.parametrize(
    "gone",
    [
        pending("a", recycle_asked="me"),
        worker("a", recycle_asked="me", going=True),
        worker("a", recycle_asked="me", ending="waits"),
    ],
)
def test_who_is_not_there_or_goes_anyway_is_never_due(gone: ObservedWorker) -> None:
    found = judged(seen(gone), TASKS)

    assert () == found.due
    assert () == found.uses


def test_who_drains_is_still_due() -> None:
    leaving = worker("a", use=Use(runs=1000), leaving=Leaving.DRAINING)

    assert ["a"] == [d.worker for d in judged(seen(leaving), TASKS).due]


ALL = Recycle(
    TaskQuota(1000), LifetimeQuota(3600.0), MemoryQuota(0.8, 0.0, 0.92),
    gpu=GpuQuota(hard=0.95), failures=FailureQuota(20, patterns=("x",)),
)  # fmt: skip


def test_the_most_pressing_comes_first() -> None:
    observed = seen(
        worker("tasks", use=Use(runs=1100)),
        worker("tasks-more", use=Use(runs=1200)),
        worker("soon", pod_age_s=3595.0),
        worker("drift", drift="image"),
        worker("asked", recycle_asked="me"),
        worker("fails", use=Use(failures=21)),
        worker("fails-too", use=Use(failures=21)),
        worker("ends", ends_in_s=5.0),
        worker("ends-first", ends_in_s=1.0),
        worker("full", use=Use(process=0.93)),
        worker("gpu", use=Use(gpu=0.99)),
    )
    expected = [
        "gpu", "full", "ends-first", "ends", "fails", "fails-too", "asked", "tasks-more", "tasks",
        "drift", "soon",
    ]  # fmt: skip

    assert expected == [d.worker for d in judged(observed, ALL).due]


def test_of_several_reasons_the_freest_counts_and_the_others_are_kept() -> None:
    all_at_once = worker(
        "a", use=Use(runs=2000, process=0.95, failures=40), drift="image", pod_age_s=3595.0
    )
    found = judged(seen(all_at_once), ALL).due

    assert [Reason.MEMORY_HARD] == [d.reason for d in found]
    assert [Reason.DRIFTED, Reason.FAILURES, Reason.TASK_QUOTA, Reason.LIFETIME] == [
        d.reason for d in found[0].rest
    ]


@pytest.mark.parametrize(
    ("changes", "is_urgent", "is_manual"),
    [
        ({"use": Use(process=0.95)}, True, False),
        ({"use": Use(gpu=0.95)}, True, False),
        ({"ends_in_s": 3.0}, True, False),
        ({"ends_in_s": 99.0, "too_short": True}, True, False),
        ({"use": Use(runs=1000)}, False, False),
        ({"use": Use(unmanaged=0.9)}, False, False),
        ({"use": Use(failures=20)}, False, False),
        ({"pod_age_s": 3600.0}, False, False),
        ({"recycle_asked": "me"}, False, True),
        ({"drift": "image"}, False, True),
    ],
)
def test_what_windows_and_storms_hold(
    changes: dict[str, Any], is_urgent: bool, is_manual: bool
) -> None:
    (found,) = judged(seen(worker("a", **changes)), ALL).due

    assert (is_urgent, is_manual) == (found.is_urgent, found.is_manual)


def test_each_group_has_its_own_quotas() -> None:
    observed = seen(worker("a", use=Use(runs=50)))
    policy = dataclasses.replace(
        POLICY, recycle=TASKS, group_recycle={GROUP: Recycle(tasks=TaskQuota(50))}
    )
    found = assess(observed, observed.groups[0], policy, READY, now=NOW)

    assert ["a"] == [d.worker for d in found.due]


def outliers(values: Sequence[Use], **changes: Any) -> list[str]:
    traits = (Trait.DURATION, Trait.FAILURES, Trait.UNMANAGED_MEMORY)
    selection = dataclasses.replace(Selection(traits, min_tasks=10), **changes)
    workers = [worker(f"w{i}", use=use) for i, use in enumerate(values)]
    found = judged(seen(*workers), Recycle(selection=selection)).due
    assert {Reason.OUTLIER} >= {d.reason for d in found}
    return [d.worker for d in found]


@pytest.mark.parametrize(
    ("values", "changes", "expected"),
    [
        pytest.param([Use(runs=10, mean_s=1.0)] * 9, {}, [], id="all-alike"),
        pytest.param([Use(runs=10, mean_s=0.1)] * 9, {}, [], id="alike-but-for-rounding"),
        pytest.param([Use(runs=10, mean_s=1.0)] * 9 + [Use(runs=10, mean_s=5.0)], {}, ["w9"],
                     id="slow"),
        pytest.param([Use(runs=10, mean_s=5.0)] * 9 + [Use(runs=10, mean_s=1.0)], {}, [],
                     id="fast-is-well"),
        pytest.param([Use(runs=10, mean_s=1.0)] * 9 + [Use(runs=9, mean_s=5.0)], {}, [],
                     id="has-run-too-little-to-tell"),
        pytest.param([Use(runs=10, mean_s=1.0)] * 9 + [Use(runs=10, mean_s=5.0)],
                     {"deviations": 4.0}, [], id="not-by-so-much"),
        pytest.param([Use(runs=10, mean_s=1.0)] * 2 + [Use(runs=10, mean_s=5.0)], {
                     "deviations": 0.5}, [], id="too-few"),
        pytest.param([Use(runs=10, mean_s=1.0)] * 9 + [Use(runs=10, mean_s=9.0, failures=1)], {},
                     ["w9"], id="by-two-traits"),
        pytest.param([Use(runs=10)] * 9 + [Use(runs=10, failures=5)], {}, ["w9"], id="fails"),
        pytest.param([Use(runs=10, failures=1, mean_s=1.0)] * 9
                     + [Use(runs=10, failures=9, mean_s=999.0)], {}, ["w9"],
                     id="by-two-traits-the-first-further"),
        pytest.param([Use(runs=10, unmanaged_bytes=1)] * 9 + [Use(runs=10, unmanaged_bytes=9)], {},
                     ["w9"], id="large"),
        pytest.param([Use(runs=10, unmanaged_bytes=1)] * 9 + [Use(runs=10, unmanaged_bytes=9)],
                     {"traits": ()}, [], id="off"),
        pytest.param([Use(runs=10, mean_s=1.0)] * 3 + [Use(runs=10)] * 6
                     + [Use(runs=10, mean_s=9.0)], {"deviations": 1.0}, ["w9"],
                     id="who-is-not-measured-is-not-fast"),
    ],
)  # fmt: skip
def test_outliers(values: list[Use], changes: dict[str, Any], expected: list[str]) -> None:
    assert expected == outliers(values, **changes)


def test_the_highest_use_of_each_quota_is_told() -> None:
    observed = seen(
        worker("a", use=Use(runs=500, unmanaged=0.4, failures=2, gpu=0.5), pod_age_s=360.0),
        worker("b", use=Use(runs=100, process=0.69, failures=5), pod_age_s=1800.0),
        worker("c", use=Use(runs=30), quota_notes=QuotaNotes(tasks=40), ends_in_s=110.0,
               pod_age_s=300.0),
    )  # fmt: skip
    recycle = dataclasses.replace(ALL, failures=FailureQuota(20))
    uses = {u.quota: (u.worker, round(u.ratio, 3)) for u in judged(observed, recycle).uses}

    assert {
        Quota.TASKS: ("c", 0.75),
        Quota.LIFETIME: ("c", 0.75),
        Quota.MEMORY: ("b", 0.75),
        Quota.GPU_MEMORY: ("a", round(0.5 / 0.95, 3)),
        Quota.FAILURES: ("b", 0.25),
    } == uses


def test_a_group_without_quotas_has_no_uses() -> None:
    assert () == judged(seen(worker("a", use=Use(runs=5))), Recycle()).uses


def test_explain_has_a_line_for_each_quota() -> None:
    recycle = dataclasses.replace(
        ALL, gpu=GpuQuota(0.8, 60.0, 0.95), memory=MemoryQuota(0.8, 120.0, 0.92, leak_rate=2.0**30)
    )
    past = RecyclePast(above_since={"uid-a": NOW - 60}, growth={"uid-a": 2.0**29})
    used = Use(runs=500, failures=5, process=0.46, unmanaged=0.84, gpu=0.4)
    lines = quota_lines(
        worker("a", use=used, pod_age_s=1800.0, ends_in_s=610.0), recycle, past, now=NOW
    )

    assert [
        (Quota.TASKS, "500 tasks run", "1,000", 0.5),
        (Quota.LIFETIME, "30m old", "1h", 0.5),
        (Quota.LIFETIME, "ends in 10m10s", "10s before its end", 0.75),
        (Quota.MEMORY, "unmanaged 84%, above the line for 1m", "soft 80% for 2m", 1.05),
        (Quota.MEMORY, "process 46%", "hard 92%", 0.5),
        (Quota.MEMORY, "grows by 512 MiB an hour", "1.0 GiB an hour", 0.5),
        (Quota.GPU_MEMORY, "40%", "soft 80% for 1m", 0.5),
        (Quota.GPU_MEMORY, "40%", "hard 95%", round(0.4 / 0.95, 6)),
        (Quota.FAILURES, "5 runs failed", "20 within 10m", 0.25),
        (Quota.FAILURES, "none was found", "any of 1 patterns", 0.0),
    ] == [(line.quota, line.used, line.limit, round(line.ratio, 6)) for line in lines]


def test_explain_has_no_line_without_a_quota() -> None:
    assert () == quota_lines(worker("a"), Recycle(), RecyclePast(), now=NOW)


@pytest.mark.parametrize(
    ("changes", "recycle", "expected_s", "expected"),
    [
        pytest.param({}, Recycle(), 0.0, Limit(), id="none"),
        pytest.param({}, TASKS, 0.0, Limit(1000), id="tasks"),
        pytest.param({"quota_notes": QuotaNotes(tasks=5)}, TASKS, 0.0, Limit(5), id="own"),
        pytest.param({"quota_notes": QuotaNotes(tasks=0)}, TASKS, 0.0, Limit(), id="off"),
        pytest.param({"ends_in_s": 70.0}, TASKS, 0.0, Limit(1000, 60.0), id="end"),
        pytest.param({"ends_in_s": 7.0}, TASKS, 0.0, Limit(1000, 0.001), id="within-the-margin"),
        pytest.param({"ends_in_s": 0.0}, TASKS, 0.0, Limit(1000, 0.0), id="has-passed"),
        pytest.param({"pod_age_s": 3500.0}, LIFETIME, 9.0, Limit(), id="old-is-no-end"),
        pytest.param({"ends_in_s": 70.0, "use": Use(runs=7)}, WALLTIME, 25.0, Limit(9, 60.0),
                     id="what-fits"),
        pytest.param({"ends_in_s": 70.0, "use": Use(runs=7)}, WALLTIME, 0.0, Limit(0, 60.0),
                     id="who-knows-what-fits"),
        pytest.param({"use": Use(runs=7)}, WALLTIME, 25.0, Limit(), id="all-fits"),
        pytest.param({"ends_in_s": 20.0}, WALLTIME, 25.0, Limit(1, 10.0), id="0-would-be-no-limit"),
        pytest.param({"ends_in_s": 70.0, "use": Use(runs=7), "processing": 2},
                     Recycle(tasks=TaskQuota(10, exact=True, from_walltime=True)), 25.0,
                     Limit(10, 60.0), id="the-lower-of-both"),
        pytest.param({"ends_in_s": 70.0, "use": Use(runs=4), "processing": 2},
                     Recycle(tasks=TaskQuota(10, exact=True, from_walltime=True)), 25.0,
                     Limit(8, 60.0), id="exact-counts-what-is-assigned"),
    ],
)  # fmt: skip
def test_the_limit_of_a_worker(
    changes: dict[str, Any], recycle: Recycle, expected_s: float, expected: Limit
) -> None:
    assert expected == limit_of(worker("a", **changes), recycle, expected_s=expected_s)


def test_the_profile_of_a_group() -> None:
    recycle = Recycle(
        tasks=TaskQuota(9, exact=True),
        lifetime=LifetimeQuota(floor_s=1.0, deviations=3.0),
        failures=FailureQuota(20, 60.0, ("x",)),
        selection=Selection((Trait.DURATION,)),
    )
    old, young = worker("a", pod_age_s=900.0), worker("b", pod_age_s=100.0, ends_in_s=3500.0)

    assert Profile(True, 20, 60.0, ("x",), math.inf, 1.0, 3.0, True) == profile_of(recycle)
    assert 3590.0 == profile_of(recycle, [old, young]).fresh_s
    assert math.inf == profile_of(recycle, [old, pending("c")]).fresh_s
    assert 3 == profile_of(recycle, [old], QuotaNotes(failures=3)).failures


@given(st.text(min_size=1, max_size=36), st.integers(1, 10**6), st.floats(0, 1))
def test_a_quota_with_jitter_is_drawn_once_and_lies_within_bounds(
    uid: str, maximum: int, jitter: float
) -> None:
    tasks, lifetime = TaskQuota(maximum, jitter), LifetimeQuota(float(maximum), jitter)
    first, again = worker("a", pod_uid=uid), worker("b", pod_uid=uid, age_s=9.0)

    assert max(1, math.floor(maximum * (1 - jitter))) <= own_tasks(first, tasks) <= maximum
    assert maximum * (1 - jitter) <= own_lifetime_s(first, lifetime) <= maximum
    assert own_tasks(first, tasks) == own_tasks(again, tasks)
    assert own_lifetime_s(first, lifetime) == own_lifetime_s(again, lifetime)


def test_jitter_spreads_workers_evenly() -> None:
    drawn = [shares(f"uid-{i}") for i in range(2000)]
    for which in (0, 1):
        tenths = [sum(int(share[which] * 10) == t for share in drawn) for t in range(10)]
        assert 140 <= min(tenths) <= max(tenths) <= 260
    assert 0.4 < sum((a < 0.5) == (b < 0.5) for a, b in drawn) / 2000 < 0.6


def test_a_new_pod_draws_anew() -> None:
    quota = TaskQuota(10**6, 1.0)

    assert own_tasks(worker("a", pod_uid="x"), quota) != own_tasks(worker("a", pod_uid="y"), quota)


uses = st.builds(
    Use,
    runs=st.integers(0, 1100),
    failures=st.integers(0, 25),
    match=st.sampled_from(["", "", "CUDA error"]),
    process=st.floats(0, 1),
    unmanaged=st.floats(0, 1),
    gpu=st.floats(0, 1),
)
notes = st.none() | st.builds(
    QuotaNotes,
    tasks=st.none() | st.integers(0, 1100),
    lifetime_s=st.none() | st.floats(1, 5000) | st.just(math.inf),
    memory_soft=st.none() | st.floats(0.1, 1) | st.just(math.inf),
    memory_hard=st.none() | st.floats(0.1, 1) | st.just(math.inf),
    failures=st.none() | st.integers(0, 25),
)


@st.composite
def fleets(draw: st.DrawFn) -> list[ObservedWorker]:
    return [
        worker(
            f"w{i}", use=draw(uses), quota_notes=draw(notes), pod_age_s=draw(st.floats(0, 5000)),
            ends_in_s=draw(st.just(math.inf) | st.floats(0, 300)), drift=draw(st.sampled_from(
                ["", "", "image"])), recycle_asked=draw(st.sampled_from(["", "", "me"])),
            too_short=draw(st.booleans()), stopped=draw(st.sampled_from(["", "", "stop"])),
            processing=draw(st.integers(0, 3)),
        )
        for i in range(draw(st.integers(0, 4)))
    ]  # fmt: skip


pasts = st.builds(
    RecyclePast,
    above_since=st.dictionaries(
        st.sampled_from([f"uid-w{i}{k}" for i in range(8) for k in ("", " gpu")]),
        st.floats(NOW - 300, NOW),
    ),
    growth=st.dictionaries(st.sampled_from([f"uid-w{i}" for i in range(8)]), st.floats(0, 1e10)),
    pace=st.dictionaries(
        st.sampled_from([f"uid-w{i}" for i in range(8)]),
        st.tuples(st.just(NOW), st.integers(0, 1000), st.floats(0, 50)),
    ),
    ready_s=st.floats(1, 60),
)
recycles = st.builds(
    Recycle,
    tasks=st.builds(TaskQuota, st.sampled_from([0, 10, 1000]), st.floats(0, 1), st.booleans(),
                    st.booleans()),
    lifetime=st.builds(LifetimeQuota, st.sampled_from([math.inf, 3600.0]), st.floats(0, 1)),
    memory=st.builds(MemoryQuota, st.sampled_from([math.inf, 0.8]), st.just(60.0),
                     st.sampled_from([math.inf, 0.92]), st.sampled_from(list(Measure)),
                     st.sampled_from([math.inf, 1e9])),
    gpu=st.builds(GpuQuota, st.sampled_from([math.inf, 0.8]), st.just(60.0),
                  st.sampled_from([math.inf, 0.92])),
    failures=st.builds(FailureQuota, st.sampled_from([0, 20]), st.just(60.0),
                       st.sampled_from([(), ("CUDA",)])),
    drift=st.booleans(),
)  # fmt: skip


@given(fleets(), recycles, pasts, st.none() | st.floats(AT - 5000, AT + 10), st.floats(0, 100))
def test_the_quick_way_finds_what_every_rule_on_every_worker_finds(
    workers: list[ObservedWorker],
    recycle: Recycle,
    past: RecyclePast,
    restart_at: float | None,
    expected_s: float,
) -> None:
    found = judged(seen(*workers, expected_s=expected_s), recycle, past, restart_at=restart_at)
    begun = restart_at if restart_at is not None and restart_at <= AT else -math.inf
    scene = Scene(recycle, past, NOW, AT, begun, expected_s, {})
    plain = [d for w in workers if (d := due(w, scene)) is not None]

    assert sorted(plain, key=urgency) == list(found.due)
    assert [d.worker for d in plain] == [
        w.name for w in workers if any(rule(w, scene) is not None for rule in RULES)
    ]


@given(fleets(), recycles, pasts, st.randoms())
def test_the_order_is_total(
    workers: list[ObservedWorker], recycle: Recycle, past: RecyclePast, shuffled: Any
) -> None:
    first = judged(seen(*workers), recycle, past)
    shuffled.shuffle(workers)
    again = judged(seen(*workers), recycle, past)

    assert first.due == again.due
    assert [(u.quota, u.ratio) for u in first.uses] == [(u.quota, u.ratio) for u in again.uses]
    assert len({d.worker for d in first.due}) == len(first.due)


@given(fleets(), recycles, pasts)
def test_the_uses_told_are_the_highest_there_are(
    workers: list[ObservedWorker], recycle: Recycle, past: RecyclePast
) -> None:
    recycle = dataclasses.replace(recycle, gpu=GpuQuota())  # has lines of its own for two lines
    told = {u.quota: u.ratio for u in judged(seen(*workers), recycle, past).uses}
    lines: dict[Quota, float] = {}
    for each in workers:
        for line in quota_lines(each, recycle, past, now=NOW):
            lines[line.quota] = max(line.ratio, lines.get(line.quota, 0.0))

    assert pytest.approx(lines) == told


@given(
    uses, st.integers(0, 500), st.integers(0, 9), st.floats(0, 1), st.floats(0, 5000),
    recycles, pasts,
)  # fmt: skip
def test_who_has_used_more_is_not_less_due(
    use: Use, runs: int, failures: int, memory: float, age_s: float, recycle: Recycle,
    past: RecyclePast,
) -> None:  # fmt: skip
    more = dataclasses.replace(
        use, runs=use.runs + runs, failures=use.failures + failures,
        process=use.process + memory, unmanaged=use.unmanaged + memory, gpu=use.gpu + memory,
    )  # fmt: skip
    less_used = judged(seen(worker("w0", use=use, pod_age_s=age_s)), recycle, past).due
    more_used = judged(seen(worker("w0", use=more, pod_age_s=age_s + runs)), recycle, past).due

    assert bool(more_used) or not less_used
    if less_used:
        assert _press(less_used[0]) <= _press(more_used[0])


def _press(found: Due) -> tuple[bool, bool]:
    return found.is_over, found.is_over and found.is_urgent


def test_a_policy_of_nothing_finds_nothing_in_a_quiet_fleet() -> None:
    observed = seen(*(busy(f"w{i}", use=Use(runs=10**6)) for i in range(20)))

    assert Assessment() == assess(observed, observed.groups[0], Policy("etl", 9), READY, now=NOW)
