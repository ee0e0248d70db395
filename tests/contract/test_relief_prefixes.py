"""Totals of task prefixes are kept, and are at each step what upstream works out."""

from __future__ import annotations

import random
import re
from inspect import getsource
from pathlib import Path
from typing import Any

import distributed.scheduler
import pytest
from distributed.scheduler import SchedulerState, TaskGroup, TaskPrefix, TaskState
from distributed.utils_test import gen_cluster, gen_test
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dask_adaptive_agent.relief.base import Mismatch, Place
from dask_adaptive_agent.relief.prefixes import Prefixes
from support.patched import clear_shared
from support.relief_driven import alone, key_of
from support.relief_work import Compared, Work, apart, do

NEEDED: Any = not Prefixes.needless()
ONLY = pytest.mark.skipif(not NEEDED, reason=Prefixes.needless() or "needed")

STOCK = {
    (owner, name): owner.__dict__[name]  # type: ignore[attr-defined]
    for owner, name in ((TaskState, "state"), (TaskState, "set_nbytes"), (TaskGroup, "add"))
}


@pytest.fixture(autouse=True)
def _nobody_holds() -> None:
    """Schedulers of other tests may have closed without taking it out."""
    clear_shared()


def relief_of(s: Any, given_up: list[str] | None = None) -> Prefixes:
    complaints = [] if given_up is None else given_up
    return Prefixes(Place(s, lambda: 0.0, lambda *_: None, complaints.append))


def installed(s: Any, given_up: list[str] | None = None) -> Prefixes:
    relief = relief_of(s, given_up)
    relief.install()
    relief.check()
    return relief


def is_stock(s: Any) -> bool:
    return (
        type(s.task_prefixes) is dict
        and all(type(tp) is TaskPrefix for tp in s.task_prefixes.values())
        and all(type(tp.groups) is list for tp in s.task_prefixes.values())
        and all(type(tg.types) is set for tg in s.task_groups.values())
    )


def are_classes_stock() -> bool:
    return all(owner.__dict__[name] is stock for (owner, name), stock in STOCK.items())


def test_it_is_needed_exactly_where_upstream_walks_the_groups() -> None:
    is_walked = isinstance(TaskPrefix.__dict__.get("states"), property)

    assert NEEDED == is_walked


@ONLY
def test_upstream_writes_what_is_counted_nowhere_else() -> None:
    source = Path(distributed.scheduler.__file__).read_text()

    def lines(pattern: str) -> list[str]:
        return [line.strip() for line in source.splitlines() if re.search(pattern, line)]

    assert ["self._state = state", "self._state = value"] == lines(r"\._state = ")
    assert ["self.states[other.state] += 1"] == [
        line for line in lines(r"\.states\[.*\] [-+]?= ") if "group.states" not in line
    ]
    assert 2 == len(lines(r"group\.states\[.*\] [-+]?= "))
    assert ["self.group.nbytes_total += diff"] == lines(r"nbytes_total [-+]= ")
    assert ["ts.group.types.add(typename)  # type: ignore"] == lines(r"\.types\.")
    assert ["self.prefix.add_duration(action, start, stop)"] == lines(r"prefix\.add_duration\(")
    assert ["self.prefix.state_counts[value] += 1"] == lines(r"\.state_counts\[")
    assert ["tp.groups.append(tg)", "ts.prefix.groups.remove(tg)"] == lines(
        r"(tp|prefix)\.groups\."
    )
    assert 1 == len(lines(r"[^_]TaskPrefix\(")) == len(lines(r"task_prefixes\[.*\] = "))


@ONLY
def test_a_task_once_forgotten_stays_forgotten() -> None:
    assert not [pair for pair in SchedulerState._TRANSITIONS_TABLE if pair[0] == "forgotten"]
    assert "self.task_prefixes" in getsource(SchedulerState._clear_task_state)


@ONLY
@gen_cluster(client=True, nthreads=[("127.0.0.1", 2)] * 2)
async def test_each_step_of_random_work_gives_upstreams_answers(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    relief, compared = installed(s), Compared(s)
    s.add_plugin(compared)
    work = Work(c, s, random.Random(1))

    await work.go(120)
    await work.end()

    assert not compared.wrong[:3]
    assert compared.n_steps > 300
    relief.uninstall()
    assert is_stock(s)
    assert are_classes_stock()


@ONLY
@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(8))
def test_each_step_of_much_random_work_gives_upstreams_answers(seed: int) -> None:
    @gen_cluster(client=True, nthreads=[("127.0.0.1", 2)] * 2, timeout=120)
    async def run(c: Any, s: Any, a: Any, b: Any) -> None:
        work, compared = Work(c, s, random.Random(seed)), Compared(s)
        await work.go(50)
        relief = installed(s)
        s.add_plugin(compared)
        await work.go(300)
        await work.restart()
        compared.compare()
        await work.go(50)
        relief.uninstall()
        assert is_stock(s)
        await work.go(50)
        await work.end()

        assert not compared.wrong[:3]
        assert compared.n_steps > 1000

    run()


DEEDS = st.lists(
    st.tuples(
        st.sampled_from(
            ("begin", "begin", "finish", "finish", "fail", "release", "release", "lose", "join")
        ),
        st.integers(0, 11),
    ),
    max_size=60,
)


def told(s: Any) -> dict[str, Any]:
    """All that a scheduler tells about its prefixes, but times."""
    return {
        name: (
            tp.states, tp.active_states, tp.nbytes_total, tp.types, len(tp), dict(tp.state_counts),
            [tg.name for tg in tp.groups], [tg.states for tg in tp.active], repr(tp),
        )
        for name, tp in s.task_prefixes.items()
    }  # fmt: skip


async def lived(deeds: list[tuple[str, int]], comes_at: int, goes_at: int) -> None:
    """The same life on a scheduler with the relief for a while, and on one without, at once."""
    given_up: list[str] = []
    async with alone(2) as one, alone(2) as other:
        ours, stock = one.s, other.s
        relief, compared = relief_of(ours, given_up), Compared(ours)
        ours.add_plugin(compared)
        stock.add_plugin(Compared(stock))
        for n, (deed, i) in enumerate(deeds):
            if n == comes_at:
                relief.install()
                relief.check()
            if n == goes_at:
                relief.uninstall()
                assert is_stock(ours)
            for driven in (one, other):
                await do(driven, deed, i)
            assert told(stock) == told(ours)
            assert is_stock(stock)
        relief.uninstall()

        assert [] == given_up
        assert [] == compared.wrong
        assert told(stock) == told(ours)
        assert are_classes_stock()


def holds_of_all_lives(n: int) -> Any:
    kept = settings(
        max_examples=n, deadline=None, database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )  # fmt: skip
    return lambda test: kept(given(DEEDS, st.integers(0, 40), st.integers(0, 80))(test))


@ONLY
def test_a_scheduler_without_it_and_one_with_it_tell_the_same() -> None:
    @holds_of_all_lives(15)
    def all_lives(deeds: list[tuple[str, int]], comes_at: int, goes_after: int) -> None:
        run_alone(lived(deeds, comes_at, comes_at + goes_after))

    all_lives()


@ONLY
@pytest.mark.thorough
def test_a_scheduler_without_it_and_one_with_it_always_tell_the_same() -> None:
    @holds_of_all_lives(400)
    def all_lives(deeds: list[tuple[str, int]], comes_at: int, goes_after: int) -> None:
        run_alone(lived(deeds, comes_at, comes_at + goes_after))

    all_lives()


def run_alone(life: Any) -> None:
    @gen_test()
    async def live() -> None:
        await life

    live()


@ONLY
@gen_cluster(client=True, nthreads=[("127.0.0.1", 2)])
async def test_a_busy_scheduler_gets_it_and_loses_it_mid_work(c: Any, s: Any, a: Any) -> None:
    work = Work(c, s, random.Random(5))
    await work.go(30)

    relief = installed(s)
    assert not is_stock(s)
    await work.go(30)
    relief.uninstall()
    assert is_stock(s)
    assert are_classes_stock()
    relief = installed(s)
    await work.go(20)

    assert not [wrong for tp in s.task_prefixes.values() for wrong in apart(tp)]
    relief.uninstall()
    await work.end()
    assert is_stock(s)


@ONLY
@gen_test()
async def test_the_list_of_groups_is_as_upstreams() -> None:
    async with alone() as driven:
        relief = installed(driven.s)
        driven.hold(3)
        tp = driven.s.task_prefixes["load"]
        groups: list[Any] = list(driven.s.task_groups.values())

        assert tp.groups == groups == list(tp.groups)
        assert groups[-1] is tp.groups[-1]
        assert groups[1:] == tp.groups[1:]
        assert 1 == tp.groups.index(groups[1])
        assert groups[2] in tp.groups
        assert repr(groups) == repr(tp.groups)
        with pytest.raises(ValueError, match="not in list"):
            tp.groups.remove(object())
        relief.uninstall()
        assert tp.groups == groups


@ONLY
@gen_test()
async def test_a_prefix_that_outlives_a_restart_is_upstreams_again() -> None:
    async with alone() as driven:
        s = driven.s
        relief = installed(s)
        driven.hold(2)
        tp = s.task_prefixes["load"]

        s._clear_task_state()

        assert type(tp) is TaskPrefix
        assert type(tp.groups) is list
        assert {} == s.task_prefixes
        relief.uninstall()


@ONLY
@gen_test()
async def test_two_schedulers_may_have_it_and_the_last_puts_upstreams_back() -> None:
    async with alone() as one, alone() as other:
        first, second = installed(one.s), installed(other.s)

        first.uninstall()
        assert not are_classes_stock()
        one.hold(2)
        other.hold(2)
        assert is_stock(one.s)
        assert not is_stock(other.s)
        for s in (one.s, other.s):
            assert 2 == s.task_prefixes["load"].states["memory"]
            assert [] == apart(s.task_prefixes["load"])
        second.uninstall()

        assert are_classes_stock()


@ONLY
@gen_test()
async def test_who_comes_after_us_is_left_alone_and_makes_us_give_up() -> None:
    given_up: list[str] = []
    async with alone() as driven:
        relief = installed(driven.s, given_up)
        ours: Any = TaskState.__dict__["state"]

        def theirs(self: Any, value: Any) -> None:
            ours.fset(self, value)

        TaskState.state = property(ours.fget, theirs)  # type: ignore[assignment]
        try:
            relief.counts()
            relief.uninstall()
            driven.hold(3)

            assert ["another package has replaced what keeps the totals"] == given_up
            assert theirs is TaskState.__dict__["state"].fset  # type: ignore[attr-defined]
            assert 3 == driven.s.task_prefixes["load"].states["memory"]
            with pytest.raises(Mismatch, match="not upstream's"):
                relief_of(driven.s).install()
        finally:
            for (owner, name), stock in STOCK.items():
                setattr(owner, name, stock)


@ONLY
@gen_test()
async def test_tasks_of_several_prefixes_in_one_group_make_it_give_up() -> None:
    given_up: list[str] = []
    async with alone() as driven:
        relief = installed(driven.s, given_up)
        driven.hold(1)
        make: Any = TaskState
        ts = make("stray", None, "released")
        ts.prefix = TaskPrefix("stray")

        next(iter(driven.s.task_groups.values())).add(ts)

        assert 1 == len(given_up)
        relief.uninstall()
        driven.s.tasks["stray"] = ts
        with pytest.raises(Mismatch, match="several prefixes"):
            relief_of(driven.s).install()


@ONLY
@gen_test()
async def test_totals_that_come_out_wrong_make_it_give_up() -> None:
    given_up: list[str] = []
    async with alone(1) as driven:
        relief = installed(driven.s, given_up)
        ts = driven.begin(key_of("load-1", 0))
        driven.finish(ts)
        ts.group.nbytes_total += 1  # as no release does
        relief.place.scheduler.task_prefixes["load"].groups.nbytes += 2

        driven.release(ts)

        assert ["the totals of 'load' have come out wrong"] == given_up
        relief.uninstall()
        assert is_stock(driven.s)
