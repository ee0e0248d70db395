"""
The state of one scheduler that all parts of the agent share: the lease of all that the operator has
sent (it ends unless renewed), its plans, the notes for it, and the hooks in the scheduler's code.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

from dask_adaptive_agent import wire
from dask_adaptive_agent.guard import Guard
from dask_adaptive_agent.patching import Mismatch, Patch, Patches
from dask_adaptive_agent.protocol.requests import (
    LONGEST_MS,
    AgentSettings,
    Malformed,
    Request,
    shown,
)
from dask_adaptive_agent.quotas.roster import Roster
from dask_adaptive_agent.quotas.worker_limits import WorkerLimits

logger = logging.getLogger(__name__)

#: Notes that are kept for an operator that is away, and workers that one names.
KEPT, NAMED = 100, 10

#: A lease ends at most this many seconds after it was renewed.
LONGEST_S = 300.0

#: Overdue workers are expected for this many seconds more, or times the announced wait.
GRACE_S, GRACE_TIMES = 30.0, 2.0


@dataclass(eq=False)
class OperatorLease:
    """
    The lease of all that an operator has sent. Any message begins it; only the leader's passes
    renew it.
    """

    clock: Callable[[], float]
    settings: AgentSettings  # say how long it lasts; `LONGEST_S` at most
    ended: Callable[[], None]  # called once, when it has ended
    lapses: int = 0  # how often it has ended
    _renewed_at: float = math.inf  # infinite: nothing was said, or the lease has ended

    @property
    def left_s(self) -> float:
        """Seconds until it ends; infinite: nothing was sent."""
        return self._renewed_at + min(self.settings.lease_s, LONGEST_S) - self.clock()

    @property
    def silent_s(self) -> float:
        """Seconds since an operator was last there; infinite: none is."""
        return abs(self.clock() - self._renewed_at)

    def renew(self) -> None:
        self._renewed_at = self.clock()

    def begin(self) -> None:
        """A message has come, maybe not from the leader: it renews no running lease."""
        self.check()
        if math.isinf(self._renewed_at):
            self.renew()

    def check(self) -> None:
        """End it if it is time to."""
        if self.left_s < 0:
            self._renewed_at = math.inf
            self.lapses += 1
            self.ended()


class OperatorPlans:
    """The last `wire.AnnounceRequest`; empty at first, and once the operator's lease has ended."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.clear()

    def clear(self) -> None:
        self.update(Request())

    def update(self, request: Request) -> None:
        """Replace all plans by those of a message; `Malformed`: nothing has changed."""
        rows = _rows(request, "arriving", wire.MOST_ARRIVALS, (int, int))
        groups = [*(request.optional_names("groups") or ()), *[""] * len(rows)]  # "": any
        arriving = [
            (_count(workers), _count(ms) / 1000, group)
            for (workers, ms), group in zip(rows, groups)
        ]
        can_grow = request.number("can_grow", 0)
        grow_ms = request.get("grow_ms")
        grow_s = None if grow_ms is None else request.number("grow_ms", high=LONGEST_MS) / 1000
        policy, message = request.text("policy", ""), request.text("message", "")
        workers = _rows(request, "workers", wire.MOST_SENTENCES, (str, str))
        decisions = _rows(request, "decisions", wire.MOST_DECISIONS, (int, str, str, str))
        self._at = self._clock()
        self._arriving = arriving
        self.can_grow = can_grow  # workers beyond those on their way that may still be asked for
        self.grow_s = grow_s  # how long one of those would take to come; None: unknown
        self.policy, self.message = policy[: wire.SHORT_LETTERS], message[: wire.SHORT_LETTERS]
        self.workers: dict[str, str] = dict(workers)  # why each is to leave, or stays: a sentence
        #: (seconds since 1970, group, reason, message), in the order in which they were sent.
        self.decisions = [(at / 1000, group, why, message) for at, group, why, message in decisions]

    def worker_joined(self, group: str) -> None:
        """An expected worker has joined, before the operator reports it."""
        known = any(group == theirs for _, _, theirs in self._arriving)
        for index, (workers, in_s, theirs) in enumerate(self._arriving):
            if workers > 0 and (theirs == group or not known):
                self._arriving[index] = (workers - 1, in_s, theirs)
                return

    @property
    def arriving(self) -> list[tuple[int, float]]:
        """(workers, seconds until they are expected; 0: overdue), soonest first."""
        return [(workers, in_s) for workers, in_s, _ in self._coming()]

    def are_arriving(self, but: Collection[str]) -> bool:
        """True if workers of other groups than these are expected."""
        return any([group not in but or not group for *_, group in self._coming()])

    def _coming(self) -> list[tuple[int, float, str]]:
        passed_s = self._clock() - self._at
        return [
            (workers, max(0.0, in_s - passed_s), group)
            for workers, in_s, group in self._arriving
            if workers and passed_s <= in_s + max(GRACE_S, GRACE_TIMES * in_s)
        ]


class Notes:
    """The last `KEPT` notes, numbered from 1 on: readers name the last one that they have."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._notes: deque[tuple[float, Any]] = deque(maxlen=KEPT)  # when, and a `wire.NoteRow`
        self.number = 0  # of the last one

    def add(self, kind: str, message: str, names: Iterable[str] = ()) -> None:
        self.number += 1
        row = {"number": self.number, "kind": kind, "message": message}
        self._notes.append((self._clock(), {**row, "names": list(names)[:NAMED]}))

    def since(self, heard: int) -> list[wire.NoteRow]:
        """Notes with a number above `heard`, oldest first."""
        now = self._clock()
        kept: list[Any] = [{**row, "age_ms": int((now - at) * 1000)} for at, row in self._notes]
        return [row for row in kept if row["number"] > heard]


class Context:
    """Decides nothing, and knows none of the parts."""

    def __init__(self, scheduler: Any, clock: Callable[[], float]) -> None:
        self.scheduler = scheduler
        self.clock = clock
        self.patches = Patches(scheduler)
        self.settings = AgentSettings()
        self.notes = Notes(clock)
        self.guard = Guard()
        self.roster = Roster(scheduler, clock)
        self.lease = OperatorLease(clock, self.settings, self.lapsed)
        self.plans = OperatorPlans(clock)
        self.limits = WorkerLimits(clock)
        #: By name: puts a feature's hooks into the scheduler's code.
        self.hooks: dict[str, Callable[[Patches], object]] = {}
        #: Those that were put in; empty: this release, or somebody else's patch, does not allow it.
        self.features: dict[str, list[Patch]] = {}

    def lapsed(self) -> None:
        """The operator's lease has ended."""

    def expect(self, *names: str) -> None:
        """
        Have these features from now on. Fails open: the scheduler does without one, as stock code
        does.
        """
        for name in names:
            if name not in self.features and (why := self.problem_of(name, self._install, name)):
                self.stock_serves(name, why)

    def _install(self, name: str) -> None:
        with self.patches.together() as self.features[name]:
            self.hooks[name](self.patches)

    def problem_of(self, name: str, install: Callable[..., object], *args: Any) -> str:
        """Install a change of the scheduler's code; return why that failed, or an empty text."""
        try:
            install(*args)
        except Mismatch as error:
            return str(error)
        except Exception as error:
            logger.exception("Failed to install %s", name)
            return f"it can't be applied: {error!r:.200}"
        return ""

    def stock_serves(self, name: str, why: str) -> None:
        """Report that a feature, or a relief, is off."""
        logger.warning("%s is off, Dask's own code runs: %s", name, why)
        self.notes.add(wire.N_RELIEF_FAILED, f"{name} is off, Dask's own code runs: {why}")

    def expect_leaving(self) -> None:
        """To be called before a worker is cordoned, or drains."""
        self.expect("gates", "copies", "workers_to_close")


class Component:
    """A part of the agent in one scheduler. It gets only the other parts that it uses."""

    def __init__(self, context: Context) -> None:
        self.context, self.scheduler, self.clock = context, context.scheduler, context.clock


def _rows(request: Request, key: str, most: int, kinds: tuple[type, ...]) -> list[Any]:
    """Rows of these kinds of values, texts cut; msgpack gives tuples as well as lists."""
    value = request.get(key) or ()
    if not isinstance(value, (list, tuple)):
        raise Malformed(f"{key} must be a list, not {shown(value)}")
    rows = []
    for row in value[:most]:
        if not isinstance(row, (list, tuple)) or len(row) != len(kinds):
            raise Malformed(f"{key} must have rows of {len(kinds)} values, not {shown(row)}")
        for one, kind in zip(row, kinds):
            if not isinstance(one, kind) or isinstance(one, bool):
                raise Malformed(f"{key} must have {kind.__name__} values, not {shown(one)}")
        longest = wire.SHORT_LETTERS
        rows.append(tuple(one[:longest] if isinstance(one, str) else one for one in row))
    return rows


def _count(value: int) -> int:
    if not 0 <= value <= LONGEST_MS:
        raise Malformed(f"arriving must have numbers from 0 to {LONGEST_MS}, not {shown(value)}")
    return value
