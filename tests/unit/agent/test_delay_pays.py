"""Whether a shuffle gains by beginning later."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dask_adaptive_agent.shuffle.delay import Coming, pays
from dask_adaptive_agent.shuffle.runs import Work
from support.tables import table


@table(
    "work, threads, coming, most_s, expected",
    one_worker_five_more_in_6_s=(Work(50, 50), 1, [Coming(5, 6)], 60, True),
    nobody_comes=(Work(50, 50), 1, [], 60, False),
    later_than_it_may_wait=(Work(50, 50), 1, [Coming(5, 61)], 60, False),
    done_before_they_come=(Work(0, 2), 1, [Coming(5, 6)], 60, False),
    no_outputs_to_share=(Work(50, 0), 1, [Coming(5, 6)], 60, False),
    one_more_of_many=(Work(500, 500), 100, [Coming(1, 1)], 60, False),
    twice_as_many_soon=(Work(500, 500), 100, [Coming(100, 1)], 60, True),
    not_for_the_last_one=(Work(50, 50), 1, [Coming(1, 50), Coming(5, 6)], 60, True),
    for_all_that_come_soon=(Work(500, 500), 1, [Coming(5, 6), Coming(5, 8)], 60, True),
    nobody_there_to_compare_with=(Work(50, 50), 0, [Coming(5, 6)], 60, False),
    no_threads_come=(Work(50, 50), 1, [Coming(0, 6)], 60, False),
    there_already=(Work(50, 50), 1, [Coming(5, 0)], 60, False),
    may_not_wait=(Work(50, 50), 1, [Coming(5, 6)], 0, False),
)
def test_whether_it_pays_to_wait(
    work: Work, threads: int, coming: list[Coming], most_s: float, expected: bool
) -> None:
    assert expected is pays(work, threads, coming, most_s)


seconds = st.floats(0, 1e5)
some = st.builds(Coming, st.integers(0, 100), seconds)


@given(st.builds(Work, seconds, seconds), st.integers(0, 100), st.lists(some, max_size=8), seconds)
def test_it_waits_only_for_whom_it_may_and_with_outputs_to_share(
    work: Work, threads: int, coming: list[Coming], most_s: float
) -> None:
    if pays(work, threads, coming, most_s):
        assert any(one.number and one.in_s <= most_s for one in coming)
        assert work.outputs_s > 0
