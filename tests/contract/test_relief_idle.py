"""Whether a scheduler with many task groups is idle is known at once, and as upstream says."""

from __future__ import annotations

import random
from collections.abc import Iterator
from inspect import getsource
from typing import Any

import pytest
from distributed.scheduler import SchedulerState
from distributed.utils_test import gen_cluster, gen_test
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dask_adaptive_agent.relief import task_groups
from dask_adaptive_agent.relief.registry import Mismatch, Place
from dask_adaptive_agent.relief.task_groups import IdleRelief
from support.patched import clear_shared
from support.relief_driven import alone
from support.relief_work import Work, do

NEEDED: Any = not IdleRelief.needless()
ONLY = pytest.mark.skipif(not NEEDED, reason=IdleRelief.needless() or "needed")
STOCK: Any = SchedulerState.__dict__.get("is_idle")


@pytest.fixture(autouse=True)
def _any_number_of_groups_is_many(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(task_groups, "MANY_GROUPS", 0)
    yield
    clear_shared()  # what a failed test has left


def installed(s: Any) -> IdleRelief:
    relief = IdleRelief(Place(s, lambda: 0.0, lambda *_: None, lambda _: None))
    relief.install()
    return relief


def test_it_is_needed_exactly_where_upstream_asks_all_groups() -> None:
    assert NEEDED == (STOCK is not None and "task_groups" in getsource(STOCK.fget))


@ONLY
@gen_cluster(client=True, nthreads=[("127.0.0.1", 2)] * 2)
async def test_random_work_gives_upstreams_answer(c: Any, s: Any, a: Any, b: Any) -> None:
    work, seen = Work(c, s, random.Random(2)), []
    await work.go(20)
    relief = installed(s)

    for step in range(120):
        await (work.restart() if step == 100 else work.go(1))
        seen.append(s.is_idle)
        assert seen[-1] is STOCK.fget(s)
    await work.end()

    assert {True, False} == {*seen, s.is_idle}
    relief.uninstall()
    assert STOCK is SchedulerState.__dict__["is_idle"]


@ONLY
@settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))
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
)
def test_any_life_gives_upstreams_answer(deeds: list[tuple[str, int]], comes_at: int) -> None:
    @gen_test()
    async def live() -> None:
        async with alone(2) as driven:
            relief: Any = None
            for n, (deed, i) in enumerate(deeds):
                if n == comes_at:
                    relief = installed(driven.s)
                await do(driven, deed, i)
                assert driven.s.is_idle is STOCK.fget(driven.s)
            if relief is not None:
                relief.uninstall()

    live()


@ONLY
@gen_test()
async def test_the_groups_are_asked_only_while_they_are_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with alone(1) as driven:
        relief = installed(driven.s)
        driven.hold(3)
        group = next(iter(driven.s.task_groups.values()))
        group.states["waiting"] += 1  # of no task
        assert driven.s.is_idle
        monkeypatch.setattr(task_groups, "MANY_GROUPS", 4)

        assert not driven.s.is_idle

        with pytest.raises(Mismatch, match="other places"):
            installed(driven.s)
        group.states["waiting"] -= 1
        relief.uninstall()


@ONLY
@pytest.mark.parametrize(
    ("theirs", "why"),
    [
        (lambda s: not s.tasks, "more than is known"),
        (lambda s: True, "others than expected"),
    ],
)
def test_another_question_of_upstreams_is_left_to_it(theirs: Any, why: str) -> None:
    with pytest.raises(Mismatch, match=why):
        task_groups._answering(property(theirs))
