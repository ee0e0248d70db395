"""What a rule says of a worker to the figure: how far it is over, whether it can wait."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dask_adaptive.model.observed import ObservedWorker
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import (
    FailureQuota,
    GpuQuota,
    LifetimeQuota,
    MemoryQuota,
    Quota,
    QuotaNotes,
    Recycle,
    RecyclePast,
    TaskQuota,
    Use,
)
from dask_adaptive.planner import due as rules
from dask_adaptive.planner.due import Due, Scene, due, urgency
from dask_adaptive.planner.outliers import Outlier
from dask_adaptive.planner.quota_uses import group_uses
from support.worlds import GROUP, NOW, worker

AT = 1_800_000_000.0


def scene(recycle: Recycle = Recycle(), **changes: Any) -> Scene:  # noqa: B008
    past = RecyclePast(ready_s=changes.pop("ready_s", 10.0), **changes.pop("past", {}))
    rest = {"restart_at": -math.inf, "expected_s": 0.0, "outliers": {}, **changes}
    return Scene(recycle=recycle, past=past, now=NOW, at=AT, **rest)


def said(found: Due | None) -> tuple[Reason, float, bool, bool, bool] | None:
    if found is None:
        return None
    rounded = round(found.ratio, 4)
    return found.reason, rounded, found.is_over, found.is_urgent, found.is_manual


SOFT = Recycle(memory=MemoryQuota(soft=0.5, for_s=60.0))
LEAK = Recycle(memory=MemoryQuota(leak_rate=100.0))
GPU = Recycle(gpu=GpuQuota(soft=0.5, for_s=60.0))
MARGIN = Recycle(lifetime=LifetimeQuota(margin_s=20.0))
NO_MARGIN = Recycle(lifetime=LifetimeQuota(margin_s=0.0))
FITS = Recycle(tasks=TaskQuota(from_walltime=True), lifetime=LifetimeQuota(margin_s=20.0))
FAILING = Recycle(failures=FailureQuota(4))
PATTERN = Recycle(failures=FailureQuota(patterns=("CUDA",)))


def above(seconds: float, key: str = "uid-a") -> dict[str, Any]:
    return {"past": {"above_since": {key: NOW - seconds}}}


OVER, URGENT, MANUAL = (True, False, False), (True, True, False), (True, False, True)
SOON, SOON_URGENT = (False, False, False), (False, True, False)


@pytest.mark.parametrize(
    ("rule", "changes", "at", "expected"),
    [
        pytest.param(
            rules.hard_memory, {"use": Use(process=0.9)},
            scene(Recycle(memory=MemoryQuota(hard=0.6))),
            (Reason.MEMORY_HARD, 1.5, *URGENT), id="hard"),
        pytest.param(
            rules.soft_memory, {"use": Use(unmanaged=0.5)}, scene(SOFT, **above(60.0)),
            (Reason.MEMORY_SOFT, 1.0, *OVER), id="soft-for-long-enough"),
        pytest.param(
            rules.soft_memory, {"use": Use(unmanaged=0.6)}, scene(SOFT, **above(59.5)),
            (Reason.MEMORY_SOFT, 1.2, *SOON), id="soft-for-nearly-long-enough"),
        pytest.param(
            rules.soft_memory, {"use": Use(unmanaged=0.6)}, scene(SOFT, **above(50.0)),
            (Reason.MEMORY_SOFT, 1.2, *SOON), id="soft-as-long-as-one-takes-to-come"),
        pytest.param(
            rules.soft_memory, {"use": Use(unmanaged=0.6)}, scene(SOFT, **above(49.9)), None,
            id="soft-for-less"),
        pytest.param(
            rules.leaking_memory, {}, scene(LEAK, past={"growth": {"uid-a": 150.0}}),
            (Reason.MEMORY_LEAK, 1.5, *OVER), id="leak"),
        pytest.param(
            rules.leaking_memory, {}, scene(LEAK, past={"growth": {"uid-a": 100.0}}),
            (Reason.MEMORY_LEAK, 1.0, *OVER), id="leak-at-its-line"),
        pytest.param(
            rules.leaking_memory, {}, scene(Recycle(memory=MemoryQuota(leak_rate=1.0))), None,
            id="no-growth-is-no-leak"),
        pytest.param(
            rules.gpu_memory, {"use": Use(gpu=0.9)}, scene(Recycle(gpu=GpuQuota(hard=0.6))),
            (Reason.GPU_MEMORY, 1.5, *URGENT), id="gpu-hard"),
        pytest.param(
            rules.gpu_memory, {"use": Use(gpu=0.5)}, scene(GPU, **above(60.0, "uid-a gpu")),
            (Reason.GPU_MEMORY, 1.0, *OVER), id="gpu-soft"),
        pytest.param(
            rules.gpu_memory, {"use": Use(gpu=0.75)}, scene(GPU, **above(59.5, "uid-a gpu")),
            (Reason.GPU_MEMORY, 1.5, *SOON), id="gpu-soon"),
        pytest.param(
            rules.gpu_memory, {"use": Use(gpu=0.75)}, scene(GPU, **above(50.0, "uid-a gpu")),
            (Reason.GPU_MEMORY, 1.5, *SOON), id="gpu-as-long-as-one-takes-to-come"),
        pytest.param(
            rules.end, {"ends_in_s": 20.0}, scene(MARGIN), (Reason.LIFETIME, 1.0, *URGENT),
            id="at-its-margin"),
        pytest.param(
            rules.end, {"ends_in_s": 10.0}, scene(MARGIN), (Reason.LIFETIME, 1.5, *URGENT),
            id="within-its-margin"),
        pytest.param(
            rules.end, {"ends_in_s": -1.0}, scene(NO_MARGIN), (Reason.LIFETIME, 2.0, *URGENT),
            id="without-a-margin"),
        pytest.param(
            rules.end, {"ends_in_s": 20.5}, scene(MARGIN), (Reason.LIFETIME, 0.9524, *SOON_URGENT),
            id="soon-within-its-margin"),
        pytest.param(
            rules.end, {"ends_in_s": 900.0, "too_short": True}, scene(MARGIN),
            (Reason.LIFETIME, 1.0, *URGENT), id="too-short-for-a-task"),
        pytest.param(
            rules.end, {"ends_in_s": 60.0}, scene(MARGIN, expected_s=30.0),
            (Reason.LIFETIME, 0.2, *SOON_URGENT), id="no-time-for-another-task"),
        pytest.param(
            rules.end, {"ends_in_s": 60.1}, scene(MARGIN, expected_s=30.0), None,
            id="just-in-time"),
        pytest.param(
            rules.age, {"pod_age_s": 120.0}, scene(Recycle(lifetime=LifetimeQuota(100.0))),
            (Reason.LIFETIME, 1.2, *OVER), id="age"),
        pytest.param(
            rules.age, {"pod_age_s": 0.75}, scene(Recycle(lifetime=LifetimeQuota(0.5))),
            (Reason.LIFETIME, 1.5, *OVER), id="age-below-a-second"),
        pytest.param(
            rules.tasks, {"use": Use(runs=30)}, scene(Recycle(tasks=TaskQuota(20))),
            (Reason.TASK_QUOTA, 1.5, *OVER), id="tasks"),
        pytest.param(
            rules.tasks, {"use": Use(runs=20)}, scene(Recycle(tasks=TaskQuota(20))),
            (Reason.TASK_QUOTA, 1.0, *OVER), id="tasks-at-the-quota"),
        pytest.param(
            rules.tasks, {"use": Use(runs=10), "processing": 4},
            scene(Recycle(tasks=TaskQuota(20, exact=True)),
                  past={"pace": {"uid-a": (NOW, 10, 0.6)}}),
            (Reason.TASK_QUOTA, 0.5, *SOON), id="exact-what-is-assigned-and-its-pace"),
        pytest.param(
            rules.tasks, {"use": Use(runs=10), "processing": 3},
            scene(Recycle(tasks=TaskQuota(20, exact=True)),
                  past={"pace": {"uid-a": (NOW, 10, 0.6)}}),
            None, id="exact-not-yet"),
        pytest.param(
            rules.tasks, {"use": Use(runs=20), "stopped": "has had them"},
            scene(Recycle(tasks=TaskQuota(20, exact=True))),
            (Reason.TASK_QUOTA, 1.0, *OVER), id="exact-and-over"),
        pytest.param(
            rules.walltime, {"ends_in_s": 70.0}, scene(FITS, expected_s=50.0),
            (Reason.TASK_QUOTA, 1.0, *SOON), id="the-last-one-fits"),
        pytest.param(
            rules.walltime, {"ends_in_s": 45.0}, scene(FITS, expected_s=50.0),
            (Reason.TASK_QUOTA, 1.3333, *OVER), id="none-fits"),
        pytest.param(
            rules.walltime, {"ends_in_s": 20.0}, scene(FITS, expected_s=0.5),
            (Reason.TASK_QUOTA, 2.0, *OVER), id="no-time-at-all"),
        pytest.param(
            rules.walltime, {"ends_in_s": 80.0}, scene(FITS, expected_s=50.0), None,
            id="one-more-and-its-replacement"),
        pytest.param(
            rules.walltime, {"ends_in_s": 45.0}, scene(MARGIN, expected_s=50.0), None,
            id="no-such-quota"),
        pytest.param(
            rules.walltime, {"ends_in_s": 25.0}, scene(FITS), None, id="nothing-is-expected"),
        pytest.param(
            rules.failures, {"use": Use(failures=6)}, scene(FAILING),
            (Reason.FAILURES, 1.5, *OVER), id="failures"),
        pytest.param(
            rules.failures, {"use": Use(match="CUDA error")}, scene(PATTERN),
            (Reason.FAILURES, 1.0, *OVER), id="pattern"),
        pytest.param(
            rules.failures, {"use": Use(match="CUDA error", failures=6)},
            scene(Recycle(failures=FailureQuota(4, patterns=("CUDA",)))),
            (Reason.FAILURES, 1.5, *OVER), id="pattern-and-many"),
        pytest.param(
            rules.failures, {"use": Use(match="CUDA error", failures=1)},
            scene(Recycle(failures=FailureQuota(4, patterns=("CUDA",)))),
            (Reason.FAILURES, 1.0, *OVER), id="pattern-and-few"),
        pytest.param(
            rules.outlier, {}, scene(outliers={"a": Outlier("slow", 1.25)}),
            (Reason.OUTLIER, 1.25, *OVER), id="outlier"),
        pytest.param(
            rules.requested, {"recycle_asked": "ann"}, scene(),
            (Reason.RECYCLE_REQUESTED, 1.0, *MANUAL), id="asked-for"),
        pytest.param(
            rules.restart, {"pod_age_s": 10.0}, scene(restart_at=AT - 9.0),
            (Reason.RESTART_REQUESTED, 1.0, *MANUAL), id="restart"),
        pytest.param(
            rules.restart, {"pod_age_s": 10.0}, scene(restart_at=AT - 10.0), None,
            id="made-as-it-was-asked"),
        pytest.param(
            rules.drift, {"drift": "image"}, scene(Recycle(drift=True)),
            (Reason.DRIFTED, 1.0, *MANUAL), id="drift"),
    ],
)  # fmt: skip
def test_a_rule_says_how_far_and_how_urgent(
    rule: rules.Rule, changes: dict[str, Any], at: Scene,
    expected: tuple[Reason, float, bool, bool, bool] | None,
) -> None:  # fmt: skip
    assert expected == said(rule(worker("a", **changes), at))


@pytest.mark.parametrize(
    ("changes", "at", "expected"),
    [
        pytest.param(
            {"use": Use(runs=9)}, scene(Recycle(tasks=TaskQuota(9))),
            "9 tasks run (recycle.tasks.max 9)", id="the-quota"),
        pytest.param(
            {"use": Use(runs=9), "stopped": "it is"},
            scene(Recycle(tasks=TaskQuota(9, exact=True))),
            "=9 tasks run (recycle.tasks.max 9)", id="the-quota-rather-than-the-agents-words"),
        pytest.param(
            {"use": Use(runs=9)}, scene(Recycle(tasks=TaskQuota(9, jitter=0.5))),
            "less its jitter: ", id="less-its-jitter"),
        pytest.param(
            {"pod_age_s": 70.0, "quota_notes": QuotaNotes(lifetime_s=60.0)},
            scene(Recycle(lifetime=LifetimeQuota(3600.0))),
            "is older than 1m (annotation dask-adaptive.dev/recycle-lifetime: 1m)", id="its-own"),
        pytest.param(
            {"pod_age_s": 70.0, "quota_notes": QuotaNotes(lifetime_s=60.0)}, scene(),
            "is older than 1m (annotation dask-adaptive.dev/recycle-lifetime: 1m)",
            id="its-own-where-no-other-has-one"),
        pytest.param(
            {"pod_age_s": 7200.0}, scene(Recycle(lifetime=LifetimeQuota(3600.0, jitter=0.5))),
            "(recycle.lifetime.max 1h, less its jitter: ", id="age-less-its-jitter"),
        pytest.param(
            {"use": Use(unmanaged=0.6)}, scene(SOFT, **above(60.0)),
            "unmanaged memory has been above 50% of the limit for over 1m", id="for-over"),
        pytest.param(
            {"use": Use(unmanaged=0.6)}, scene(SOFT, **above(59.5)),
            "unmanaged memory has been above 50% of the limit for long", id="for-long"),
        pytest.param(
            {"ends_in_s": 45.0}, scene(FITS, expected_s=50.0),
            "=no other task fits before it ends (recycle.tasks.fromWalltime)", id="walltime"),
        pytest.param(
            {"pod_age_s": 10.0}, scene(restart_at=AT), "=its pod was made before spec.restartAt",
            id="restart"),
    ],
)  # fmt: skip
def test_a_rule_says_what_it_is_about(changes: dict[str, Any], at: Scene, expected: str) -> None:
    one = worker("a", **changes)
    found = [d for rule in rules.RULES if (d := rule(one, at)) is not None]

    assert any(expected in f"={d.message}" for d in found), [d.message for d in found]


def test_of_two_alike_the_one_that_is_further_over_is_told() -> None:
    at = scene(Recycle(tasks=TaskQuota(10), memory=MemoryQuota(leak_rate=100.0)),
               past={"growth": {"uid-a": 300.0}})  # fmt: skip

    found = [due(worker("a", use=Use(runs=n)), at) for n in (20, 40)]
    assert [Reason.MEMORY_LEAK, Reason.TASK_QUOTA] == [d.reason for d in found if d is not None]


def test_who_goes_first() -> None:
    order = [
        Due("a", Reason.MEMORY_HARD, "", is_urgent=True),
        Due("a", Reason.LIFETIME, "", is_urgent=True),
        Due("a", Reason.FAILURES, ""),
        Due("a", Reason.RECYCLE_REQUESTED, ""),
        Due("a", Reason.TASK_QUOTA, "", 1.5),
        Due("a", Reason.TASK_QUOTA, "", 1.2),
        Due("b", Reason.TASK_QUOTA, "", 1.2),
        Due("a", Reason.MEMORY_HARD, "", is_over=False, is_urgent=True),
    ]

    assert order == sorted(reversed(order), key=urgency)


@pytest.mark.parametrize(
    ("stopped_for", "by_tasks", "by_failures"),
    [(Quota.TASKS, True, False), (Quota.FAILURES, False, True), (Quota.LIFETIME, False, False)],
)
def test_a_worker_is_due_for_what_the_agent_has_stopped_it_for(
    stopped_for: Quota, by_tasks: bool, by_failures: bool
) -> None:
    both = scene(Recycle(tasks=TaskQuota(9, exact=True), failures=FailureQuota(3)))
    stopped = worker("a", stopped="it is", stopped_for=stopped_for)
    found = rules.tasks(stopped, both)

    assert (by_tasks, by_failures) == (
        found is not None and found.is_spent, rules.failures(stopped, both) is not None
    )  # fmt: skip


def test_only_who_is_at_an_exact_quota_is_spent() -> None:
    stopped = worker("a", stopped="it is", stopped_for=Quota.TASKS, use=Use(runs=9))

    for quota in (TaskQuota(9), TaskQuota(9, exact=True)):
        found = rules.tasks(stopped, scene(Recycle(tasks=quota)))
        assert found is not None
        assert quota.exact is found.is_spent


# --- the highest use of each quota, for metrics ---------------------------------------------------


def uses(recycle: Recycle, *workers: ObservedWorker, **past: Any) -> list[tuple[Quota, float, str]]:
    found = group_uses(GROUP, workers, recycle, RecyclePast(**past))
    return [(use.quota, round(use.ratio, 4), use.worker) for use in found]


A = worker("a", use=Use(runs=5, process=0.3, unmanaged=0.2, gpu=0.3, failures=1), pod_age_s=30.0)
B = worker("b")


@pytest.mark.parametrize(
    ("recycle", "past", "expected"),
    [
        pytest.param(Recycle(), {}, [], id="no-quota-no-use"),
        pytest.param(Recycle(tasks=TaskQuota(10)), {}, [(Quota.TASKS, 0.5, "a")], id="tasks"),
        pytest.param(Recycle(lifetime=LifetimeQuota(60.0)), {}, [(Quota.LIFETIME, 0.5, "a")],
                     id="lifetime"),
        pytest.param(Recycle(lifetime=LifetimeQuota(0.5)), {}, [(Quota.LIFETIME, 60.0, "a")],
                     id="lifetime-below-a-second"),
        pytest.param(Recycle(memory=MemoryQuota(soft=0.8)), {}, [(Quota.MEMORY, 0.25, "a")],
                     id="soft"),
        pytest.param(Recycle(memory=MemoryQuota(hard=0.6)), {}, [(Quota.MEMORY, 0.5, "a")],
                     id="hard"),
        pytest.param(Recycle(memory=MemoryQuota(leak_rate=9.0)), {}, [(Quota.MEMORY, 0.0, "a")],
                     id="no-leak"),
        pytest.param(Recycle(memory=MemoryQuota(leak_rate=8.0)), {"growth": {"uid-b": 4.0}},
                     [(Quota.MEMORY, 0.5, "b")], id="leak"),
        pytest.param(Recycle(gpu=GpuQuota(hard=0.6)), {}, [(Quota.GPU_MEMORY, 0.5, "a")], id="gpu"),
        pytest.param(Recycle(failures=FailureQuota(4)), {}, [(Quota.FAILURES, 0.25, "a")],
                     id="failures"),
        pytest.param(Recycle(failures=FailureQuota(patterns=("x",))), {},
                     [(Quota.FAILURES, 0.0, "a")], id="patterns"),
        pytest.param(Recycle(failures=FailureQuota(4, patterns=("x",))), {},
                     [(Quota.FAILURES, 0.25, "a")], id="failures-and-patterns"),
    ],
)  # fmt: skip
def test_the_highest_use_of_a_quota(
    recycle: Recycle, past: dict[str, Any], expected: list[tuple[Quota, float, str]]
) -> None:
    assert expected == uses(recycle, A, B, **past)


def test_a_quota_that_is_off_for_a_worker_has_no_use() -> None:
    recycle = Recycle(tasks=TaskQuota(10), failures=FailureQuota(10), memory=MemoryQuota(hard=0.9))
    off = QuotaNotes(tasks=0, failures=0, memory_hard=math.inf, lifetime_s=math.inf)

    assert [] == uses(recycle, worker("a", quota_notes=off))


def test_an_end_that_others_set_is_a_use_of_its_lifetime() -> None:
    ending = worker("e", ends_in_s=40.0, pod_age_s=10.0)

    assert [(Quota.LIFETIME, 0.25, "e")] == uses(Recycle(), worker("a"), ending)
    assert [(Quota.LIFETIME, 0.25, "e")] == uses(
        Recycle(lifetime=LifetimeQuota(100.0)), worker("a", pod_age_s=20.0), ending
    )
