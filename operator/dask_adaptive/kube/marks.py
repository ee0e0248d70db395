"""
What we tell others about a worker by annotations on its pod: written, read back, taken away. Pure.

What people, or other programs, have set themselves is never overwritten and never removed. Which of
the annotations are ours is noted beside them; the note is there as long as we ask for the worker to
be kept, even if both annotations were somebody else's, so that what is read is what was written.
"""

from __future__ import annotations

from collections.abc import Mapping

from dask_adaptive import DOMAIN
from dask_adaptive.model.observed import Mark

PINNED_BY = f"{DOMAIN}/pinned-by"
HINTS = f"{DOMAIN}/hints"

#: With these values, cluster-autoscaler and Karpenter don't take a node away under the pod.
KEEP = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}

#: All annotations of a pod that this module has to know.
NAMES = frozenset({PINNED_BY, HINTS, *KEEP})


def read_mark(notes: Mapping[str, str]) -> Mark:
    """What a pod's annotations say of us."""
    return Mark(pinned_by=notes.get(PINNED_BY, ""), keep=HINTS in notes)


def changes(notes: Mapping[str, str], wanted: Mark) -> dict[str, str | None]:
    """
    Annotations to set (or, with None, to remove) so that `read_mark` says `wanted`.

    Args:
        notes: The pod's annotations as they are; others than `NAMES` don't matter.
    """
    now = read_mark(notes)
    todo: dict[str, str | None] = {}
    if wanted.pinned_by != now.pinned_by or (PINNED_BY in notes and not wanted.pinned_by):
        todo[PINNED_BY] = wanted.pinned_by or None
    if wanted.keep and not now.keep:
        free = {name: value for name, value in KEEP.items() if name not in notes}
        todo |= {**free, HINTS: ",".join(sorted(free))}
    if now.keep and not wanted.keep:
        todo |= {HINTS: None} | dict.fromkeys(_ours(notes))
    return todo


def _ours(notes: Mapping[str, str]) -> list[str]:
    """Those that we set, and that nobody has changed since."""
    noted = notes.get(HINTS, "").split(",")
    return [name for name, value in KEEP.items() if name in noted and notes.get(name) == value]
