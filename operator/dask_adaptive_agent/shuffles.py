"""P2P shuffles that run now, read from the scheduler's shuffle plugin, whatever its release."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterator, KeysView, Set
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

logger = logging.getLogger(__name__)


#: What upstream's `barrier_key` puts before a shuffle's id.
BARRIER = "shuffle-barrier-"


def shuffle_of(key: Any) -> str:
    """The id of the shuffle whose barrier has this key; empty: it is no barrier's."""
    return key[len(BARRIER) :] if type(key) is str and key.startswith(BARRIER) else ""


class ShuffleRun(NamedTuple):
    """One attempt at one shuffle."""

    id: str
    run_id: int  # a counter of the whole scheduler process, not of this shuffle
    participants: Set[str]  # addresses; the scheduler's own set, to be read at once
    since: float  # when the agent first saw this attempt


class _Known:
    """What is remembered of a run: as little as tells whether there is anything new about it."""

    __slots__ = ("barrier", "counted", "is_expired", "run_id", "since", "was_told")

    def __init__(self, barrier: str, run_id: int, since: float) -> None:
        self.barrier = barrier  # key of the task that all inputs lead to, and all outputs need
        self.run_id = run_id
        self.since = since
        self.counted: tuple[str, ...] = ()  # participants that are in the count of pins
        self.is_expired = False
        self.was_told = False


class Shuffles:
    """
    Which workers take part in a shuffle that has not gone on for too long.

    The scheduler is asked each time, because a shuffle that starts between two questions must pin
    its workers all the same; but only runs that have changed are read again. A run is the same as
    long as its `run_id` is, and its participants only ever grow
    (`ShuffleSchedulerPlugin._get` adds; whoever leaves ends the run), so their number tells.

    Args:
        scheduler: Read, not changed.
        clock: Seconds that never go backwards.
        timeout_s: How long a run pins; infinite: as long as it runs.
        expired: Called once for each run that has gone on for longer.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        clock: Callable[[], float],
        *,
        timeout_s: Callable[[], float] = lambda: math.inf,
        expired: Callable[[ShuffleRun], None] = lambda run: None,
    ) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._timeout_s = timeout_s
        self._expired = expired
        self._known: dict[Any, _Known] = {}  # by shuffle
        self._pins: dict[str, int] = {}  # address -> runs that pin it
        self._judged_by_s = math.inf  # the timeout that `is_expired` is of
        self._next_end = math.inf  # no run expires before
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = math.inf

    @property
    def is_known(self) -> bool:
        """Whether this release of distributed keeps its shuffles where we look."""
        return self._states() is not None

    def has_begun(self, id: str) -> bool:
        """Whether its outputs have been given to workers; yes where that can't be known."""
        states = self._states()
        return states is None or id in states

    def pinned(self) -> KeysView[str]:
        """
        Addresses of workers that a shuffle pins; to be read at once.

        Raises when shuffles cannot be read: the caller must then hold all workers.
        """
        self._review()
        return self._pins.keys()

    def running(self) -> list[ShuffleRun]:
        """Raises when shuffles cannot be read: the caller must then hold all workers."""
        self._review()
        return [run for run, _ in self._runs()]

    def pinning(self) -> list[ShuffleRun]:
        """Those that still pin: a shuffle nobody has finished for so long pins no more."""
        self._review()
        return [run for run, known in self._runs() if not known.is_expired]

    def look(self) -> None:
        """Notice what has changed although nobody asks."""
        try:
            self._review()
        except Exception:
            # Nothing depends on it: the next question meets the same error, and holds all workers.
            logger.exception("Cannot read shuffles")

    def close(self) -> None:
        self._set_alarm(math.inf)

    def _runs(self) -> Iterator[tuple[ShuffleRun, _Known]]:
        for id, state in (self._states() or {}).items():
            known = self._known.get(id)
            if known is not None:  # else it has failed
                participants = state.participating_workers
                yield ShuffleRun(str(id), known.run_id, participants, known.since), known

    def _review(self) -> None:
        states = self._states() or {}
        if self._timeout_s() != self._judged_by_s:
            self._judge_anew(self._timeout_s())
        ended = self._read(states)
        if ended or len(states) < len(self._known):
            for id in self._known.keys() - (states.keys() - ended):
                self._uncount(self._known.pop(id))
        if self._next_end <= self._clock():
            self._expire()
        self._set_alarm(self._next_end if self._known else math.inf)

    def _read(self, states: dict[Any, Any]) -> Set[Any]:
        """
        Count what has changed; returns those that have failed, and are still in the books.

        Newer releases take them out when the barrier errs (`ShuffleSchedulerPlugin.transition`);
        until 2024.2 at least, one stays until its barrier is released, so as long as somebody holds
        its futures. Until 2023.9 `erred_shuffles` tells of those that a worker has left.
        """
        left = getattr(self._scheduler.extensions.get("shuffle"), "erred_shuffles", ())
        task, get = self._scheduler.tasks.get, self._known.get
        failed = set()
        for id, state in states.items():
            known = get(id)
            if known is None or known.run_id != state.run_id:
                known = self._begun(id, state.run_id)
            barrier = task(known.barrier)
            if (barrier is not None and barrier.state == "erred") or id in left:
                failed.add(id)
            elif len(state.participating_workers) != len(known.counted) and not known.is_expired:
                self._count(known, state.participating_workers)
        return failed

    def _begun(self, id: Any, run_id: int) -> _Known:
        before = self._known.get(id)
        if before is not None:
            self._uncount(before)
        known = self._known[id] = _Known(BARRIER + str(id), run_id, self._clock())
        self._next_end = min(self._next_end, known.since + self._judged_by_s)
        return known

    def _count(self, known: _Known, participants: Set[str]) -> None:
        if len(participants) < len(known.counted):
            self._uncount(known)
        for address in participants.difference(known.counted):  # type: ignore[attr-defined]
            self._pins[address] = self._pins.get(address, 0) + 1
        known.counted = tuple(participants)

    def _uncount(self, known: _Known) -> None:
        for address in known.counted:
            left = self._pins[address] - 1
            if left:
                self._pins[address] = left
            else:
                del self._pins[address]
        known.counted = ()

    def _judge_anew(self, timeout_s: float) -> None:
        """The limit has changed: those within it pin (again), and `_expire` finds the others."""
        now = self._clock()
        self._judged_by_s = timeout_s
        self._next_end = math.inf
        for known in self._known.values():
            known.is_expired = known.is_expired and now >= known.since + timeout_s
            if not known.is_expired:
                self._next_end = min(self._next_end, known.since + timeout_s)

    def _expire(self) -> None:
        now = self._clock()
        self._next_end = math.inf
        for run, known in list(self._runs()):
            if known.is_expired:
                continue
            end = known.since + self._judged_by_s
            if now < end:
                self._next_end = min(self._next_end, end)
                continue
            known.is_expired = True
            self._uncount(known)
            if not known.was_told:
                known.was_told = True
                self._expired(run)

    def _set_alarm(self, at: float) -> None:
        """One timer at most, and none while nothing runs: limits pass also if nobody asks."""
        if at == self._alarm_at:
            return
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm, self._alarm_at = None, math.inf
        if at == math.inf:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # asked from another thread: whoever asks next sets it
        self._alarm_at = at
        self._alarm = loop.call_later(max(0.0, at - self._clock()) + 0.001, self._ring)

    def _ring(self) -> None:
        self._alarm, self._alarm_at = None, math.inf
        self.look()

    def _states(self) -> dict[Any, Any] | None:
        # ShuffleSchedulerPlugin.active_shuffles since 2023.9 or so; before, `states` of
        # ShuffleSchedulerExtension. Both are an extension "shuffle" of the scheduler.
        plugin = self._scheduler.extensions.get("shuffle")
        for attribute in ("active_shuffles", "states"):
            states = getattr(plugin, attribute, None)
            if isinstance(states, dict):
                return states
        return None
