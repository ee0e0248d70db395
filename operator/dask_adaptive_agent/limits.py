"""
How long each worker may go on, as the operator said last. Parses and remembers; stops nobody.

A name may be said before its worker joins, and a limit goes by name, so a worker that comes back
under the same name has the limit of that name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from dask_adaptive_agent import wire
from dask_adaptive_agent.settings import LONGEST_MS, Invalid, Request, bounded, flag, number, shown

if TYPE_CHECKING:
    from distributed.scheduler import WorkerState

#: `runs` of a worker that may make any number of them.
NEVER = 2**62

#: Failures kept of one worker: more can't be asked for.
MOST_FAILURES = 1000

WINDOW_MS = 10 * 60 * 1000

#: Patterns are matched against so much of an exception's text.
MATCHED = 2_000

#: Of one profile, and in characters.
MOST_PATTERNS, LONGEST_PATTERN = 32, 256


class Glob:
    """
    A pattern in which `*` stands for any text, `?` for any one character, and all else for itself.

    It has to match the whole of a text; case counts. Linear in the length of the text: each piece
    between two `*` has a fixed length and is looked for once, from where the one before it ended.
    The leftmost place is always good enough, so nothing is ever tried again.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        first, *others = [_piece(piece) for piece in pattern.split("*")]
        self._first, self._others = first, others
        self._last = len(pattern.rpartition("*")[2])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Glob) and other.pattern == self.pattern

    def __hash__(self) -> int:
        return hash(self.pattern)

    def matches(self, text: str) -> bool:
        if not self._others:
            return self._first.fullmatch(text) is not None
        found = self._first.match(text)
        for piece in self._others[:-1]:
            if found is None:
                return False
            found = piece.search(text, found.end())
        at = len(text) - self._last
        return found is not None and at >= found.end() and bool(self._others[-1].match(text, at))


def _piece(literal: str) -> re.Pattern[str]:
    # No quantifier: the pieces have a fixed length, so there is nothing to backtrack over.
    return re.compile(".".join(map(re.escape, literal.split("?"))), re.DOTALL)


@dataclass(frozen=True)
class Profile:
    """Rules that many workers share; see `wire.LimitProfile`."""

    exact: bool = False
    failures: int = 0  # 0: never stopped for failures
    window_s: float = WINDOW_MS / 1000
    patterns: tuple[Glob, ...] = ()
    fresh_s: float = math.inf
    floor_s: float = 0.0
    deviations: float = 2.0
    measure: bool = False
    runs: int = 0  # of workers that are not named; 0: any number

    def match(self, exception_text: str) -> str:
        """The first pattern that matches an exception's text; empty: none."""
        text = exception_text[:MATCHED]
        for glob in self.patterns:
            if glob.matches(text):
                return glob.pattern
        return ""


#: Of a worker whose end had passed when the operator spoke of it.
PASSED = -math.inf

#: Of workers that nobody has named.
UNNAMED = Profile()


class Limit(NamedTuple):
    """Of one worker; `ends_at` is on the clock of the `Limits`, or `PASSED`."""

    runs: int = NEVER
    ends_at: float = math.inf
    profile: Profile = UNNAMED


NO_LIMIT = Limit()


class Limits:
    """
    The last `wire.LimitRequest`, by worker.

    Args:
        workers: The scheduler's, by address: read at each question.
        clock: Seconds that never go backwards.
    """

    def __init__(self, workers: Mapping[str, WorkerState], clock: Callable[[], float]) -> None:
        self._workers = workers
        self._clock = clock
        self._by_name: dict[str, Limit] = {}
        self._others = NO_LIMIT
        self.profiles: tuple[Profile, ...] = ()
        self.stops = 0
        #: Counts requests: who keeps what follows from the limits sees that they have changed.
        self.generation = 0

    def told(self, request: Request) -> None:
        """Forget what was said, and remember this. Raises Invalid, and then nothing has changed."""
        profiles = _profiles(request)
        by_name = _limits(request, profiles, self._clock())
        others = number(request, "others", -1, low=-1, high=len(profiles) - 1)
        self.stops = number(request, "stops", 0)
        self._others = NO_LIMIT if others < 0 else _unnamed(profiles[others])
        self.profiles = profiles
        self._by_name = by_name
        self.generation += 1

    def clear(self) -> None:
        """Nobody has a limit any more."""
        self._by_name, self.profiles, self.stops = {}, (), 0
        self._others = NO_LIMIT
        self.generation += 1

    @property
    def is_empty(self) -> bool:
        return not self._by_name and self._others is NO_LIMIT

    @property
    def are_exact(self) -> bool:
        return any(profile.exact for profile in self.profiles)

    def of_worker(self, ws: WorkerState) -> Limit:
        limit = self._by_name.get(str(ws.name))
        return limit or self._by_name.get(ws.address, self._others)

    def of(self, address: str) -> Limit:
        ws = self._workers.get(address)
        return NO_LIMIT if ws is None else self.of_worker(ws)

    def profile(self, address: str) -> Profile:
        return self.of(address).profile


def _limits(request: Request, profiles: Sequence[Profile], now: float) -> dict[str, Limit]:
    names = _column(request, "names", str)
    runs, left_ms = _column(request, "runs", int), _column(request, "left_ms", int)
    index = _column(request, "profile", int)
    if not len(names) == len(runs) == len(left_ms) == len(index):
        raise Invalid(
            f"names, runs, left_ms and profile must be of one length, not {len(names)}, "
            f"{len(runs)}, {len(left_ms)} and {len(index)}"
        )
    _within("runs", runs, 0, 2**53)
    _within("left_ms", left_ms, -1, LONGEST_MS)
    _within("profile", index, 0, len(profiles) - 1)
    return {
        name: Limit(n or NEVER, _ends_at(ms, now), profiles[i])
        for name, n, ms, i in zip(names, runs, left_ms, index)
    }


def _ends_at(left_ms: int, now: float) -> float:
    if left_ms < 0:
        return math.inf
    return now + left_ms / 1000 if left_ms else PASSED


def _profiles(request: Request) -> tuple[Profile, ...]:
    value = request.get("profiles", ())
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, dict) for one in value):
        raise Invalid(f"profiles must be a list of maps, not {shown(value)}")
    bounded("profiles", len(value), wire.MOST_ENTRIES, "entries")
    return tuple([_profile(one) for one in value])


def _profile(said: Request) -> Profile:
    fresh_ms = number(said, "fresh_ms", -1, low=-1, high=LONGEST_MS)
    return Profile(
        exact=flag(said, "exact", False),
        failures=number(said, "failures", 0, high=MOST_FAILURES),
        window_s=number(said, "window_ms", WINDOW_MS, low=1, high=LONGEST_MS) / 1000,
        patterns=_patterns(said),
        fresh_s=math.inf if fresh_ms < 0 else fresh_ms / 1000,
        floor_s=number(said, "floor_ms", 0, high=LONGEST_MS) / 1000,
        deviations=_deviations(said),
        measure=flag(said, "measure", False),
        runs=number(said, "runs", 0, high=2**53),
    )


def _unnamed(profile: Profile) -> Limit:
    return Limit(runs=profile.runs or NEVER, profile=profile)


def _patterns(said: Request) -> tuple[Glob, ...]:
    patterns = _column(said, "patterns", str)
    bounded("patterns", len(patterns), MOST_PATTERNS, "entries")
    longest = max(map(len, patterns), default=0)
    bounded("patterns", longest, LONGEST_PATTERN, "characters in an entry")
    return tuple(map(Glob, patterns))


def _deviations(said: Request) -> float:
    value = said.get("deviations", 2.0)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 100:
        raise Invalid(f"deviations must be a number from 0 to 100, not {shown(value)}")
    return float(value)


def _column(request: Request, key: str, kind: type) -> Sequence[Any]:
    value = request.get(key, ())
    # `type`, not isinstance: True is no number of runs.
    if not isinstance(value, (list, tuple)) or not all([type(one) is kind for one in value]):
        what = "text" if kind is str else "whole numbers"
        raise Invalid(f"{key} must be a list of {what}, not {shown(value)}")
    bounded(key, len(value), wire.MOST_ENTRIES, "entries")
    if kind is str:
        bounded(key, max(map(len, value), default=0), wire.MOST_LETTERS, "characters in an entry")
    return value


def _within(key: str, values: Sequence[int], low: int, high: int) -> None:
    if values and not (low <= min(values) and max(values) <= high):
        raise Invalid(f"{key} must be from {low} to {high}, not {min(values)} to {max(values)}")
