"""Workers of which one pass has the same to tell share an event: each event is a write. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from dask_adaptive.loop.ports import Event

#: Workers that one event names; more get events of their own, so that none goes unnamed.
MOST = 10


def gathered(events: Iterable[Event]) -> Iterator[tuple[Event, ...]]:
    """Events that differ in their worker only, together, in the order of the first of each."""
    same: dict[object, list[Event]] = {}
    for event in events:
        # One without a worker is about the policy, and is told alone.
        what = (event.type, event.reason, event.message, event.would, bool(event.worker))
        same.setdefault(what, []).append(event)
    for group in same.values():
        each = iter(group)
        while some := tuple(islice(each, MOST)):
            yield some


def sentence(events: tuple[Event, ...]) -> str:
    """What is told of `gathered` events on the policy: the workers, then the message."""
    names = ", ".join(e.worker for e in events if e.worker)
    message = events[0].message
    return f"{names}: {message}" if names else message
