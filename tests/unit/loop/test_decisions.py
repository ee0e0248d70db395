"""What is remembered of a policy's doings: changes of mind and deeds, never a heartbeat."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pytest

from dask_adaptive.kube.status_json import read_status, status_json
from dask_adaptive.loop.decisions import HISTORY_EVERY_S, LastDecision, decisions, page_content
from dask_adaptive.loop.one_pass import POLL_S
from dask_adaptive.loop.ports import EventType, PageContent, PlatformError
from dask_adaptive.loop.status import Status
from dask_adaptive.model.observed import Demand, ObservedCluster, Quiet, Retiring
from dask_adaptive.model.past import Past
from dask_adaptive.model.plan import Decision, Outcome
from dask_adaptive.model.policy import Mode, Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Recycle, TaskQuota, Use
from dask_adaptive.model.scaling import Idle, IdleAction, Pause, WorkerGroup
from support.fake_cluster import EPOCH, FakeCluster, completed
from support.tables import table
from support.worlds import (
    GPU,
    GROUP,
    NOW,
    PAST,
    POLICY,
    SHUFFLE,
    busy,
    cluster,
    dated,
    group_of,
    past_of,
    pending,
    plan,
    worker,
)

AT = 1_700_000_000.0


def made(
    world: ObservedCluster, *, policy: Policy = POLICY, minds: Any = None, done: bool = True,
    reason: Reason | None = None,
) -> tuple[tuple[Decision, ...], Any]:  # fmt: skip
    """One pass in which each action has the same outcome."""
    world = dated(world, AT)
    decided = plan(world, policy, PAST, now=NOW)
    outcomes = [Outcome(a, done, reason or a.reason, "so it was") for a in decided.actions]
    return decisions(minds or {}, world, policy, decided, outcomes)


def test_a_deed_is_remembered_with_what_it_was_made_from() -> None:
    ((decision,), minds) = made(cluster([busy("a")], target=4))

    assert decision == Decision(
        AT, GROUP, 1, 4, 4, Reason.LOAD_INCREASED, decision.message, outcome="Done",
        asked_by="load", inputs=decision.inputs, steps=decision.steps,
    )  # fmt: skip
    assert {"serving", "pending", "replicas", "arrival_s"} <= set(decision.inputs)
    assert ["load"] == [s.stage for s in decision.steps]
    assert {GROUP: LastDecision(4, "", "Done")} == minds


@table(
    "world, policy, expected",
    at_rest=(cluster([busy("a")], target=1), {}, []),
    limited_already=(cluster([busy("a")], target=9), {"max_replicas": 1}, []),
    one_leaves=(cluster([worker("a")]), {}, ["Done"]),
    one_would_have_to=(cluster([busy("a")]), {}, ["Held"]),
    one_that_never_came_goes=(cluster([pending("a")]), {}, ["Done"]),
    it_is_advised=(cluster([worker("a")]), {"mode": Mode.ADVISE}, ["Advised"]),
    bookkeeping=(cluster([busy("a")], target=1, replicas=2), {}, []),
)  # fmt: skip
def test_what_a_first_pass_is_worth(
    world: ObservedCluster, policy: dict[str, Any], expected: list[str]
) -> None:
    found, _ = made(world, policy=dataclasses.replace(POLICY, **policy))

    assert expected == [d.outcome for d in found]


@table(
    "before, after, expected",
    nothing_is_new=({"target": 2}, {"target": 2}, 0),
    a_deed_each_time=({"target": 3}, {"target": 3}, 1),
    figures_only=({"target": 2, "queued": 5}, {"target": 2, "queued": 9}, 0),
)
def test_only_edges_are_remembered(
    before: dict[str, Any], after: dict[str, Any], expected: int
) -> None:
    workers = [busy("a"), busy("b")]
    _, minds = made(cluster(workers, **before))
    found, _ = made(cluster(workers, **after), minds=minds)

    assert expected == len(found)


def test_what_limits_a_group_is_an_edge() -> None:
    full = dataclasses.replace(POLICY, max_replicas=2)
    workers = [busy("a"), busy("b")]
    _, minds = made(cluster(workers, target=2), policy=full)
    limited, minds = made(cluster(workers, target=9), policy=full, minds=minds)
    still, minds = made(cluster(workers, target=7), policy=full, minds=minds)
    over, _ = made(cluster(workers, target=2), policy=full, minds=minds)

    assert [Reason.TOO_MANY_REPLICAS] == [d.reason for d in limited]
    assert ["policy"] == [d.asked_by for d in limited]
    assert ((), 1) == (still, len(over))


def test_a_refusal_is_remembered_once() -> None:
    world = cluster([worker("a")])
    first, minds = made(world, done=False, reason=Reason.PINNED)
    again, minds = made(world, done=False, reason=Reason.PINNED, minds=minds)
    failed, _ = made(world, done=False, reason=Reason.ACTION_FAILED, minds=minds)

    assert ["Refused: so it was"] == [d.outcome for d in first]
    assert () == again
    assert ["Failed: so it was"] == [d.outcome for d in failed]


def test_a_pause_is_remembered_with_who_asked() -> None:
    world = cluster([busy("a"), busy("b")], target=2)
    _, minds = made(world)
    paused, _ = made(dataclasses.replace(world, pause=Pause(all=True)), minds=minds)

    assert [("annotation", "Held")] == [(d.asked_by, d.outcome) for d in paused]


def test_a_recycle_of_a_group_that_is_not_scaled_is_remembered() -> None:
    spent = group_of(GPU, [busy("g", use=Use(runs=99))])
    world = cluster([busy("a")], target=2, others=[spent])
    (decision,), _ = made(world, policy=dataclasses.replace(POLICY, recycle=Recycle(TaskQuota(9))))

    assert (GPU, Reason.TASK_QUOTA, 1, 1) == (
        decision.group, decision.reason, decision.before, decision.desired,
    )  # fmt: skip


# --- in the loop ------------------------------------------------------------------------------


def test_many_decisions_are_written_together() -> None:
    fake = FakeCluster(1, target=1, start_s=0.0)
    for target in range(2, 10):
        fake.target = target
        fake.steps(1, after_s=1.0)
    assert [] == fake.decisions
    assert fake.last.again_in_s <= HISTORY_EVERY_S
    fake.step(after_s=HISTORY_EVERY_S)

    (rows,) = fake.decisions
    assert list(range(2, 10)) == [d.desired for d in rows]


def test_what_the_status_does_not_have_is_written_when_the_operator_stops() -> None:
    fake = FakeCluster(1, target=2, start_s=0.0)
    fake.steps(2)
    completed(fake.loop.flush())
    assert [] == fake.decisions  # the last one is in the status
    fake.target = 3
    fake.steps(2)
    completed(fake.loop.flush())
    fake.restart_operator()
    fake.target = 4
    fake.steps(2)
    completed(fake.loop.flush())

    assert [[2, 3], [3, 4]] == [[d.desired for d in rows] for rows in fake.decisions]


def test_what_could_not_be_written_is_written_later() -> None:
    written: list[tuple[Decision, ...]] = []

    class Refusing(FakeCluster):
        async def history(self, decisions: Sequence[Decision]) -> None:
            if not written:
                written.append(())
                raise PlatformError("exceeded quota")
            written.append(tuple(decisions))

    fake = Refusing(1, target=3, start_s=0.0)
    fake.step()
    fake.target = 4
    fake.steps(4, after_s=HISTORY_EVERY_S)

    assert [[], [3, 4]] == [[d.desired for d in rows] for rows in written]


def test_the_last_decision_is_in_the_status_and_outlives_the_operator() -> None:
    fake = FakeCluster(1, target=3, start_s=0.0)
    fake.start_operator(name="nightly")
    fake.steps(4)
    last = fake.statuses[-1].last_decision
    assert last is not None
    assert (3, EPOCH + 5.0) == (last.desired, last.at)

    written = status_json(fake.statuses[-1], before={}, now="2024-01-01T00:00:00Z")
    again = read_status(written).last_decision
    assert again is not None
    fake.start_operator(Status(last_decision=again), name="nightly")
    fake.steps(1)
    same = status_json(fake.statuses[-1], before=written, now="2024-01-01T00:01:00Z")
    assert written["lastDecision"] == same["lastDecision"]
    said = fake.announced[-1][1]
    assert ("nightly", 1) == (said.policy, len(said.decisions))


# --- a cluster that nobody uses ---------------------------------------------------------------

ENDING = dataclasses.replace(POLICY, idle=Idle(after_s=60.0, action=IdleAction.DELETE_CLUSTER))


class Unused(FakeCluster):
    """Somebody may come back between deciding and doing."""

    def __init__(self, *, back_at: int = 99) -> None:
        super().__init__(1, target=0)
        self.questions, self.back_at = 0, back_at

    async def observe(self, policy: Policy, *, meters: bool = False) -> Any:
        self.questions += 1
        seen = await super().observe(policy, meters=meters)
        quiet = Quiet() if self.questions >= self.back_at else Quiet(no_task_s=61.0)
        return dataclasses.replace(seen, quiet=quiet, demand=Demand())


def test_an_unused_cluster_is_looked_at_once_more_and_deleted() -> None:
    fake = Unused()
    fake.steps(1, ENDING)

    assert (True, 2) == (fake.cluster.is_deleted, fake.questions)
    assert [(EventType.NORMAL, Reason.CLUSTER_IDLE)] == [(e.type, e.reason) for e in fake.events]
    assert fake.last.status.last_decision
    assert "Done" == fake.last.status.last_decision.outcome


def test_one_that_is_used_again_meanwhile_is_not() -> None:
    fake = Unused(back_at=2)
    fake.steps(1, ENDING)

    assert not fake.cluster.is_deleted
    (event,) = fake.events
    assert event.message.endswith("in use again")


def test_in_advise_mode_it_is_told_once() -> None:
    fake = Unused()
    advise = dataclasses.replace(ENDING, mode=Mode.ADVISE)
    fake.steps(5, advise)

    assert not fake.cluster.is_deleted
    assert [(True, Reason.CLUSTER_IDLE)] == [(e.would, e.reason) for e in fake.events]


# --- how often is looked ----------------------------------------------------------------------


@pytest.mark.parametrize("workers", [2, 10])
def test_nobody_looks_where_time_alone_changes_nothing(workers: int) -> None:
    fake = FakeCluster(workers, target=workers if workers == 2 else 99)
    fake.step()

    assert math.inf == fake.step(after_s=1.0).again_in_s


def test_what_was_done_is_looked_at_soon() -> None:
    assert FakeCluster(2, target=4).step().again_in_s <= POLL_S


def test_questions_without_an_answer_are_counted() -> None:
    fake = FakeCluster(1, target=1)
    counts = []
    for problem in (Reason.SCHEDULER_UNREACHABLE,) * 3 + (None, Reason.SCHEDULER_UNREACHABLE):
        fake.problem = problem
        counts.append(fake.step().observed.scheduler.unanswered)

    assert [1, 2, 3, 0, 1] == counts


# --- what the page in the dashboard shows -----------------------------------------------------


def said(world: ObservedCluster, policy: Policy = POLICY, past: Past = PAST) -> PageContent:
    world = dated(world, AT)
    return page_content("nightly", world, policy, plan(world, policy, past, now=NOW), past, ())


def test_workers_are_told_what_is_planned_for_them() -> None:
    leaving = worker("d", retiring=Retiring(message="1 result to move"))
    world = cluster([worker("a"), worker("p", pins=(SHUFFLE,)), busy("b"), leaving], target=1)

    assert {
        "a": "is about to leave: idle for 1m40s, 1 needed",
        "p": "stays: pinned by shuffle 5f3a",
        "d": "leaves: 1 result to move",
    } == dict(said(world).workers)


def groups(*bounds: WorkerGroup, **changes: Any) -> Policy:
    return dataclasses.replace(POLICY, worker_groups=bounds, **changes)


ONE = cluster([busy("a")], target=2)
WITH_GPU = cluster([busy("a")], target=2, others=[group_of(GPU)])
FULL = cluster([busy("a"), pending("p", unschedulable_s=999.0)], target=5)
ADVISING = dataclasses.replace(POLICY, mode=Mode.ADVISE)


def paused(**how: Any) -> ObservedCluster:
    return dataclasses.replace(ONE, pause=Pause(**how))


@table(
    "world, policy, expected",
    up_to_the_maximum=(ONE, POLICY, 8),
    in_each_group=(WITH_GPU, groups(WorkerGroup(GPU, 4)), 12),
    within_the_clusters_limit=(
        WITH_GPU, groups(WorkerGroup(GROUP, 9), WorkerGroup(GPU, 4), max_replicas=5), 3),
    nobody_asks=(ONE, ADVISING, 0),
    paused=(paused(all=True), POLICY, 0),
    scaling_out_is_paused=(paused(scale_out=True), POLICY, 0),
    none_would_come=(FULL, POLICY, 0),
)  # fmt: skip
def test_how_many_more_may_be_asked_for(
    world: ObservedCluster, policy: Policy, expected: int
) -> None:
    known = past_of(past_of(arrival_s=20.0), group=GPU, arrival_s=90.0)
    row = said(world, policy, known)

    assert expected == row.can_grow
    assert (20.0 if expected else None) == row.grow_s
