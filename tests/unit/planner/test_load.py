"""What the load asks for, through `plan`: one line a case, and the promises that hold for all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_adaptive.model.observed import (
    Demand,
    Need,
    ObservedCluster,
    ObservedGroup,
    ObservedWorker,
    PrefixWork,
    UpcomingShuffle,
    Want,
)
from dask_adaptive.model.past import GroupPast
from dask_adaptive.model.plan import GroupPlan, Step
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.scaling import LoadTarget, WorkerGroup
from dask_adaptive.planner.capacity import Part, left_after
from support.tables import table
from support.worlds import (
    GPU,
    GROUP,
    NOW,
    PAST,
    POLICY,
    busy,
    changed,
    cluster,
    group_of,
    pending,
    plan,
    worker,
)

WILD = "etl-wild"
Row = PrefixWork
DURATION_S = POLICY.target.duration_s
ANY = replace(POLICY, max_replicas=1000)


def grouped(most: int = 10, gpu: int = 10, **bounds: Any) -> Policy:
    """Two groups are scaled."""
    groups = (WorkerGroup(GROUP, most), WorkerGroup(GPU, gpu, **bounds))
    return replace(ANY, worker_groups=groups)


def scene(
    rows: Sequence[Row] = (), workers: Sequence[ObservedWorker] = (), *, threads: int = 1,
    others: Sequence[ObservedGroup] = (), processes: Any = (), known: Any = (), **demand: Any,
) -> ObservedCluster:  # fmt: skip
    """Connected workers of so many threads, and this work."""
    there = [changed(w, nthreads=threads if w.is_connected else 0) for w in workers]
    seen = cluster(there, demand=Demand(tuple(rows), **demand), others=others, **dict(known))
    changes = {"nthreads": threads, **dict(processes)}
    told = tuple(replace(p, **changes) for p in seen.scheduler.workers)
    return replace(seen, scheduler=replace(seen.scheduler, workers=told))


def asked(
    seen: ObservedCluster, policy: Policy = ANY, arrival_s: float | None = 6.0
) -> dict[str, GroupPlan]:
    known = () if arrival_s is None else (arrival_s,)
    groups = {g.name: GroupPast(arrival_s=arrival_s, starts=known) for g in seen.groups}
    past = replace(PAST, groups=groups)
    return {g.group: g for g in plan(seen, policy, past, now=NOW).groups}


def wanted(seen: ObservedCluster, policy: Policy = ANY, arrival_s: float | None = 6.0) -> int:
    return asked(seen, policy, arrival_s)[GROUP].wanted


def numbers(seen: ObservedCluster, policy: Policy, arrival_s: float = 6.0) -> tuple[int, int]:
    found = asked(seen, policy, arrival_s)
    return found[GROUP].wanted, found[GPU].wanted


def told(found: GroupPlan) -> Step:
    """The last word of those who ask, before any limit."""
    return [s for s in found.steps if s.stage in ("load", "memory", "shuffle", "hint")][-1]


ONE, IDLE = [busy("a")], [worker("a")]
STUCK = [worker(n, stuck=1) for n in "ab"]
WIDE = Row("wide", 1.0, running=1, ready=99, waiting=0, width=100)
LOADING = Row("load", 100.0, running=1, ready=0, waiting=0, longest_s=10, width=1)
SOON = replace(LOADING, longest_s=97.0)
PARTS = Row("part", 1.0, running=0, ready=0, waiting=500, width=500, level=1, fan_in=1.0)
TEN = Row("t", 1.0, 1, 9, 0, width=10)


@table(
    "rows, workers, arrival_s, expected",
    ten_chains_are_ten=([Row("c", 1.0, 10, 0, 9990, width=10)], ONE, 6, 10),
    unknown_and_long_already=([Row("u", None, 1, 9, 0, longest_s=30, width=10)], ONE, 6, 10),
    what_begins_later_is_not_asked_for_yet=([LOADING, PARTS], ONE, 6, 1),
    what_begins_when_they_come_is=([SOON, PARTS], ONE, 6, 100),
    those_on_their_way_count=([WIDE], [*ONE, *[pending(f"p{i}", age_s=2) for i in range(14)]], 6,
        15),
    stuck_threads_are_made_up_for=([TEN], STUCK, 6, 4),
    others_are_not=([TEN], [*STUCK, worker("c")], 6, 3),
    for_nothing_nobody_is_kept=([], STUCK, 6, 0),
)  # fmt: skip
def test_workers_of_one_thread(
    rows: list[Row], workers: list[ObservedWorker], arrival_s: float, expected: int
) -> None:
    assert expected == wanted(scene(rows, workers), arrival_s=arrival_s)


# Work


def row(**changes: Any) -> Row:
    return replace(Row("t", 1.0, running=0, ready=0, waiting=0), **changes)


@table(
    "changes, threads, expected",
    as_measured=({"ready": 1, "longest_s": 9.0}, 1, (2.0, 1)),
    as_the_scheduler_assumes=({"ready": 1, "mean_s": None}, 1, (0.5, 1)),
    the_rest_has_not_begun=({"running": 4, "longest_s": 1.0}, 1, (7.0, 4)),
    one_after_the_other=({"running": 2, "longest_s": 1.0}, 2, (2.5, 2)),
    not_yet_far_beyond=({"running": 1, "longest_s": 3.0}, 1, (1.0, 1)),
    none_runs=({"ready": 3, "longest_s": 9.0}, 1, (6.0, 3)),
    unknown=({"running": 4, "mean_s": None}, 4, (2.0, 4)),
    unknown_and_long_already=({"running": 4, "mean_s": None, "longest_s": 3.0}, 1, (21.0, 4)),
    all_are_done=({"done": 9}, 1, (0.0, 0)),
    told_to_a_thousandth=({"ready": 7, "width": 5, "bound": 1, "mean_s": 0.12346}, 1, (0.741, 6.0)),
)
def test_the_work_of_one_kind(
    changes: dict[str, Any], threads: int, expected: tuple[float, float]
) -> None:
    there = [worker("a")] if threads else []
    seen = scene([row(**{"mean_s": 2.0, **changes})], there, threads=threads)
    inputs = asked(seen)[GROUP].inputs

    assert expected == (inputs["work_s"], inputs["width"])


EIGHT = row(mean_s=4.0, ready=8, width=8)
HALF = row(mean_s=0.5, ready=1, width=1)
CHAIN = row(running=1, waiting=9, width=1)
SHORT_CHAIN = row(mean_s=0.25, ready=1, waiting=3, width=1)
BOUND = row(ready=4, width=4, bound=4)
FOUR = row(ready=4, width=4)
EARLY = row(mean_s=4.0, running=1, ready=7, width=8, longest_s=1.0)
LATE = row(mean_s=4.0, running=1, ready=7, width=8, longest_s=9.0)


@table(
    "before, fan_in, threads, expected",
    which_has_run_for_a_second=([EARLY], 1.0, 2, 3.0),
    which_is_overdue=([LATE], 1.0, 2, 0.0),
    of_whichever_kind=([EIGHT, HALF], 1.0, 2, 0.5),
    one_is_enough=([EIGHT, replace(HALF, mean_s=None)], 5.0, 2, math.inf),
    a_chain_takes_its_time=([CHAIN], 10.0, 4, 10.0),
    a_short_chain_too=([SHORT_CHAIN], 4.0, 4, 1.0),
    what_is_bound_is_no_work_of_ours=([BOUND, FOUR], 8.0, 1, 4.0),
    no_more_is_bound_than_there_is=([replace(BOUND, bound=8), FOUR, FOUR], 12.0, 1, 5.0),
)
def test_when_tasks_that_wait_can_begin(
    before: list[Row], fan_in: float, threads: int, expected: float
) -> None:
    """Told by many tasks behind them: ten seconds later they can begin, and are asked for."""
    waiting = row(mean_s=10.0, waiting=5, width=5, level=1, fan_in=fan_in)
    many = row(mean_s=1e6, waiting=5000, width=5000, level=2, fan_in=0.1)
    there = [worker("a")] if threads else []
    seen = scene([*before, waiting, many], there, threads=threads)

    def is_asked_for(arrival_s: float) -> bool:
        most = replace(ANY, max_replicas=10_000)
        return wanted(seen, most, arrival_s) * max(threads, 1) >= 5000

    in_time = min(expected + 10.0 - DURATION_S, 1e6)
    assert [expected < math.inf, False] == [is_asked_for(in_time), is_asked_for(in_time - 0.1)]


@table(
    "before, thread_seconds, expected",
    no_more_than_can_run_at_once=([Part(10, 2)], 100.0, [Part(4, 2)]),
    begins_meanwhile=([Part(10, 2, 1, 2.0)], 100.0, [Part(8, 2, 1, 0.0)]),
)
def test_what_is_left_after_three_seconds(
    before: list[Part], thread_seconds: float, expected: list[Part]
) -> None:
    """No number tells so much: it is the arithmetic itself."""
    assert tuple(expected) == left_after(before, 3.0, thread_seconds)


# Work that keeps coming, and results that fill the memory


def free(tasks: int, mean_s: float = 1000.0) -> Row:
    """Work of so many threads that any worker may do."""
    return row(mean_s=mean_s, ready=tasks, width=tasks)


WILD_3 = [group_of(WILD, [worker(n) for n in "ghi"])]


@table(
    "demand, threads, others, expected",
    no_sooner=({"every_s": 50.0}, 1, [], 1),
    half_of_what_is_there=({"incoming": 0.5}, 1, [], 1),
    more_than_half=({"incoming": 0.51}, 1, [], 8),
    half_of_four_threads=({"incoming": 2.0}, 4, [], 1),
    others_take_part=({"incoming": 2.0}, 1, WILD_3, 1),
    who_are_not_enough=({"incoming": 2.01}, 1, WILD_3, 5),
    a_queue_not_for_as_long_as_a_start=({"trickle_s": 50.0}, 1, [], 1),
    a_queue_for_longer=({"trickle_s": 50.5}, 1, [], 8),
    as_much_is_expected_as_has_come=({"trickle_s": 50.5, "tasks": 30, "mean_s": 0.1}, 1, [], 11),
)
def test_work_that_keeps_coming_is_for_those_who_come_later(
    demand: dict[str, Any], threads: int, others: list[ObservedGroup], expected: int
) -> None:
    # Eight threads for five seconds: once a new worker is there, one thread has done all of it.
    coming = {"incoming": 1.01, "every_s": 1.0, **demand}
    work = free(coming.pop("tasks", 8), coming.pop("mean_s", 5.0))
    seen = scene([work], IDLE, threads=threads, others=others, **coming)

    assert expected == wanted(seen, arrival_s=50.0)


@pytest.mark.parametrize(
    ("results", "limit", "expected"),
    [(121, 100, 4), (120, 100, 2), (10, 100, 2), (61, 0, 2), (0, 0, 2)],
)
def test_full_memory_doubles_the_workers(results: int, limit: int, expected: int) -> None:
    seen = scene(
        [free(1, 0.1)], [busy("a"), busy("b")], known={"results": results},
        processes={"memory_limit": limit},
    )  # fmt: skip
    found = asked(seen)[GROUP]

    assert expected == found.wanted
    if expected == 4:
        full = "results fill over 60% of the workers' memory: twice as many are wanted"
        assert Step("memory", 4, Reason.LOAD_INCREASED, full) == told(found)
    # Whether a task is there at this instant or not.
    idle = replace(seen, scheduler=replace(seen.scheduler, demand=Demand()))
    assert expected == wanted(idle)


def test_outputs_of_shuffles_come_on_top_of_what_is_bound() -> None:
    rows = [row(mean_s=100.0, ready=1, width=1), row(waiting=100, width=100, level=1, fan_in=20)]
    shuffles = (UpcomingShuffle(20, 60), UpcomingShuffle(20, 40))
    needs = (Need(1, 1000.0, {}, workers=(GROUP,)),)
    there = [busy("a"), *(worker(f"w{i}") for i in range(49))]

    def last(*rows: Row) -> Step:
        return told(asked(scene(rows, there, shuffles=shuffles, needs=needs))[GROUP])

    said = "2 P2P shuffles about to assign outputs to workers"
    steps = [Step("shuffle", n, Reason.SHUFFLE_AHEAD, f"{said}: {n} workers") for n in (21, 11)]
    # A second for each output, in five; without work that hangs on them half a second for each.
    assert steps == [last(*rows), last(rows[0])]


# Workers: who is there, who comes when, who is needed


@table(
    "changes, expected",
    by_that_of_its_pod=({"age_s": 80.0, "pod_age_s": 3.0}, 7.0),
    as_late_again=({"age_s": 11.0}, 1.0),
    its_pod_is_refused=({"age_s": 4.0, "refused": "quota"}, 10.0),
)
def test_when_one_on_its_way_is_expected(changes: dict[str, Any], expected: float) -> None:
    """It is wanted if there is then enough left for two: a second too late, it is not."""

    def wanted_for(work_s: float) -> int:
        seen = scene([row(mean_s=work_s / 2, ready=2)], [*IDLE, pending("p", **changes)])
        return wanted(seen, arrival_s=10.0)

    enough_s = 1.25 * DURATION_S  # for one, and the quarter of a thread that nobody notices
    assert [2, 1] == [wanted_for(expected + enough_s + by) for by in (0.3, -0.3)]


BY_NAME = Need(tasks=2, seconds=2000.0, resources={}, workers=(GROUP,))
FOUR_BY_NAME = replace(BY_NAME, tasks=4, seconds=4000.0)
P4, P6 = pending("p", age_s=2.0), pending("q", age_s=0.0)
A, B, C = (worker(n) for n in "abc")


@table(
    "workers, work, changes, expected",
    the_soonest_first=([A, P6, P4], [free(2, 5.3)], {}, 2),
    # Workers that do what only they may are not free for the rest.
    one_of_those_that_come_is_left=(
        [A, B, C, P4, P6], [free(9)], {"needs": (FOUR_BY_NAME,), "most": 5}, 5),
    one_may_be_added=([A, B], [free(9)], {"needs": (BY_NAME,), "most": 3}, 3),
    none_may_be_added=([A, B], [free(9)], {"needs": (BY_NAME,), "most": 2}, 2),
)  # fmt: skip
def test_workers_for_threads(
    workers: list[ObservedWorker], work: list[Row], changes: dict[str, Any], expected: int
) -> None:
    rest = dict(changes)
    policy = replace(ANY, max_replicas=rest.pop("most", 1000))

    assert expected == wanted(scene(work, workers, **rest), policy)


# Groups

RESOURCES = (("GPU", 4.0), ("FPGA", 2.0))


@table(
    "workers, policy, resources, expected",
    unless_it_comes_first=([], grouped(priority=1), RESOURCES, (0, 3)),
    not_if_it_has_resources=([], grouped(2), RESOURCES, (2, 0)),
)
def test_which_group_grows(
    workers: list[ObservedWorker], policy: Policy, resources: tuple[tuple[str, float], ...],
    expected: tuple[int, int],
) -> None:  # fmt: skip
    seen = scene([free(3)], workers, others=[group_of(GPU, resources=resources)])

    assert expected == numbers(seen, policy)


def test_who_names_no_group_gets_workers_where_there_may_be_some() -> None:
    seen = scene(others=[group_of(GPU)], known={"wants": (Want(2, 60.0, "c"),)})

    assert [(2, 0), (0, 2)] == [numbers(seen, grouped(most)) for most in (10, 0)]


@pytest.mark.parametrize(("there", "tasks", "expected"), [(3, 8, (3, 1)), (2, 16, (4, 4))])
def test_of_workers_of_two_threads_one_group_grows_after_the_other(
    there: int, tasks: int, expected: tuple[int, int]
) -> None:
    workers = [worker(f"w{i}") for i in range(there)]
    gpu = group_of(GPU, [worker(f"g{i}", nthreads=2) for i in range(3)])

    assert expected == numbers(scene([free(tasks)], workers, threads=2, others=[gpu]), grouped(4))


def test_work_keeps_coming_only_where_no_group_is_there_sooner() -> None:
    seen = scene(
        [free(8, 5.0)],
        IDLE,
        others=[group_of(GPU, resources=RESOURCES)],
        incoming=9.0,
        every_s=10.0,
    )
    past = {GROUP: GroupPast(arrival_s=50.0), GPU: GroupPast(arrival_s=5.0)}

    def wanted_if(every_s: float) -> int:
        demand = Demand((free(8, 5.0),), incoming=9.0, every_s=every_s)
        world = replace(seen, scheduler=replace(seen.scheduler, demand=demand))
        return plan(world, grouped(), replace(PAST, groups=past), now=NOW).groups[0].wanted

    assert [8, 1] == [wanted_if(4.0), wanted_if(10.0)]


# Tasks that only some workers may run

G, H = worker("g", dask_names=("g-0", "g-1")), worker("h")
NEED = Need(tasks=1, seconds=1000.0, resources={"GPU": 1.0})
NAMED: dict[str, Any] = {"resources": {}, "workers": ("g",)}
G_AND_H = {**NAMED, "workers": ("g", "h-0", "h")}


def need(tasks: int = 1, **changes: Any) -> Need:
    return replace(NEED, tasks=tasks, **{"seconds": 1000.0 * tasks, **changes})


def bound(needs: Sequence[Need], *, threads: int = 4, stuck: int = 0, most: int = 99) -> GroupPlan:
    """
    What is asked of a group beside one that is not scaled.

    It has two workers and one that starts; with a maximum, none yet.
    """
    there = [changed(w, nthreads=threads, stuck=stuck) for w in (G, H)] if most == 99 else []
    rows = [*there, pending("p")] if there else []
    gpu = group_of(GPU, rows, threads=threads, resources=(("GPU", 1.0), ("FPGA", 4.0)))
    seen = scene(others=[gpu, group_of(WILD, [worker("x"), worker("y")])], needs=tuple(needs))
    return asked(seen, grouped(0, most))[GPU]


@table(
    "needs, changes, expected",
    two_at_once=([need(6, resources={"FPGA": 2.0})], {}, 3),
    none_while_stuck=([need(6, resources={"FPGA": 2.0})], {"stuck": 4}, 5),
    a_claim_of_none=([need(6, resources={"FPGA": 1.0, "X": 0.0})], {}, 2),
    the_first_takes_all=([need(4), need(3)], {"most": 4}, 4),
    a_wish=([need(6, **NAMED, loose=True)], {}, 0),
    a_worker_is_named=([need(9, **NAMED)], {}, 1),
    one_at_once_on_each_that_is_named=([need(2, **{**G_AND_H, "resources": {"GPU": 1.0}})], {}, 2),
    a_host=([need(9, resources={}, hosts=("g-1",))], {}, 1),
    known_from_those_that_run_such_tasks=([need(3, resources={"X": 1.0}, able=("g-1",))], {}, 3),
    others_may_run_it=([need(1, resources={"X": 1.0}, able=("x",))], {}, 0),
)
def test_workers_for_tasks_that_only_they_may_run(
    needs: list[Need], changes: dict[str, Any], expected: int
) -> None:
    found = bound(needs, **changes)

    assert expected == found.wanted == found.inputs["bound_workers"]
    assert "no worker" not in told(found).message


def test_a_group_is_told_for_what_it_is_needed_and_what_nobody_has() -> None:
    needs = [need(n, resources={"FPGA": float(n)}) for n in (1, 2, 3, 4)]
    said = "1 task in need of FPGA=1, 2 tasks in need of FPGA=2, 3 tasks in need of FPGA=3"
    assert told(bound(needs, most=98)).message.endswith(f"9 wanted; {said}")
    assert told(bound([need(1)], most=0)).message.endswith(": 0 wanted")

    needs = [need(int(n >= 0), resources={f"X{n}": 1.0}) for n in range(-1, 4)]
    nobody = "which no worker of a scaled group has"
    said = "; ".join(f"1 task in need of X{n}=1, {nobody}" for n in range(3))
    assert told(bound(needs)).message.endswith(f": 0 wanted; {said}")


@table(
    "changes, words",
    a_resource=({"resources": {"X": 1.0}}, "X=1"),
    two=({"resources": {"b": 2.5, "a": 1.0}}, "a=1 and b=2.5"),
    a_worker=({"workers": ("w",)}, "one of w"),
    three=({"workers": tuple("wxz")}, "one of w, x, z"),
    more=({"workers": tuple("wxzv")}, "one of w, x, z, …"),
    a_resource_and_a_wish=({"resources": {"X": 1.0}, "workers": ("w",), "loose": True}, "X=1"),
    nothing=({}, ""),
)
def test_a_need_in_words(changes: dict[str, Any], words: str) -> None:
    message = told(bound([replace(NEED, **{"resources": {}, **changes})])).message

    said = f"; 1 task in need of {words}, which no worker of a scaled group has"
    assert message.endswith(said if words else ": 0 wanted")


# What is said


def test_a_load_tells_all_that_it_was_made_from() -> None:
    rows = [
        row(mean_s=2.00004, running=4, ready=6, width=10),
        row(ready=7, width=5, bound=1),
        row(mean_s=0.5, waiting=5, width=5, level=1),
    ]
    there = [busy("a"), busy("b"), pending("p", age_s=2.0)]
    seen = scene(rows, there, threads=2, others=[group_of(WILD, [worker("g")])])
    found = asked(seen)[GROUP]
    message = (
        "4 tasks run, 13 are queued, 5 wait for others; 28 s of work, at most 16 tasks at once;"
        " 2 workers of 2 threads there, 1 pending, a new one takes 6 s: 2 wanted"
    )
    inputs = {
        "queued": 13.0, "ready": 13.0, "running": 4.0, "waiting": 5.0, "work_s": 28.5,
        "width": 16.0, "cluster_threads": 6.0, "arrival_s": 6.0, "serving": 3, "pending": 1,
        "threads": 2.0, "bound_workers": 0.0,
    }  # fmt: skip

    assert Step("load", 2, Reason.UNDERUTILIZED, message) == found.steps[0]
    assert inputs == {name: found.inputs[name] for name in inputs}


def test_a_number_that_rests_on_an_assumption_says_so() -> None:
    assumed = "100 s of work, 1 worker, a new one is assumed to take 3 s"
    alone = row(mean_s=100.0, running=1)
    for work, reason in ((WIDE, Reason.LOAD_INCREASED), (alone, Reason.DESIRED_WITHIN_RANGE)):
        known, unknown = (asked(scene([work], ONE), arrival_s=s)[GROUP] for s in (6.0, None))
        assert [reason] * 2 == [known.reason, unknown.reason]
        assert (True, False) == tuple(assumed in g.message for g in (unknown, known))
        assert "3 s (assumed)" in told(unknown).message


# The scheduler's own target


def elsewhere(target: int, **changes: Any) -> ObservedCluster:
    """Two workers of the default group, and two of three threads that are not scaled."""
    world = cluster([busy("a"), busy("b")], others=[group_of(WILD, [worker("g"), worker("h")])])
    processes = tuple(
        replace(p, nthreads=3, **changes) if p.name in {"g", "h"} else p
        for p in world.scheduler.workers
    )
    scheduler = replace(world.scheduler, workers=processes, target=target)
    return replace(world, scheduler=scheduler)


@pytest.mark.parametrize(
    ("duration_s", "work_s", "expected"), [(0.001, 3.0, 3), (1000.0, 3.0, 1), (0.5, 0.0, 1)]
)
def test_tasks_of_a_group_need_as_many_as_do_them_in_time(
    duration_s: float, work_s: float, expected: int
) -> None:
    others = [group_of(GPU, resources=(("GPU", 1.0),))]
    world = cluster([worker("a")], others=others, demand=Demand(needs=(need(3, seconds=work_s),)))

    policy = replace(grouped(), target=LoadTarget(duration_s=duration_s))
    assert expected == numbers(world, policy)[1]


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
def test_with_work_there_is_a_worker(rows: list[Row], one: Row, arrival_s: float) -> None:
    some = replace(one, ready=one.ready + 1, level=0, bound=0)

    assert wanted(scene([*rows, some], []), arrival_s=arrival_s) >= 1


@given(st.lists(ROWS, max_size=4), st.floats(0, 300), st.floats(0, 300), st.integers(1, 4))
def test_workers_that_take_longer_to_come_are_not_asked_for_in_greater_number(
    rows: list[Row], one_s: float, other_s: float, there: int
) -> None:
    # But for work that only begins when they come: here all of it may begin at once.
    now = [replace(row, level=0) for row in rows]
    seen = scene(now, [busy(f"w{i}") for i in range(there)])
    soon, late = sorted((one_s, other_s))

    assert wanted(seen, arrival_s=late) <= wanted(seen, arrival_s=soon)
