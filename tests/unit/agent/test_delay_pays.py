"""Whether a shuffle gains by beginning later."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_adaptive_agent.shuffle.delay import Coming, pays
from dask_adaptive_agent.shuffle.runs import Work


@pytest.mark.parametrize(
    ("work", "threads", "coming", "most_s", "expected"),
    [
        pytest.param(Work(50, 50), 1, [Coming(5, 6)], 60, True, id="one-worker-five-more-in-6-s"),
        pytest.param(Work(50, 50), 1, [], 60, False, id="nobody-comes"),
        pytest.param(Work(50, 50), 1, [Coming(5, 61)], 60, False, id="later-than-it-may-wait"),
        pytest.param(Work(0, 2), 1, [Coming(5, 6)], 60, False, id="done-before-they-come"),
        pytest.param(Work(50, 0), 1, [Coming(5, 6)], 60, False, id="no-outputs-to-share"),
        pytest.param(Work(500, 500), 100, [Coming(1, 1)], 60, False, id="one-more-of-many"),
        pytest.param(Work(500, 500), 100, [Coming(100, 1)], 60, True, id="twice-as-many-soon"),
        pytest.param(
            Work(50, 50), 1, [Coming(1, 50), Coming(5, 6)], 60, True, id="not-for-the-last-one"
        ),
        pytest.param(
            Work(500, 500), 1, [Coming(5, 6), Coming(5, 8)], 60, True, id="for-all-that-come-soon"
        ),
        pytest.param(Work(50, 50), 0, [Coming(5, 6)], 60, False, id="nobody-there-to-compare-with"),
        pytest.param(Work(50, 50), 1, [Coming(0, 6)], 60, False, id="no-threads-come"),
        pytest.param(Work(50, 50), 1, [Coming(5, 0)], 60, False, id="there-already"),
        pytest.param(Work(50, 50), 1, [Coming(5, 6)], 0, False, id="may-not-wait"),
    ],
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
