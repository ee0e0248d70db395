"""Which news of a status can wait: what moves with the load is not worth a write each. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from dask_adaptive.loop.status import Status, WorkerRow

#: News that can wait is written at most once in so long, in seconds: between two usual passes.
EVERY_S = 4.0


def can_wait(new: Status, old: Status) -> bool:
    """Whether nothing was decided, nobody has begun to leave, and no condition has turned."""
    return set(_pressing(new)) <= set(_pressing(old)) and _turns(new) == _turns(old)


def _pressing(status: Status) -> Iterator[object]:
    """
    What has to be told as soon as it is there; that it is no more can wait. Workers on their way
    out are by their absence why `replicas` is too high, to an operator that comes after this one.
    """
    for row in status.workers:
        if _leaves(row):
            yield row.name
    yield from ((r.worker, r.reason, r.state) for r in status.replacing)
    yield from status.recycled
    yield from status.recent
    yield from status.config


def _leaves(row: WorkerRow) -> bool:
    return row.state not in {"Active", "Pending"}


def _turns(status: Status) -> object:
    """What people and other programs wait for."""
    return (
        status.desired,
        status.reason,
        status.pause,
        status.distributed,
        status.agent,
        status.relief,
        [(g.name, g.desired, g.reason) for g in status.groups],
        [(c.type, c.status, c.reason) for c in status.conditions],
    )
