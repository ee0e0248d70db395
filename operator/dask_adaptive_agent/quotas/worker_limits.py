"""
Limits of each worker, as the operator sent them last. Parses and remembers, no more.

A limit goes by name: it may come before its worker joins, and it holds for a worker that comes back
under the same name.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from distributed.scheduler import WorkerState

from dask_adaptive_agent import wire
from dask_adaptive_agent.protocol.requests import LONGEST_MS, Malformed, Request, bounded, shown

#: `runs` of a worker that may make any number of them.
NEVER = 2**62

#: Failures kept of one worker: more can't be asked for.
MOST_FAILURES = 1000

WINDOW_MS = 10 * 60 * 1000

#: Characters of an exception's text that patterns are matched against.
SEARCHED = 2_000


@lru_cache(maxsize=1024)
def glob(pattern: str) -> re.Pattern[str]:
    """
    A pattern in which `*` stands for any text, `?` for any one character, and all else for itself.

    It has to match the whole of a text; case counts. Since Python 3.9 `fnmatch.translate` lets each
    piece between two `*` match in one place only, so there is no backtracking to speak of.
    """
    return re.compile(fnmatch.translate(pattern.replace("[", "[[]")))


@dataclass(frozen=True)
class Rules:
    """The rules that many workers share; see `wire.LimitProfile`."""

    exact: bool = False
    failures: int = 0  # 0: never cordoned for failures
    window_s: float = WINDOW_MS / 1000
    patterns: tuple[str, ...] = ()
    fresh_s: float = math.inf
    floor_s: float = 0.0
    runs: int = 0  # of workers that are not named; 0: any number
    group: str = ""

    def match(self, exception_text: str) -> str:
        """The first pattern that matches an exception's text; empty: none."""
        text = exception_text[:SEARCHED]
        return next((one for one in self.patterns if glob(one).match(text)), "")


#: The end of a worker that had passed when the operator sent it.
PASSED = -math.inf

#: The rules of workers that the request does not name.
UNNAMED = Rules()


class WorkerLimit(NamedTuple):
    """The limit of one worker; `ends_at` is on the clock of `WorkerLimits`, or `PASSED`."""

    runs: int = NEVER
    ends_at: float = math.inf
    rules: Rules = UNNAMED


NO_LIMIT = WorkerLimit()


class WorkerLimits:
    """The last `wire.LimitRequest`, by worker."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.clear()

    def clear(self) -> None:
        """Nobody has a limit."""
        self._by_name: dict[str, WorkerLimit] = {}
        self._others = NO_LIMIT
        self.rules: tuple[Rules, ...] = ()
        self.cordons = 0  # how many workers may be out of service at a limit,
        self.group_cordons: Mapping[str, int] = {}  # and of each group

    def replace(self, request: Request) -> None:
        """Replace the last request by this one. Raises `Malformed`; then nothing has changed."""
        value = request.get("profiles", ())
        if not isinstance(value, (list, tuple)) or not all(isinstance(one, dict) for one in value):
            raise Malformed(f"profiles must be a list of maps, not {shown(value)}")
        bounded("profiles", len(value), wire.MOST_ENTRIES, "entries")
        rules = tuple([_rules(Request(one)) for one in value])
        by_name = _limits(request, rules, self._clock())
        others = request.number("others", -1, low=-1, high=len(rules) - 1)
        given = request.mapping("group_stops", of=int) if "group_stops" in request else {}
        self.cordons = request.number("stops", 0)
        self.group_cordons = given
        unnamed = rules[others] if others >= 0 else UNNAMED
        self._others = WorkerLimit(unnamed.runs or NEVER, rules=unnamed)
        self.rules, self._by_name = rules, by_name

    def may_cordon(self, group: str, counts: Counter[str]) -> bool:
        """True if one more may be cordoned, with so many of each group already."""
        of_group = self.group_cordons.get(group, self.cordons)
        return sum(counts.values()) < self.cordons and counts[group] < of_group

    @property
    def is_empty(self) -> bool:
        return not self._by_name and self._others == NO_LIMIT

    @property
    def are_exact(self) -> bool:
        return any(rules.exact for rules in self.rules)

    def of_worker(self, ws: WorkerState) -> WorkerLimit:
        limit = self._by_name.get(str(ws.name))
        return limit or self._by_name.get(ws.address, self._others)


def _limits(request: Request, rules: Sequence[Rules], now: float) -> dict[str, WorkerLimit]:
    names = request.column("names", str, ())
    runs = _whole_numbers(request, "runs", 0, 2**53)
    left_ms = _whole_numbers(request, "left_ms", -1, LONGEST_MS)
    index = _whole_numbers(request, "profile", 0, len(rules) - 1)
    if not len(names) == len(runs) == len(left_ms) == len(index):
        raise Malformed(
            f"names, runs, left_ms and profile must be of one length, not {len(names)}, "
            f"{len(runs)}, {len(left_ms)} and {len(index)}"
        )
    return {
        name: WorkerLimit(n or NEVER, _ends_at(ms, now), rules[i])
        for name, n, ms, i in zip(names, runs, left_ms, index)
    }


def _ends_at(left_ms: int, now: float) -> float:
    if left_ms < 0:
        return math.inf
    return now + left_ms / 1000 if left_ms else PASSED


def _rules(profile: Request) -> Rules:
    fresh_ms = profile.number("fresh_ms", -1, low=-1, high=LONGEST_MS)
    patterns = profile.column("patterns", str, ())
    bounded("patterns", len(patterns), 32, "entries")
    longest = max(map(len, patterns), default=0)
    bounded("patterns", longest, 256, "characters in an entry")
    return Rules(
        exact=profile.flag("exact", False),
        failures=profile.number("failures", 0, high=MOST_FAILURES),
        window_s=profile.number("window_ms", WINDOW_MS, low=1, high=LONGEST_MS) / 1000,
        patterns=tuple(patterns),
        fresh_s=math.inf if fresh_ms < 0 else fresh_ms / 1000,
        floor_s=profile.number("floor_ms", 0, high=LONGEST_MS) / 1000,
        runs=profile.number("runs", 0, high=2**53),
        group=profile.text("group", ""),
    )


def _whole_numbers(request: Request, key: str, low: int, high: int) -> Sequence[int]:
    values = request.column(key, int, ())
    if values and not (low <= min(values) and max(values) <= high):
        raise Malformed(f"{key} must be from {low} to {high}, not {min(values)} to {max(values)}")
    return values
