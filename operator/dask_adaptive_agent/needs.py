"""Tasks that only some workers may run: resources, workers or hosts that they name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from dask_adaptive_agent import wire
from dask_adaptive_agent.answering import amount
from dask_adaptive_agent.structure import Sample, is_bound

if TYPE_CHECKING:
    from distributed.scheduler import TaskPrefix, TaskState, WorkerState

    from dask_adaptive_agent.answering import Parts

#: Assigned tasks that are looked at, and tasks without a worker, in one look.
LOOKED_AT = 1_000

#: Kinds that are told of, names in one, and kinds of which is told who may run them.
KINDS, NAMES, ABLE_KINDS = 50, 50, 10

Kind = Any  # what makes two tasks need the same; a tuple of frozensets


class _Need:
    """Tasks of one kind, each as many as it stands for."""

    __slots__ = ("example", "seconds", "stuck", "tasks", "waiting")

    def __init__(self, example: TaskState) -> None:
        self.example: Any = example
        self.tasks = self.stuck = self.waiting = self.seconds = 0.0


def need_rows(
    parts: Parts,
    scheduler: Any,
    workers: list[WorkerState],
    counts: dict[TaskPrefix, Any],
    sample: Sample,
    seconds: Callable[[TaskPrefix], float],
) -> tuple[list[wire.NeedRow], dict[TaskPrefix, int]]:
    """
    Kinds of needs, those with most tasks first, and how many tasks of each prefix have any.

    `is_rootish` leaves out tasks that name anything, in every release, so none of them is queued.

    Args:
        parts: Leaves kinds out that cannot be told.
        workers: All that are connected.
        counts: Unfinished tasks by prefix.
        sample: Of the tasks that wait.
        seconds: How long a task of a prefix takes.
    """
    needs: dict[Kind, _Need] = {}
    bound: dict[TaskPrefix, float] = {}
    for ts, stands_for in _ready(scheduler, workers):
        need = _of(needs, ts)
        need.tasks += stands_for
        need.stuck += stands_for if ts.processing_on is None else 0
        need.seconds += stands_for * seconds(ts.prefix)
        bound[ts.prefix] = bound.get(ts.prefix, 0.0) + stands_for
    for ts in sample.bound:
        waiting = counts[ts.prefix][2] if ts.prefix in counts else 0
        _of(needs, ts).waiting += sample.part_of(ts, waiting)
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
            if ts.resource_restrictions or ts.worker_restrictions or ts.host_restrictions:
                yield ts, part


def _of(needs: dict[Kind, _Need], ts: TaskState) -> _Need:
    kind = (
        frozenset((ts.resource_restrictions or {}).items()),
        _named(ts.worker_restrictions),
        _named(ts.host_restrictions),
        ts.loose_restrictions,
    )
    need = needs.get(kind)
    if need is None:
        need = needs[kind] = _Need(ts)
    return need


def _named(names: Any) -> Any:
    # Who names hundreds names everybody: as good as any other of that size, and quick to tell.
    return len(names) if names and len(names) > NAMES else frozenset(names or ())


def _row(scheduler: Any, need: _Need, is_looked_up: bool) -> wire.NeedRow:
    ts = need.example
    return {
        "tasks": round(need.tasks),
        "stuck": round(need.stuck),
        "ms": int(need.seconds * 1000),
        "resources": {str(name): amount(n) for name, n in (ts.resource_restrictions or {}).items()},
        "workers": [_name(scheduler, a) for a in islice(ts.worker_restrictions or (), NAMES)],
        "hosts": [str(host) for host in islice(ts.host_restrictions or (), NAMES)],
        "loose": bool(ts.loose_restrictions),
        "waiting": round(need.waiting),
        "able": _able(scheduler, ts) if is_looked_up else [],
    }


def _name(scheduler: Any, address: str) -> str:
    ws = scheduler.workers.get(address)
    return str(address) if ws is None else str(ws.name)


def _able(scheduler: Any, ts: TaskState) -> list[str]:
    """Connected workers that may run a task, busy or not (`SchedulerState.valid_workers`)."""
    able = scheduler.valid_workers(ts)
    return [str(ws.name) for ws in islice(able or (), NAMES)]
