"""
Workers whose quotas have run out make room for others: one group's recycles in one pass.

No state is needed to go on: who is due, who drains and why, and who serves, is observed. What is
remembered (`Past`) only says how long something has lasted; without it the same is done later.

Two ways. By surge: the worker does not count as serving any more, so a replacement is asked for;
when it is connected, the worker is retired, and leaves for good. In place: the worker is retired
within the budgets and counts as serving all the while; its pod is deleted, and comes back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from dask_adaptive.model.observed import Leaving, ObservedWorker
from dask_adaptive.model.plan import Blocker, Cancel, Restart, Retire
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Replacing, Strategy
from dask_adaptive.planner.asked import still_asked
from dask_adaptive.planner.budget import Headcount, count_heads
from dask_adaptive.planner.fleet import Fleet, is_replaced, set_apart
from dask_adaptive.planner.quotas import Due, has_spent
from dask_adaptive.planner.turns import Chooser, Gate, Scene, why_missing


@dataclass(frozen=True, slots=True)
class Turn:
    """What the recycles of one group come to."""

    fleet: Fleet
    heads: Headcount
    back: tuple[Cancel, ...] = ()
    retire: tuple[Retire, ...] = ()
    restart: tuple[Restart, ...] = ()
    blockers: tuple[Blocker, ...] = ()
    rows: tuple[Replacing, ...] = ()
    storm: str = ""
    left: int = 0  # recycles that maxPerHour allows beyond those that are chosen
    floors: Mapping[str, int] = field(default_factory=dict)
    waiting: frozenset[str] = frozenset()
    aborting: Mapping[str, str] = field(default_factory=dict)


def take_turns(fleet: Fleet, dues: Iterable[Due], scene: Scene) -> Turn:
    """
    Decide who is replaced now, who waits, and who that was leaving comes back.

    Args:
        fleet: As `sort_fleet` gives it.
        dues: `Assessment.due`.
    """
    failed = _failed_drains(fleet, scene)
    restarting, back = _settle_leaving(fleet, failed, scene)
    fleet = set_apart(fleet, restarting=restarting, back=[c.worker for c in back])
    heads = count_heads(fleet, scene.past, scene.desired)
    chooser = Chooser(fleet, heads, scene)
    for due in chooser.ordered(dues):
        chooser.offer(due)
    aborting = {**failed, **chooser.aborting}
    surged = {c.worker.name for c in chooser.chosen if c.by_surge}
    fleet = set_apart(fleet, replaced=surged | chooser.useless)
    gate = Gate(heads, scene)
    for candidate in chooser.chosen:
        gate.offer(candidate)
    draining = [w for w in (*fleet.retiring, *fleet.restarting) if is_replaced(w)]
    return Turn(
        fleet=fleet,
        heads=heads,
        back=back,
        retire=tuple(gate.retire),
        restart=_restarts(fleet, scene),
        blockers=(*chooser.blockers, *gate.blockers),
        rows=(*map(_drain_row, draining), *chooser.rows, *gate.rows),
        storm=chooser.storm,
        left=max(0, chooser.left),
        floors={**_floors_of(draining, scene), **gate.floors},
        waiting=frozenset(gate.waiting) | _short(draining, heads, scene),
        aborting=aborting,
    )


def is_under_way(fleet: Fleet, dues: Collection[Due]) -> bool:
    """Whether any worker of a group is being replaced, or is to be."""
    return bool(dues) or any(is_replaced(w) for w in fleet.retiring)


def _floors_of(draining: Iterable[ObservedWorker], scene: Scene) -> dict[str, int]:
    floors = scene.past.floors
    return {w.name: floors[w.name] for w in draining if w.name in floors}


def _short(
    draining: Iterable[ObservedWorker], heads: Headcount, scene: Scene
) -> frozenset[str]:  # fmt: skip
    """Draining workers whose replacement has gone again, or has not come yet."""
    floors = _floors_of(draining, scene)
    return frozenset(n for n, f in floors.items() if heads.in_service < min(f, scene.desired))


def _failed_drains(fleet: Fleet, scene: Scene) -> dict[str, str]:
    """Workers that drain, and whose replacements have not been there for too long."""
    if not scene.rules.surge:
        return {}
    since = scene.past.recycle.surging_since
    limit_s = scene.recycle.ready_timeout_s
    return {
        w.name: why_missing(fleet, scene)
        for w in fleet.retiring
        if is_replaced(w)
        and w.leaving is Leaving.DRAINING
        and not has_spent(w, scene.recycle)  # back in service it would get no task either
        and scene.now - since.get(w.name, scene.now) >= limit_s
        and fleet.in_service < min(scene.past.floors.get(w.name, 0), scene.desired)
    }


def _settle_leaving(
    fleet: Fleet, failed: Mapping[str, str], scene: Scene
) -> tuple[frozenset[str], tuple[Cancel, ...]]:
    """
    Of the workers that drain to be replaced: who comes back by itself, and who is called back.

    The others leave for good: those by surge, and those that nobody needs any more. One that
    drains for what no longer holds (its quota is gone from the policy, its annotation was taken
    back) returns to service, unless it is drained and surplus.
    """
    needed = scene.desired - len(fleet.pending) - len(fleet.active)
    restarting, back = [], []
    for worker in fleet.retiring:
        if not is_replaced(worker):
            continue
        is_needed = needed > 0 or not scene.rules.is_scaled
        if worker.name in failed:
            back.append(_cancel(worker, Reason.RECYCLE_ABORTED, failed[worker.name]))
        elif not still_asked(worker, scene.recycle, scene.policy):
            if worker.leaving is Leaving.DRAINED and not is_needed:
                continue
            back.append(_cancel(worker, Reason.WANTED_AGAIN, "there is no reason any more"))
        elif is_needed and _comes_back(worker, scene):
            restarting.append(worker.name)
        else:
            continue
        needed -= 1
    return frozenset(restarting), tuple(back)


def _comes_back(worker: ObservedWorker, scene: Scene) -> bool:
    """Whether the Deployment of a drained worker is to bring the next one."""
    if not scene.rules.is_scaled:
        return True
    if worker.leaving_reason is Reason.DRIFTED:
        return False  # it would be what it was
    if scene.recycle.strategy is Strategy.IN_PLACE or has_spent(worker, scene.recycle):
        return True
    free = scene.observed.free_gpus
    return worker.gpus > 0 and (free is None or free < worker.gpus)


def _restarts(fleet: Fleet, scene: Scene) -> tuple[Restart, ...]:
    drained = [w for w in fleet.restarting if w.leaving is Leaving.DRAINED]
    if not drained:
        return ()
    # The old process may stay known to the scheduler for a while, and the pod be the next one.
    ending = {e.worker for e in scene.observed.ending}
    done = scene.past.restarted
    drained = [w for w in drained if w.name not in done or w.pod_uid == done[w.name] != ""]
    return tuple(
        Restart(
            w.name, w.pod, w.pod_uid, w.dask_names, w.leaving_reason or Reason.RECYCLING,
            "drained: no task, no last copy",
        )
        for w in drained
        if w.pod and w.name not in ending
    )  # fmt: skip


def _cancel(worker: ObservedWorker, reason: Reason, message: str) -> Cancel:
    return Cancel(worker.name, worker.dask_names, reason, message)


def _drain_row(worker: ObservedWorker) -> Replacing:
    reason = worker.leaving_reason or Reason.RECYCLING
    return Replacing(worker.name, reason, worker.leaving_message, "Draining")
