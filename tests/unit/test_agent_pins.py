"""Promises of the table of pins, whatever is pinned when."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dask_adaptive_agent.pins import PinTable

CAP_S = 50.0
NAMES = st.sampled_from("abc")
OWNERS = st.sampled_from(["x", "y"])
SOURCES = st.sampled_from(["manual", "client"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("pin"), st.lists(NAMES), SOURCES, OWNERS, st.floats(0.1, 100)),
        st.tuples(st.just("unpin"), st.none() | st.lists(NAMES), SOURCES, OWNERS),
        st.tuples(st.just("wait"), st.floats(0, 40)),
    ),
    max_size=30,
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def apply(table: PinTable, clock: Clock, model: dict[Any, float], step: tuple[Any, ...]) -> None:
    """The same step to the table and to the plainest model of it: key -> until."""
    if step[0] == "wait":
        clock.now += step[1]
        return
    what, names, source, owner = step[:4]
    if what == "pin":
        granted = table.pin(names, source=source, owner=owner, reason="r", ttl_s=step[4])
        assert granted == min(step[4], CAP_S)
        model.update({(name, source, owner): clock.now + granted for name in names})
    else:
        table.unpin(source=source, owner=owner, names=names)
        for key in list(model):
            if key[1:] == (source, owner) and (names is None or key[0] in names):
                del model[key]


@given(STEPS)
def test_the_table_holds_what_was_claimed_and_has_not_ended(steps: list[Any]) -> None:
    clock, model = Clock(), {}
    table = PinTable(clock, CAP_S)
    for step in steps:
        apply(table, clock, model, step)
        alive = {key for key, until in model.items() if until > clock.now}

        assert {key[0] for key in alive} == table.names()
        assert len(alive) == len(table)
        for name in "abc":
            assert {k for k in alive if k[0] == name} == {tuple(x[:3]) for x in table.of(name)}
        claimed = [(n, c.source, c.owner) for c, names in table.claims().items() for n in names]
        assert sorted(alive) == sorted(claimed)


@given(STEPS)
def test_nothing_is_left_when_all_has_ended(steps: list[Any]) -> None:
    clock = Clock()
    table = PinTable(clock, CAP_S)
    for step in steps:
        apply(table, clock, {}, step)

    clock.now += CAP_S + 1

    assert set() == table.names()
    assert {} == table._leases


def test_a_claim_is_replaced_not_prolonged() -> None:
    clock = Clock()
    table = PinTable(clock, CAP_S)
    table.pin(["a"], source="manual", owner="x", reason="", ttl_s=40)
    table.pin(["a"], source="manual", owner="x", reason="", ttl_s=5)

    clock.now = 5

    assert set() == table.names()


def test_unpin_says_what_was_given_up() -> None:
    clock = Clock()
    table = PinTable(clock, CAP_S)
    table.pin(["a", "b"], source="manual", owner="x", reason="", ttl_s=40)
    clock.now = 10

    assert [("a", 30.0)] == table.unpin(source="manual", owner="x", names=["a", "a", "c"])
    assert [("b", 30.0)] == table.unpin(source="manual", owner="x")
