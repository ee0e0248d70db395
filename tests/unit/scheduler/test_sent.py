"""When an agent is told anew of what is on its way, and in which words."""

from __future__ import annotations

import dataclasses

import pytest

from dask_adaptive.loop.ports import PageContent
from dask_adaptive.model.plan import Arriving
from dask_adaptive.scheduler.sent import NOTHING, SentPlans, announce_request
from support.tables import table

TOLD = PageContent("etl", "5 wanted", (("w1", "stays"),), ((1.5, "g", "LoadIncreased", "8 tasks"),))
COMING = (Arriving(2, 10.0), Arriving(1, 60.0))


@table(
    "later_s, arriving, told, is_still",
    the_same=(0, COMING, TOLD, True),
    counted_down=(2, (Arriving(2, 8.0), Arriving(1, 58.0)), TOLD, True),
    nearly_so=(2, (Arriving(2, 8.9), Arriving(1, 57.2)), TOLD, True),
    later_than_was_said=(2, COMING, TOLD, False),
    again_after_3_s=(3, (Arriving(2, 7.0), Arriving(1, 57.0)), TOLD, False),
    one_more=(0, (Arriving(3, 10.0), COMING[1]), TOLD, False),
    a_row_less=(0, COMING[:1], TOLD, False),
    none_any_more=(0, (), TOLD, False),
    policy=(0, COMING, dataclasses.replace(TOLD, policy="b"), False),
    decision=(0, COMING, dataclasses.replace(TOLD, decisions=()), False),
    not_counted=(2, COMING, dataclasses.replace(TOLD, message="4"), False),
)
def test_what_is_told_again(
    later_s: float, arriving: tuple[Arriving, ...], told: PageContent, is_still: bool
) -> None:
    assert is_still is SentPlans(COMING, TOLD, 100.0).holds(arriving, told, 100.0 + later_s)


@table(
    "later_s, told, is_still",
    nothing_new=(59, TOLD, True),
    after_a_minute_in_any_case=(60, TOLD, False),
    words_wait=(4.9, dataclasses.replace(TOLD, message="4"), True),
    but_not_for_long=(5.0, dataclasses.replace(TOLD, message="4"), False),
    sentences_too=(5.0, dataclasses.replace(TOLD, workers=()), False),
    it_may_grow_now=(0.1, dataclasses.replace(TOLD, can_grow=2), False),
    nothing_is_told_any_more=(0.1, PageContent(), False),
)
def test_what_is_told_again_when_nobody_comes(
    later_s: float, told: PageContent, is_still: bool
) -> None:
    assert is_still is SentPlans((), TOLD, 100.0).holds((), told, 100.0 + later_s)


def test_nothing_is_never_said() -> None:
    assert NOTHING.holds((), PageContent(), 1e9)
    assert SentPlans((), PageContent(), 0.0).holds((), PageContent(), 1e9)
    assert not NOTHING.holds((), TOLD, 0.0)
    assert not NOTHING.holds(COMING, PageContent(), 0.0)


def test_the_message_stays_within_its_bounds() -> None:
    request = announce_request(
        [Arriving(0, 1.0), *(Arriving(1, float(n)) for n in range(100, 0, -1)), Arriving(9, 1e99)],
        PageContent(
            "p" * 999,
            "m" * 999,
            tuple((f"w{n}", "s" * 999) for n in range(999)),
            tuple((float(n), "g", "r", "m" * 999) for n in range(999)),
        ),
    )

    assert [(1, 1000 * n) for n in range(1, 51)] == request["arriving"]
    assert (200, 200) == (len(request["policy"]), len(request["message"]))
    assert 200 == len(request["workers"])
    assert ("w0", "s" * 200) == request["workers"][0]
    assert [n * 1000 for n in range(949, 999)] == [row[0] for row in request["decisions"]]


@pytest.mark.parametrize(
    ("in_s", "ms"), [(-5.0, 0), (float("inf"), 30 * 24 * 3_600_000), (1.2345, 1234)]
)
def test_odd_times_are_sent_all_the_same(in_s: float, ms: int) -> None:
    assert [(1, ms)] == announce_request([Arriving(1, in_s)], PageContent())["arriving"]
