"""Which news of a status can wait: figures that move with the load are not worth a write each."""

from __future__ import annotations

from dataclasses import replace

from dask_adaptive.loop.status import Status

#: Where nothing but figures has changed, a status is written at most once in so long, in seconds.
EVERY_S = 5.0


def are_all_that_changed(new: Status, old: Status) -> bool:
    """Whether two statuses differ in figures, and in sentences that hold them, only."""
    return _without(new) == _without(old)


def _without(status: Status) -> Status:
    # What an operator that comes after this one needs (`workers`, `recycled`) is no figure.
    return replace(
        status,
        wanted=0,
        idle=0,
        busy=0,
        target=0,
        message="",
        blockers=(),
        groups=tuple(replace(g, wanted=0, message="") for g in status.groups),
        conditions=tuple(replace(c, message="") for c in status.conditions),
    )
