"""What each word that the docs say of sharing promises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_adaptive.budget.share import Contender, share
from support.tables import table

SIZES = [(1.0, 1.0, 0.0), (1.0, 4.0, 0.0), (1.0, 2.0, 1.0), (1.0, 0.5, 0.0)]

claims = st.builds(
    Contender,
    size=st.sampled_from(SIZES),
    want=st.integers(0, 30),
    keep=st.integers(0, 10),
    weight=st.sampled_from([0.5, 1.0, 3.0]),
    priority=st.sampled_from([0, 0, 0, 5]),
    guarantee=st.sampled_from([0, 0, 3]),
    party=st.none(),
)
many = st.lists(claims, max_size=8)
#: Some of them belong together.
parties = many.flatmap(
    lambda found: st.tuples(
        *(st.sampled_from([None, "p", "q"]).map(lambda p, c=c: c._replace(party=p)) for c in found)
    )
)
limited = st.tuples(st.integers(0, 60), st.integers(0, 80), st.integers(0, 6))


def used(claims: Sequence[Contender], given: Sequence[int], resource: int) -> float:
    return sum(n * claim.size[resource] for n, claim in zip(given, claims, strict=True))


def one_by_one(claims: Sequence[Contender], limits: Sequence[float]) -> tuple[int, ...]:
    """The same by its definition, without keeps, guarantees and priorities."""
    found, out = [0] * len(claims), set[int]()

    def has(i: int) -> float:
        pairs = zip(claims[i].size, limits, strict=True)
        return max(found[i] * s / limit for s, limit in pairs if s) / claims[i].weight

    while left := [i for i, c in enumerate(claims) if found[i] < c.want and i not in out]:
        i = min(left, key=lambda i: (round(has(i), 9), i))
        found[i] += 1
        if any(used(claims, found, r) > limits[r] for r in range(3)):
            found[i] -= 1
            out.add(i)
    return tuple(found)


@given(parties, limited, st.booleans())
def test_within_the_limits_and_never_more_than_wanted(
    claims: list[Contender], limits: tuple[int, ...], borrowing: bool
) -> None:
    found = share(claims, limits, borrowing=borrowing)

    assert all(used(claims, found, r) <= limits[r] + 1e-6 for r in range(3))
    assert all(0 <= n <= claim.want for n, claim in zip(found, claims, strict=True))


@given(parties, limited)
def test_work_conserving(claims: list[Contender], limits: tuple[int, ...]) -> None:
    found = share(claims, limits)

    for i, claim in enumerate(claims):
        more = [n + (i == j) for j, n in enumerate(found)]
        assert found[i] == claim.want or any(used(claims, more, r) > limits[r] for r in range(3))


@given(many, limited, st.data(), st.integers(1, 9), st.booleans())
def test_monotone_in_ones_own_want(
    claims: list[Contender], limits: tuple[int, ...], data: st.DataObject, more: int,
    borrowing: bool,
) -> None:  # fmt: skip
    if claims:
        i = data.draw(st.integers(0, len(claims) - 1))
        greedy = [c._replace(want=c.want + more) if i == j else c for j, c in enumerate(claims)]

        before = share(claims, limits, borrowing=borrowing)
        assert share(greedy, limits, borrowing=borrowing)[i] >= before[i]


@given(many, limited)
def test_what_is_kept_and_guaranteed_comes_first(
    claims: list[Contender], limits: tuple[int, ...]
) -> None:
    first = [max(min(c.keep, c.want), min(c.guarantee, c.want)) for c in claims]
    if all(used(claims, first, r) <= limits[r] for r in range(3)):
        assert all(n >= least for n, least in zip(share(claims, limits), first, strict=True))


@settings(max_examples=300)
@given(many, st.tuples(st.integers(1, 60), st.integers(1, 80), st.integers(1, 6)))
def test_filling_at_once_is_filling_one_by_one(
    claims: list[Contender], limits: tuple[int, ...]
) -> None:
    plain = [c._replace(keep=0, guarantee=0, priority=0) for c in claims]

    assert one_by_one(plain, limits) == share(plain, limits)


@table(
    "claims, limits, expected",
    higher_priorities_first=([(8, {}), (8, {"priority": 5}), (8, {"priority": -1})], 10, (2, 8, 0)),
    weights=([(90, {"weight": 3}), (90, {})], 20, (15, 5)),
    what_one_does_not_want_the_others_have=([(2, {}), (50, {}), (50, {})], 20, (2, 9, 9)),
    more_than_there_is_room_for_is_not_kept=([(5, {"keep": 5}), (5, {"keep": 5})], 6, (3, 3)),
    what_takes_nothing_is_not_limited=([(7, {"size": (0.0,)}), (7, {})], 2, (7, 2)),
)
def test_each_word(claims: list[Any], limits: int, expected: tuple[int, ...]) -> None:
    made = [Contender(want=want, **{"size": (1.0,), **more}) for want, more in claims]

    assert expected == share(made, (limits,))


@pytest.mark.parametrize(("borrowing", "expected"), [(True, (2, 18)), (False, (2, 10))])
def test_borrowing(borrowing: bool, expected: tuple[int, ...]) -> None:
    claims = [Contender((1.0,), 2), Contender((1.0,), 50)]

    assert expected == share(claims, (20,), borrowing=borrowing)


def test_the_paper_s_own_case() -> None:
    """9 CPUs and 18 GB; tasks of <1, 4> and <3, 1>: three of the one, two of the other."""
    assert (3, 2) == share([Contender((1.0, 4.0), 99), Contender((3.0, 1.0), 99)], (9, 18))


def test_a_thousand_clusters() -> None:
    claims = [
        Contender(SIZES[i % 3], i % 97, weight=1 + i % 3, priority=i % 2) for i in range(1000)
    ]
    found = share(claims, (20_000, 40_000, 300))

    assert 300 == used(claims, found, 2)
