"""The steps that many reports share. Tasks never import it: workers need nothing but Dask."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from dask.distributed import Client, Event


def workers(client: Client) -> set[str]:
    """Names of those that are connected, and not on their way out."""
    known = client.scheduler_info(n_workers=-1)["workers"].values()
    return {str(w["name"]) for w in known if w["status"] in ("running", "paused")}


def until(condition: Callable[[], object], patience_s: float = 240.0) -> None:
    """A report that ends badly fails here: on a busy machine all takes longer."""
    end = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end, "it has not come to that"
        time.sleep(0.6)  # who asks more often counts as `wait_for_workers`


def hold(client: Client, tasks: int = 3, **options: Any) -> tuple[Event, Sequence[Any]]:
    """Tasks that run until the event is set."""
    go = Event(f"go-{time.monotonic()}", client)
    name = go.name
    return go, client.map(lambda i: Event(name).wait() and i, range(tasks), pure=False, **options)


def grow(client: Client, number: int = 3) -> None:
    """Have work for so many workers until they are there."""
    go, held = hold(client, number)
    until(lambda: len(workers(client)) == number)
    go.set()
    client.gather(held)


def shrink(client: Client, number: int = 1) -> None:
    """Idle until no more are left."""
    until(lambda: len(workers(client)) <= number)
