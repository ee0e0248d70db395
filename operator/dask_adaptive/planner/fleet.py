"""A worker group sorted by what its workers are doing, and how far `replicas` is from the truth."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from dask_adaptive.model.observed import (
    Leaving,
    ObservedCluster,
    ObservedGroup,
    ObservedWorker,
)
from dask_adaptive.model.past import Past

#: How long `replicas` and the Deployments must disagree, unchanged, before we take it that nobody
#: is at work on it. Upstream's operator makes tens of Deployments a second; this is far above.
SETTLE_S = 30.0

#: The same where the group says which number upstream has acted on last, and it is another one:
#: kopf tries a handler that fails again every 60 s, and begins anew at each change of the number.
UNHANDLED_S = 150.0

#: The same where it is this one. The group and its Deployments are seen through two watches.
HANDLED_S = 2.0


@dataclass(frozen=True, slots=True)
class Fleet:
    """
    One group's workers, each in exactly one of `pending`, `active`, `replaced`, `doomed`,
    `restarting`, `retiring`, `other`.
    """

    name: str
    replicas: int
    handled: int | None  # the number of replicas that upstream has acted on last
    present: int  # Deployments that exist, those being deleted included: upstream counts them too
    pending: tuple[ObservedWorker, ...]  # not connected
    active: tuple[ObservedWorker, ...]  # connected and in service
    doomed: tuple[ObservedWorker, ...]  # in service on a machine that goes, and free to leave it
    retiring: tuple[ObservedWorker, ...]  # on their way out by our doing
    other: tuple[ObservedWorker, ...]  # being deleted, or being closed by somebody else
    on_doomed_nodes: frozenset[str]  # connected workers on such machines, held or draining ones too
    replaced: tuple[ObservedWorker, ...] = ()  # in service until others have taken their places
    restarting: tuple[ObservedWorker, ...] = ()  # on their way out, and back by themselves

    @property
    def serving(self) -> int:
        """Workers that serve the load, or will once they are up; not those that are to leave."""
        return len(self.pending) + len(self.active) + len(self.restarting)

    @property
    def in_service(self) -> int:
        """Workers that are connected and serve, for however long."""
        return len(self.active) + len(self.replaced)

    @property
    def workers(self) -> Iterator[ObservedWorker]:
        yield from self.pending
        yield from self.active
        yield from self.replaced
        yield from self.doomed
        yield from self.restarting
        yield from self.retiring
        yield from self.other

    @property
    def connected(self) -> int:
        return sum(w.is_connected for w in self.workers)

    @property
    def leaving_unneeded(self) -> int:
        """Workers on their way out because they are not needed, not to make room for others."""
        return sum(not is_replaced(w) for w in self.retiring)

    @property
    def recallable(self) -> int:
        """Workers on their way out that can come back to service, and stay."""
        return sum(w.name not in self.on_doomed_nodes and not is_replaced(w) for w in self.retiring)

    @property
    def gap(self) -> int:
        """Workers that were asked for and do not exist; negative: too many exist."""
        return self.replicas - self.present


def is_replaced(worker: ObservedWorker) -> bool:
    """Whether a worker that is on its way out makes room for another."""
    return worker.leaving_reason is not None and worker.leaving_reason.replaces


def sort_fleet(
    group: ObservedGroup, deleted: Collection[str] = (), *, heed_nodes: bool = True
) -> Fleet:
    """
    Sort a group's workers.

    A doomed worker that is pinned, or holds actors, stays `active`: it goes on serving until its
    pin ends or its machine does.

    Args:
        heed_nodes: Whether news of machines that are about to go counts.
        deleted: Workers whose deletion was sent and is not yet seen: past saving, whatever the
            platform still shows of them.
    """
    rows: dict[str, list[ObservedWorker]] = {
        "pending": [], "active": [], "doomed": [], "retiring": [], "other": [],
    }  # fmt: skip
    on_doomed_nodes = set()
    for worker in group.workers:
        if heed_nodes and worker.node_going and worker.is_connected:
            on_doomed_nodes.add(worker.name)
        place = "other" if worker.name in deleted else _place(worker)
        if heed_nodes and worker.node_going:
            place = _place_on_doomed_node(worker, place)
        rows[place].append(worker)
    return Fleet(
        name=group.name,
        replicas=group.replicas,
        handled=group.handled,
        present=len(group.workers),
        pending=tuple(rows["pending"]),
        active=tuple(rows["active"]),
        doomed=tuple(rows["doomed"]),
        retiring=tuple(rows["retiring"]),
        other=tuple(rows["other"]),
        on_doomed_nodes=frozenset(on_doomed_nodes),
    )


def set_apart(
    fleet: Fleet,
    *,
    replaced: Collection[str] = (),
    restarting: Collection[str] = (),
    back: Collection[str] = (),
) -> Fleet:
    """
    Sort a fleet once more, by what its recycles come to.

    Args:
        replaced: Of the active workers those whose places others are to take.
        restarting: Of the retiring ones those that come back by themselves.
        back: Of the retiring ones those that are called back now.
    """
    if not (replaced or restarting or back):
        return fleet
    active = (*fleet.active, *(w for w in fleet.retiring if w.name in back))
    return replace(
        fleet,
        active=tuple(w for w in active if w.name not in replaced),
        replaced=tuple(w for w in active if w.name in replaced),
        restarting=(*fleet.restarting, *(w for w in fleet.retiring if w.name in restarting)),
        retiring=tuple(
            w for w in fleet.retiring if w.name not in restarting and w.name not in back
        ),
    )


def _place(worker: ObservedWorker) -> str:
    if worker.going:
        return "other"
    if not worker.is_connected:
        return "pending"
    if worker.leaving is not Leaving.NO:
        return "retiring"
    return "active" if worker.in_service else "other"


def _place_on_doomed_node(worker: ObservedWorker, place: str) -> str:
    if place == "active" and not worker.is_pinned and not worker.actors:
        return "doomed"
    # It has been told to leave, and waits for others to take what it has: its pod does not end
    # before, so none comes in its place (an eviction that is put off).
    return "other" if place == "pending" and worker.ending else place


def homed(past: Past, observed: ObservedCluster) -> Past:
    """
    The past with a group for each worker that is leaving.

    Of one that is gone by the time a new operator first looks, only the name is known: upstream
    names workers after their group (`build_worker_deployment_spec`), and groups after nothing.
    """
    if not past.leaving:
        return past
    present = {w.name: g.name for g in observed.groups for w in g.workers}
    # Of names that begin alike the longest is the last.
    names = sorted((g.name for g in observed.groups), reverse=True)

    def home(worker: str) -> str:
        known = present.get(worker) or past.homes.get(worker)
        alike = (n for n in names if worker.startswith(f"{n}-"))
        return known or next(alike, observed.key.default_group)

    return replace(past, homes={name: home(name) for name in past.leaving})


def explained_gap(group: ObservedGroup, past: Past) -> int:
    """How many of the missing workers are missing because we took them away."""
    missing = past.leaving - {w.name for w in group.workers}
    return sum(past.homes.get(name, group.name) == group.name for name in missing)


def gap_of(group: ObservedGroup) -> tuple[int, ...]:
    """What changes when somebody acts on a group's number of workers."""
    handled = () if group.handled is None else (group.handled,)
    return (group.replicas, len(group.workers), *handled)


def is_creating(fleet: Fleet, group: ObservedGroup, past: Past, *, now: float) -> bool:
    """
    Whether upstream may still be making, or removing, workers to match `replicas`.

    Then `replicas` must not be lowered: upstream acts on changes of the field, and a number below
    what it is about to make would have it choose victims itself (facts 2 and 9a). kopf notes the
    number that upstream has acted on when its handler is through (`daskworkergroup_replica_update`
    in its `last-handled-configuration`): where that is known, nothing is guessed from the gap.
    """
    mine = past.of(group.name)
    rest_s = now - mine.gap_since if mine.gap == gap_of(group) else 0.0
    if fleet.handled is not None and fleet.handled != fleet.replicas:
        return rest_s < UNHANDLED_S
    if fleet.gap == 0 or fleet.gap == explained_gap(group, past):
        return False
    return rest_s < (SETTLE_S if fleet.handled is None else HANDLED_S)


def on_the_way(fleet: Fleet, group: ObservedGroup, past: Past, *, now: float) -> int:
    """How many workers upstream has been asked for and is about to make."""
    if not is_creating(fleet, group, past, now=now):
        return 0
    return max(0, fleet.gap - explained_gap(group, past))


def is_deleting(group: ObservedGroup, past: Past) -> bool:
    """Whether a worker whose deletion was sent is still to be seen."""
    return bool(past.deleted and past.deleted & {w.name for w in group.workers})
