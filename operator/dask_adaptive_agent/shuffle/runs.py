"""P2P shuffles: those that run now, by the scheduler's shuffle plugin, and those to begin."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Set
from dataclasses import dataclass
from functools import wraps
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from dask_adaptive_agent import patching, wire
from dask_adaptive_agent.component import Component, Context
from dask_adaptive_agent.guard import logged
from dask_adaptive_agent.patching import Delegate, Mismatch, Patches
from dask_adaptive_agent.service.service import Service
from dask_adaptive_agent.text import duration, plural

if TYPE_CHECKING:
    from distributed.scheduler import TaskState

logger = logging.getLogger(__name__)

#: The prefix that upstream's `barrier_key` puts before a shuffle's id.
BARRIER = "shuffle-barrier-"

#: Shuffles that one answer describes.
MOST = 50

#: The number of its inputs and outputs that are looked at; they represent all.
SAMPLE = 200
#: The number of tasks that are followed from an output on: each runs where the one before ran.
FOLLOWED = 3
#: Of a shuffle's outputs these are looked at for what they are bound to: they are all alike.
BOUND_SAMPLE = 5


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
    was_reported: bool = False  # that it has gone on for too long


class Shuffles(Component):
    """
    Knows which workers take part in a shuffle that has not gone on for too long.

    The scheduler is asked each time, because a shuffle that starts between two questions must pin
    its workers all the same; but their participants are read again only if a run has changed. A run
    is the same as long as its `run_id` is, and its participants only ever grow
    (`ShuffleSchedulerPlugin._get` adds; whoever leaves ends the run), so their number tells.
    """

    def __init__(self, context: Context, service: Service) -> None:
        super().__init__(context)
        self._service = service
        self.expired = 0  # that have pinned their workers for as long as they may
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
        """
        The runs that have not failed. Raises when shuffles cannot be read: the caller must then
        hold all workers.

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
                known = ShuffleRun(str(id), state.run_id, state.participating_workers, self.clock())
            barrier = self.scheduler.tasks.get(BARRIER + str(id))
            if id not in left and (barrier is None or barrier.state != "erred"):
                runs[id] = known
        self._known = runs
        return list(runs.values())

    def pinning(self) -> list[ShuffleRun]:
        """The runs that still pin: one that has lasted longer than the limit does not."""
        runs, since = self.running(), self.clock() - self.context.settings.shuffle_timeout_s
        for run in runs:
            if run.since <= since and not run.was_reported:
                run.was_reported = True
                self._expire(run)
        return [run for run in runs if run.since > since]

    def _expire(self, run: ShuffleRun) -> None:
        self.expired += 1
        limit = duration(self.context.settings.shuffle_timeout_s)
        workers = self.scheduler.workers
        held = [str(workers[a].name) for a in sorted(run.participants) if a in workers]
        self.context.notes.add(
            wire.N_PIN_EXPIRED,
            f"shuffle {run.id} has run for over {limit} (spec.pins.shuffle.timeout) and no longer "
            f"pins its {plural(len(held), 'worker')}: if one of them leaves, it starts over",
            held,
        )

    def look(self) -> None:
        """Notice changes even if no request comes."""
        # Nothing depends on it: the next question meets the same error, and holds all workers.
        with logged(logger, "Failed to read shuffles"):
            self.pinning()

    def _states(self) -> dict[Any, Any] | None:
        # ShuffleSchedulerPlugin.active_shuffles since 2023.9 or so; before, `states` of
        # ShuffleSchedulerExtension. Both are an extension "shuffle" of the scheduler.
        plugin = self.scheduler.extensions.get("shuffle")
        for attribute in ("active_shuffles", "states"):
            states = getattr(plugin, attribute, None)
            if isinstance(states, dict):
                return states
        return None

    def install(self, patches: Patches) -> None:
        """
        From now on the shuffle plugin chooses among workers in service only, unless there is none.
        Raises `Mismatch` where this release chooses in another way.
        """
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
            # When the new run is on the books.
            self.scheduler.loop.asyncio_loop.call_soon(self.look)
            workers = self._service.in_service()
            if workers and len(workers) < len(self.scheduler.workers):
                return Delegate(self.scheduler, workers={ws.address: ws for ws in workers})
        return None


class Upcoming(NamedTuple):
    """A shuffle whose outputs are yet to be given to workers."""

    id: str
    barrier: TaskState  # its dependencies are the inputs, its dependents the outputs
    known_at: float  # on the agent's clock
    seen_at: float  # when it was first reported to the operator; infinite: never


class Work(NamedTuple):
    """Seconds of work, on one thread, that a shuffle still means."""

    inputs_s: float  # before its outputs can be computed; any worker may take part
    outputs_s: float  # stays with the workers that are there when it begins


class Barriers(Component):
    """
    Barrier tasks of shuffles, as they become known.

    The scheduler keeps no list of the tasks of a prefix or a group, and to look through all tasks
    would cost a large scheduler a tenth of a second: they are noted as they pass, each of them from
    `released` to `waiting` (`Scheduler.update_graph`; `_restart_shuffle` for a shuffle's next run).
    """

    def __init__(self, context: Context, shuffles: Shuffles) -> None:
        super().__init__(context)
        self._shuffles = shuffles
        #: By key: since when it waits, and when the operator was told of it.
        self._known: dict[str, tuple[float, float]] = {}

    def start(self) -> None:
        """Find those that were there before us."""
        now = self.clock()
        for key, ts in self.scheduler.tasks.items():
            if type(key) is str and key.startswith(BARRIER) and ts.state == "waiting":
                self._add(key, now)

    def transition(self, key: str, finish: str) -> None:
        """To be called for each one to or from `waiting`."""
        self._known.pop(key, None)
        if finish == "waiting":
            self._add(key, self.clock())

    def _add(self, key: str, now: float) -> None:
        self._known[key] = now, math.inf
        # Before its first input is ready.
        self.context.expect("workers_to_close", "shuffle_choice", "shuffle_wait")

    def seen(self) -> None:
        """Note that all that are upcoming now are reported to the operator."""
        now = self.clock()
        self._known = {key: (at, min(seen, now)) for key, (at, seen) in self._known.items()}

    def get(self, id: str) -> Upcoming | None:
        """The shuffle of that id, unless it has begun or is no more."""
        known = self._known.get(BARRIER + id)
        barrier = self.scheduler.tasks.get(BARRIER + id)
        if known is None or barrier is None or self._shuffles.has_begun(id):
            return None
        return Upcoming(id, barrier, *known)

    def rows(self) -> list[wire.UpcomingShuffleRow]:
        """
        The first `MOST` that became known and have not begun, for the operator: more workers would
        be of use to them. Cheap however many tasks there are.
        """
        upcoming = (self.get(shuffle_of(key)) for key in list(self._known))
        return [
            {
                "id": one.id,
                "inputs": len(one.barrier.waiting_on or ()),
                "outputs": len(one.barrier.dependents),
            }
            for one in islice(filter(None, upcoming), MOST)
        ]

    def is_known(self, id: str) -> bool:
        """True if the shuffle's result is still needed, begun or not."""
        return (BARRIER + id) in self.scheduler.tasks

    def is_bound(self, barrier: TaskState) -> bool:
        """
        Tells whether a shuffle's outputs go to certain workers, even if others come.

        `ShuffleSchedulerPlugin._calculate_worker_for` (before 2023.8.1 `_pin_output_workers`) takes
        the barrier's workers where it is restricted to some, and those of a shuffle that has begun
        and shares outputs with it, as in a join. Outputs that are restricted themselves end up
        there.
        """
        outputs = list(islice(barrier.dependents, BOUND_SAMPLE))
        others = {
            shuffle_of(ts.key) for o in outputs for ts in islice(o.dependencies, BOUND_SAMPLE)
        }
        others -= {"", shuffle_of(barrier.key)}
        is_restricted = any(ts.worker_restrictions for ts in (barrier, *outputs))
        return is_restricted or any(map(self._shuffles.has_begun, others))


def work_of(barrier: TaskState, expected_s: Callable[[TaskState], float]) -> Work:
    """Seconds of work before and behind a shuffle's barrier that is yet to run."""

    def input_s(ts: TaskState) -> float:
        return expected_s(ts) + sum(expected_s(dt) for dt in islice(ts.waiting_on or (), SAMPLE))

    def output_s(ts: TaskState) -> float:
        seconds = expected_s(ts)
        for _ in range(FOLLOWED):
            if len(ts.dependents) != 1:
                break
            (ts,) = ts.dependents
            if len(ts.dependencies) != 1:
                break
            seconds += expected_s(ts)
        return seconds

    return Work(_in_all(barrier.waiting_on or (), input_s), _in_all(barrier.dependents, output_s))


def _in_all(tasks: Collection[TaskState], seconds: Callable[[TaskState], float]) -> float:
    sample = list(islice(tasks, SAMPLE))
    return sum(map(seconds, sample)) * len(tasks) / len(sample) if sample else 0.0
