"""What people are told of quotas and recycles; what the agent and the next operator are."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dask_adaptive.loop.act import act
from dask_adaptive.loop.conditions import conditions_of
from dask_adaptive.loop.happened import (
    events_of_aborts,
    events_of_conditions,
    events_of_notes,
    events_of_outcomes,
)
from dask_adaptive.loop.one_pass import ClusterLoop
from dask_adaptive.loop.ports import EventType
from dask_adaptive.loop.recycles import Calendar, is_pressing, recycles, wants_meters
from dask_adaptive.loop.report import status_of
from dask_adaptive.loop.status import ABLE_TO_SCALE, Status, WorkerRow
from dask_adaptive.model.observed import (
    Leaving,
    Note,
    ObservedCluster,
    PlatformView,
    PlatformWorker,
)
from dask_adaptive.model.plan import Blocker, Cancel, Outcome, Plan, Restart, Retire
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import (
    Quota,
    QuotaNotes,
    QuotaUse,
    Recycle,
    RecyclePast,
    Replacing,
    TaskQuota,
)
from support.world import EPOCH, World
from support.worlds import GROUP, KEY, NOW, POLICY, SHUFFLE, busy, cluster, pending, worker

SENTENCE = "21 of 20 runs"
DUE = Replacing("a", Reason.TASK_QUOTA, SENTENCE, "Due")
RESTART = Restart("w0", "pod-1", "p-1", ("w0",), Reason.TASK_QUOTA, SENTENCE)


def planned(*replacing: Replacing, **more: Any) -> Plan:
    return Plan(Reason.RECYCLING, "", 1, 1, replacing=replacing, **more)


def row(world: ObservedCluster, decided: Plan, *outcomes: Outcome) -> WorkerRow | None:
    status = status_of(world, POLICY, decided, outcomes, now=NOW)
    return next((r for r in status.workers if r.name == "a"), None)


@pytest.mark.parametrize(
    ("worker_is", "replacing", "blockers", "expected"),
    [
        pytest.param({}, (DUE,), (), ("Active", Reason.TASK_QUOTA, SENTENCE), id="due"),
        pytest.param(
            {"stopped": "is at its quota of 20 runs"}, (), (),
            ("Stopped", Reason.QUOTA_REACHED, "is at its quota of 20 runs"), id="stopped",
        ),
        pytest.param(
            {"stopped": "at 20 runs"}, (DUE,), (),
            ("Stopped", Reason.TASK_QUOTA, f"{SENTENCE}; at 20 runs"), id="stopped-and-due",
        ),
        pytest.param(
            {"leaving": Leaving.DRAINING, "leaving_message": "waits for 1 task", "stopped": "x"},
            (dataclasses.replace(DUE, state="Draining"),), (),
            ("Draining", Reason.TASK_QUOTA, f"{SENTENCE}; waits for 1 task"), id="draining",
        ),
        pytest.param(
            {"pins": (SHUFFLE,)}, (DUE,), (),
            ("Active", Reason.PINNED, f"{SENTENCE}; pinned by shuffle 5f3a"), id="pinned",
        ),
        pytest.param(
            {}, (DUE,), (Blocker("a", Reason.OUTSIDE_WINDOW, "the next window opens at 02:00"),),
            ("Active", Reason.OUTSIDE_WINDOW, f"{SENTENCE}; the next window opens at 02:00"),
            id="held",
        ),
        pytest.param(
            {"stopped": "at 20 runs"}, (DUE,),
            (Blocker("a", Reason.BUDGET_EXHAUSTED, f"{SENTENCE}; waits its turn"),),
            ("Stopped", Reason.BUDGET_EXHAUSTED, f"{SENTENCE}; waits its turn"),
            id="stopped-and-held",
        ),
        pytest.param(
            {"quota_notes": QuotaNotes(problem="recycle-tasks says x")}, (), (),
            ("Active", Reason.INVALID_QUOTA, "recycle-tasks says x"), id="not-to-be-read",
        ),
        pytest.param({}, (), (), None, id="nothing-to-say"),
    ],
)  # fmt: skip
def test_the_row_of_a_worker_at_a_quota(
    worker_is: dict[str, Any], replacing: tuple[Replacing, ...], blockers: tuple[Blocker, ...],
    expected: tuple[str, Reason, str] | None,
) -> None:  # fmt: skip
    found = row(cluster([busy("a", **worker_is)]), planned(*replacing, blockers=blockers))

    assert expected == (found and (found.state, found.reason, found.message))


@pytest.mark.parametrize(
    ("action", "state"),
    [
        (Retire("a", ("a",), Reason.TASK_QUOTA, SENTENCE, busy_ok=True), "Draining"),
        (Restart("a", "p", "u", ("a",), Reason.TASK_QUOTA, SENTENCE), "Going"),
    ],
)
def test_what_was_just_done_says_the_quota(action: Any, state: str) -> None:
    found = row(cluster([busy("a")]), planned(DUE), Outcome(action, True, action.reason, ""))

    assert WorkerRow("a", state, Reason.TASK_QUOTA, SENTENCE) == found


def test_a_due_worker_of_another_group_has_a_row_too() -> None:
    other = dataclasses.replace(cluster([]).groups[0], name="etl-gpu", workers=(busy("a"),))

    assert row(cluster([], others=[other]), planned(DUE)) is not None
    assert row(cluster([], others=[other]), planned()) is None


def able(decided: Plan, **more: str) -> tuple[bool | None, Reason]:
    found = conditions_of(cluster([busy("a")]), POLICY, decided, (), **more)
    return next((c.status, c.reason) for c in found if c.type == ABLE_TO_SCALE)


def test_a_storm_is_a_condition_and_told_when_it_begins_and_ends() -> None:
    storm, calm = planned(storm="3 of 3 recycles this hour"), planned()
    first, second, third = (
        Status(conditions=conditions_of(cluster([busy("a")]), POLICY, p, ()))
        for p in (calm, storm, calm)
    )

    assert [(True, Reason.RECONCILED), (False, Reason.RECYCLE_STORM)] == [able(calm), able(storm)]
    (begun,) = events_of_conditions(second, first)
    (ended,) = events_of_conditions(third, second)
    assert (EventType.WARNING, Reason.RECYCLE_STORM) == (begun.type, begun.reason)
    assert "3 of 3 recycles this hour" in begun.message
    assert EventType.NORMAL is ended.type
    assert [] == list(events_of_conditions(first, first))


@pytest.mark.parametrize(
    ("exact", "storm", "expected"),
    [
        (True, "", "workers can be added and retired; 2 of 3 workers wait for replacements: exact"),
        (True, "too many", "too many; 2 of 3 workers wait for replacements: exact quotas"),
        (False, "", "workers can be added and retired"),
    ],
)
def test_the_condition_says_what_an_exact_quota_costs(
    exact: bool, storm: str, expected: str
) -> None:
    stopped: dict[str, Any] = {"stopped": "was given 9 of 9 runs", "stopped_for": Quota.TASKS}
    drains: dict[str, Any] = {
        "leaving": Leaving.DRAINING, "leaving_reason": Reason.TASK_QUOTA, "in_service": False,
    }  # fmt: skip
    world = cluster([busy("a", **stopped), busy("b", **drains), busy("c"), pending("d")])
    policy = dataclasses.replace(POLICY, recycle=Recycle(tasks=TaskQuota(9, exact=exact)))
    found = conditions_of(world, policy, planned(storm=storm), ())
    said = next(c.message for c in found if c.type == ABLE_TO_SCALE)

    assert said.startswith(expected)
    assert exact or "exact" not in said


def test_limits_that_the_agent_does_not_hear_are_never_silent() -> None:
    assert (False, Reason.ACTION_FAILED) == able(planned(), unheard="no such pattern")


def test_an_aborted_recycle_is_told_once_with_or_without_an_action() -> None:
    none, one = RecyclePast(), RecyclePast(aborted={"a": (500.0, "no replacement: no image")})
    cancelled = Cancel("a", ("a",), Reason.RECYCLE_ABORTED, "no replacement: no image")

    (event,) = events_of_aborts(one, none)
    assert (EventType.WARNING, Reason.RECYCLE_ABORTED, "a") == (
        event.type, event.reason, event.worker,
    )  # fmt: skip
    assert [] == list(events_of_aborts(one, one))
    assert [] == list(events_of_outcomes([Outcome(cancelled, True, cancelled.reason, "")]))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(Reason.TASK_TOO_LONG, EventType.WARNING), (Reason.QUOTA_REACHED, EventType.NORMAL)],
)
def test_what_the_agent_notes_is_told(kind: Reason, expected: EventType) -> None:
    world = cluster([busy("a")], notes=(Note(1, kind, "said", ("a",)),))

    assert [(expected, "a")] == [(e.type, e.worker) for e in events_of_notes(world)]


async def test_a_quota_that_cannot_be_read_is_told_once() -> None:
    world = World(workers=1, target=1)
    world.busy, world.quota_notes = True, QuotaNotes(problem="recycle-tasks says x")
    await world.passes(ClusterLoop(KEY, world.ports()), 3)

    assert [("w0", "recycle-tasks says x")] == [
        (e.worker, e.message) for e in world.events if e.reason is Reason.INVALID_QUOTA
    ]


@pytest.mark.parametrize("drained", [True, False])
async def test_a_pod_is_deleted_only_if_the_agent_says_once_more_that_it_has_drained(
    drained: bool,
) -> None:
    world = World(workers=1, target=1)
    world.drained = drained
    (outcome,) = await act(planned(actions=(RESTART,)), POLICY, world.ports())

    assert drained is outcome.done
    assert ([("w0", "pod-1", "p-1")] if drained else []) == world.restarted


async def test_limits_are_said_in_each_pass_and_a_deaf_agent_stops_nothing() -> None:
    world = World(workers=1, target=3)
    world.busy = True
    loop = ClusterLoop(KEY, world.ports())
    await world.passes(loop, 2)
    world.refusal = "no such pattern"
    await world.passes(loop, 1)

    assert 2 == len(world.limits)
    assert 3 <= world.replicas
    said = next(c for c in world.statuses[-1].conditions if c.type == ABLE_TO_SCALE)
    assert "no such pattern" in said.message


async def test_meters_are_asked_for_only_where_something_has_a_quota() -> None:
    world = World(workers=1, target=1)
    loop = ClusterLoop(KEY, world.ports())
    await world.passes(loop, 1)
    await world.passes(loop, 1, dataclasses.replace(POLICY, recycle=QUOTA))

    assert [False, True] == world.asked_meters


QUOTA = Recycle(tasks=TaskQuota(maximum=20))


@pytest.mark.parametrize(
    ("policy", "worker_is", "expected"),
    [
        pytest.param({}, {}, False, id="none"),
        pytest.param({"recycle": QUOTA}, {}, True, id="policy"),
        pytest.param({"group_recycle": {"g": QUOTA}}, {}, True, id="group"),
        pytest.param({}, {"quota_notes": QuotaNotes(tasks=5)}, True, id="annotation"),
        pytest.param({}, {"ends_in_s": 60.0}, True, id="deadline"),
    ],
)
def test_who_has_a_quota(policy: dict[str, Any], worker_is: dict[str, Any], expected: bool) -> None:
    view = PlatformView(workers=(PlatformWorker("w", "u", GROUP, 5.0, **worker_is),))

    assert expected is wants_meters(view, dataclasses.replace(POLICY, **policy))


@pytest.mark.parametrize(
    ("decided", "expected"),
    [
        pytest.param(planned(), False, id="nothing"),
        pytest.param(planned(DUE), False, id="waits-its-turn"),
        pytest.param(planned(dataclasses.replace(DUE, state="Surging")), True, id="surging"),
        *(
            pytest.param(
                planned(uses=(QuotaUse(GROUP, quota, ratio, "a"),)), expected,
                id=f"{quota.value}-{ratio}",
            )
            for quota, ratio, expected in [
                (Quota.TASKS, 0.79, False), (Quota.TASKS, 0.81, True), (Quota.TASKS, 1.2, False),
                (Quota.LIFETIME, 0.95, False),
            ]
        ),
    ],
)  # fmt: skip
def test_when_to_look_again_soon(decided: Plan, expected: bool) -> None:
    assert expected is is_pressing(decided)


def test_recycles_of_an_earlier_operator_are_put_on_this_ones_clock_and_back() -> None:
    calendar = Calendar([1_000.0, 1_300.0, 9_999.0])
    begun = calendar.begun(PlatformView(at=1_500.0), now=70.0)
    world = dataclasses.replace(cluster([]), at=1_510.4)
    past = RecyclePast(begun=(*begun, 75.0), totals={Reason.TASK_QUOTA: 3, Reason.LIFETIME: 1})
    told = recycles(past, calendar, world, now=80.0, unheard="")
    later = dataclasses.replace(world, at=1_520.9)  # half a second more than our own clock says

    assert (-430.0, -130.0) == begun  # one that is yet to come is nonsense
    assert () == calendar.begun(PlatformView(at=1_500.0), now=71.0)
    assert (1_000.0, 1_300.0, 1_505.0) == told.recent
    assert ((Reason.LIFETIME, 1), (Reason.TASK_QUOTA, 3)) == told.totals
    assert told == recycles(past, calendar, later, now=90.0, unheard="")


async def test_an_operator_goes_on_counting_where_the_one_before_stopped() -> None:
    world = World(workers=1, target=1)
    world.busy, world.now = True, 1_000.0
    begun = EPOCH + 400
    policy: Policy = dataclasses.replace(POLICY, recycle=QUOTA)
    loop = ClusterLoop(KEY, world.ports(), recycled={Reason.TASK_QUOTA: 7}, recent=[begun])
    await world.passes(loop, 3, policy)

    assert 1 == len(world.statuses)
    assert ((Reason.TASK_QUOTA, 7),) == world.statuses[0].recycled
    assert (begun,) == world.statuses[0].recent


def test_workers_without_a_quota_have_no_row_because_of_quotas() -> None:
    assert None is row(cluster([worker("a", idle_s=1.0)], target=1), planned())
