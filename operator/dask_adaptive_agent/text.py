"""Figures as people read them, and names as people give them."""

from __future__ import annotations

import re

#: `dask worker --nworkers` names its processes so, after their common name.
PROCESS, LAST_PROCESS = re.compile(r"-\d{1,3}"), re.compile(r"-\d{1,3}\Z")


def is_process_of(own: str, name: str) -> bool:
    """Tells whether a worker called `own` is one of the processes that were started as `name`."""
    return own.startswith(name) and bool(PROCESS.fullmatch(own, len(name)))


def common_name(own: str) -> str:
    """The name that a worker called `own` was started under, if it is one of several processes."""
    return LAST_PROCESS.sub("", own)


def duration(seconds: float) -> str:
    """Short and exact enough to decide by: 95 s, 12 min, 3.5 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def size_of(nbytes: int) -> str:
    size = float(nbytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def plural(count: int, one: str) -> str:
    return f"{count} {one}" if count == 1 else f"{count} {one}s"
