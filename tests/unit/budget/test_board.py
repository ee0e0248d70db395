"""How a pool is divided from one instant to the next: who grows, who gives back, and who waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_adaptive.budget.adaptive_budget import ShareRule, parse_budget
from dask_adaptive.budget.board import (
    PROMISED_S,
    Division,
    Grant,
    Holder,
    Holding,
    Pool,
    allowances,
    divide,
)
from dask_adaptive.model.codec import InvalidPolicy
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.plan import Claimed
from support.policies import WRONG_BUDGETS
from support.tables import table
from support.worlds import facts

NAMES = "abc"


def holder(name: str) -> Holder:
    return Holder(ClusterKey("ns", name), f"{name}-default")


def holding(name: str, workers: int, want: int | None, **rule: Any) -> Holding:
    claim = None if want is None else Claimed(want, rule.pop("number", want))
    return Holding(holder(name), (1.0,), workers, claim, ShareRule(name, **rule))


def pool(*holdings: Holding, limit: int = 6, after_s: float | None = 0.0, **more: Any) -> Pool:
    return Pool("AdaptiveBudget all", {"workers": limit}, holdings, after_s=after_s, **more)


def allowed(division: Division) -> dict[str, int]:
    return {row.holder.cluster.name: row.allowed for row in division.rows}


def divided(shared: Pool, before: Mapping[Holder, Grant] | None = None, now: float = 0.0) -> Any:
    return allowed(divide(shared, before or {}, now=now))


IDLE = holding("a", 5, 1, number=5)
NO_RECLAIM: dict[str, Any] = {"after_s": None}


@table(
    "a, b, rules, expected",
    nobody_grows_into_what_another_has_yet_to_give_back=(holding("a", 6, 6), holding("b", 0, 6), {},
        (3, 0)),
    but_into_what_it_has_given_back=(holding("a", 4, 6), holding("b", 0, 6), {}, (3, 2)),
    two_that_grow_at_once=(holding("a", 1, 9), holding("b", 2, 9), {}, (3, 3)),
    an_operator_that_starts_takes_nothing=(holding("a", 6, 6), holding("b", 0, 6),
        {"after_s": 60.0}, (6, 0)),
    nor_from_who_has_not_said_what_he_wants=(holding("a", 6, None), holding("b", 0, 6), {}, (6, 0)),
    a_lowered_limit_is_come_down_to=(holding("a", 4, 4), holding("b", 2, 4), {"limit": 2}, (1, 1)),
    room_of_kubernetes_is_shared=(holding("a", 5, 9), holding("b", 0, 9), NO_RECLAIM, (5, 1)),
    nobody_gives_back_what_other_pods_took=(holding("a", 5, 9), holding("b", 4, 9), NO_RECLAIM,
        (5, 4)),
    idle_workers_are_kept=(IDLE, holding("b", 0, 1), {}, (5, 1)),
    where_nobody_else_needs_them=(IDLE, holding("b", 0, 4), {}, (2, 1)),
)  # fmt: skip
def test_of_two_that_share_six(
    a: Holding, b: Holding, rules: dict[str, Any], expected: tuple[int, int]
) -> None:
    assert {"a": expected[0], "b": expected[1]} == divided(pool(a, b, **rules))


def test_who_just_got_more_keeps_for_a_while_what_it_wants() -> None:
    first = divide(pool(holding("a", 0, 6), after_s=60.0), {}, now=0.0)
    both = pool(holding("a", 6, 6), holding("b", 0, 6), after_s=60.0)

    assert {"a": 6, "b": 0} == divided(both, first.grants, now=59.0)
    assert {"a": 3, "b": 0} == divided(both, first.grants, now=60.0)
    fewer = pool(holding("a", 6, 2), holding("b", 0, 6), after_s=60.0)
    assert {"a": 2, "b": 0} == divided(fewer, first.grants, now=1.0)


def test_what_was_allowed_and_is_not_asked_for_yet_is_taken() -> None:
    """A pass acts on what it read a while before."""
    first = divide(pool(holding("a", 0, 6), holding("b", 0, 0), after_s=60.0), {}, now=0.0)
    second = pool(holding("a", 0, 6), holding("b", 0, 6), after_s=60.0)
    fallen = pool(holding("a", 0, 1), holding("b", 0, 6), after_s=60.0)

    assert {"a": 6, "b": 0} == divided(second, first.grants, now=0.5)
    assert {"a": 1, "b": 0} == divided(fallen, first.grants, now=0.5)
    assert {"a": 1, "b": 5} == divided(fallen, first.grants, now=PROMISED_S)


@settings(max_examples=60)
@given(st.data(), st.integers(2, 12), st.sampled_from([0.0, 3.0, 60.0]))
def test_passes_that_take_a_while(data: st.DataObject, limit: int, after_s: float) -> None:
    """Each cluster reads what it may have, and acts on it some steps of half a second later."""
    held, want, grants = dict.fromkeys(NAMES, 0), dict.fromkeys(NAMES, 0), dict[Holder, Grant]()
    told, found = dict(want), dict(want)
    passes: dict[str, tuple[int, int]] = {}  # what it read, and steps until it acts
    for n in range(60):
        for c in NAMES:
            if data.draw(st.integers(0, 5)) == 0:
                want[c] = data.draw(st.integers(0, 12))
            read, left = passes.get(c, (found[c], data.draw(st.integers(0, 4))))
            passes[c] = (read, left - 1)
            if left <= 0:
                del passes[c]
                told[c] = want[c]
                held[c] = min(want[c], read)
        shared = pool(*(holding(c, held[c], told[c]) for c in NAMES), limit=limit, after_s=after_s)
        division = divide(shared, grants, now=0.5 * n)
        grants, found = dict(division.grants), allowed(division)
        assert sum(held.values()) <= limit


def test_nobody_grows_while_more_is_held_than_a_lowered_limit() -> None:
    wide = Holding(holder("a"), (4.0,), 5, Claimed(5, 5))
    shared = Pool("AdaptiveBudget cpus", {"cpu": 10.0}, (wide, holding("b", 0, 9)), after_s=0.0)

    assert {"a": 1, "b": 0} == divided(shared)


def test_who_waits() -> None:
    """Since when is the keeper's to know: `test_since_when_one_waits` of its tests."""
    full = pool(holding("a", 6, None), holding("b", 0, 6))

    assert [False, True] == [row.waits for row in divide(full, {}, now=5.0).rows]


def test_the_tightest_of_several_holds_and_says_so() -> None:
    wide = pool(holding("a", 4, 9), holding("b", 24, 30), holding("c", 5, 9), limit=60)
    tight = Pool("AdaptiveBudget gpus", {"nvidia.com/gpu": 8}, (
        Holding(holder("a"), (2.0,), 4, Claimed(9, 9)),), after_s=0.0)  # fmt: skip
    found = allowances((p, divide(p, {}, now=0.0)) for p in (wide, tight))[holder("a")]
    other = allowances([(wide, divide(wide, {}, now=0.0))])[holder("a")]

    assert (4, "4 9 8 nvidia.com/gpu") == (found.workers, facts(found.message))
    assert "AdaptiveBudget gpus" in found.message
    assert "9 9 60 24 5" == facts(other.message)
    assert "b (24), c (5)" in other.message


wants = st.lists(st.tuples(*[st.integers(0, 12)] * 3, st.integers(4, 12)), min_size=2, max_size=25)


@settings(max_examples=150)
@given(wants, st.sampled_from([0.0, 25.0]))
def test_over_time(steps: list[tuple[int, int, int, int]], after_s: float) -> None:
    """Clusters that do at once what they may; a step is 10 s."""
    held, grants = dict.fromkeys(NAMES, 0), dict[Holder, Grant]()
    got_at, limit = dict.fromkeys(NAMES, -1e9), steps[0][3]
    for n, step in enumerate(steps):
        now, want = 10.0 * n, dict(zip(NAMES, step, strict=False))
        shared = pool(*(holding(c, held[c], want[c]) for c in NAMES), limit=limit, after_s=after_s)
        division = divide(shared, grants, now=now)
        grants, found = dict(division.grants), allowed(division)
        grown = {c for c in NAMES if found[c] > held[c]}
        # What others give back now is there the next time.
        assert sum(max(found[c], held[c]) for c in NAMES) <= limit
        for c in NAMES:
            if found[c] < min(held[c], want[c]) and n:
                assert now - got_at[c] >= after_s, "no worker changes hands twice"
        got_at |= dict.fromkeys(grown, now)
        held = {c: min(found[c], want[c]) for c in NAMES}
    # Left alone, it comes to rest, and nobody waits while something is free.
    for n in range(len(steps), len(steps) + 8):
        shared = pool(*(holding(c, held[c], want[c]) for c in NAMES), limit=limit, after_s=after_s)
        division = divide(shared, grants, now=10.0 * n)
        grants, held = dict(division.grants), {c: min(allowed(division)[c], want[c]) for c in NAMES}
    assert min(limit, sum(want.values())) == sum(held.values())
    assert held == allowed(division)
    fair = [held[c] for c in NAMES if held[c] < want[c]]
    assert max(fair, default=0) - min(fair, default=0) <= 1


def test_a_budget_is_read() -> None:
    found = parse_budget({
        "namespaceSelector": {"matchExpressions": [
            {"key": "team", "operator": "In", "values": ["a", "b"]}]},
        "namespaces": ["x"],
        "limits": {"workers": 200, "cpu": "1500m", "memory": "2Gi", "nvidia.com/gpu": "8"},
        "shares": [{
            "namespace": "x", "cluster": "etl", "weight": 3, "guarantee": 2, "priority": 5,
        }],
        "borrowing": False, "reclaim": {"after": "2m"},
    })  # fmt: skip

    assert {"workers": 200, "cpu": 1.5, "memory": 2**31, "nvidia.com/gpu": 8} == found.limits
    assert found.covers("x", {"team": "b"})
    assert not found.covers("x", {"team": "c"})
    assert not found.covers("y", {"team": "b"})
    assert (3, 2, 5) == (
        (rule := found.rule_for("x", "etl")).weight, rule.guarantee, rule.priority)  # fmt: skip
    assert ShareRule("x") == found.rule_for("x", "ml")
    assert ShareRule("y") == found.rule_for("y", "etl")
    assert 120.0 == found.reclaim.after_s


@pytest.mark.parametrize(("spec", "field", "words"), WRONG_BUDGETS)
def test_what_is_wrong_is_refused(spec: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(InvalidPolicy) as refused:
        parse_budget(spec)

    (problem,) = refused.value.problems
    assert f"spec.{field}" == problem.path
    assert words in problem.words


@pytest.mark.parametrize("many", [1, 2, 5, 30])
def test_who_makes_more_clusters_gets_no_more(many: int) -> None:
    """A tenant with many clusters, or groups, beside one with a single one."""
    theirs = [
        Holding(holder(f"t{i}"), (1.0,), 0, Claimed(9, 9), ShareRule("t")) for i in range(many)
    ]
    mine = Holding(holder("m"), (1.0,), 0, Claimed(9, 9), ShareRule("m"))
    division = divide(pool(*theirs, mine, limit=10), {}, now=0.0)

    assert 5 == allowed(division)["m"]


def test_a_guarantee_is_of_all_that_a_rule_names_together() -> None:
    rule = ShareRule("t", guarantee=4)
    theirs = [Holding(holder(f"t{i}"), (1.0,), 0, Claimed(9, 9), rule) for i in range(4)]
    others = Holding(holder("m"), (1.0,), 0, Claimed(9, 9), ShareRule("m", priority=1))
    division = divide(pool(*theirs, others, limit=10), {}, now=0.0)

    assert 6 == allowed(division)["m"]
