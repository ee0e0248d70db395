"""Whether a scheduler is idle is known at once, and is at each step what upstream says."""

from __future__ import annotations

import random
from collections.abc import Iterator
from inspect import getsource
from typing import Any

import pytest
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.scheduler import ALL_TASK_STATES, SchedulerState
from distributed.utils_test import gen_cluster, gen_test
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dask_adaptive_agent.relief import idle
from dask_adaptive_agent.relief.base import Mismatch, Place
from dask_adaptive_agent.relief.idle import PLUGIN, Idle, busy_states
from support.patched import clear_shared
from support.relief_driven import alone, key_of
from support.relief_work import STOCK_IS_IDLE, Compared, Work, do

NEEDED: Any = not Idle.needless()
ONLY = pytest.mark.skipif(not NEEDED, reason=Idle.needless() or "needed")
STOCK = SchedulerState.__dict__.get("is_idle")
TABLE = SchedulerState._TRANSITIONS_TABLE
REST = {"released", "memory", "erred", "forgotten"}


class Told(SchedulerPlugin):
    """As the agent's plugin, which tells the relief of tasks that wait."""

    name = PLUGIN

    def __init__(self, place: Place) -> None:
        self._waiting = place.waiting

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        if finish == "waiting":
            for begins in self._waiting:
                begins(key)


@pytest.fixture(autouse=True)
def _nobody_holds() -> Iterator[None]:
    """Relief that a failed test has left does not concern the next one."""
    yield
    clear_shared()


def installed(s: Any) -> Idle:
    relief = Idle(Place(s, lambda: 0.0, lambda *_: None, lambda _: None))
    others = {name: plugin for name, plugin in s.plugins.items() if name != PLUGIN}
    s.plugins.clear()
    s.plugins.update({PLUGIN: Told(relief.place), **others})
    relief.install()
    relief.check()
    return relief


def is_stock(s: Any) -> bool:
    return s not in idle._BEGUN and "is_idle" not in s.__dict__


def test_it_is_needed_exactly_where_upstream_asks_all_groups() -> None:
    assert NEEDED == (STOCK is not None and "task_groups" in getsource(STOCK.fget))


@ONLY
def test_a_task_leaves_rest_through_one_transition_only() -> None:
    busy = set(busy_states(STOCK))
    assert set(ALL_TASK_STATES) - REST == busy - {"erred"}  # which 2023.5.1 takes for busy
    for (start, finish), function in TABLE.items():
        entered = {state for state in busy if f'.state = "{state}"' in getsource(function)}
        if start not in busy:
            assert entered == {finish} & busy
            assert (start, finish) == ("released", "waiting") or entered <= {"erred"}


@ONLY
@gen_cluster(client=True, nthreads=[("127.0.0.1", 2)] * 2)
async def test_each_step_of_random_work_gives_upstreams_answer(
    c: Any, s: Any, a: Any, b: Any
) -> None:
    work, compared = Work(c, s, random.Random(2)), Compared(s)
    await work.go(20)
    relief = installed(s)
    s.add_plugin(compared)

    await work.go(100)
    await work.restart()
    compared.compare()
    await work.go(20)
    await work.end()

    assert [] == compared.wrong[:3]
    assert 0 < compared.n_idle < compared.n_steps
    assert STOCK_IS_IDLE(s) is s.is_idle
    relief.uninstall()
    assert is_stock(s)
    assert STOCK is SchedulerState.__dict__["is_idle"]


@ONLY
@pytest.mark.long
@settings(
    max_examples=300, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)  # fmt: skip
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                ("begin", "begin", "finish", "finish", "fail", "release", "lose", "join")
            ),
            st.integers(0, 11),
        ),
        max_size=60,
    ),
    st.integers(0, 30),
    st.integers(0, 3),
)
def test_each_step_of_any_life_gives_upstreams_answer(
    deeds: list[tuple[str, int]], comes_at: int, room: int
) -> None:
    @gen_test()
    async def live() -> None:
        async with alone(2) as driven:
            compared = Compared(driven.s)
            driven.s.add_plugin(compared)
            relief: Any = None
            for n, (deed, i) in enumerate(deeds):
                if n == comes_at:
                    relief = installed(driven.s)
                    idle._BEGUN[driven.s]._room = room
                await do(driven, deed, i)
                compared.compare()
            if relief is not None:
                relief.uninstall()
            assert [] == compared.wrong
            assert is_stock(driven.s)

    live()


@ONLY
@gen_test()
async def test_groups_that_are_gone_are_not_kept_while_others_are_busy() -> None:
    async with alone(1) as driven:
        installed(driven.s)
        driven.begin(key_of("endless-1", 0))

        for i in range(5_000):
            ts = driven.begin(key_of(f"short-{i}", 0))
            driven.finish(ts)
            driven.release(ts)
            assert not driven.s.is_idle

        assert 1 == len(driven.s.task_groups)
        noted = idle._BEGUN[driven.s]._begun
        assert len(noted) <= idle._ROOM + 1


@ONLY
@gen_test()
async def test_a_scheduler_without_it_gets_upstreams_answer() -> None:
    async with alone(1) as one, alone(1) as other:
        first, second = installed(one.s), installed(other.s)
        first.uninstall()

        for driven in (one, other):
            ts = driven.begin(key_of("load-1", 0))
            assert not driven.s.is_idle
            driven.finish(ts)
            assert driven.s.is_idle
        assert is_stock(one.s)
        assert not is_stock(other.s)
        second.uninstall()

        assert STOCK is SchedulerState.__dict__["is_idle"]
        assert is_stock(other.s)


@ONLY
@gen_test()
async def test_who_comes_after_us_is_left_alone() -> None:
    async with alone(1) as driven:
        relief = installed(driven.s)
        ours: Any = SchedulerState.__dict__["is_idle"]
        theirs = property(lambda self: ours.fget(self))
        SchedulerState.is_idle = theirs  # type: ignore[assignment,method-assign]
        try:
            relief.uninstall()

            driven.begin(key_of("load-1", 0))
            assert theirs is SchedulerState.__dict__["is_idle"]
            assert not driven.s.is_idle
            with pytest.raises(Mismatch):
                installed(driven.s)
        finally:
            SchedulerState.is_idle = STOCK  # type: ignore[assignment,method-assign]


@ONLY
@gen_test()
async def test_a_new_computation_begins_when_all_groups_are_at_rest() -> None:
    """What upstream asks it for."""
    async with alone(1) as driven:
        relief = installed(driven.s)
        driven.hold(20)
        assert driven.s.is_idle
        ts = driven.begin(key_of("load-x", 0))
        assert not driven.s.is_idle
        assert STOCK_IS_IDLE(driven.s) is driven.s.is_idle
        driven.finish(ts)
        assert driven.s.is_idle
        relief.uninstall()
        assert driven.s.is_idle
