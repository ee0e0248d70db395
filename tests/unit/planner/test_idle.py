"""When nobody uses a cluster, and what becomes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dask_adaptive.model.observed import (
    Demand,
    ObservedCluster,
    Pin,
    PrefixWork,
    Quiet,
    Shuffle,
    UpcomingShuffle,
    Want,
)
from dask_adaptive.model.plan import DeleteCluster, Step
from dask_adaptive.model.policy import Mode
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.scaling import Idle, IdleAction
from support.tables import table
from support.worlds import busy, cluster, decide, worker

HOUR_S = 3600.0
LONG = Quiet(no_task_s=2 * HOUR_S)
LEFT = Quiet(no_task_s=60.0, no_client_s=2 * HOUR_S)
AFTER = Idle(after_s=HOUR_S)
NO_CLIENT = Idle(no_client_timeout_s=HOUR_S)


def quiet(workers: Any = None, *, quiet: Quiet = LONG, **changes: Any) -> ObservedCluster:
    scheduler = {k: v for k, v in changes.items() if k not in {"pause", "conflict", "found", "uid"}}
    world = cluster([worker("a")] if workers is None else workers, quiet=quiet, **scheduler)
    rest = {k: v for k, v in changes.items() if k not in scheduler}
    return replace(world, **{"uid": "uid-1", **rest})


def with_worker(**changes: Any) -> ObservedCluster:
    world = quiet()
    (process,) = world.scheduler.workers
    scheduler = replace(world.scheduler, workers=(replace(process, **changes),))
    return replace(world, scheduler=scheduler)


def work(**counts: int) -> Demand:
    known = {"running": 0, "ready": 0, "waiting": 0, **counts}
    return Demand(prefixes=(PrefixWork("inc", 1.0, **known),))


def unused(world: ObservedCluster, idle: Idle) -> tuple[bool, bool]:
    """Whether minimums do not hold, and whether it would be deleted."""
    return bool(idle_steps(world, idle)), bool(deletions(world, idle))


def idle_steps(world: ObservedCluster, idle: Idle) -> list[Step]:
    zero = replace(idle, action=IdleAction.SCALE_TO_ZERO)
    groups = decide(world, min_replicas=1, idle=zero).groups
    return [s for group in groups for s in group.steps if s.stage == "idle"]


def deletions(world: ObservedCluster, idle: Idle, **policy: Any) -> list[DeleteCluster]:
    away = replace(idle, action=IdleAction.DELETE_CLUSTER)
    actions = decide(world, idle=away, **policy).actions
    return [action for action in actions if isinstance(action, DeleteCluster)]


YES, NO, ONLY_ZERO = (True, True), (False, False), (True, False)
PIN = Pin("client", "me", "", 60.0)


@table(
    "world, idle, expected",
    just_long_enough=(quiet(quiet=Quiet(no_task_s=HOUR_S)), AFTER, YES),
    in_use_however_short_the_time=(quiet(quiet=Quiet()), Idle(after_s=0.0), NO),
    a_client_is_there_however_short_the_time=(quiet(quiet=Quiet(no_task_s=9.0)),
        Idle(no_client_timeout_s=0.0), NO),
    fire_and_forget_runs=(quiet([busy("a")], quiet=LEFT), NO_CLIENT, NO),
    fire_and_forget_is_queued=(quiet(quiet=LEFT, queued=1), NO_CLIENT, NO),
    waits_for_another_worker=(quiet(quiet=LEFT, held=1), NO_CLIENT, NO),
    all_done=(quiet(quiet=LEFT, demand=work(done=9)), NO_CLIENT, YES),
    a_shuffle_is_ahead=(quiet(demand=Demand(shuffles=(UpcomingShuffle(0, 3),))), AFTER, NO),
    a_shuffle_runs=(quiet(shuffles=(Shuffle(1, 1),)), AFTER, NO),
    somebody_wants_a_worker=(quiet(wants=(Want(1, 0.5, "me"),)), AFTER, NO),
    the_want_is_over=(quiet(wants=(Want(2, 0.0, "me"),)), AFTER, YES),
    pinned=(quiet([worker("a", pins=(PIN,))]), AFTER, NO),
    pinned_and_not_ours=(with_worker(pins=(PIN,)), AFTER, NO),
    a_client_holds_results=(with_worker(sole_bytes=1), AFTER, ONLY_ZERO),
    actors=(with_worker(actors=True), AFTER, ONLY_ZERO),
    nobody_there_knows=(quiet(problem=Reason.AGENT_MISSING), AFTER, NO),
)  # fmt: skip
def test_unused(world: ObservedCluster, idle: Idle, expected: tuple[bool, bool]) -> None:
    assert expected == unused(world, idle)


def test_results_that_nobody_can_read_do_not_keep_a_cluster() -> None:
    world = with_worker(sole_bytes=1)
    alone = replace(world, scheduler=replace(world.scheduler, quiet=Quiet(2 * HOUR_S, 1.0)))

    assert YES == unused(alone, AFTER)


@pytest.mark.parametrize("mode", [Mode.ADVISE, Mode.PAUSED])
def test_only_mode_auto_deletes(mode: Mode) -> None:
    assert deletions(quiet(), AFTER)
    assert not deletions(quiet(), AFTER, mode=mode)
