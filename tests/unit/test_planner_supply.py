"""Workers as those who do the work: which groups, who comes when, who is needed, who is added."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from dask_adaptive.model.demand import Demand, Need, Want
from dask_adaptive.model.history import Step
from dask_adaptive.model.observed import Leaving, ObservedCluster, ObservedGroup, ObservedWorker
from dask_adaptive.model.past import GroupPast, Past
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import RecyclePast
from dask_adaptive.model.scaling import GroupBounds, Scaling, Source
from dask_adaptive.planner.demand import loads
from dask_adaptive.planner.load import Load, at_least, compared
from dask_adaptive.planner.supply import Supply, fill, other_threads, supplies, threads_of
from dask_adaptive.planner.target import wanted_workers
from support.worlds import GROUP, POLICY, busy, cluster, pending, worker

GPU = "etl-gpu"
ONE = Supply(
    name="a", maximum=10, priority=0, threads=1.0, connected=0, busy=0, pending=(), arrival_s=10.0
)


def supply(name: str = "a", **changes: Any) -> Supply:
    return dataclasses.replace(ONE, name=name, **changes)


def group(name: str, workers: Sequence[ObservedWorker] = (), *, threads: int = 0) -> ObservedGroup:
    return ObservedGroup(name, len(workers), tuple(workers), threads=threads)


def of_default(world: ObservedCluster, *, arrival_s: float | None = 10.0) -> Supply:
    past = Past(groups={GROUP: GroupPast(arrival_s=arrival_s)}, recycle=RecyclePast(ready_s=42.0))
    (found,) = supplies(world, POLICY, past)
    return found


# What is there


def test_those_that_leave_are_not_there_any_more() -> None:
    rows = [
        busy("a", nthreads=2), worker("b", nthreads=2), worker("c", leaving=Leaving.DRAINING),
        worker("d", in_service=False), busy("e", going=True), pending("f", age_s=4.0),
        pending("g", age_s=1.0), pending("h", going=True),
    ]  # fmt: skip
    expected = Supply(GROUP, 10, 0, 2.0, 2, 1, (6.0, 9.0), 10.0)

    assert expected == of_default(cluster(rows))
    assert 4 == expected.serving


@pytest.mark.parametrize(("measured", "expected"), [(None, 42.0), (7.5, 7.5), (-1.0, 0.0)])
def test_how_long_a_new_one_takes(measured: float | None, expected: float) -> None:
    assert expected == of_default(cluster([]), arrival_s=measured).arrival_s


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"age_s": 4.0}, 6.0, id="by-its-age"),
        pytest.param({"age_s": 4.4}, 6.0, id="in-whole-seconds"),
        pytest.param({"age_s": 80.0, "pod_age_s": 3.0}, 7.0, id="by-that-of-its-pod"),
        pytest.param({"age_s": 10.0}, 0.0, id="any-moment"),
        pytest.param({"age_s": 11.0}, 1.0, id="as-late-again"),
        pytest.param({"age_s": 13.0}, 3.0, id="as-late-again-and-later"),
        pytest.param({"age_s": 50.0}, 10.0, id="no-later-than-a-new-one"),
        pytest.param({"age_s": 4.0, "unschedulable_s": 2.0}, 10.4, id="no-machine-takes-it"),
        pytest.param({"age_s": 4.0, "refused": "quota"}, 10.4, id="its-pod-is-refused"),
    ],
)
def test_when_one_on_its_way_is_expected(changes: dict[str, Any], expected: float) -> None:
    arrival_s = 10.4 if expected == 10.4 else 10.0
    found = of_default(cluster([pending("a", **changes)]), arrival_s=arrival_s)

    assert (expected,) == found.pending


@pytest.mark.parametrize(
    ("nthreads", "started_with", "expected"),
    [
        pytest.param([2, 4], 9, 3.0, id="as-measured"),
        pytest.param([0, 4], 9, 4.0, id="of-those-that-tell"),
        pytest.param([1], 9, 1.0, id="one"),
        pytest.param([], 9, 9.0, id="as-it-is-to-be-started"),
        pytest.param([], 0, 1.0, id="nobody-knows"),
    ],
)
def test_threads_of_one_worker(nthreads: list[int], started_with: int, expected: float) -> None:
    workers = [worker(f"w{i}", nthreads=n) for i, n in enumerate(nthreads)]

    assert expected == threads_of(group(GROUP, workers, threads=started_with))


def test_the_default_group_grows_first_among_its_equals() -> None:
    bounds = [GroupBounds(name, 4, priority=n) for name, n in [("b", 0), ("c", 5), ("a", 0)]]
    policy = dataclasses.replace(POLICY, scaling=Scaling(groups=(*bounds, GroupBounds("gone", 4))))
    world = cluster([], others=[group(name) for name in "cba"])

    assert ["c", GROUP, "a", "b"] == [s.name for s in supplies(world, policy, Past())]
    assert [4, 10, 4, 4] == [s.maximum for s in supplies(world, policy, Past())]


# What serves elsewhere


def elsewhere(**changes: Any) -> ObservedCluster:
    """Two workers of the default group, and two of three threads that are not scaled."""
    world = cluster([busy("a"), busy("b")], others=[group(GPU, [worker("g"), worker("h")])])
    processes = tuple(
        dataclasses.replace(p, nthreads=3, **changes) if p.name in {"g", "h"} else p
        for p in world.scheduler.workers
    )
    scheduler = dataclasses.replace(world.scheduler, workers=processes, target=5)
    return dataclasses.replace(world, scheduler=scheduler)


@pytest.mark.parametrize(
    ("changes", "threads", "wanted"),
    [
        pytest.param({}, 6, 3, id="they-stay"),
        pytest.param({"leaving": Leaving.DRAINING}, 0, 5, id="they-are-let-go"),
        pytest.param({"departing": "tasks"}, 0, 5, id="their-processes-end"),
    ],
)
def test_who_serves_elsewhere(changes: dict[str, Any], threads: int, wanted: int) -> None:
    world = elsewhere(**changes)

    assert threads == other_threads(world, [supply(GROUP)])
    assert 0 == other_threads(world, [supply(GROUP), supply(GPU)])
    assert wanted == wanted_workers(world, world.groups[0])


@pytest.mark.parametrize(
    ("processes", "target", "expected"),
    [
        pytest.param([], 5, 5, id="nobody-is-there"),
        pytest.param([0], 5, 5, id="nobody-has-come"),
        pytest.param([1, 1], 5, 5, id="one-each"),
        pytest.param([2, 2], 5, 3, id="two-each"),
        pytest.param([2, 2, 0], 5, 3, id="two-each-of-those-that-have-come"),
        pytest.param([2, 2, 1], 5, 3, id="one-of-them-is-half-up"),
        pytest.param([2], 0, 0, id="none"),
    ],
)
def test_the_schedulers_target_in_workers(processes: list[int], target: int, expected: int) -> None:
    names = [tuple(f"w{i}-{k}" for k in range(n)) for i, n in enumerate(processes)]
    world = cluster([busy(f"w{i}", dask_names=n) for i, n in enumerate(names)], target=target)

    assert expected == wanted_workers(world, world.groups[0])


def test_no_fewer_than_none_are_wanted() -> None:
    world = elsewhere()
    scheduler = dataclasses.replace(world.scheduler, target=1)

    assert 0 == wanted_workers(dataclasses.replace(world, scheduler=scheduler), world.groups[0])


# Who is needed


@pytest.mark.parametrize(
    ("every", "threads", "other", "expected"),
    [
        pytest.param([supply(connected=3)], 0, 0, {"a": 0}, id="none"),
        pytest.param([supply()], 0, 0, {"a": 0}, id="none-where-none-is"),
        pytest.param([supply(connected=3)], 2, 0, {"a": 2}, id="of-those-there"),
        pytest.param([supply(connected=3)], 2, 1, {"a": 1}, id="others-help"),
        pytest.param([supply(connected=1)], 0.2, 0, {"a": 0}, id="so-little-nobody-notices"),
        pytest.param([supply()], 0.2, 0, {"a": 1}, id="but-one-has-to-come"),
        pytest.param([supply(pending=(5.0,))], 0.2, 0, {"a": 1}, id="the-one-that-comes-is-kept"),
        pytest.param([supply(pending=(5.0, 5.0))], 0.2, 0, {"a": 1}, id="and-no-second-one"),
        pytest.param([supply(connected=1, pending=(5.0,))], 4, 0, {"a": 4}, id="and-then-new-ones"),
        pytest.param([supply(connected=1, pending=(5.0, 6.0))], 2, 0, {"a": 2}, id="one-comes"),
        pytest.param([supply(connected=2, maximum=4)], 9, 0, {"a": 4}, id="up-to-the-maximum"),
        pytest.param([supply(connected=5, maximum=4)], 9, 0, {"a": 5}, id="above-the-maximum"),
        pytest.param([supply(connected=2, grows=False)], 9, 0, {"a": 2}, id="does-not-grow"),
        pytest.param(
            [supply(grows=False), supply("b")], 5, 0, {"a": 0, "b": 5}, id="another-one-does"),
        pytest.param(
            [supply(connected=3, threads=2.0), supply("b", connected=3, threads=2.0)], 8, 0,
            {"a": 3, "b": 1}, id="one-group-after-the-other"),
        pytest.param(
            [supply(connected=2, maximum=4, threads=2.0), supply("b", maximum=99)], 18, 0,
            {"a": 4, "b": 10}, id="what-one-group-cannot-the-next-does"),
        pytest.param([], 5, 0, {}, id="no-group"),
    ],
)  # fmt: skip
def test_workers_for_threads(
    every: list[Supply], threads: float, other: float, expected: dict[str, int]
) -> None:
    assert expected == fill(every, lambda *_: threads, other=other)


def test_what_is_done_before_one_comes_needs_it_no_more() -> None:
    def need(at_s: float, _: float) -> float:
        return 4.0 if at_s < 1.0 else 2.0

    there = supply(connected=5)
    coming = supply(connected=1, pending=(0.0, 5.0, 6.0))

    assert {"a": 4} == fill([there], need, other=0.0)
    assert {"a": 2} == fill([coming], need, other=0.0)


def test_one_that_comes_counts_from_that_instant_on() -> None:
    coming = supply(connected=1, pending=(5.0,))

    assert {"a": 2} == fill([coming], lambda at_s, _: 2.0 if at_s <= 5.0 else 0.0, other=0.0)
    assert {"a": 1} == fill([coming], lambda at_s, _: 2.0 if at_s < 5.0 else 0.0, other=0.0)


def test_work_is_done_by_whoever_is_there_at_each_instant() -> None:
    done: dict[float, float] = {}

    def need(at_s: float, thread_seconds: float) -> float:
        done[at_s] = thread_seconds
        return 0.0

    every = [supply(connected=2, threads=2.0, pending=(3.0, 5.0)), supply("b", pending=(4.0,))]
    fill(every, need, other=1.0)

    # 5 threads; 7 from the 3rd second on, 8 from the 4th, and 10 from the 5th.
    assert {0.0: 0.0, 3.0: 15.0, 4.0: 22.0, 5.0: 30.0, 10.0: 80.0} == done


# What asks


INPUTS: Mapping[str, float] = {"queued": 3.0}
LOAD = Load(2, Reason.UNDERUTILIZED, "few", INPUTS, "me", (Step("load", 2, Reason.DRAINED, "x"),))


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (1, Reason.UNDERUTILIZED),
        (2, Reason.DESIRED_WITHIN_RANGE),
        (3, Reason.LOAD_INCREASED),
    ],
)
def test_why_a_number_is_what_it_is(wanted: int, expected: Reason) -> None:
    assert expected is compared(wanted, 2)


def test_a_floor_lifts_a_load_and_says_why() -> None:
    step = Step("hint", 3, Reason.CLIENT_WANTS, "three please")
    lifted = Load(3, step.reason, step.message, INPUTS, "me", (*LOAD.steps, step))

    assert lifted == at_least(LOAD, 3, "hint", Reason.CLIENT_WANTS, "three please")
    assert LOAD is at_least(LOAD, 2, "hint", Reason.CLIENT_WANTS, "three please")


def asked(world: ObservedCluster, policy: Policy = POLICY) -> Mapping[str, Load]:
    every = {g.name: GroupPast(arrival_s=7.0) for g in world.groups}
    return loads(world, policy, Past(groups=every))


BY_TARGET = dataclasses.replace(
    POLICY, scaling=Scaling(source=Source.SCHEDULER, groups=(GroupBounds(GPU, 8),))
)
NEED = Need(tasks=3, stuck=3, seconds=3000.0, resources={"GPU": 1.0})


def test_the_schedulers_target_is_a_load_with_its_figures() -> None:
    world = cluster([busy("a"), pending("p")], target=3, queued=9, processing=4)

    said = "the scheduler's adaptive_target comes to 3 workers of this group"
    why = Reason.LOAD_INCREASED
    figures = {
        "queued": 9.0, "running": 4.0, "serving": 2.0, "pending": 1.0, "arrival_s": 7.0,
        "threads": 1.0,
    }  # fmt: skip
    load = Load(3, why, said, figures, steps=(Step("load", 3, why, said),))
    assert {GROUP: load} == asked(world)


@pytest.mark.parametrize(
    ("demand", "workers", "wanted", "message"),
    [
        pytest.param(Demand(needs=(NEED,)), [], 3, "3 needed by tasks that only this group may run",
                     id="what-is-bound-to-it"),
        pytest.param(Demand(), [], 0, "0 needed by tasks that only this group may run", id="none"),
        pytest.param(Demand(), [busy("x")], 1, "0 needed by tasks that only this group may run",
                     id="those-that-have-tasks"),
        pytest.param(None, [worker("x")], 1, "nobody can say what asks for this group: it is left",
                     id="nobody-can-tell"),
    ],
)  # fmt: skip
def test_the_schedulers_target_is_not_about_other_groups(
    demand: Demand | None, workers: list[ObservedWorker], wanted: int, message: str
) -> None:
    mine = tuple(dataclasses.replace(w, group=GPU) for w in workers)
    others = ObservedGroup(GPU, len(mine), mine, resources=(("GPU", 1.0),))
    world = cluster([worker("a")], others=[others], target=9, demand=demand)
    load = asked(world, BY_TARGET)[GPU]

    assert (wanted, message) == (load.wanted, load.message)


@pytest.mark.parametrize(("duration_s", "wanted"), [(0.001, 3), (1000.0, 1), (3000.0, 1)])
def test_tasks_of_a_group_need_as_many_as_do_them_in_time(duration_s: float, wanted: int) -> None:
    need = dataclasses.replace(NEED, seconds=3.0, stuck=0)
    policy = dataclasses.replace(BY_TARGET, target_duration_s=duration_s)
    others = ObservedGroup(GPU, 0, resources=(("GPU", 1.0),))
    world = cluster([worker("a")], others=[others], demand=Demand(needs=(need,)))

    assert wanted == asked(world, policy)[GPU].wanted


@pytest.mark.parametrize(
    ("want", "expected"),
    [
        pytest.param(Want(3, 0.5, "me"), (3, "client me"), id="to-its-last-moment"),
        pytest.param(Want(3, 0.0, "me"), (2, "load"), id="its-time-is-over"),
        pytest.param(Want(2, 60.0, "me"), (2, "load"), id="no-more-than-the-load"),
        pytest.param(Want(3, 60.0, "me", GPU), (2, "load"), id="of-another-group"),
    ],
)
def test_what_a_client_wants_is_the_least(want: Want, expected: tuple[int, str]) -> None:
    load = asked(cluster([], target=2, wants=(want,)))[GROUP]

    assert expected == (load.wanted, load.asked_by)
    if expected[0] > 2:
        words = "client me wants at least 3 workers"
        step = Step("hint", 3, Reason.CLIENT_WANTS, words)
        assert (words, step) == (load.message, load.steps[-1])
