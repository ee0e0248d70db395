"""What work comes to in workers: of which group, for which reason, told with which figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from dask_adaptive.model.demand import Demand, Need, PrefixWork, UpcomingShuffle
from dask_adaptive.model.history import Step
from dask_adaptive.model.observed import ObservedCluster, ObservedGroup, ObservedWorker
from dask_adaptive.model.reason import Reason
from dask_adaptive.planner.load import Load
from dask_adaptive.planner.startup_aware import startup_aware
from dask_adaptive.planner.supply import Supply
from support.worlds import GROUP, POLICY, busy, cluster, worker

GPU, DURATION_S = "etl-gpu", 5.0
ONE = Supply(
    name=GROUP, maximum=1000, priority=0, threads=1.0, connected=0, busy=0, pending=(),
    arrival_s=10.0,
)  # fmt: skip
LONG = PrefixWork("long", 1000.0, running=0, ready=1, waiting=0)
NEED = Need(tasks=1, stuck=1, seconds=1000.0, resources={"GPU": 1.0})
RESOURCES = (("GPU", 4.0), ("FPGA", 2.0))


def supply(name: str = GROUP, **changes: Any) -> Supply:
    return dataclasses.replace(ONE, name=name, **changes)


def need(tasks: int = 1, **changes: Any) -> Need:
    return dataclasses.replace(NEED, tasks=tasks, seconds=1000.0 * tasks, **changes)


def free(tasks: int, mean_s: float = 1000.0) -> PrefixWork:
    """Work of so many threads that any worker may do."""
    return dataclasses.replace(LONG, mean_s=mean_s, ready=tasks, width=tasks)


def world(
    workers: Sequence[ObservedWorker] = (),
    *,
    gpu: Sequence[ObservedWorker] = (),
    resources: tuple[tuple[str, float], ...] = RESOURCES,
    **scheduler: Any,
) -> ObservedCluster:
    """The default group, and one whose workers have resources."""
    group = ObservedGroup(GPU, len(gpu), tuple(gpu), resources=resources)
    return cluster(workers, others=[group], **scheduler)


def asked(
    every: Sequence[Supply], demand: Demand, seen: ObservedCluster | None = None
) -> dict[str, Load]:
    return startup_aware(world() if seen is None else seen, POLICY, every, demand)


def numbers(
    every: Sequence[Supply], demand: Demand, seen: ObservedCluster | None = None
) -> list[int]:
    return [load.wanted for load in asked(every, demand, seen).values()]


# Work that any worker may do


def test_a_load_tells_all_that_it_was_made_from() -> None:
    rows = (
        PrefixWork("load", 2.00004, running=4, ready=6, waiting=0, width=10),
        PrefixWork("mean", 1.0, running=0, ready=7, waiting=0, width=5, bound=1),
        PrefixWork("sum", 0.5, running=0, ready=0, waiting=5, width=5, level=1),
    )
    every = [supply(threads=2.0, connected=2, busy=2, pending=(4.0,))]
    seen = world(gpu=[worker("g")])
    message = (
        "4 tasks run, 13 are queued, 5 wait for others; 28 s of work, at most 16 tasks at once;"
        " 2 workers of 2 threads are there, 1 on their way, a new one takes 10 s: 2 wanted"
    )
    reason = Reason.UNDERUTILIZED
    inputs = {
        "queued": 13.0, "ready": 13.0, "running": 4.0, "waiting": 5.0, "work_s": 28.5,
        "width": 16.0, "cluster_threads": 5.0, "arrival_s": 10.0, "serving": 3.0, "pending": 1.0,
        "threads": 2.0, "bound_workers": 0.0,
    }  # fmt: skip
    load = Load(2, reason, message, inputs, "load", (Step("load", 2, reason, message),))

    assert {GROUP: load} == asked(every, Demand(rows), seen)


def test_figures_are_told_to_a_thousandth() -> None:
    rows = (PrefixWork("t", 0.12346, running=0, ready=0, waiting=7, width=5, bound=1),)
    load = asked([supply()], Demand(rows))[GROUP]

    assert (0.741, 4.286) == (load.inputs["work_s"], load.inputs["width"])


def test_without_work_nothing_is_wide() -> None:
    load = asked([supply(connected=1)], Demand())[GROUP]

    assert (0, 0.0, 0.0) == (load.wanted, load.inputs["work_s"], load.inputs["width"])
    assert "1 workers of 1 threads are there, a new one takes 10 s: 0 wanted" in load.message


def test_without_a_group_there_is_nothing_to_ask_for() -> None:
    assert {} == asked([], Demand((free(3),)))


@pytest.mark.parametrize(
    ("demand", "changes", "expected"),
    [
        pytest.param({"every_s": 49.9}, {}, 8, id="sooner-than-workers-come"),
        pytest.param({"every_s": 50.0}, {}, 1, id="no-sooner"),
        pytest.param({"incoming": 0.5}, {}, 1, id="half-of-what-is-there"),
        pytest.param({"incoming": 0.51}, {}, 8, id="more-than-half"),
        pytest.param({"incoming": 2.0}, {"threads": 4.0}, 1, id="half-of-four-threads"),
        pytest.param({"incoming": 2.01}, {"threads": 4.0}, 2, id="more-than-half-of-them"),
        pytest.param({}, {"threads": 2.0, "pending": (50.0,) * 5}, 6,
                     id="those-on-their-way-are-for-the-next-lot"),
    ],
)  # fmt: skip
def test_work_that_keeps_coming_is_for_those_who_come_later(
    demand: dict[str, Any], changes: dict[str, Any], expected: int
) -> None:
    # Eight threads for five seconds: once a new worker is there, one thread has done all of it.
    one = supply(**{"connected": 1, "arrival_s": 50.0, **changes})
    coming = {"incoming": 1.01, "every_s": 1.0, **demand}

    assert [expected] == numbers([one], Demand((free(8, 5.0),), **coming))


def test_others_take_part_in_work_that_keeps_coming() -> None:
    one = supply(connected=1, arrival_s=50.0)
    seen = world(gpu=[worker("g"), worker("h"), worker("i")])

    def wanted(incoming: float) -> list[int]:
        return numbers([one], Demand((free(8, 5.0),), incoming=incoming, every_s=1.0), seen)

    assert [1] == wanted(2.0)
    assert [5] == wanted(2.01)


def test_work_keeps_coming_only_where_no_group_is_there_sooner() -> None:
    every = [supply(connected=1, arrival_s=50.0), supply(GPU, arrival_s=5.0, grows=False)]
    demand = Demand((free(8, 5.0),), incoming=9.0, every_s=10.0)

    assert [8, 0] == numbers(every, dataclasses.replace(demand, every_s=4.0))
    assert [1, 0] == numbers(every, demand)


# Results that fill the memory


@pytest.mark.parametrize(
    ("results", "limit", "expected"),
    [(61, 100, 4), (60, 100, 2), (10, 100, 2), (61, 0, 2), (0, 0, 2)],
)
def test_full_memory_doubles_the_workers(results: int, limit: int, expected: int) -> None:
    seen = world([busy("a")], results=results)
    processes = [dataclasses.replace(p, memory_limit=limit) for p in seen.scheduler.workers]
    scheduler = dataclasses.replace(seen.scheduler, workers=tuple(processes))
    every = [supply(connected=2, busy=2), supply(GPU, connected=1, busy=1)]
    loads = asked(every, Demand((free(1, 0.1),)), dataclasses.replace(seen, scheduler=scheduler))

    assert [expected, 1] == [load.wanted for load in loads.values()]
    if expected == 4:
        full = "results fill over 60% of the memory of workers: twice as many are wanted"
        assert Step("memory", 4, Reason.LOAD_INCREASED, full) == loads[GROUP].steps[-1]


# Groups


@pytest.mark.parametrize(
    ("every", "resources", "expected"),
    [
        pytest.param([supply(), supply(GPU)], RESOURCES, [3, 0], id="resources-are-for-needs"),
        pytest.param([supply(), supply(GPU)], (), [3, 0], id="the-first-comes-first"),
        pytest.param([supply(GPU)], (), [3], id="none-has-resources"),
        pytest.param([supply(GPU)], RESOURCES, [0], id="not-alone-either"),
        pytest.param([supply(GPU, priority=1)], RESOURCES, [3], id="unless-it-comes-first"),
        pytest.param([supply(GPU, priority=1), supply(priority=1)], RESOURCES, [0, 3],
                     id="which-is-before-the-default-group"),
    ],
)  # fmt: skip
def test_which_group_grows(
    every: list[Supply], resources: tuple[tuple[str, float], ...], expected: list[int]
) -> None:
    seen = world(results=1, resources=resources)

    assert expected == numbers(every, Demand((free(3),)), seen)


def test_resources_of_the_default_group_keep_nobody_off() -> None:
    group = ObservedGroup(GROUP, 0, resources=RESOURCES)
    seen = dataclasses.replace(world(), groups=(group,))

    assert [3] == numbers([supply()], Demand((free(3),)), seen)


@pytest.mark.parametrize(
    ("one", "bound", "work", "expected"),
    [
        pytest.param({"connected": 3, "pending": (4.0, 6.0)}, 2, free(3), 5,
                     id="one-is-left-and-two-come"),
        pytest.param({"connected": 3, "pending": (4.0, 6.0)}, 2, free(3, 1.0), 3,
                     id="one-is-left-and-does-it-alone"),
        pytest.param({"pending": (4.0, 6.0), "connected": 3, "maximum": 5}, 4, free(9), 5,
                     id="one-of-those-that-come-is-left"),
        pytest.param({"connected": 2, "maximum": 3}, 2, free(9), 3, id="one-may-be-added"),
        pytest.param({"connected": 2, "maximum": 2}, 2, free(9), 2, id="none-may-be-added"),
    ],
)  # fmt: skip
def test_workers_that_do_what_only_they_may_are_not_free_for_the_rest(
    one: dict[str, Any], bound: int, work: PrefixWork, expected: int
) -> None:
    needs = (need(bound, resources={}, workers=(GROUP,)),)

    assert [expected] == numbers([supply(**one)], Demand((work,), needs))


@pytest.mark.parametrize(
    ("bound", "others", "expected"),
    [
        (0, 2, Reason.LOAD_INCREASED),
        (2, 3, Reason.LOAD_INCREASED),
        (3, 3, Reason.LOAD_INCREASED),
        (4, 3, Reason.NEEDED_RESOURCES),
    ],
)
def test_the_reason_is_what_most_are_wanted_for(bound: int, others: int, expected: Reason) -> None:
    needs = (need(bound, resources={}, workers=(GROUP,)),)
    load = asked([supply()], Demand((free(others),), needs))[GROUP]

    assert (bound + others, expected) == (load.wanted, load.reason)
    assert float(bound) == load.inputs["bound_workers"]


def test_no_reason_where_all_that_are_there_are_wanted() -> None:
    load = asked([supply(connected=2, busy=2)], Demand())[GROUP]

    assert (2, Reason.DESIRED_WITHIN_RANGE) == (load.wanted, load.reason)


# Shuffles


def test_outputs_of_shuffles_come_on_top_of_what_is_bound() -> None:
    rows = (
        PrefixWork("transfer", 100.0, running=0, ready=1, waiting=0, width=1),
        PrefixWork("unpack", 1.0, running=0, ready=0, waiting=100, width=100, level=1, fan_in=20),
    )
    shuffles = (UpcomingShuffle("s", 20, 60), UpcomingShuffle("t", 20, 40))
    needs = (need(1, resources={}, workers=(GROUP,)),)
    every = [supply(connected=50, busy=1)]

    def last(*rows: PrefixWork) -> tuple[int, Step]:
        load = asked(every, Demand(rows, needs, shuffles=shuffles))[GROUP]
        return load.wanted, load.steps[-1]

    said = "2 P2P shuffles are about to give their outputs to workers"
    steps = [Step("shuffle", n, Reason.SHUFFLE_AHEAD, f"{said}: {n} workers") for n in (21, 11)]
    # A second for each output, in five; without work that hangs on them half a second for each.
    assert (21, steps[0]) == last(*rows)
    assert (11, steps[1]) == last(rows[0])
