"""Tasks that only some workers may run: resources, workers or hosts that they name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from dask_adaptive_agent import wire
from dask_adaptive_agent.demand.graph_shape import WaitingSample, is_bound
from dask_adaptive_agent.protocol.handlers import amount

if TYPE_CHECKING:
    from distributed.scheduler import TaskPrefix, TaskState, WorkerState

    from dask_adaptive_agent.protocol.handlers import Parts

#: Assigned tasks that are looked at, and tasks without a worker, in one look.
LOOKED_AT = 1_000

#: Kinds that are told of, names in one, and kinds of which is told who may run them.
KINDS, NAMES, ABLE_KINDS = 50, 50, 10

Kind = Any  # what makes two tasks need the same; a tuple of frozensets


@dataclass
class _Need:
    """Tasks of one kind, each as many as it stands for."""

    example: Any
    tasks: float = 0.0
    waiting: float = 0.0
    seconds: float = 0.0


def need_rows(
    parts: Parts,
    scheduler: Any,
    workers: list[WorkerState],
    counts: dict[TaskPrefix, Any],
    sample: WaitingSample,
    seconds: Callable[[TaskPrefix], float],
) -> tuple[list[wire.NeedRow], dict[TaskPrefix, int]]:
    """
    Kinds of needs, those with most tasks first, and how many tasks of each prefix have any.

    `is_rootish` leaves out tasks that name anything, in every release, so none of them is queued.
    """
    needs: dict[Kind, _Need] = {}
    bound: dict[TaskPrefix, float] = {}
    for ts, stands_for in _ready(scheduler, workers):
        need = needs.setdefault(_kind(ts), _Need(ts))
        need.tasks += stands_for
        need.seconds += stands_for * seconds(ts.prefix)
        bound[ts.prefix] = bound.get(ts.prefix, 0.0) + stands_for
    for ts in sample.bound:
        waiting = counts[ts.prefix][2] if ts.prefix in counts else 0
        needs.setdefault(_kind(ts), _Need(ts)).waiting += sample.part_of(ts, waiting)
    most = sorted(needs.values(), key=lambda n: (-n.tasks, -n.waiting, str(n.example.key)))
    rows = parts.rows(
        "needs", enumerate(most[:KINDS]), lambda one: _row(scheduler, one[1], one[0] < ABLE_KINDS)
    )
    return rows, {prefix: math.ceil(n) for prefix, n in bound.items()}


def _ready(scheduler: Any, workers: list[WorkerState]) -> Iterator[tuple[TaskState, float]]:
    """Tasks with needs that are assigned, or have no worker; for how many each stands."""
    unrunnable = scheduler.unrunnable  # a set, or a dict in later releases
    part = max(1.0, len(unrunnable) / LOOKED_AT)
    for ts in islice(unrunnable, LOOKED_AT):
        if is_bound(ts):
            yield ts, part
    step = max(1, math.ceil(len(workers) / LOOKED_AT))
    each = max(1, LOOKED_AT * step // max(1, len(workers)))
    for ws in workers[::step]:
        processing = ws.processing
        part = step * max(1.0, len(processing) / each)
        for ts in islice(processing, each):
            if is_bound(ts):
                yield ts, part


def _kind(ts: TaskState) -> Kind:
    return (
        frozenset((ts.resource_restrictions or {}).items()),
        _named(ts.worker_restrictions),
        _named(ts.host_restrictions),
        ts.loose_restrictions,
    )


def _named(names: Any) -> Any:
    # A task that names hundreds of workers names all of them: the number is enough, and quick.
    return len(names) if names and len(names) > NAMES else frozenset(names or ())


def _row(scheduler: Any, need: _Need, is_looked_up: bool) -> wire.NeedRow:
    ts, known = need.example, scheduler.workers
    # Connected workers, busy or not.
    able = scheduler.valid_workers(ts) if is_looked_up else None
    named = islice(ts.worker_restrictions or (), NAMES)
    return {
        "tasks": round(need.tasks),
        "ms": int(need.seconds * 1000),
        "resources": {str(name): amount(n) for name, n in (ts.resource_restrictions or {}).items()},
        "workers": [str(known[one].name if one in known else one) for one in named],
        "hosts": [str(host) for host in islice(ts.host_restrictions or (), NAMES)],
        "loose": bool(ts.loose_restrictions),
        "waiting": round(need.waiting),
        "able": [str(ws.name) for ws in islice(able or (), NAMES)],
    }
