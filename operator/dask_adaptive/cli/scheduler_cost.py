"""What is taken off a cluster's scheduler, and what serializing costs it: for `explain`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dask_adaptive.model.observed import ObservedScheduler, ReliefState

Facts = tuple[tuple[str, str], ...]

#: Functions that `explain` shows.
SHOWN = 5


def facts_of_status(status: Mapping[str, Any]) -> Facts:
    """What the operator saw last."""
    scheduler = status.get("scheduler") or {}
    rows = scheduler.get("relief") or ()
    reliefs = [_relief(r["name"], r["state"], r.get("message", "")) for r in rows]
    config = [
        (f"config {row['key']}", f"{row['state']}: {row.get('message', '')}")
        for row in scheduler.get("config") or ()
    ]
    return (*reliefs, *config)


def facts_of_live(seen: ObservedScheduler) -> Facts:
    """
    What the scheduler says itself, right now: counters, too. What could not be asked is said.
    """
    problem = seen.message or seen.degraded_message
    if not seen.agent:
        return (("what reliefs do", f"not known: {problem}"),)
    counted = [(f"relief {r.name}", f"{_state(r)}{_counts(r)}") for r in seen.relief]
    cost = seen.serialized
    if cost is None:
        return tuple(counted)
    total = f"{cost.seconds:.1f} s and {_size(cost.sent_bytes)} for {cost.calls:,} tasks"
    share = f"{cost.share:.0%} of the scheduler's CPU time in the last minute"
    return (*counted, ("serializing", f"{total}; {share}"))


def costs_of(seen: ObservedScheduler) -> tuple[tuple[str, ...], ...]:
    """What serializing costs by function, the dearest first, as rows of text."""
    if seen.serialized is None:
        return ()
    return tuple(
        (
            row.function,
            f"{row.calls:,}",
            f"{row.seconds:.2f}",
            _size(row.sent_bytes),
            _size(row.largest_bytes),
        )
        for row in seen.serialized.top[:SHOWN]
    )


def merged(status: Facts, live: Facts) -> Facts:
    """What is live instead of what the status says of the same."""
    names = {name for name, _ in live}
    return (*((name, said) for name, said in status if name not in names), *live)


def _relief(name: str, state: str, message: str) -> tuple[str, str]:
    return f"relief {name}", f"{state}: {message}" if message else state


def _state(relief: ReliefState) -> str:
    return _relief(relief.name, relief.state, relief.message)[1]


def _counts(relief: ReliefState) -> str:
    return _listed(f"{word.replace('_', ' ')} {number:,}" for word, number in relief.counts)


def _listed(words: Iterable[str]) -> str:
    text = ", ".join(words)
    return f" ({text})" if text else ""


def _size(amount: float) -> str:
    """Bytes, for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000 or unit == "GB":
            break
        amount /= 1000
    return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
