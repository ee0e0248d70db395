"""Workers that drain to be replaced: who comes back by itself, and who is called back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dask_adaptive.model.observed import Ending, Leaving, ObservedWorker
from dask_adaptive.model.plan import Cancel, Restart
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Recycle, RecyclePast, Strategy, TaskQuota
from support.turning import turn
from support.worlds import NOW, pending, worker

TASKS = Recycle(TaskQuota(20))
IN_PLACE = replace(TASKS, strategy=Strategy.IN_PLACE)
NO_REASON = "there is no reason any more"


def drains(name: str, *, is_done: bool = False, **changes: Any) -> ObservedWorker:
    leaving = Leaving.DRAINED if is_done else Leaving.DRAINING
    usual: dict[str, Any] = {"leaving_reason": Reason.TASK_QUOTA, "in_service": False}
    return worker(name, leaving=leaving, **{**usual, **changes})


UNNEEDED = drains("u", leaving_reason=Reason.UNDERUTILIZED)
TAKEN_BACK = drains("x", leaving_reason=Reason.RECYCLE_REQUESTED)


@pytest.mark.parametrize(
    ("workers", "desired", "recycle", "restarting", "back"),
    [
        pytest.param([drains("r")], 1, IN_PLACE, "r", "", id="in-place-one-comes-by-itself"),
        pytest.param([drains("r")], 1, TASKS, "", "", id="by-surge-it-leaves-for-good"),
        pytest.param([UNNEEDED, drains("r")], 1, IN_PLACE, "r", "", id="who-is-not-needed-goes"),
        pytest.param([worker("a"), pending("p"), drains("r")], 2, IN_PLACE, "", "",
                     id="who-starts-counts-as-there"),
        pytest.param([drains("r"), drains("s"), drains("t")], 2, IN_PLACE, "rs", "",
                     id="as-many-as-are-desired"),
        pytest.param([TAKEN_BACK, drains("r"), drains("s")], 2, IN_PLACE, "r", "x",
                     id="who-is-called-back-counts-too"),
        pytest.param([drains("r"), TAKEN_BACK], 1, TASKS, "", "x", id="not-asked-any-more"),
        pytest.param([drains("r"), TAKEN_BACK], 1, Recycle(), "", "rx", id="neither-is"),
        pytest.param([drains("r", is_done=True), TAKEN_BACK], 0, Recycle(), "", "x",
                     id="drained-and-surplus-it-goes"),
        pytest.param([drains("r", is_done=True)], 1, Recycle(), "", "r", id="drained-but-needed"),
    ],
)  # fmt: skip
def test_who_that_drains_comes_back(
    workers: list[ObservedWorker], desired: int, recycle: Recycle, restarting: str, back: str
) -> None:
    taken = turn(workers, [], desired=desired, recycle=recycle)

    cancels = [Cancel(name, (name,), Reason.WANTED_AGAIN, NO_REASON) for name in back]
    assert restarting == "".join(w.name for w in taken.fleet.restarting)
    assert tuple(cancels) == taken.back


@pytest.mark.parametrize(
    ("floors", "recycle", "since_s", "is_back"),
    [
        pytest.param({"r": 2}, TASKS, 600.0, True, id="too-late"),
        pytest.param({"r": 2}, TASKS, 599.0, False, id="not-yet"),
        pytest.param({"r": 1}, TASKS, 600.0, False, id="as-many-serve-as-should"),
        pytest.param({"r": 2}, IN_PLACE, 600.0, False, id="in-place-none-comes-before"),
        pytest.param({}, TASKS, 600.0, False, id="without-a-past"),
    ],
)
def test_a_worker_is_called_back_if_its_replacement_has_gone(
    floors: dict[str, int], recycle: Recycle, since_s: float, is_back: bool
) -> None:
    past: dict[str, Any] = {
        "floors": floors, "recycle_past": RecyclePast(surging_since={"r": NOW - since_s}),
    }  # fmt: skip
    taken = turn([worker("a"), drains("r")], [], recycle=recycle, **past)

    why = "no replacement within 10m: no worker was made"
    cancel = Cancel("r", ("r",), Reason.RECYCLE_ABORTED, why)
    assert ((cancel,) if is_back else (), {"r": why} if is_back else {}) == (
        taken.back, taken.aborting,
    )  # fmt: skip


@pytest.mark.parametrize(("floor", "is_waited_for"), [(1, False), (2, True), (9, True)])
def test_a_draining_worker_waits_for_its_replacement(floor: int, is_waited_for: bool) -> None:
    taken = turn([worker("a"), drains("r")], [], recycle=TASKS, floors={"r": floor})

    assert ({"r": floor}, is_waited_for) == (taken.floors, "r" in taken.waiting)


def test_it_does_not_wait_for_more_than_are_desired() -> None:
    taken = turn([worker("a"), drains("r")], [], desired=1, recycle=TASKS, floors={"r": 2})

    assert frozenset() == taken.waiting


def test_where_none_serves_a_worker_without_a_past_is_not_called_back() -> None:
    since = RecyclePast(surging_since={"r": NOW - 600.0})

    assert () == turn([drains("r")], [], recycle=TASKS, recycle_past=since).back


POD = {"pod": "r-x", "pod_uid": "r-1"}


@pytest.mark.parametrize(
    ("changes", "restarted", "is_restarted"),
    [
        pytest.param(POD, {}, True, id="its-pod-is-deleted"),
        pytest.param({}, {}, False, id="it-has-none-that-is-known"),
        pytest.param(POD, {"r": "r-1"}, True, id="again-if-it-is-still-there"),
        pytest.param(POD, {"r": "r-0"}, False, id="the-next-is-left-alone"),
        pytest.param({"pod": "r-x"}, {"r": ""}, False, id="nor-what-cannot-be-told-apart"),
    ],
)
def test_the_pod_of_who_has_drained_is_deleted_once(
    changes: dict[str, Any], restarted: dict[str, str], is_restarted: bool
) -> None:
    drained = drains("r", is_done=True, **changes)
    taken = turn([drained], [], recycle=IN_PLACE, restarted=restarted)

    why = "drained: no task, no last copy"
    restart = Restart("r", "r-x", drained.pod_uid, ("r",), Reason.TASK_QUOTA, why)
    assert ((restart,) if is_restarted else ()) == taken.restart


def test_a_pod_that_ends_already_is_not_deleted() -> None:
    ending = (Ending("r", "r-x", (), 9.0),)
    taken = turn([drains("r", is_done=True, **POD)], [], recycle=IN_PLACE, ending=ending)

    assert () == taken.restart
