"""What the agent keeps of the operator's plans, and for how long."""

from __future__ import annotations

from typing import Any

import pytest

from dask_adaptive_agent import wire
from dask_adaptive_agent.announced import DECISIONS, LETTERS, WORKERS, Announced
from dask_adaptive_agent.settings import Invalid

LEASE_S = 300.0


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def made() -> tuple[Announced, Clock]:
    clock = Clock()
    return Announced(clock, lambda: LEASE_S), clock


MESSAGE: dict[str, Any] = {
    "arriving": [(2, 10_000), [3, 60_000]],
    "can_grow": 7,
    "grow_ms": 20_000,
    "policy": "etl",
    "message": "5 wanted",
    "workers": [("w1", "stays: idle grace has 5 s left")],
    "decisions": [(1_700_000_000_500, "etl-default", "LoadIncreased", "8 tasks wait")],
}


def test_the_message_is_the_one_of_the_wire() -> None:
    assert set(MESSAGE) | {"protocol"} == set(wire.AnnounceRequest.__annotations__)


def test_it_is_known_how_many_more_may_be_asked_for() -> None:
    announced, clock = made()
    announced.told(MESSAGE)
    assert (7, 20.0) == (announced.can_grow, announced.grow_s)

    announced.told({"policy": "etl"})
    assert (0, None) == (announced.can_grow, announced.grow_s)
    announced.told(MESSAGE)
    clock.now += LEASE_S + 1
    assert 0 == announced.can_grow
    announced.heard()  # an operator is back, and has said nothing yet
    assert 0 == announced.can_grow


def test_at_first_nothing_is_known() -> None:
    announced, _ = made()

    assert [] == announced.arriving
    assert ("", "", {}, []) == (
        announced.policy, announced.message, announced.workers, announced.decisions,
    )  # fmt: skip


def test_arrivals_count_down() -> None:
    announced, clock = made()
    announced.told(MESSAGE)
    assert [(2, 10.0), (3, 60.0)] == announced.arriving

    clock.now += 20

    assert [(2, 0.0), (3, 40.0)] == announced.arriving


@pytest.mark.parametrize(
    ("expected_s", "later_s", "left"),
    [
        pytest.param(0, 30, 1, id="overdue-within-grace"),
        pytest.param(0, 30.1, 0, id="overdue-beyond-grace"),
        pytest.param(10, 40, 1, id="short-expectation-within-grace"),
        pytest.param(10, 40.1, 0, id="short-expectation-beyond-grace"),
        pytest.param(60, 180, 1, id="long-expectation-within-twice-that"),
        pytest.param(60, 180.1, 0, id="long-expectation-beyond-twice-that"),
    ],
)
def test_who_is_long_overdue_is_given_up(expected_s: int, later_s: float, left: int) -> None:
    announced, clock = made()
    announced.told({"arriving": [(1, expected_s * 1000)]})

    clock.now += later_s

    assert left == len(announced.arriving)


def test_who_has_joined_is_not_waited_for() -> None:
    announced, _ = made()
    announced.told(MESSAGE)

    left = []
    for _ in range(6):
        announced.worker_joined()
        left.append(sum(workers for workers, _ in announced.arriving))

    assert [4, 3, 2, 1, 0, 0] == left


def test_it_is_forgotten_when_no_operator_asks() -> None:
    announced, clock = made()
    announced.told(MESSAGE)
    clock.now += LEASE_S - 1
    announced.heard()
    clock.now += LEASE_S
    assert "etl" == announced.policy
    assert {"w1": "stays: idle grace has 5 s left"} == announced.workers
    assert [(1_700_000_000.5, "etl-default", "LoadIncreased", "8 tasks wait")] == (
        announced.decisions
    )

    clock.now += 1

    assert ("", "", {}, [], []) == (
        announced.policy, announced.message, announced.workers, announced.decisions,
        announced.arriving,
    )  # fmt: skip
    announced.heard()  # an operator is back, and has said nothing yet
    assert "" == announced.policy


def test_each_message_is_the_whole() -> None:
    announced, _ = made()
    announced.told(MESSAGE)

    announced.told({"policy": "etl"})

    assert ("etl", "", {}, [], []) == (
        announced.policy, announced.message, announced.workers, announced.decisions,
        announced.arriving,
    )  # fmt: skip


def test_what_is_too_long_is_cut() -> None:
    announced, _ = made()
    announced.told(
        {
            "policy": "p" * 1000,
            "message": "m" * 1000,
            "workers": [(f"w{n}", "s" * 1000) for n in range(1000)],
            "decisions": [(n, "g", "r", "m" * 1000) for n in range(1000)],
            "arriving": [(1, 1)] * 1000,
        }
    )

    assert (LETTERS, LETTERS) == (len(announced.policy), len(announced.message))
    assert (WORKERS, DECISIONS) == (len(announced.workers), len(announced.decisions))
    assert LETTERS == len(announced.workers["w0"]) == len(announced.decisions[0][3])
    assert 50 == len(announced.arriving)


@pytest.mark.parametrize(
    "wrong",
    [
        {"arriving": 5},
        {"arriving": "ab"},
        {"arriving": [5]},
        {"arriving": [(1,)]},
        {"arriving": [(1, 2, 3)]},
        {"arriving": [("1", 2)]},
        {"arriving": [(1, 2.5)]},
        {"arriving": [(True, 2)]},
        {"arriving": [(-1, 2)]},
        {"arriving": [(1, -2)]},
        {"arriving": [(1, 10**18)]},
        {"can_grow": -1},
        {"grow_ms": "soon"},
        {"policy": 1},
        {"message": None},
        {"workers": {"a": "b"}},
        {"workers": [("a", 1)]},
        {"decisions": [(1, "g", "r")]},
        {"decisions": [("1", "g", "r", "m")]},
    ],
)
def test_nonsense_is_refused_and_changes_nothing(wrong: dict[str, Any]) -> None:
    announced, _ = made()
    announced.told(MESSAGE)

    with pytest.raises(Invalid, match=next(iter(wrong))):
        announced.told({**MESSAGE, "policy": "other", **wrong})

    assert "etl" == announced.policy
