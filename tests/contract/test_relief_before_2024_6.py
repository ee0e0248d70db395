"""What a scheduler knows of prefixes with many task groups is known at once, as upstream says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from distributed.scheduler import TaskPrefix
from distributed.utils_test import gen_test

from dask_adaptive_agent import patching
from dask_adaptive_agent.relief import before_2025_4
from dask_adaptive_agent.relief.before_2025_4 import SHARE, PrefixesRelief
from dask_adaptive_agent.relief.registry import is_needed
from support.agent_cluster import StillClock, clear_shared
from support.relief_driven import Driven, alone, installed, key_of

pytestmark = pytest.mark.skipif(not is_needed("prefixes"), reason="this release keeps them itself")


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[StillClock]:
    """Any number of groups is many, and to walk over them takes as long as a test says."""
    made = StillClock()
    monkeypatch.setattr(before_2025_4, "perf_counter", made)
    monkeypatch.setattr(before_2025_4, "MANY_GROUPS", 0)
    yield made
    clear_shared()  # what a failed test has left


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


@gen_test()
async def test_few_groups_are_always_read_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(before_2025_4, "MANY_GROUPS", MANY)
    async with alone(1) as driven:
        prefix, relief = prefix_of(driven, MANY - 2), installed(PrefixesRelief, driven.s)

        for n in range(2):
            assert [read(prefix, name) for name in READS] == [stock(prefix, name) for name in READS]
            if not n:
                change(driven)

        assert {} == before_2025_4._answers
        relief.uninstall()


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
        assert {} == before_2025_4._answers


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
        assert {} == before_2025_4._answers
        relief.uninstall()
