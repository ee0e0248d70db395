"""
Renders a pass as a `Status`; lists pins and the workers that they hold, for the status and metrics.
Pure.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from types import MappingProxyType
from typing import Any

from dask_adaptive.loop.conditions import conditions_of
from dask_adaptive.loop.join import owner_in
from dask_adaptive.loop.status import GroupRow, HeldBy, SchedulerRow, Status, WorkerRow, steady
from dask_adaptive.loop.words import about, worker_row, worker_state
from dask_adaptive.model.observed import ObservedCluster, ObservedWorker, Pin, PlatformView
from dask_adaptive.model.plan import Blocker, Decision, Delete, Outcome, Plan, Restart, Retire
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Recycle, Replacing
from dask_adaptive.planner.context import IdleTime, scaled_groups
from dask_adaptive.planner.groups import GroupWorkers, sort_workers
from dask_adaptive.planner.plan import count_blockers

#: Entries in one status, because API objects should stay small. Rows are those of workers and pins.
MAX_ROWS, MAX_GROUPS, MAX_RECENT = 100, 50, 200

#: Workers that are named in the row of a pin.
MAX_NAMES = 10

NONE: Mapping[Any, Any] = MappingProxyType({})

#: Everyday vetoes: counted, but without a row.
USUAL = frozenset({Reason.BUSY, Reason.IDLE_GRACE})


class Calendar:
    """
    Converts instants of the monotonic clock to dates, each only once: repeated conversions differ
    by milliseconds, and an unchanged world must give an unchanged status.

    Args:
        recent: Seconds since 1970 at which recycles began, from an earlier process's status.
    """

    def __init__(self, recent: Iterable[float] = ()) -> None:
        self._recent = tuple(recent)
        self._at: dict[float, float] = {}

    def begun(self, view: PlatformView, now: float) -> tuple[float, ...]:
        """
        Recycles begun by an earlier process, on the clock of `now`; only the first call
        returns them.
        """
        if not self._recent or not view.at:
            return ()
        begun = [(now - (view.at - at), at) for at in self._recent if at <= view.at]
        self._at, self._recent = dict(begun), ()
        return tuple(sorted(instant for instant, _ in begun))

    def dates(
        self, begun: Iterable[float], observed: ObservedCluster, now: float
    ) -> tuple[float, ...]:
        """Return the last of these instants in whole seconds since 1970, never in the future."""
        if not observed.at:
            return ()
        self._at = {b: self._at.get(b) or float(math.floor(observed.at - (now - b))) for b in begun}
        return tuple(sorted(self._at[b] for b in begun)[-MAX_RECENT:])


def wants_meters(view: PlatformView, policy: Policy) -> bool:
    """True if anything has a quota: the policy, a group in it, or a worker that ends."""
    every = (policy.recycle, *policy.group_recycle.values())
    if any(replace(recycle, max_per_hour=None) != Recycle() for recycle in every):
        return True
    return any(w.ends_at < math.inf for w in view.workers)


def status_of(
    observed: ObservedCluster, policy: Policy, decided: Plan, outcomes: Sequence[Outcome],
    *, now: float, before: Status | None = None, recycled: Mapping[Reason, int] = NONE,
    recent: tuple[float, ...] = (), unheard: str = "", last: Decision | None = None,
    idle: Mapping[str, IdleTime] = NONE, generation: int = 0,
) -> Status:  # fmt: skip
    """
    Render one pass. Two equal worlds give two equal values: no number in it counts time.

    Args:
        now: Seconds on the clock that stamped `before`.
        before: The last status; ends of pins that have not really moved are kept from it.
        recycled: Replacements begun, by reason.
        recent: Dates of those for quotas within the last hour, from `Calendar.dates`.
        unheard: Why limits could not be sent to the agent; empty: they were.
        generation: Generation of the spec that `policy` was read from.
    """
    scheduler = observed.scheduler
    scaled = [group for group, _ in scaled_groups(observed, policy)]
    groups = [sort_workers(g, heed_nodes=policy.disruption.node_signals) for g in scaled]
    noted = [w for g in groups for w in (*g.noted, *g.on_terminating_node)]
    serving = sum(g.table.usual.workers for g in scaled) + len(noted)
    busy = sum(g.table.usual.busy for g in scaled) + sum(w.process.processing > 0 for w in noted)
    return Status(
        generation=generation,
        replicas=sum(group.replicas for group in scaled),
        desired=decided.desired,
        wanted=decided.wanted,
        connected=sum(len(g.table.connected) for g in scaled),
        pending=sum(len(g.pending) for g in groups),
        idle=serving - busy,
        busy=busy,
        pinned=sum(w.is_pinned for g in scaled for w in g.table.notable),
        retiring=sum(len(g.retiring) for g in groups),
        reason=decided.reason,
        message=decided.message,
        held_by=held_by(observed, before.held_by if before else (), now=now),
        blockers=dict(count_blockers(decided.blockers)),
        pending_reasons=_pending_reasons(groups),
        workers=tuple(islice(_rows(observed, groups, decided, outcomes), MAX_ROWS)),
        groups=tuple(group_rows(groups, decided, idle))[:MAX_GROUPS],
        last_decision=last,
        recycled=dict(sorted(recycled.items())),
        recent=recent,
        scheduler=SchedulerRow(
            scheduler.distributed,
            scheduler.agent,
            scheduler.tls_secret,
            {str(relief.name): relief.state for relief in scheduler.relief},
        ),
        conditions=conditions_of(observed, policy, decided, outcomes, unheard=unheard),
    )


def _pending_reasons(groups: Sequence[GroupWorkers]) -> dict[str, int]:
    pending = [w for workers in groups for w in workers.pending]
    counts = Counter((w.waiting or "Starting").partition(":")[0] for w in pending)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def group_rows(
    groups: Sequence[GroupWorkers], decided: Plan, idle: Mapping[str, IdleTime]
) -> Iterator[GroupRow]:
    plans = {plan.group: plan for plan in decided.groups}
    for workers in groups:
        plan, auto = plans.get(workers.name), idle.get(workers.name)
        yield GroupRow(
            name=workers.name,
            replicas=workers.replicas,
            desired=plan.desired if plan else workers.serving,
            wanted=plan.wanted if plan else 0,
            connected=len(workers.group.table.connected),
            pending=len(workers.pending),
            reason=plan.reason if plan else decided.reason,
            message=plan.message if plan else decided.message,
            start_seconds=round(auto.start_s) if auto else None,
            move_seconds=round(auto.move_s) if auto else None,
        )


def _rows(
    observed: ObservedCluster,
    groups: Sequence[GroupWorkers],
    decided: Plan,
    outcomes: Sequence[Outcome],
) -> Iterator[WorkerRow]:
    # Report completed actions at once: if this operator dies before its next pass, the status still
    # names the workers whose absence explains why `replicas` is too high.
    done = {about(o.action): o.action for o in outcomes if o.done}
    blocked = {b.worker: b for b in decided.blockers if b.reason not in USUAL}
    due = {r.worker: r for r in decided.replacing}
    node_terminates = frozenset().union(*(g.node_terminates for g in groups))
    named = done.keys() | blocked.keys() | due.keys()
    notable = named | {worker.name for worker in observed.notable}
    for worker in chain(_in_order(groups, named), _of_other_groups(observed, groups, due)):
        if worker.name not in notable:
            continue
        match done.get(worker.name):
            case Retire(_, _, reason, message):
                word = reason if reason.replaces else Reason.RETIRING
                yield WorkerRow(worker.name, "Draining", word, message)
                continue
            case Delete(_, _, reason, message) | Restart(_, _, reason, message):
                yield WorkerRow(worker.name, "Going", reason, message)
                continue
        is_exposed = worker.name in node_terminates
        row = worker_row(worker, is_exposed=is_exposed)
        blocker = blocked.get(worker.name)
        if blocker is not None and (row is None or is_exposed):
            row = (blocker.reason, blocker.message)
        state = worker_state(worker)
        if (replacing := due.get(worker.name)) is not None:
            row = _due(replacing, worker, row, blocker)
            state = replacing.state if state == "Active" else state
        if row is not None:
            yield WorkerRow(worker.name, state, *row)


def _in_order(groups: Sequence[GroupWorkers], named: Collection[str]) -> Iterator[ObservedWorker]:
    """Sort rows by importance: a status has room for a limited number."""
    active = [g.active if named else g.noted for g in groups]  # few are both usual and named
    rows = [
        (g.retiring, g.on_terminating_node, g.other, serving, g.pending)
        for g, serving in zip(groups, active, strict=True)
    ]
    for row in zip(*rows, strict=True):
        for workers in row:
            yield from workers


def _of_other_groups(
    observed: ObservedCluster, groups: Sequence[GroupWorkers], due: Mapping[str, Replacing]
) -> Iterator[ObservedWorker]:
    """Yield the workers of unscaled groups that are to be replaced or are cordoned."""
    scaled = {workers.name for workers in groups}
    for group in observed.groups:
        if group.name not in scaled:
            workers = group.table.notable_and(due)
            yield from (w for w in workers if w.name in due or w.process.cordon is not None)


def _due(
    replacing: Replacing, worker: ObservedWorker, row: tuple[Reason, str] | None,
    blocker: Blocker | None,
) -> tuple[Reason, str]:  # fmt: skip
    """Return reason and message of a worker at a quota, with what delays its replacement."""
    if blocker is not None:
        row = (blocker.reason, blocker.message)
    if row is None:
        return replacing.reason, replacing.message
    reason, message = row
    if not message.startswith(replacing.message):
        message = f"{replacing.message}; {message}"
    is_by_quota = worker.retiring is not None or reason is Reason.QUOTA_REACHED
    return replacing.reason if is_by_quota else reason, message


def pins_of(observed: ObservedCluster, *, now: float) -> list[HeldBy]:
    """
    List the pins that hold workers of the cluster now, strangers included; the leases of one owner
    for one reason are one pin. Sorted by the number of workers held.

    Args:
        now: Current time on the clock in which ends are returned.
    """
    at = observed.scheduler.at
    found = defaultdict[tuple[str, str, str], list[tuple[Pin, list[str]]]](list)
    for pin, names in _holding(observed):
        found[pin.source, pin.owner, pin.reason].append((pin, names))
    rows = []
    for key, leases in found.items():
        workers = sorted({name for _, names in leases for name in names})
        left_s = max(max(pin.latest, pin.until) for pin, _ in leases) - at
        for_s = at - min(pin.since for pin, _ in leases)
        held = HeldBy(*key, tuple(workers), len(workers), now + left_s, left_s, for_s)
        rows.append(held)
    return sorted(rows, key=lambda row: (-row.count, row.key))


def _holding(observed: ObservedCluster) -> Iterable[tuple[Pin, list[str]]]:
    """Map each pin to its workers, named by their Deployments where they have one."""
    # By identity: the workers that one pin holds share it, and there may be thousands of each.
    found: dict[int, tuple[Pin, list[str]]] = {}
    for process in (p for p in observed.scheduler.workers if p.pins):
        name = owner_in(observed, process.name) or process.name
        for pin in process.pins:
            if (row := found.get(id(pin))) is None:
                row = found[id(pin)] = (pin, [])
            row[1].append(name)
    return found.values()


def held_by(
    observed: ObservedCluster, before: Sequence[HeldBy], *, now: float
) -> tuple[HeldBy, ...]:
    """
    Render the pins as rows of a status, in a stable order.

    Args:
        before: The last rows; ends that have not really moved are kept from them.
    """
    old = {row.key: row.until for row in before}
    return tuple(
        replace(row, workers=row.workers[:MAX_NAMES], until=steady(row.until, old.get(row.key)))
        for row in pins_of(observed, now=now)[:MAX_ROWS]
    )
