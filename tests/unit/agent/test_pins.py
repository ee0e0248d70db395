"""Promises of the table of pins, whatever is pinned when, and of the list of notes."""

from __future__ import annotations

import math
import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dask_adaptive_agent.component import KEPT, NAMED, Notes
from dask_adaptive_agent.pins.leases import SPENT_S, LeaseTable
from support.agent_cluster import StillClock

TOTAL_S = 90.0
NAMES = st.sampled_from("abc")
OWNERS = st.sampled_from(["x", "y"])
SOURCES = st.sampled_from(["manual", "client"])
CLIENTS = st.sampled_from(["", "Client-1", "Client-2"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("pin"), st.lists(NAMES), SOURCES, OWNERS, st.floats(0.1, 100), CLIENTS),
        st.tuples(st.just("unpin"), st.none() | st.lists(NAMES), SOURCES, OWNERS),
        st.tuples(st.just("worker left"), NAMES),
        st.tuples(st.just("worker renamed"), NAMES, st.sampled_from("de")),
        st.tuples(st.just("client left"), CLIENTS, st.floats(0, 60)),
        st.tuples(st.just("wait"), st.floats(0, 40)),
    ),
    max_size=40,
)


class Model:
    """The plainest one: a list of what is claimed, walked through at each step."""

    def __init__(self, clock: StillClock) -> None:
        self.clock = clock
        self.leases: dict[Any, dict[str, Any]] = {}
        self.expired = {"manual": 0, "client": 0}

    def expire(self) -> None:
        for key, lease in list(self.leases.items()):
            if lease["until"] <= self.clock.now:
                del self.leases[key]
                self.expired[key[1]] += 1

    def pin(self, names: list[str], source: str, owner: str, ttl_s: float, client: str) -> float:
        granted = ttl_s
        for name in names:
            before = self.leases.get((name, source, owner))
            since = before["since"] if before else self.clock.now
            until = self.clock.now + ttl_s
            if source == "client":
                until = min(until, since + TOTAL_S)
            granted = min(granted, until - self.clock.now)
            self.leases[name, source, owner] = {"until": until, "since": since, "client": client}
        return granted

    def unpin(self, names: list[str] | None, source: str, owner: str) -> None:
        for key in list(self.leases):
            if key[1:] == (source, owner) and (names is None or key[0] in names):
                del self.leases[key]

    def left(self, name: str) -> None:
        self.leases = {key: lease for key, lease in self.leases.items() if key[0] != name}

    def renamed(self, name: str, other: str) -> None:
        for key in [key for key in self.leases if key[0] == name]:
            self.leases[other, key[1], key[2]] = self.leases.pop(key)

    def cut(self, client: str, within_s: float) -> None:
        for lease in self.leases.values():
            if lease["client"] == client:
                lease["until"] = min(lease["until"], self.clock.now + within_s)


def apply(table: LeaseTable, model: Model, clock: StillClock, step: tuple[Any, ...]) -> None:
    """The same step to the table and to its model."""
    what, *how = step
    if what == "wait":
        clock.now += how[0]
    elif what == "pin":
        names, source, owner, ttl_s, client = how
        total_s = TOTAL_S if source == "client" else math.inf
        granted = table.pin(
            names, source=source, owner=owner, reason="r", ttl_s=ttl_s, total_s=total_s,
            client=client,
        )  # fmt: skip
        assert math.isclose(granted, model.pin(names, source, owner, ttl_s, client), abs_tol=1e-9)
    elif what == "unpin":
        table.unpin(source=how[1], owner=how[2], names=how[0])
        model.unpin(*how)
    elif what == "worker left":
        table.drop(how[0])
        model.left(how[0])
    elif what == "worker renamed":
        table.move(*how)
        model.renamed(*how)
    else:
        table.cut(*how)
        model.cut(*how)
    model.expire()


def assert_empty(table: LeaseTable) -> None:
    assert 0 == len(table.every())
    kept = {
        name: value
        for name, value in vars(table).items()
        if name not in ("expired", "most", "_new_or_gone", "_renewed")
    }
    assert not any(value for value in kept.values() if not callable(value)), kept


@given(STEPS)
def test_the_table_holds_what_was_claimed_until_it_ends_and_then_nothing(steps: list[Any]) -> None:
    clock = StillClock(0.0)
    table, model = LeaseTable(clock), Model(clock)
    for step in steps:
        apply(table, model, clock, step)

        alive = model.leases
        assert {key[0] for key in alive} == set(table.names())
        assert len(alive) == len(table.every())
        for name in "abcde":
            leases = {(name, *lease.holder): lease for lease in table.of(name)}
            assert {key for key in alive if key[0] == name} == set(leases)
            assert all(lease.until == alive[key]["until"] for key, lease in leases.items())
            assert all(lease.since == alive[key]["since"] for key, lease in leases.items())
        claimed = [(n, c.source, c.owner) for c, names in table.granted().items() for n in names]
        assert sorted(alive) == sorted(claimed)
        assert model.expired == {"manual": 0, "client": 0, **table.expired}

    clock.now += 101
    table.names()
    clock.now += SPENT_S
    assert_empty(table)


def test_many_pins_leave_nothing_behind() -> None:
    """As many as an hour has: renewed, given up, left to expire, their workers and clients gone."""
    clock, dice = StillClock(0.0), random.Random(0)
    table = LeaseTable(clock)
    most = most_ends = 0
    for i in range(20_000):
        clock.now += 0.01
        source = dice.choice(["manual", "client"])
        owner = f"{source}-{i if dice.random() < 0.7 else dice.randrange(max(1, i))}"
        names = [f"worker-{dice.randrange(1000)}" for _ in range(dice.choice([1, 1, 3]))]
        table.pin(
            names, source=source, owner=owner, reason="", ttl_s=dice.uniform(0.1, 30),
            total_s=40 if source == "client" else math.inf, client=f"client-{i % 50}",
        )  # fmt: skip
        chance = dice.random()
        if chance < 0.7:
            table.unpin(source=source, owner=owner)
        elif chance < 0.72:
            table.drop(names[0])
        elif chance < 0.73:
            table.cut(f"client-{i % 50}", 1.0)
        most, most_ends = max(most, len(table.every())), max(most_ends, len(table._ends))

    assert most_ends <= 2 * most + 64  # ends of claims that were replaced go, too
    clock.now += 41
    table.names()
    clock.now += SPENT_S
    assert_empty(table)
    assert 2_000 < sum(table.expired.values()) < 40_000


def test_notes_are_numbered_bounded_and_told_from_what_was_heard_on() -> None:
    clock = StillClock(0.0)
    notes = Notes(clock)
    for i in range(KEPT + 5):
        notes.add("kind", f"message {i}", (str(n) for n in range(50)))
    clock.now = 2.5

    rows = notes.since(0)

    assert [*range(6, KEPT + 6)] == [row["number"] for row in rows]
    assert {"number": 6, "kind": "kind", "message": "message 5", "age_ms": 2500} == {
        key: value for key, value in rows[0].items() if key != "names"
    }
    assert NAMED == len(rows[0]["names"])
    assert [KEPT + 5] == [row["number"] for row in notes.since(KEPT + 4)]
    assert [] == notes.since(KEPT + 5)
