"""What `check` finds: values, and the few ways to make one."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from dask_adaptive.cli.check_facts import Missing


class Level(str, enum.Enum):
    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    what: str
    message: str
    mend: str = ""  # how; empty: nothing is to be mended


def ok(what: str, message: str) -> Finding:
    return Finding(Level.OK, what, message)


def warning(what: str, message: str, mend: str) -> Finding:
    return Finding(Level.WARNING, what, message, mend)


def error(what: str, message: str, mend: str) -> Finding:
    return Finding(Level.ERROR, what, message, mend)


def unseen(what: str, missing: Missing) -> Finding:
    return warning(what, f"not known: {missing.why}", "ask whoever may see it to run this")
