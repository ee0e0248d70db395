"""Who holds which workers, as rows for people and for metrics. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from dask_adaptive.loop.names import owner
from dask_adaptive.loop.status import HeldBy
from dask_adaptive.model.observed import ObservedCluster, Pin
from dask_adaptive.model.policy import Policy
from dask_adaptive.planner.pins import OWNER

#: Workers that are named in one row, and rows in one status.
MAX_NAMES, MAX_ROWS = 10, 100

#: The end of a pin is told anew when it moves by more than this; less is two clocks, or a renewal.
SLACK_S = 30.0


class Claim(NamedTuple):
    """One pin: all leases of one owner for one reason."""

    source: str
    owner: str
    reason: str


class Held(NamedTuple):
    """What one pin holds. Times in seconds from now."""

    workers: frozenset[str]
    latest_s: float  # until it ends however often it is renewed
    for_s: float  # since it was first set


def pins_of(observed: ObservedCluster, manual_max_s: float = math.inf) -> dict[Claim, Held]:
    """
    Every pin that holds a worker of the cluster now, those of strangers included.

    Args:
        manual_max_s: The cap for annotations that no agent has made a lease of.
    """
    rows: dict[Claim, Held] = {}
    for pin, workers in _holding(observed):
        claim = Claim(pin.source, pin.owner, pin.reason)
        held = Held(frozenset(workers), max(pin.latest_s, pin.left_s), pin.for_s)
        rows[claim] = _together(rows.get(claim), held)
    if observed.scheduler.agent:
        return rows
    # Nobody holds leases: our own vetoes go by the annotations.
    for worker in (w for g in observed.groups for w in g.workers):
        asked = worker.manual_pin
        if asked is not None:
            claim = Claim("manual", OWNER, asked.reason)
            held = Held(frozenset({worker.name}), min(asked.left_s, manual_max_s), 0.0)
            rows[claim] = _together(rows.get(claim), held)
    return rows


def _together(one: Held | None, other: Held) -> Held:
    if one is None:
        return other
    return Held(
        one.workers | other.workers,
        max(one.latest_s, other.latest_s),
        max(one.for_s, other.for_s),
    )


def _holding(observed: ObservedCluster) -> Iterable[tuple[Pin, list[str]]]:
    """Each pin and the workers that it holds, by their Deployments' names where they have one."""
    pinned = [process for process in observed.scheduler.workers if process.pins]
    if not pinned:
        return ()
    names = {w.name for g in observed.groups for w in g.workers}
    by_dask_name = {n: w.name for g in observed.groups for w in g.workers for n in w.dask_names}
    # By identity: the workers that one pin holds share it, and there may be thousands of each.
    found: dict[int, tuple[Pin, list[str]]] = {}
    for process in pinned:
        name = by_dask_name.get(process.name) or owner(process, names, {}) or process.name
        for pin in process.pins:
            if (row := found.get(id(pin))) is None:
                row = found[id(pin)] = (pin, [])
            row[1].append(name)
    return found.values()


def held_by(
    observed: ObservedCluster, policy: Policy, before: Sequence[HeldBy], *, now: float
) -> tuple[HeldBy, ...]:
    """
    The pins as rows of a status, in a stable order: those that hold most come first.

    Args:
        before: The rows told last: an end that has not really moved stays as it was told.
        now: Seconds on the clock that stamped `before`.
    """
    told = {(row.source, row.owner, row.reason): row.until for row in before}
    rows = [
        HeldBy(
            *claim,
            workers=tuple(sorted(held.workers)[:MAX_NAMES]),
            count=len(held.workers),
            until=_steady(now + held.latest_s, told.get(claim)),
            left_s=held.latest_s,
        )
        for claim, held in pins_of(observed, policy.pins.manual_max_s).items()
    ]
    rows.sort(key=lambda row: (-row.count, row.source, row.owner, row.reason))
    return tuple(rows[:MAX_ROWS])


def _steady(until: float, told: float | None) -> float:
    return told if told is not None and abs(until - told) < SLACK_S else until


def aged(rows: Sequence[HeldBy], by_s: float) -> tuple[HeldBy, ...]:
    """Rows that were seen a while ago, as of now."""
    return tuple(replace(row, left_s=row.left_s - by_s) for row in rows)
