"""What the load asks for: one line a case, and the promises that hold for all."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_adaptive.model.demand import Demand, Need, PrefixWork, UpcomingShuffle, Want
from dask_adaptive.model.observed import ObservedCluster, ObservedGroup, ObservedWorker
from dask_adaptive.model.past import GroupPast, Past
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.scaling import GroupBounds, Scaling, Source
from dask_adaptive.planner.demand import Load, loads
from support.worlds import GROUP, POLICY, busy, cluster, pending, worker

GPU = "etl-gpu"
Row = PrefixWork
ANY = dataclasses.replace(POLICY, maximum=1000)


def scene(
    rows: Sequence[Row] = (),
    workers: Sequence[ObservedWorker] = (),
    *,
    threads: int = 1,
    others: Sequence[ObservedGroup] = (),
    wants: Sequence[Want] = (),
    target: int = 0,
    **demand: Any,
) -> ObservedCluster:
    there = [_with_threads(w, threads) for w in workers]
    seen = cluster(
        there,
        demand=Demand(tuple(rows), **demand),
        wants=tuple(wants),
        others=others,
        target=target,
    )
    processes = tuple(dataclasses.replace(p, nthreads=threads) for p in seen.scheduler.workers)
    return dataclasses.replace(
        seen, scheduler=dataclasses.replace(seen.scheduler, workers=processes)
    )


def _with_threads(one: ObservedWorker, threads: int) -> ObservedWorker:
    return dataclasses.replace(one, nthreads=threads if one.is_connected else 0)


def asked(seen: ObservedCluster, policy: Policy = ANY, arrival_s: float = 6.0) -> dict[str, Load]:
    groups = {g.name: GroupPast(arrival_s=arrival_s) for g in seen.groups}
    return dict(loads(seen, policy, Past(session="s", since=0.0, groups=groups)))


def wanted(seen: ObservedCluster, policy: Policy = ANY, arrival_s: float = 6.0) -> int:
    return asked(seen, policy, arrival_s)[GROUP].wanted


ONE = [busy("a")]
IDLE = [worker("a")]
WIDE = Row("wide", 1.0, running=1, ready=99, waiting=0, width=100)
SOURCE = Row("source", 0.01, running=1, ready=99, waiting=0, width=100)
STEP = Row("step", 2.0, running=0, ready=0, waiting=100, width=100, level=1)
LOADING = Row("load", 100.0, running=1, ready=0, waiting=0, longest_s=10, width=1)
SOON = dataclasses.replace(LOADING, longest_s=97.0)
PARTS = Row("part", 1.0, running=0, ready=0, waiting=500, width=500, level=1, fan_in=1.0)


@pytest.mark.parametrize(
    ("rows", "workers", "arrival_s", "expected"),
    [
        pytest.param([], IDLE, 6, 0, id="no-work-no-worker"),
        pytest.param([WIDE], ONE, 6, 19, id="what-is-left-when-they-come-in-5-s"),
        pytest.param([WIDE], ONE, 60, 8, id="much-is-done-before-they-come"),
        pytest.param([WIDE], ONE, 100, 1, id="all-is-done-before-they-come"),
        pytest.param([WIDE], [], 60, 20, id="nobody-is-there-nothing-gets-done"),
        pytest.param([Row("t", 0.01, 0, 1, 0)], [], 6, 1, id="from-zero-at-least-one"),
        pytest.param([SOURCE, STEP], ONE, 6, 39, id="what-hangs-on-the-queue-counts"),
        pytest.param([dataclasses.replace(SOURCE, width=None),
                      dataclasses.replace(STEP, width=None)], ONE, 6, 39,
                     id="also-where-nobody-looked-how-it-hangs-together"),
        pytest.param([Row("c", 1.0, 1, 0, 999, width=1)], ONE, 6, 1, id="a-chain-is-one"),
        pytest.param([Row("c", 1.0, 1, 0, 999)], ONE, 6, 1, id="a-chain-nobody-looked-at-is-one"),
        pytest.param([Row("c", 1.0, 10, 0, 9990, width=10)], ONE, 6, 10, id="ten-chains-are-ten"),
        pytest.param([Row("l", 60.0, 10, 0, 0, width=10)], ONE, 6, 10, id="one-a-task-no-more"),
        pytest.param([Row("u", None, 1, 9, 0, width=10)], ONE, 6, 1, id="unknown-is-half-a-second"),
        pytest.param([Row("u", None, 1, 9, 0, longest_s=30, width=10)], ONE, 6, 10,
                     id="unknown-and-long-already"),
        pytest.param([LOADING, PARTS], ONE, 6, 1, id="what-begins-later-is-not-asked-for-yet"),
        pytest.param([SOON, PARTS], ONE, 6, 100, id="what-begins-when-they-come-is"),
        pytest.param([dataclasses.replace(LOADING, mean_s=None), PARTS], ONE, 6, 1,
                     id="nobody-knows-when-it-begins"),
        pytest.param([WIDE], [*ONE, *[pending(f"p{i}", age_s=2) for i in range(14)]], 6, 15,
                     id="those-on-their-way-count"),
        pytest.param([Row("t", 1.0, 1, 9, 0, width=10)],
                     [*ONE, *[pending(f"p{i}", age_s=0) for i in range(9)]], 60, 1,
                     id="those-that-come-too-late-are-not-wanted"),
        pytest.param([Row("t", 0.1, 4, 0, 0)], [busy(n) for n in "abcd"], 6, 4,
                     id="never-fewer-than-have-tasks"),
        pytest.param([Row("s", 1.0, 50, 0, 0, longest_s=1000.0)], [busy(n) for n in "abcd"], 6, 50,
                     id="a-straggler-does-not-make-all-long"),
    ],
)  # fmt: skip
def test_workers_of_one_thread(
    rows: list[Row], workers: list[ObservedWorker], arrival_s: float, expected: int
) -> None:
    assert expected == wanted(scene(rows, workers), arrival_s=arrival_s)


def test_workers_of_four_threads_are_a_quarter_as_many() -> None:
    many = Row("wide", 1.0, running=4, ready=796, waiting=0, width=800)

    assert 39 == wanted(scene([many], [busy("a")], threads=4))


def test_threads_come_from_the_group_where_nobody_is_connected() -> None:
    group = ObservedGroup(GROUP, 0, (), threads=4)
    seen = dataclasses.replace(scene([WIDE]), groups=(group,))

    assert 5 == wanted(seen)


def test_work_that_keeps_coming_is_worth_workers_that_come_after_this_lot() -> None:
    lot = Row("cell", 1.0, running=1, ready=49, waiting=0, width=50)

    assert 1 == wanted(scene([lot], ONE), arrival_s=60.0)
    assert 10 == wanted(scene([lot], ONE, incoming=0.9, every_s=55.0), arrival_s=60.0)
    # Seldom enough: each lot is judged by itself.
    assert 1 == wanted(scene([lot], ONE, incoming=0.9, every_s=90.0), arrival_s=60.0)
    assert 1 == wanted(scene([lot], ONE, incoming=0.1, every_s=55.0), arrival_s=60.0)


def test_results_that_fill_the_memory_double_the_workers_while_there_is_work() -> None:
    def full(rows: list[Row]) -> ObservedCluster:
        seen = scene(rows, [busy(n) for n in "abc"])
        processes = tuple(dataclasses.replace(p, memory_limit=100) for p in seen.scheduler.workers)
        scheduler = dataclasses.replace(seen.scheduler, workers=processes, results=200)
        return dataclasses.replace(seen, scheduler=scheduler)

    assert 6 == wanted(full([Row("t", 0.1, 3, 0, 0)]))
    assert 3 == wanted(full([]))


# Hints, and shuffles that are about to begin


def test_a_client_may_ask_for_a_floor() -> None:
    wants = [Want(7, 30.0, "Client-1/x"), Want(5, 90.0, "Client-2/y"), Want(9, 30.0, "z", GPU)]
    load = asked(scene([], IDLE, wants=wants))[GROUP]

    assert (7, Reason.CLIENT_WANTS, "client Client-1/x") == (
        load.wanted, load.reason, load.asked_by
    )  # fmt: skip
    assert ["load", "hint"] == [step.stage for step in load.steps]


def test_a_floor_below_the_load_changes_nothing() -> None:
    plain, hinted = scene([WIDE], ONE), scene([WIDE], ONE, wants=[Want(7, 30.0, "x")])

    assert asked(plain) == asked(hinted)


def test_an_upcoming_shuffle_is_asked_for_before_it_begins() -> None:
    transfers = Row("transfer", 0.1, 1, 19, 0, width=20)
    outputs = Row("unpack", 0.01, 0, 0, 100, width=100, level=1, fan_in=20)
    shuffles = (UpcomingShuffle("s", 20, 100),)

    assert 1 == wanted(scene([transfers, outputs], ONE))
    load = asked(scene([transfers, outputs], ONE, shuffles=shuffles))[GROUP]
    assert (10, Reason.SHUFFLE_AHEAD) == (load.wanted, load.reason)


# Groups


def gpu_group(*workers: ObservedWorker, **changes: Any) -> ObservedGroup:
    there = tuple(dataclasses.replace(w, group=GPU, nthreads=1) for w in workers)
    return ObservedGroup(GPU, len(there), there, **{"resources": (("GPU", 1.0),), **changes})


def grouped(maximum: int = 10, **bounds: Any) -> Policy:
    groups = (GroupBounds(GROUP, maximum), GroupBounds(GPU, 10, **bounds))
    return dataclasses.replace(ANY, scaling=Scaling(groups=groups))


def numbers(seen: ObservedCluster, policy: Policy) -> tuple[int, int]:
    found = asked(seen, policy)
    return found[GROUP].wanted, found[GPU].wanted


NEED = Need(tasks=6, stuck=6, seconds=60.0, resources={"GPU": 1.0})
BOUND = Row("gpu", 10.0, running=0, ready=6, waiting=0, width=6, bound=6)


@pytest.mark.parametrize(
    ("need", "group", "expected"),
    [
        pytest.param({}, {}, (0, 6), id="from-zero-the-group-that-has-it"),
        pytest.param({"resources": {"GPU": 2.0}}, {}, (0, 0), id="no-group-has-so-many"),
        pytest.param({}, {"resources": (("GPU", 4.0),), "threads": 4}, (0, 2), id="four-at-once"),
        pytest.param({}, {"resources": (("GPU", 2.0),), "threads": 4}, (0, 3), id="two-at-once"),
        pytest.param({"seconds": 6.0}, {}, (0, 1), id="little-work-few-workers"),
        pytest.param({"tasks": 0, "waiting": 6}, {}, (0, 0), id="what-waits-is-not-asked-for-yet"),
        pytest.param({"resources": {}, "workers": ("etl-default-gone",)}, {}, (0, 0),
                     id="no-other-worker-stands-in-for-one-that-is-named"),
    ],
)  # fmt: skip
def test_needs(need: dict[str, Any], group: dict[str, Any], expected: tuple[int, int]) -> None:
    needs = (dataclasses.replace(NEED, **need),)
    seen = scene([BOUND], [], others=[gpu_group(**group)], needs=needs)

    assert expected == numbers(seen, grouped())


def test_a_need_that_nobody_can_serve_is_told() -> None:
    needs = (dataclasses.replace(NEED, resources={"TPU": 1.0}),)
    load = asked(scene([BOUND], [], others=[gpu_group()], needs=needs), grouped())[GROUP]

    assert 0 == load.wanted
    assert "6 tasks need TPU=1, which no worker of a group that is scaled has" in load.message


def test_resources_are_known_from_connected_workers_too() -> None:
    group = gpu_group(busy("g"), resources=())
    needs = (dataclasses.replace(NEED, stuck=0, able=("g",)),)
    seen = scene([dataclasses.replace(BOUND, running=6, ready=0)], [], others=[group], needs=needs)

    assert (0, 6) == numbers(seen, grouped())


def test_a_wish_for_workers_is_no_need() -> None:
    needs = (dataclasses.replace(NEED, resources={}, workers=("x",), loose=True),)
    free = dataclasses.replace(BOUND, bound=0)

    assert (6, 0) == numbers(scene([free], [], others=[gpu_group()], needs=needs), grouped())


def test_a_named_worker_is_kept_and_no_other_comes() -> None:
    group = gpu_group(worker("g"), worker("h"))
    needs = (dataclasses.replace(NEED, resources={}, workers=("g",)),)

    assert (0, 1) == numbers(scene([BOUND], [], others=[group], needs=needs), grouped())


@pytest.mark.parametrize(
    ("policy", "group", "expected"),
    [
        pytest.param(grouped(), {"resources": ()}, (10, 9), id="equal-default-first-then-more"),
        pytest.param(grouped(priority=5), {"resources": ()}, (9, 10), id="highest-first"),
        pytest.param(grouped(), {}, (10, 0), id="resources-are-not-for-work-without-needs"),
        pytest.param(grouped(priority=5), {}, (9, 10), id="unless-that-group-comes-first"),
    ],
)
def test_work_without_needs_goes_by_priority(
    policy: Policy, group: dict[str, Any], expected: tuple[int, int]
) -> None:
    ready = dataclasses.replace(WIDE, running=0, ready=95)

    assert expected == numbers(scene([ready], [], others=[gpu_group(**group)]), policy)


def test_what_is_there_is_used_before_more_is_asked_for() -> None:
    group = gpu_group(*[busy(f"g{i}") for i in range(5)], resources=())
    seen = scene([dataclasses.replace(WIDE, ready=24, width=25)], ONE, others=[group])

    assert (1, 5) == numbers(seen, grouped())


# Where nobody can say


def test_the_schedulers_own_target_is_asked_where_the_policy_says_so() -> None:
    policy = dataclasses.replace(ANY, scaling=Scaling(source=Source.SCHEDULER))

    assert 3 == wanted(scene([WIDE], ONE, target=3), policy)


def test_without_an_answer_it_is_the_schedulers_target_and_no_group_loses_a_worker() -> None:
    group = gpu_group(worker("g"), worker("h"))
    seen = scene([], ONE, others=[group], target=4)
    blind = dataclasses.replace(seen, scheduler=dataclasses.replace(seen.scheduler, demand=None))

    assert (2, 2) == numbers(blind, grouped())


# What holds for all

RATES = st.one_of(st.none(), st.floats(0, 1000))
ROWS = st.builds(
    Row, st.just("p"), RATES, st.integers(0, 50), st.integers(0, 500), st.integers(0, 500),
    st.floats(0, 5000), st.integers(0, 10), st.one_of(st.none(), st.integers(0, 1000)),
    st.integers(0, 4), st.floats(0, 100), st.integers(0, 20),
)  # fmt: skip


@given(st.lists(ROWS, max_size=6), st.integers(0, 6), st.integers(0, 6), st.floats(0, 600))
def test_no_fewer_than_have_tasks_and_no_more_than_can_run(
    rows: list[Row], there: int, coming: int, arrival_s: float
) -> None:
    workers = [busy(f"w{i}") for i in range(there)]
    workers += [pending(f"p{i}", age_s=float(i)) for i in range(coming)]

    number = wanted(scene(rows, workers), arrival_s=arrival_s)

    assert there <= number <= max(there, sum(row.unfinished for row in rows))


@given(st.lists(ROWS, max_size=6), ROWS, st.floats(0, 600))
def test_with_work_there_is_a_worker(rows: list[Row], row: Row, arrival_s: float) -> None:
    some = dataclasses.replace(row, ready=row.ready + 1, level=0, bound=0)

    assert wanted(scene([*rows, some], []), arrival_s=arrival_s) >= 1


@given(st.lists(ROWS, max_size=4), st.floats(0, 300), st.floats(0, 300), st.integers(1, 4))
def test_workers_that_take_longer_to_come_are_not_asked_for_in_greater_number(
    rows: list[Row], one_s: float, other_s: float, there: int
) -> None:
    # But for work that only begins when they come: here all of it may begin at once.
    now = [dataclasses.replace(row, level=0) for row in rows]
    seen = scene(now, [busy(f"w{i}") for i in range(there)])
    soon, late = sorted((one_s, other_s))

    assert wanted(seen, arrival_s=late) <= wanted(seen, arrival_s=soon)


@given(st.lists(ROWS, max_size=4), st.integers(0, 4))
def test_the_same_input_gives_the_same_loads(rows: list[Row], there: int) -> None:
    seen = scene(rows, [busy(f"w{i}") for i in range(there)])

    assert asked(seen) == asked(seen)
