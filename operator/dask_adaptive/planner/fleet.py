"""A worker group sorted by what its workers are doing, and how far `replicas` is from the truth."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from dask_adaptive.model.observed import Leaving, ObservedGroup, ObservedWorker
from dask_adaptive.model.past import Past

#: How long `replicas` and the Deployments must disagree, unchanged, before we take it that nobody
#: is at work on it. Upstream's operator makes tens of Deployments a second; this is far above.
SETTLE_S = 30.0


@dataclass(frozen=True, slots=True)
class Fleet:
    """
    One group's workers, each in exactly one of `pending`, `active`, `doomed`, `retiring`, `other`.
    """

    name: str
    replicas: int
    present: int  # Deployments that exist, those being deleted included: upstream counts them too
    pending: tuple[ObservedWorker, ...]  # not connected
    active: tuple[ObservedWorker, ...]  # connected and in service
    doomed: tuple[ObservedWorker, ...]  # in service on a machine that goes, and free to leave it
    retiring: tuple[ObservedWorker, ...]  # on their way out by our doing
    other: tuple[ObservedWorker, ...]  # being deleted, or being closed by somebody else
    on_doomed_nodes: frozenset[str]  # connected workers on such machines, held or draining ones too

    @property
    def serving(self) -> int:
        """Workers that serve the load, or will once they are up; not those that are doomed."""
        return len(self.pending) + len(self.active)

    @property
    def gap(self) -> int:
        """Workers that were asked for and do not exist; negative: too many exist."""
        return self.replicas - self.present


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
        present=len(group.workers),
        pending=tuple(rows["pending"]),
        active=tuple(rows["active"]),
        doomed=tuple(rows["doomed"]),
        retiring=tuple(rows["retiring"]),
        other=tuple(rows["other"]),
        on_doomed_nodes=frozenset(on_doomed_nodes),
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


def explained_gap(group: ObservedGroup, past: Past) -> int:
    """How many of the missing workers are missing because we took them away."""
    return len(past.leaving - {w.name for w in group.workers})


def is_creating(fleet: Fleet, group: ObservedGroup, past: Past, *, now: float) -> bool:
    """
    Whether upstream may still be making, or removing, workers to match `replicas`.

    Then `replicas` must not be lowered: upstream acts on changes of the field, and a number below
    what it is about to make would have it choose victims itself (facts 2 and 9a).
    """
    if fleet.gap == explained_gap(group, past):
        return False
    is_same = past.gap == (fleet.replicas, fleet.present)
    return fleet.gap != 0 and not (is_same and now - past.gap_since >= SETTLE_S)
