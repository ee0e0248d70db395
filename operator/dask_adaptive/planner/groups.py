"""Sorts a group's workers by lifecycle, and compares `replicas` with the Deployments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, replace

from dask_adaptive.model.observed import (
    ObservedCluster,
    ObservedGroup,
    ObservedWorker,
    Pending,
    Retiring,
    Serving,
)
from dask_adaptive.model.past import Past
from dask_adaptive.planner.context import PassContext

#: How long `replicas` and the Deployments must differ, unchanged, until we assume that upstream is
#: idle. It creates tens of Deployments a second, so this is ample.
SETTLE_S = 30.0

#: The same if upstream is known to have acted on another number: kopf retries a failed handler
#: every 60 s, and restarts at each change of the number.
UNHANDLED_S = 150.0

#: The same if upstream has acted on this number: the group and its Deployments come from two
#: watches.
HANDLED_S = 2.0

#: Without that knowledge, upstream has seen any number that has stood this long.
SEEN_S = 10.0


#: Fewer lost workers than this never pause scaling: in a small cluster one is a large part.
AWAY_LEAST = 3

#: How long a lost worker is waited for; one without a node, for `unschedulableTimeout`.
LOST_S = 600.0


@dataclass(frozen=True, slots=True)
class GroupWorkers:
    """One group's workers, each in exactly one tuple."""

    group: ObservedGroup
    pending: tuple[ObservedWorker, ...]  # not connected
    active: tuple[ObservedWorker, ...]  # connected and in service
    noted: tuple[ObservedWorker, ...]  # of the active ones: the notable ones, see `WorkerTable`
    on_terminating_node: tuple[ObservedWorker, ...]  # in service, and free to leave their node
    retiring: tuple[ObservedWorker, ...]  # on their way out by our doing
    other: tuple[ObservedWorker, ...]  # being deleted, or being closed by somebody else
    node_terminates: frozenset[str]  # names of connected workers, those that may not leave as well
    replaced: tuple[ObservedWorker, ...] = ()  # in service until others have taken their places
    restarting: tuple[ObservedWorker, ...] = ()  # on their way out, and back by themselves

    @property
    def name(self) -> str:
        return self.group.name

    @property
    def replicas(self) -> int:
        return self.group.replicas

    @property
    def gated(self) -> tuple[ObservedWorker, ...]:
        return tuple(w for w in self.pending if w.platform.gated)

    @property
    def present(self) -> int:
        """Existing Deployments; upstream counts those being deleted as well."""
        return len(self.group.workers)

    @property
    def serving(self) -> int:
        """Workers that serve the load or will once connected, without those that are to leave."""
        return len(self.pending) + len(self.active) + len(self.restarting)

    @property
    def in_service(self) -> int:
        """Connected workers that serve, if only for a while."""
        return len(self.active) + len(self.replaced)

    @property
    def recallable(self) -> tuple[ObservedWorker, ...]:
        """Retiring workers that can return to service for good."""
        return tuple(
            w for w in self.retiring if w.name not in self.node_terminates and not w.is_replaced
        )

    @property
    def gap(self) -> int:
        """Requested workers that do not exist; negative: too many exist."""
        return self.replicas - self.present


def sort_workers(
    group: ObservedGroup, deleted: Collection[str] = (), *, heed_nodes: bool = True
) -> GroupWorkers:
    """
    Sort a group's workers by their lifecycle.

    A worker on a terminating node that is pinned, or holds actors, stays `active`.

    Args:
        heed_nodes: Whether news of terminating nodes counts.
        deleted: Workers whose deletion was sent: past saving, whatever the platform still shows.
    """
    table = group.table
    rows: dict[str, list[ObservedWorker]] = defaultdict(list)
    node_terminates, elsewhere = set[str](), list[str]()
    for worker in table.notable_and(deleted):
        is_heeded = heed_nodes and bool(worker.platform.node_terminating)
        if is_heeded and worker.dask_names:
            node_terminates.add(worker.name)
        is_past_saving = worker.name in deleted
        place = "other" if is_past_saving else _place(worker, node_terminates=is_heeded)
        rows[place].append(worker)
        if place != "active":
            elsewhere.append(worker.name)
    return GroupWorkers(
        group=group,
        pending=tuple(rows["pending"]),
        active=table.without(elsewhere),
        noted=tuple(rows["active"]),
        on_terminating_node=tuple(rows["on_terminating_node"]),
        retiring=tuple(rows["retiring"]),
        other=tuple(rows["other"]),
        node_terminates=frozenset(node_terminates),
    )


def _place(worker: ObservedWorker, *, node_terminates: bool) -> str:
    match worker.lifecycle:
        case Serving():
            is_free = node_terminates and not worker.is_pinned and not worker.process.actors
            return "on_terminating_node" if is_free else "active"
        case Pending(terminating):
            # On a terminating node its pod waits until others have taken its data, so no successor
            # starts.
            return "other" if terminating and node_terminates else "pending"
        case Retiring():
            return "retiring"
    return "other"


def set_apart(
    workers: GroupWorkers,
    *,
    replaced: Collection[str] = (),
    restarting: Collection[str] = (),
    back: Collection[str] = (),
) -> GroupWorkers:
    """
    Sort workers once more, by their recycles.

    Args:
        replaced: Active workers whose places others are to take.
        restarting: Retiring ones that come back by themselves.
        back: Retiring ones that are called back now.
    """
    if not (replaced or restarting or back):
        return workers
    returned = tuple(w for w in workers.retiring if w.name in back)
    active, noted = (*workers.active, *returned), (*workers.noted, *returned)
    restarted = tuple(w for w in workers.retiring if w.name in restarting)
    return replace(
        workers,
        active=tuple(w for w in active if w.name not in replaced),
        noted=tuple(w for w in noted if w.name not in replaced),
        replaced=tuple(w for w in active if w.name in replaced),
        restarting=(*workers.restarting, *restarted),
        retiring=tuple(w for w in workers.retiring if w.name not in {*restarting, *back}),
    )


def with_worker_groups(past: Past, observed: ObservedCluster) -> Past:
    """
    Return the past with a group for each leaving worker.

    Of one that is gone by the time a new operator first looks, only the name is known: upstream
    names workers after their group (`build_worker_deployment_spec`), and groups after nothing.
    """
    if not past.leaving:
        return past
    # Of names that begin alike the longest is the last.
    names = sorted((g.name for g in observed.groups), reverse=True)

    def home(worker: str) -> str:
        present = observed.worker(worker)
        known = present.platform.group if present else past.homes.get(worker)
        alike = (n for n in names if worker.startswith(f"{n}-"))
        return known or next(alike, observed.key.default_group)

    return replace(past, homes={name: home(name) for name in past.leaving})


def gap_of(group: ObservedGroup) -> tuple[int, ...]:
    """Return the figures that change when upstream acts on a group's number."""
    handled = () if group.handled is None else (group.handled,)
    return (group.replicas, len(group.workers), *handled)


def is_creating(context: PassContext, workers: GroupWorkers) -> bool:
    """
    True if upstream may still be creating or removing workers to match `replicas`.

    Then `replicas` must not be lowered: upstream acts on changes of the field, and a number below
    what it is about to make would have it choose victims itself (docs/explanation/decisions.md).
    kopf notes the number that upstream has acted on when its handler is through
    (`daskworkergroup_replica_update` in its `last-handled-configuration`): where that is known,
    nothing is guessed from the gap.
    """
    mine = context.past.of(workers.name)
    rest_s = context.now - mine.gap_since if mine.gap == gap_of(workers.group) else 0.0
    if workers.group.handled is not None and workers.group.handled != workers.replicas:
        return rest_s < UNHANDLED_S
    if workers.gap == 0 or workers.gap == _explained_gap(context.past, workers.group):
        return False
    limit_s = SETTLE_S if workers.group.handled is None else HANDLED_S
    return rest_s < limit_s


def is_unseen(context: PassContext, workers: GroupWorkers, replicas: int) -> bool:
    """
    True if upstream might see no change in this number, and create no worker.

    kopf compares with what it has handled last: if it looks only when the number is that again,
    nothing has changed. First it has to see the number before.
    """
    if workers.group.handled is not None:
        return replicas == workers.group.handled != workers.replicas
    corrected_at = context.past.of(workers.name).corrected_at
    return corrected_at is not None and context.now - corrected_at < SEEN_S


def on_the_way(context: PassContext, workers: GroupWorkers) -> int:
    """Count the workers that upstream is about to create."""
    if not is_creating(context, workers):
        return 0
    return max(0, workers.gap - _explained_gap(context.past, workers.group))


def is_deleting(context: PassContext, workers: GroupWorkers) -> bool:
    """True if the platform still shows a worker whose deletion was sent."""
    return bool(workers.group.table.named(context.past.deleted))


def _explained_gap(past: Past, group: ObservedGroup) -> int:
    """Count the missing workers that we deleted."""
    missing = (name for name in past.leaving if name not in group.table.positions)
    return sum(past.homes.get(name) == group.name for name in missing)


def too_many_away(context: PassContext) -> str:
    """
    Return why nothing is scaled, if more workers are lost than `maxUnready`.

    Then something is wrong with more than the load (a network, a registry, a zone), and what the
    scheduler says of load is as wrong. What never connected, or we let go or replace, is not away,
    and one that does not come back is given up in time, so that others may come.

    Source:
        cluster-autoscaler, `--max-total-unready-percentage` (45) and `--ok-total-unready-count`
        (3; there more than so many stop it, here as many do: clusters of workers are smaller).
    """
    past, most = context.past, context.policy.max_unready
    observed = context.observed
    lost = (w for w in observed.notable if not w.dask_names and w.name in past.seen)
    away = sum(not _is_let_go(w, context) for w in lost)
    if away < AWAY_LEAST:
        return ""
    known = away + sum(w.is_connected and not _is_let_go(w, context) for w in observed.workers)
    if away <= most * known:
        return ""
    return (
        f"{away} of {known} connected workers are lost, more than {most:.0%}"
        " (maxUnready): nothing is scaled until they are back, or given up"
    )


def _is_let_go(worker: ObservedWorker, context: PassContext) -> bool:
    past = context.past
    if worker.is_deleting or worker.retiring is not None or worker.platform.gated:
        return True  # gated: the queue took it, and will bring it back
    if worker.name in past.leaving or worker.name in past.restarted:
        return True
    if not worker.is_connected:  # lost for too long: given up, like one that never came
        is_placed = worker.platform.unscheduled_at is None
        most_s = LOST_S if is_placed else context.policy.unschedulable_timeout_s
        if context.now - past.lost.get(worker.name, context.now) >= most_s:
            return True
    # Replaced in place: its next pod is expected; later it is away like any other.
    recycled = past.counted.get(worker.name)
    if recycled is None or recycled == worker.platform.pod_uid:
        return False
    limit_s = context.policy.recycle_of(worker.platform.group).strategy.ready_timeout_s
    return context.clocks.pod_age_s(worker) < limit_s
