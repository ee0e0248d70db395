"""P2P shuffles that run now, read from the scheduler's shuffle plugin, whatever its release."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Set
from dataclasses import dataclass
from functools import wraps
from typing import Any

from dask_adaptive_agent import patching
from dask_adaptive_agent.failing import logged
from dask_adaptive_agent.patching import Mismatch, Patches
from dask_adaptive_agent.protocol.operator_side import Component
from dask_adaptive_agent.relief.workers_to_close import Delegate, in_service

logger = logging.getLogger(__name__)

#: The prefix that upstream's `barrier_key` puts before a shuffle's id.
BARRIER = "shuffle-barrier-"


def shuffle_of(key: Any) -> str:
    """The id of the shuffle whose barrier has this key; empty: it is no barrier's."""
    return key[len(BARRIER) :] if type(key) is str and key.startswith(BARRIER) else ""


@dataclass
class ShuffleRun:
    """One attempt at one shuffle, that has not failed."""

    id: str
    run_id: int  # a counter of the whole scheduler process, not of this shuffle
    participants: Set[str]  # addresses; the scheduler's own set, to be read at once
    since: float  # when the agent first saw this attempt
    was_told: bool = False  # that it has gone on for too long


@dataclass(eq=False)
class Shuffles(Component):
    """
    Knows which workers take part in a shuffle that has not gone on for too long.

    The scheduler is asked each time, because a shuffle that starts between two questions must pin
    its workers all the same; but their participants are read again only if a run has changed. A run
    is the same as long as its `run_id` is, and its participants only ever grow
    (`ShuffleSchedulerPlugin._get` adds; whoever leaves ends the run), so their number tells.
    """

    timeout_s: Callable[[], float]  # how long a run pins; infinite: as long as it runs
    expired: Callable[[ShuffleRun], None]  # called once for each run that has gone on for longer

    def __post_init__(self) -> None:
        self._known: dict[Any, ShuffleRun] = {}  # by shuffle
        #: Runs that pin with the number of their participants, and these together.
        self._numbers: list[tuple[int, int]] = []
        self._pins: Set[str] = frozenset()

    @property
    def is_known(self) -> bool:
        """Tells whether this release of distributed keeps its shuffles where we look."""
        return self._states() is not None

    def has_begun(self, id: str) -> bool:
        """Tells whether its outputs have been given to workers; yes where that can't be known."""
        states = self._states()
        return states is None or id in states

    def pinned(self) -> Set[str]:
        """
        Addresses of workers that a shuffle pins.

        Raises when shuffles cannot be read: the caller must then hold all workers.
        """
        pinning = self.pinning()
        numbers = [(run.run_id, len(run.participants)) for run in pinning]
        if numbers != self._numbers:
            self._pins = frozenset().union(*[run.participants for run in pinning])
            self._numbers = numbers
        return self._pins

    def running(self) -> list[ShuffleRun]:
        """Raises when shuffles cannot be read: the caller must then hold all workers."""
        self._known = self._read()
        return list(self._known.values())

    def pinning(self) -> list[ShuffleRun]:
        """The runs that still pin: one that has gone on for longer than the limit pins no more."""
        runs, since = self.running(), self.clock() - self.timeout_s()
        for run in runs:
            if run.since <= since and not run.was_told:
                run.was_told = True
                self.expired(run)
        return [run for run in runs if run.since > since]

    def look(self) -> None:
        """Notice what has changed although nobody asks."""
        # Nothing depends on it: the next question meets the same error, and holds all workers.
        with logged(logger, "Failed to read shuffles"):
            self.pinning()

    def _read(self) -> dict[Any, ShuffleRun]:
        """
        The runs that have not failed.

        Newer releases take those that have out of their books when the barrier errs
        (`ShuffleSchedulerPlugin.transition`); until 2024.2 at least, one stays until its barrier is
        released, so as long as somebody holds its futures. Until 2023.9 `erred_shuffles` tells of
        those that a worker has left.
        """
        left = getattr(self.scheduler.extensions.get("shuffle"), "erred_shuffles", ())
        runs = {}
        for id, state in (self._states() or {}).items():
            known = self._known.get(id)
            if known is None or known.run_id != state.run_id:
                participants = state.participating_workers
                known = ShuffleRun(str(id), state.run_id, participants, self.clock())
            barrier = self.scheduler.tasks.get(BARRIER + str(id))
            if id not in left and (barrier is None or barrier.state != "erred"):
                runs[id] = known
        return runs

    def _states(self) -> dict[Any, Any] | None:
        # ShuffleSchedulerPlugin.active_shuffles since 2023.9 or so; before, `states` of
        # ShuffleSchedulerExtension. Both are an extension "shuffle" of the scheduler.
        plugin = self.scheduler.extensions.get("shuffle")
        for attribute in ("active_shuffles", "states"):
            states = getattr(plugin, attribute, None)
            if isinstance(states, dict):
                return states
        return None


@dataclass(eq=False)
class ShufflePlacement:
    """Lets the shuffle plugin choose among workers in service only, unless there is none."""

    scheduler: Any
    #: Addresses that are on their way out, besides those whose status says so.
    leaving: Callable[[], Collection[str]]
    chosen: Callable[[], None]  # called in the moment after a new run was put on the books

    def install(self, patches: Patches) -> None:
        """Raises `Mismatch` where this release chooses in another way."""
        plugin = self.scheduler.extensions.get("shuffle")
        # It must look for workers where we put the stand-in.
        if getattr(plugin, "scheduler", None) is not self.scheduler:
            raise Mismatch("the shuffle plugin does not look for workers in `scheduler`")
        # Where it chooses workers of a new run, all synchronous.
        choices = (patching.SHUFFLE_CHOICE, patching.SHUFFLE_CHOICE_OLD)
        known = [target for target in choices if hasattr(plugin, target.name)]
        if not known:
            raise Mismatch("the shuffle plugin chooses workers in another way than known")
        for target in known:
            patches.put(target, self._choosing)

    def _choosing(self, stock: patching.Call) -> patching.Call:
        @wraps(stock)
        def choose(*args: Any, **kwargs: Any) -> Any:
            stand_in = self._stand_in()
            if stand_in is None:
                return stock(*args, **kwargs)
            plugin = self.scheduler.extensions["shuffle"]
            plugin.scheduler = stand_in
            try:
                return stock(*args, **kwargs)
            finally:
                plugin.scheduler = self.scheduler

        return choose

    def _stand_in(self) -> Any:
        """The scheduler with fewer workers; None: as it is."""
        # Fail open: a worker that leaves may be chosen, as upstream does.
        with logged(logger, "Failed to find the workers in service; a shuffle may take all"):
            self.scheduler.loop.asyncio_loop.call_soon(self.chosen)
            workers = in_service(self.scheduler, self.leaving())
            if workers and len(workers) < len(self.scheduler.workers):
                return Delegate(self.scheduler, workers={ws.address: ws for ws in workers})
        return None
