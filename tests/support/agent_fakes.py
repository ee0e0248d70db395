"""Workers and tasks of a scheduler that exist in its books only."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterable
from typing import Any

from distributed.core import Status
from distributed.scheduler import WorkerState

_numbers = itertools.count()


def fake_worker(s: Any, i: int, *, memory_limit: int = 8 * 2**30, nthreads: int = 2) -> Any:
    address = f"tcp://10.{(i >> 16) & 255}.{(i >> 8) & 255}.{i & 255}:{40000 + i % 20000}"
    ws = WorkerState(
        address=address,
        status=Status.running,
        pid=1,
        name=f"simple-default-worker-{i:010x}",
        nthreads=nthreads,
        memory_limit=memory_limit,
        local_directory="/tmp",
        nanny=address.replace("tcp://10", "tcp://11"),
        server_id=f"Worker-{i}-{next(_numbers)}",
        services={},
        versions={},
        extra={},
        scheduler=s,
    )
    ws.metrics = {"memory": 200_000_000 + i}
    ws.last_seen = time.time()
    s.workers[address] = ws
    s.aliases[ws.name] = address
    s.total_nthreads += nthreads
    s.running.add(ws)
    return ws


def give_task(s: Any, ws: Any) -> Any:
    ts = s.new_task(f"fake-{next(_numbers)}", None, "released")
    ts.run_spec = object()
    ws.add_to_processing(ts)
    return ts


def give_result(s: Any, ws: Any, nbytes: int) -> Any:
    ts = s.new_task(f"fake-{next(_numbers)}", None, "released")
    ts.set_nbytes(nbytes)
    if hasattr(s, "add_replica"):
        s.add_replica(ts, ws)
    else:
        ws.add_replica(ts)
    return ts


def clear_workers(s: Any) -> None:
    """Before the scheduler closes, too: there is nobody to say goodbye to."""
    s.workers.clear()
    s.running.clear()
    s.aliases.clear()
    s.tasks.clear()
    s.total_nthreads = 0
    plugin = s.extensions.get("shuffle")
    for books in ("active_shuffles", "states"):
        getattr(plugin, books, {}).clear()


def crowd(s: Any, n: int, *, share_busy: float) -> None:
    """`n` workers, some busy, each with four results."""
    dice = random.Random(0)
    clear_workers(s)
    for i in range(n):
        ws = fake_worker(s, i)
        for _ in range(4):
            give_result(s, ws, dice.randrange(2**24))
        if dice.random() < share_busy:
            for _ in range(3):
                give_task(s, ws)


class Participants:
    """As much of a run's state as tells who takes part."""

    def __init__(self, run_id: int, participants: Iterable[str]) -> None:
        self.run_id = run_id
        self.participating_workers = set(participants)


def shuffle_state(s: Any, id: str, run_id: int, participants: Iterable[str]) -> Participants:
    """A shuffle on the books of the scheduler's shuffle plugin, whatever its release calls them."""
    plugin = s.extensions["shuffle"]
    states = plugin.active_shuffles if hasattr(plugin, "active_shuffles") else plugin.states
    states[id] = Participants(run_id, participants)
    return states[id]
