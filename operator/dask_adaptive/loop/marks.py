"""What others are told of a worker where they look: which annotations its pod shall have. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dask_adaptive.model.observed import Mark, ObservedWorker
from dask_adaptive.planner.actions.candidates import claims

#: A pin's name is taken back only when it has not held for so long: shuffles come and go.
CLEAR_AFTER_S = 30.0

#: A worker that may be idle for so long before it leaves is kept for so much longer than that: most
#: are gone by then, and what goes needs no write.
IDLE_MORE_S = 60.0

#: Marks changed in one pass, of one cluster; the rest is changed in the next ones.
AT_ONCE = 20

#: How long a change may take to be seen; not before is it asked for again.
SEEN_WITHIN_S = 10.0

#: Longest text of who pins a worker, and most of those who are named in it.
LONGEST, MOST = 200, 5


class _Asked(NamedTuple):
    at: float
    old: Mark
    new: Mark


class _True(NamedTuple):
    """When each half of a worker's mark was last true."""

    pinned_at: float
    kept_at: float


@dataclass(frozen=True, slots=True)
class Marked:
    """What is remembered of marks from pass to pass, by worker. Lost, it only delays a clearing."""

    true: Mapping[str, _True] = field(default_factory=dict)
    asked: Mapping[str, _Asked] = field(default_factory=dict)
    settled: Mapping[str, ObservedWorker] = field(default_factory=dict)  # bore what was true
    at: float = 0.0  # when these were settled


def wanted_mark(worker: ObservedWorker) -> Mark:
    """
    The mark that is true of a worker now.

    One whose machine goes is not kept from eviction: its pod is to go.
    """
    pinned_by = _pinned_by(worker)
    is_busy = bool(worker.processing) and not worker.node_terminating
    return Mark(pinned_by, keep=bool(pinned_by) or is_busy)


def marks(
    workers: Iterable[ObservedWorker], before: Marked, *, hints: bool, idle_s: float, now: float
) -> tuple[tuple[tuple[str, Mark], ...], Marked]:
    """
    Marks to change now, pinned workers first, and what to remember of it.

    A mark is set as soon as it is true; a pod that the webhook has seen bears one from the start.
    It is taken back when it has been false for a while: or at once where hints are switched off.

    Args:
        workers: All of the cluster; those without a connected process, and those on their way out,
            are left alone.
        hints: Whether pods are to be marked at all.
        idle_s: How long a worker may be idle before it leaves.
    """
    true: dict[str, _True] = {}
    changes: dict[str, _Asked] = {}
    waiting: dict[str, _Asked] = {}
    settled: dict[str, ObservedWorker] = {}
    for worker in workers:
        name = worker.name
        known = before.settled.get(name)
        if hints and known is worker:
            settled[name] = worker
            continue
        if not worker.dask_names or worker.retiring is not None:
            continue
        old, new = worker.mark, Mark()
        if hints:
            wanted = wanted_mark(worker)
            if wanted == old:
                settled[name] = worker
                continue
            last_true = _True(before.at, before.at) if known else before.true.get(name)
            true[name] = _last_true(wanted, last_true, now)
            new = _lasting(wanted, old, true[name], idle_s, now)
        last = before.asked.get(name)
        if last is not None and last[1:] == (old, new) and now - last.at < SEEN_WITHIN_S:
            waiting[name] = last
        elif new != old:
            changes[name] = _Asked(now, old, new)
    first = sorted(changes, key=lambda name: (not changes[name].new.pinned_by, name))[:AT_ONCE]
    asked = {name: changes[name] for name in first}
    return tuple((n, c.new) for n, c in asked.items()), Marked(true, waiting | asked, settled, now)


def _last_true(wanted: Mark, before: _True | None, now: float) -> _True:
    # A mark of which nothing is remembered, an operator before this one has set.
    earlier = before or _True(now, now)
    return _True(
        now if wanted.pinned_by else earlier.pinned_at, now if wanted.keep else earlier.kept_at
    )


def _lasting(wanted: Mark, old: Mark, true: _True, idle_s: float, now: float) -> Mark:
    """What is wanted, and what of the old mark was true a while ago."""
    was_pinned = now - true.pinned_at < CLEAR_AFTER_S
    was_kept = now - true.kept_at < max(CLEAR_AFTER_S, idle_s + IDLE_MORE_S)
    pinned_by = wanted.pinned_by or (old.pinned_by if was_pinned else "")
    return Mark(pinned_by, wanted.keep or (old.keep and was_kept))


def _pinned_by(worker: ObservedWorker) -> str:
    """Who holds a worker, in words that stay the same from one shuffle to the next."""
    if not worker.is_pinned:
        return ""
    others = tuple(p for p in worker.pins if p.source != "shuffle")
    named = sorted(claims(worker, others))
    if len(others) < len(worker.pins):
        named.insert(0, "shuffle")
    more = len(named) - MOST
    text = ", ".join(named[:MOST]) + (f" and {more} more" if more > 0 else "")
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
