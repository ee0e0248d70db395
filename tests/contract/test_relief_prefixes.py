"""Reads of a prefix with many groups give upstream's answer, and do not slow a scheduler down."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from distributed.scheduler import TaskPrefix
from distributed.utils_test import gen_test

from dask_adaptive_agent import patching
from dask_adaptive_agent.relief import task_groups
from dask_adaptive_agent.relief.registry import Place
from dask_adaptive_agent.relief.task_groups import SHARE, PrefixesRelief
from support.patched import clear_shared
from support.relief_driven import Driven, alone, key_of

NEEDED: Any = not PrefixesRelief.needless()
ONLY = pytest.mark.skipif(not NEEDED, reason=PrefixesRelief.needless() or "needed")
READS = [target.name for target in patching.PREFIX_READS]
STOCK: dict[str, Any] = {name: TaskPrefix.__dict__.get(name) for name in READS}
MANY = 4


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Slow(list):  # type: ignore[type-arg]
    """Groups that it takes a second to walk over."""

    clock: ClassVar[Clock]

    def __iter__(self) -> Any:
        self.clock.now += 1.0
        return super().__iter__()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    made = Clock()
    monkeypatch.setattr(task_groups, "perf_counter", made)
    monkeypatch.setattr(task_groups, "MANY_GROUPS", MANY)
    yield made
    clear_shared()  # what a failed test has left


def installed(driven: Driven) -> PrefixesRelief:
    relief = PrefixesRelief(Place(driven.s, lambda: 0.0, lambda *_: None, lambda _: None))
    relief.install()
    return relief


def stock(prefix: Any, name: str) -> Any:
    of = STOCK[name]
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


@ONLY
@pytest.mark.parametrize("name", READS)
@gen_test()
async def test_many_groups_are_walked_again_when_it_pays(name: str, clock: Clock) -> None:
    async with alone(1) as driven:
        prefix, relief = prefix_of(driven, MANY), installed(driven)
        prefix.groups = Slow(prefix.groups)
        Slow.clock = clock

        first, took = read(prefix, name), clock.now
        change(driven)
        changed = stock(prefix, name)
        clock.now = took / SHARE - 0.01
        assert first == read(prefix, name) != changed
        clock.now += 0.02
        assert changed == read(prefix, name)

        assert took / SHARE + took == pytest.approx(clock.now, abs=0.02)
        relief.uninstall()


@ONLY
@gen_test()
async def test_few_groups_are_always_read_as_they_are() -> None:
    async with alone(1) as driven:
        prefix, relief = prefix_of(driven, MANY - 2), installed(driven)

        for n in range(2):
            assert [read(prefix, name) for name in READS] == [stock(prefix, name) for name in READS]
            if not n:
                change(driven)

        assert {"kept": 0} == relief.counts()
        relief.uninstall()


@ONLY
@gen_test()
async def test_an_answer_belongs_to_whoever_has_asked() -> None:
    async with alone() as driven:
        prefix, relief = prefix_of(driven, MANY), installed(driven)

        for name in READS:
            answer = read(prefix, name)
            if hasattr(answer, "clear"):
                answer.clear()
            assert stock(prefix, name) == read(prefix, name)

        relief.uninstall()
        assert {"kept": 0} == relief.counts()


@ONLY
@gen_test()
async def test_others_are_read_as_upstream_does() -> None:
    """Another scheduler of the process, and a prefix that a restart has dropped."""
    async with alone(1) as driven, alone(1) as other:
        relief = installed(driven)
        for one in (driven, other):
            prefix = prefix_of(one, MANY)
            if one is driven:
                one.s._clear_task_state()
            for name in READS:
                assert stock(prefix, name) == read(prefix, name)
        assert {"kept": 0} == relief.counts()
        relief.uninstall()
