"""When nothing is scaled at all, and how many workers hold without the scheduler."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dask_adaptive.model.observed import Leaving, ObservedGroup, ObservedWorker
from dask_adaptive.model.past import Past
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.scaling import Caps, Fallback, GroupBounds, Scaling
from dask_adaptive.planner.gates import fallback_minimum, gate
from support.worlds import PAST, POLICY, cluster, pending, worker

#: Of ten workers, all of which have been connected.
SEEN = replace(PAST, seen=frozenset(f"w{i}" for i in range(10)))


def fleet(away: int, of: int = 10, **changes: Any) -> list[ObservedWorker]:
    """Workers of which the first are away, as `changes` say."""
    return [pending(f"w{i}", **changes) if i < away else worker(f"w{i}") for i in range(of)]


@pytest.mark.parametrize(
    ("workers", "past", "most", "gated"),
    [
        pytest.param(fleet(0), SEEN, 0.45, False, id="all-there"),
        pytest.param(fleet(4), SEEN, 0.45, False, id="less-than-the-part"),
        pytest.param(fleet(5), SEEN, 0.45, True, id="more"),
        pytest.param(fleet(5), SEEN, 0.5, False, id="just-the-part"),
        pytest.param(fleet(10), SEEN, 1.0, False, id="turned-off"),
        pytest.param(fleet(1), SEEN, 0.0, False, id="one-is-never-too-many"),
        pytest.param(fleet(2, of=2), SEEN, 0.45, False, id="nor-are-two"),
        pytest.param(fleet(3, of=3), SEEN, 0.45, True, id="three-are"),
        pytest.param(fleet(9), PAST, 0.45, False, id="a-cluster-that-starts"),
        pytest.param(fleet(5), replace(SEEN, seen=frozenset({"w0", "w1"})), 0.45, False,
                     id="only-those-that-were-connected-count"),
        pytest.param(fleet(4), replace(SEEN, seen=frozenset({"w0", "w1", "w2", "w3"})), 0.45, False,
                     id="those-that-are-connected-count-too"),
        pytest.param(fleet(5, going=True), SEEN, 0.45, False, id="deleted"),
        pytest.param(fleet(5, leaving=Leaving.DRAINED), SEEN, 0.45, False, id="let-go"),
        pytest.param(fleet(5, leaving_reason=Reason.TASK_QUOTA), SEEN, 0.45, False, id="replaced"),
        pytest.param(fleet(5), replace(SEEN, leaving=SEEN.seen), 0.45, False, id="let-go-by-us"),
        pytest.param(fleet(5), replace(SEEN, restarted={f"w{i}": "p" for i in range(5)}), 0.45,
                     False, id="restarted-by-us"),
        pytest.param(fleet(5, pod_uid="new", pod_age_s=60.0),
                     replace(SEEN, counted={f"w{i}": "old" for i in range(5)}), 0.45, False,
                     id="the-next-pod-starts"),
        pytest.param(fleet(5, pod_uid="new", pod_age_s=600.0),
                     replace(SEEN, counted={f"w{i}": "old" for i in range(5)}), 0.45, True,
                     id="the-next-pod-does-not-come"),
        pytest.param(fleet(5, pod_uid="same", pod_age_s=60.0),
                     replace(SEEN, counted={f"w{i}": "same" for i in range(5)}), 0.45, True,
                     id="away-before-it-was-replaced"),
    ],
)  # fmt: skip
def test_gate(workers: list[ObservedWorker], past: Past, most: float, gated: bool) -> None:
    policy = replace(POLICY, scaling=Scaling(caps=Caps(max_unready=most)))

    step = gate(cluster(workers), policy, past)

    assert gated == (step is not None)


def test_the_gate_says_how_many_are_away_of_how_many_in_all_groups() -> None:
    gpu = ObservedGroup(
        "etl-gpu", 2, (pending("g0", group="etl-gpu"), worker("g1", group="etl-gpu"))
    )
    past = replace(SEEN, seen=SEEN.seen | {"g0", "g1"})

    step = gate(cluster(fleet(5), others=(gpu,)), POLICY, past)

    assert step is not None
    assert (6, Reason.TOO_MANY_UNREADY) == (step.replicas, step.reason)
    assert step.message.startswith("6 of 12 workers that were connected are away, more than 45%")


def test_without_the_scheduler_nobody_is_known_to_be_away() -> None:
    world = cluster(fleet(9), problem=Reason.SCHEDULER_UNREACHABLE)

    assert gate(world, POLICY, SEEN) is None


@pytest.mark.parametrize(
    ("replicas", "unanswered", "policy", "expected"),
    [
        pytest.param(4, 3, {}, 4, id="a-number"),
        pytest.param(4, 9, {}, 4, id="however-long"),
        pytest.param(4, 2, {}, None, id="not-yet"),
        pytest.param(None, 9, {}, None, id="hold"),
        pytest.param(4, 9, {"minimum": 6}, 6, id="not-below-the-minimum"),
        pytest.param(40, 9, {}, 10, id="not-above-the-maximum"),
    ],
)
def test_fallback(
    replicas: int | None, unanswered: int, policy: dict[str, Any], expected: int | None
) -> None:
    scaling = Scaling(fallback=Fallback(failure_threshold=3, replicas=replicas))
    world = cluster([], problem=Reason.SCHEDULER_UNREACHABLE, unanswered=unanswered)

    assert expected == fallback_minimum(world, replace(POLICY, scaling=scaling, **policy))


def test_with_an_answer_there_is_no_fallback() -> None:
    scaling = Scaling(fallback=Fallback(failure_threshold=0, replicas=4))

    answered = cluster([], unanswered=5)
    assert fallback_minimum(answered, replace(POLICY, scaling=scaling)) is None
    silent = cluster([], problem=Reason.SCHEDULER_UNREACHABLE)
    assert fallback_minimum(silent, replace(POLICY, scaling=scaling)) is None


def test_the_default_groups_own_bounds_count() -> None:
    own = GroupBounds(cluster([]).key.default_group, maximum=3, minimum=1)
    scaling = Scaling(groups=(own,), fallback=Fallback(1, 9))
    silent = cluster([], problem=Reason.SCHEDULER_UNREACHABLE, unanswered=1)

    assert 3 == fallback_minimum(silent, replace(POLICY, scaling=scaling))
