"""P2P shuffles that run now, read from the scheduler's shuffle plugin, whatever its release."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler


class ShuffleRun(NamedTuple):
    """One attempt at one shuffle."""

    id: str
    run_id: int  # a counter of the whole scheduler process, not of this shuffle
    participants: Set[str]  # addresses; the scheduler's own set, to be read at once
    since: float  # when the agent first saw this attempt


class Shuffles:
    """
    Asks the scheduler each time, and remembers only when it first saw each run.

    A shuffle that starts between two snapshots must pin its workers all the same, and a restarted
    one pins anew: so nothing about participants is kept.
    """

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float]) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._first_seen: dict[tuple[str, int], float] = {}

    @property
    def is_known(self) -> bool:
        """Whether this release of distributed keeps its shuffles where we look."""
        return self._states() is not None

    def running(self) -> list[ShuffleRun]:
        """Raises when shuffles cannot be read: the caller must then hold all workers."""
        states = self._states()
        if not states:
            self._first_seen.clear()
            return []
        now = self._clock()
        runs = [
            ShuffleRun(
                str(id),
                int(state.run_id),
                state.participating_workers,
                self._first_seen.get((str(id), int(state.run_id)), now),
            )
            for id, state in states.items()
        ]
        self._first_seen = {(run.id, run.run_id): run.since for run in runs}
        return runs

    def pinning(self, timeout_s: float) -> list[ShuffleRun]:
        """Those that still pin: a shuffle nobody has finished for so long pins no more."""
        now = self._clock()
        return [run for run in self.running() if now - run.since < timeout_s]

    def _states(self) -> dict[Any, Any] | None:
        # ShuffleSchedulerPlugin.active_shuffles since 2023.10; before, `states` of
        # ShuffleSchedulerExtension. Both are an extension "shuffle" of the scheduler.
        plugin = self._scheduler.extensions.get("shuffle")
        for attribute in ("active_shuffles", "states"):
            states = getattr(plugin, attribute, None)
            if isinstance(states, dict):
                return states
        return None
