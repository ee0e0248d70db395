"""Whether a scheduler with many task groups is idle is known at once, and as upstream says."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import getsource
from typing import Any

import pytest
from distributed.scheduler import SchedulerState
from distributed.utils_test import gen_test
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dask_adaptive_agent.relief import idle
from dask_adaptive_agent.relief.idle import IdleRelief
from dask_adaptive_agent.relief.registry import Mismatch, is_needed
from support.agent_cluster import clear_shared
from support.relief_driven import Driven, alone, installed, key_of

IDLE_ONLY = pytest.mark.skipif(not is_needed("idle"), reason="this release never asks")
STOCK: Any = SchedulerState.__dict__.get("is_idle")


@pytest.fixture(autouse=True)
def _many_groups(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Any number of them is many."""
    monkeypatch.setattr(idle, "MANY_GROUPS", 0)
    yield
    clear_shared()  # what a failed test has left


def test_it_is_needed_exactly_where_upstream_asks_all_groups() -> None:
    assert is_needed("idle") == (STOCK is not None and "task_groups" in getsource(STOCK.fget))


DEEDS = st.sampled_from(["begin", "begin", "finish", "finish", "fail", "release", "lose", "join"])


async def do(driven: Driven, deed: str, i: int) -> None:
    """One of the things that happen to tasks; four groups of three tasks, of two prefixes."""
    group = f"{('load', 'sum')[i % 2]}-{i // 3:032x}"
    if deed == "begin":
        needs = (key_of(f"load-{99:032x}", 0),) if i % 3 == 2 else ()
        driven.begin(key_of(group, i % 3), *needs, retries=i % 2)
    elif deed == "lose":
        await driven.lose_worker(i)
    elif deed == "join":
        driven.add_worker()
    elif deed == "release":
        wanted = [ts for ts in driven.s.tasks.values() if ts.who_wants]
        if wanted:
            driven.release(wanted[i % len(wanted)])
    elif running := driven.in_state("processing"):
        ts = running[i % len(running)]
        if deed == "finish":
            driven.finish(ts, typename=("int", "str")[i % 2], nbytes=i)
        else:
            driven.fail(ts)


@IDLE_ONLY
@settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(DEEDS, st.integers(0, 11)), max_size=60), st.integers(0, 30))
def test_any_life_gives_upstreams_answer(deeds: list[tuple[str, int]], comes_at: int) -> None:
    @gen_test()
    async def live() -> None:
        async with alone(2) as driven:
            relief: Any = None
            for n, (deed, i) in enumerate(deeds):
                if n == comes_at:
                    relief = installed(IdleRelief, driven.s)
                await do(driven, deed, i)
                assert driven.s.is_idle is STOCK.fget(driven.s)
            if relief is not None:
                relief.uninstall()

    live()


@IDLE_ONLY
@gen_test()
async def test_the_groups_are_asked_only_while_they_are_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with alone(1) as driven:
        relief = installed(IdleRelief, driven.s)
        driven.hold(3)
        group = next(iter(driven.s.task_groups.values()))
        group.states["waiting"] += 1  # of no task
        assert driven.s.is_idle
        monkeypatch.setattr(idle, "MANY_GROUPS", 4)

        assert not driven.s.is_idle

        with pytest.raises(Mismatch, match="other places"):
            installed(IdleRelief, driven.s)
        group.states["waiting"] -= 1
        relief.uninstall()


@IDLE_ONLY
@pytest.mark.parametrize(
    ("theirs", "why"),
    [
        (lambda s: not s.tasks, "more than is known"),
        (lambda s: True, "others than expected"),
    ],
)
def test_another_question_of_upstreams_is_left_to_it(theirs: Any, why: str) -> None:
    with pytest.raises(Mismatch, match=why):
        idle._answering(property(theirs))
