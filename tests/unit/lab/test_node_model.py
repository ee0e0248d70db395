"""Machines under simulated workers."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_adaptive_lab.simulate.cluster import Nodes


@given(
    st.integers(1, 5), st.booleans(), st.lists(st.one_of(st.none(), st.integers(1, 9)), max_size=40)
)
def test_a_place_for_each_and_no_node_without_a_worker(
    places: int, packed: bool, changes: list[int | None]
) -> None:
    """None: the worker that came first leaves; a number: so many come together."""
    nodes, there = Nodes(places, packed=packed), list[str]()
    for change in changes:
        if change is not None:
            nodes.expect(change)
            there += [nodes.take() for _ in range(change)]
        elif there:
            nodes.leave(there.pop(0))
        before, least_before = nodes.node_s, nodes.least_s
        nodes.pass_time(1.0)
        counts = Counter(there)

        assert all(number <= places for number in counts.values())
        assert len(counts) == nodes.node_s - before
        assert (len(there) + places - 1) // places == nodes.least_s - least_before


@pytest.mark.parametrize(("packed", "expected"), [(False, [2, 2]), (True, [3, 1])])
def test_where_pods_go_that_come_together(packed: bool, expected: list[int]) -> None:
    nodes = Nodes(3, packed=packed)
    nodes.expect(4)

    assert expected == sorted(Counter(nodes.take() for _ in range(4)).values(), reverse=True)
