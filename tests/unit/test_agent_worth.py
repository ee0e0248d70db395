"""Whether a shuffle gains by beginning later."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_adaptive_agent.worth import Coming, Work, worthwhile_wait_s


@pytest.mark.parametrize(
    ("work", "threads", "coming", "most_s", "expected"),
    [
        pytest.param(Work(50, 50), 1, [Coming(5, 6)], 60, 6, id="one-worker-five-more-in-6-s"),
        pytest.param(Work(50, 50), 1, [], 60, 0, id="nobody-comes"),
        pytest.param(Work(50, 50), 1, [Coming(5, 61)], 60, 0, id="later-than-it-may-wait"),
        pytest.param(Work(0, 2), 1, [Coming(5, 6)], 60, 0, id="done-before-they-come"),
        pytest.param(Work(50, 0), 1, [Coming(5, 6)], 60, 0, id="no-outputs-to-share"),
        pytest.param(Work(500, 500), 100, [Coming(1, 1)], 60, 0, id="one-more-of-many"),
        pytest.param(Work(500, 500), 100, [Coming(100, 1)], 60, 1, id="twice-as-many-soon"),
        pytest.param(
            Work(50, 50), 1, [Coming(1, 50), Coming(5, 6)], 60, 6, id="not-for-the-last-one"
        ),
        pytest.param(
            Work(500, 500), 1, [Coming(5, 6), Coming(5, 8)], 60, 8, id="for-all-that-come-soon"
        ),
        pytest.param(Work(50, 50), 0, [Coming(5, 6)], 60, 0, id="nobody-there-to-compare-with"),
        pytest.param(Work(50, 50), 1, [Coming(0, 6)], 60, 0, id="no-threads-come"),
        pytest.param(Work(50, 50), 1, [Coming(5, 0)], 60, 0, id="there-already"),
        pytest.param(Work(50, 50), 1, [Coming(5, 6)], 0, 0, id="may-not-wait"),
    ],
)
def test_worthwhile_wait(
    work: Work, threads: int, coming: list[Coming], most_s: float, expected: float
) -> None:
    assert expected == worthwhile_wait_s(work, threads, coming, most_s=most_s)


seconds = st.floats(0, 1e5)
some = st.builds(Coming, st.integers(0, 100), seconds)


@given(st.builds(Work, seconds, seconds), st.integers(0, 100), st.lists(some, max_size=8), seconds)
def test_it_waits_until_somebody_comes_and_no_longer_than_it_may(
    work: Work, threads: int, coming: list[Coming], most_s: float
) -> None:
    wait_s = worthwhile_wait_s(work, threads, coming, most_s=most_s)

    assert wait_s <= most_s
    assert wait_s == 0 or wait_s in {one.in_s for one in coming if one.threads}
    # However long the work: who waits must have outputs to share.
    assert wait_s == 0 or work.outputs_s > 0
