"""What a scheduler knows of many task groups is known at once, and as upstream says."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import getsource
from typing import Any, ClassVar

import pytest
from distributed.scheduler import SchedulerState, TaskPrefix
from distributed.utils_test import gen_test
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dask_adaptive_agent import patching
from dask_adaptive_agent.relief import task_groups
from dask_adaptive_agent.relief.registry import Mismatch, Place
from dask_adaptive_agent.relief.task_groups import SHARE, IdleRelief, PrefixesRelief
from support.agent_cluster import StillClock, clear_shared
from support.relief_driven import Driven, alone, key_of

NEEDED: Any = not IdleRelief.needless()
IDLE_ONLY = pytest.mark.skipif(not NEEDED, reason=IdleRelief.needless() or "needed")
STOCK: Any = SchedulerState.__dict__.get("is_idle")


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[StillClock]:
    """Any number of groups is many, and to walk over them takes as long as a test says."""
    made = StillClock()
    monkeypatch.setattr(task_groups, "perf_counter", made)
    monkeypatch.setattr(task_groups, "MANY_GROUPS", 0)
    yield made
    clear_shared()  # what a failed test has left


def installed(kind: Any, s: Any) -> Any:
    relief = kind(Place(s, lambda: 0.0, lambda *_: None, lambda _: None))
    relief.install()
    return relief


def test_it_is_needed_exactly_where_upstream_asks_all_groups() -> None:
    assert NEEDED == (STOCK is not None and "task_groups" in getsource(STOCK.fget))


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
        monkeypatch.setattr(task_groups, "MANY_GROUPS", 4)

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
        task_groups._answering(property(theirs))


PREFIXES_ONLY = pytest.mark.skipif(
    bool(PrefixesRelief.needless()), reason=PrefixesRelief.needless() or "needed"
)
READS = [target.name for target in patching.PREFIX_READS]
STOCK_READS: dict[str, Any] = {name: TaskPrefix.__dict__.get(name) for name in READS}
MANY = 4


class Slow(list):  # type: ignore[type-arg]
    """Groups that it takes a second to walk over."""

    clock: ClassVar[StillClock]

    def __iter__(self) -> Any:
        self.clock.now += 1.0
        return super().__iter__()


def stock(prefix: Any, name: str) -> Any:
    of = STOCK_READS[name]
    return of.fget(prefix) if isinstance(of, property) else of(prefix)


def read(prefix: Any, name: str) -> Any:
    return len(prefix) if name == "__len__" else getattr(prefix, name)


def prefix_of(driven: Driven, n_groups: int) -> Any:
    driven.hold(n_groups)
    return driven.s.task_prefixes["load"]


def change(driven: Driven) -> None:
    """All that is read of the prefix is another answer afterwards."""
    ts = driven.begin(key_of(f"load-{99:032x}", 0))
    driven.finish(ts, typename="str", nbytes=1000)


@PREFIXES_ONLY
@pytest.mark.parametrize("name", READS)
@gen_test()
async def test_many_groups_are_walked_again_when_it_pays(name: str, clock: StillClock) -> None:
    async with alone(1) as driven:
        prefix, relief = prefix_of(driven, MANY), installed(PrefixesRelief, driven.s)
        prefix.groups = Slow(prefix.groups)
        Slow.clock = clock

        began = clock.now
        first, took = read(prefix, name), clock.now - began
        change(driven)
        changed = stock(prefix, name)
        clock.now = began + took / SHARE - 0.01
        assert first == read(prefix, name) != changed
        clock.now += 0.02
        assert changed == read(prefix, name)

        assert took / SHARE + took == pytest.approx(clock.now - began, abs=0.02)
        relief.uninstall()


@PREFIXES_ONLY
@gen_test()
async def test_few_groups_are_always_read_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_groups, "MANY_GROUPS", MANY)
    async with alone(1) as driven:
        prefix, relief = prefix_of(driven, MANY - 2), installed(PrefixesRelief, driven.s)

        for n in range(2):
            assert [read(prefix, name) for name in READS] == [stock(prefix, name) for name in READS]
            if not n:
                change(driven)

        assert {"kept": 0} == relief.counts()
        relief.uninstall()


@PREFIXES_ONLY
@gen_test()
async def test_an_answer_belongs_to_whoever_has_asked() -> None:
    async with alone() as driven:
        prefix, relief = prefix_of(driven, MANY), installed(PrefixesRelief, driven.s)

        for name in READS:
            answer = read(prefix, name)
            if hasattr(answer, "clear"):
                answer.clear()
            assert stock(prefix, name) == read(prefix, name)

        relief.uninstall()
        assert {"kept": 0} == relief.counts()


@PREFIXES_ONLY
@gen_test()
async def test_others_are_read_as_upstream_does() -> None:
    """Another scheduler of the process, and a prefix that a restart has dropped."""
    async with alone(1) as driven, alone(1) as other:
        relief = installed(PrefixesRelief, driven.s)
        for one in (driven, other):
            prefix = prefix_of(one, MANY)
            if one is driven:
                one.s._clear_task_state()
            for name in READS:
                assert stock(prefix, name) == read(prefix, name)
        assert {"kept": 0} == relief.counts()
        relief.uninstall()
