"""What a pause leaves of a number."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_adaptive.model.reason import Reason
from dask_adaptive.model.scaling import NO_PAUSE, Pause
from dask_adaptive.planner.pauses import held, is_paused


@pytest.mark.parametrize(
    ("desired", "pause", "is_default", "expected", "reason"),
    [
        pytest.param(9, {}, True, 9, None, id="not-paused"),
        pytest.param(9, {"all": True}, True, 5, Reason.PAUSED, id="paused"),
        pytest.param(2, {"all": True}, False, 5, Reason.PAUSED, id="paused-in-every-group"),
        pytest.param(2, {"scale_in": True}, True, 5, Reason.SCALE_IN_PAUSED, id="no-fall"),
        pytest.param(9, {"scale_in": True}, True, 9, None, id="a-rise-passes"),
        pytest.param(9, {"scale_out": True}, True, 5, Reason.SCALE_OUT_PAUSED, id="no-rise"),
        pytest.param(2, {"scale_out": True}, True, 2, None, id="a-fall-passes"),
        pytest.param(5, {"scale_in": True, "scale_out": True}, True, 5, None, id="nothing-to-hold"),
        pytest.param(2, {"scale_in": True, "scale_out": True}, True, 5, Reason.SCALE_IN_PAUSED,
                     id="both"),
        pytest.param(2, {"replicas": 7}, True, 7, Reason.REPLICAS_HELD, id="held-above"),
        pytest.param(9, {"replicas": 3}, True, 3, Reason.REPLICAS_HELD, id="held-below"),
        pytest.param(5, {"replicas": 5}, True, 5, Reason.REPLICAS_HELD, id="held-where-it-is"),
        pytest.param(2, {"replicas": 0}, True, 0, Reason.REPLICAS_HELD, id="held-at-none"),
        pytest.param(9, {"replicas": 3}, False, 9, None, id="other-groups-go-on"),
        pytest.param(9, {"replicas": 3, "scale_in": True}, True, 5, Reason.SCALE_IN_PAUSED,
                     id="held-below-and-nobody-leaves"),
        pytest.param(2, {"replicas": 7, "scale_out": True}, True, 5, Reason.SCALE_OUT_PAUSED,
                     id="held-above-and-nobody-comes"),
        pytest.param(2, {"replicas": 7, "all": True}, True, 5, Reason.PAUSED, id="paused-wins"),
        pytest.param(2, {"all": True, "left_s": 0.0}, True, 2, None, id="over"),
        pytest.param(2, {"all": True, "left_s": 0.1}, True, 5, Reason.PAUSED, id="not-over"),
        pytest.param(9, {"problem": "cannot be read"}, True, 5, Reason.INVALID_PAUSE,
                     id="what-cannot-be-read-holds-all"),
        pytest.param(2, {"problem": "cannot be read", "all": True}, True, 5, Reason.INVALID_PAUSE,
                     id="and-says-so"),
        pytest.param(2, {"problem": "cannot be read", "scale_in": True}, True, 5,
                     Reason.INVALID_PAUSE, id="of-what-it-is-about"),
        pytest.param(9, {"problem": "cannot be read", "scale_in": True}, True, 9, None,
                     id="and-of-nothing-else"),
    ],
)  # fmt: skip
def test_five_workers(
    desired: int, pause: dict[str, Any], is_default: bool, expected: int, reason: Reason | None
) -> None:
    number, step = held(desired, 5, Pause(**pause), is_default=is_default)

    assert expected == number
    assert (reason, expected) == ((step.reason, step.replicas) if step else (None, expected))


def test_the_step_says_who_holds_it_and_what_cannot_be_read() -> None:
    pause = Pause(scale_in=True, left_s=90.0, message="paused-scale-in on the policy", problem="?")

    _, step = held(2, 5, pause, is_default=True)

    assert step is not None
    assert "2 wanted, 5 held: no worker leaves; paused-scale-in on the policy; ?" == step.message


pauses = st.builds(
    Pause, all=st.booleans(), scale_in=st.booleans(), scale_out=st.booleans(),
    replicas=st.none() | st.integers(0, 9), left_s=st.none() | st.floats(-5, 5),
    problem=st.sampled_from(["", "cannot be read"]),
)  # fmt: skip


@given(st.integers(0, 9), st.integers(0, 9), pauses, st.booleans())
def test_a_pause_that_holds_is_kept_and_one_that_is_over_changes_nothing(
    desired: int, serving: int, pause: Pause, is_default: bool
) -> None:
    number, step = held(desired, serving, pause, is_default=is_default)

    assert number == desired or step is not None
    if not is_paused(pause):
        assert (desired, None) == (number, step)
    elif pause.all:
        assert serving == number
    else:
        assert not (pause.scale_in and number < serving)
        assert not (pause.scale_out and number > serving)


def test_no_pause_is_none() -> None:
    assert not is_paused(NO_PAUSE)
