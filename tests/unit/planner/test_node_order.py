"""Of workers that may leave, those whose node is emptied soonest go first, and no more of them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dask_adaptive.model.observed import ObservedWorker
from dask_adaptive.model.plan import Plan, Retire
from dask_adaptive.planner.leave import LITTLE
from support.any_world import AnyWorld
from support.worlds import NOW, PAST, POLICY, SHUFFLE, busy, changed, cluster, past_of, plan, worker


def on(node: str, *names: str, **facts: Any) -> list[ObservedWorker]:
    return [worker(name, node=node, **facts) for name in names]


def leaving(decided: Plan) -> list[str]:
    return [a.worker for a in decided.actions if isinstance(a, Retire)]


def planned(*workers: ObservedWorker, wanted: int) -> list[str]:
    world = cluster(workers, target=wanted)
    return leaving(plan(world, POLICY, past_of(PAST), now=NOW))


def test_data_counts_more_than_nodes() -> None:
    heavy = on("small", "d", sole_bytes=LITTLE + 1)

    assert ["a", "b"] == planned(*on("big", "a", "b", "c"), *heavy, wanted=2)
    assert "d" == planned(*on("big", "a", "b", "c"), *on("small", "d", sole_bytes=9), wanted=3)[0]


def test_pins_hold() -> None:
    pinned = on("small", "d", pins=(SHUFFLE,))

    assert ["a"] == planned(*on("big", "a", "b", "c"), *pinned, wanted=3)


def test_it_is_said() -> None:
    world = cluster([*on("x", "a"), busy("b", node="x")], target=1)
    (found,) = (a for a in plan(world, POLICY, PAST, now=NOW).actions if isinstance(a, Retire))

    assert found.message.endswith("1 other worker kept on node x")


@given(st.integers(0, 10**6), st.lists(st.sampled_from("xyz"), min_size=40, max_size=40))
def test_as_many_leave_and_nobody_who_may_not(seed: int, nodes: list[str]) -> None:
    world = AnyWorld(seed)

    def placed(names: Iterator[str]) -> Plan:
        groups = []
        for group in world.observed.groups:
            workers = tuple(changed(w, node=next(names)) for w in group.workers)
            groups.append(dataclasses.replace(group, workers=workers))
        observed = dataclasses.replace(world.observed, groups=tuple(groups))
        return plan(observed, world.policy, world.past, now=NOW)

    packed, other = placed(iter(nodes * 9)), placed(itertools.repeat("x"))

    assert len(leaving(packed)) == len(leaving(other))
    assert set(packed.blockers) == set(other.blockers)
    assert packed.groups == other.groups
