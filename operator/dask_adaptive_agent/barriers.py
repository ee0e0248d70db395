"""Which P2P shuffles have not begun, by the tasks that all their inputs lead to. No decisions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from dask_adaptive_agent.shuffles import BARRIER

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskState


class Upcoming(NamedTuple):
    """A shuffle whose outputs are yet to be given to workers."""

    id: str
    barrier: TaskState  # its dependencies are the inputs, its dependents the outputs
    known_at: float  # on the agent's clock
    seen_at: float  # when the operator was first told of it; infinite: never


class Barriers:
    """
    Barrier tasks of shuffles, as they become known.

    The scheduler keeps no list of the tasks of a prefix or a group, and to look through all tasks
    would cost a large scheduler a tenth of a second: they are noted as they pass, each of them from
    `released` to `waiting` (`Scheduler.update_graph`; `_restart_shuffle` for a shuffle's next run).

    Args:
        scheduler: Read, not changed.
        clock: Seconds that never go backwards.
        has_begun: Whether a shuffle's outputs have been given to workers.
        first: Called when the first one becomes known, before its first input is ready.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        clock: Callable[[], float],
        *,
        has_begun: Callable[[str], bool],
        first: Callable[[], None] = lambda: None,
    ) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._has_begun = has_begun
        self._first: Callable[[], None] | None = first
        self._known: dict[str, float] = {}  # by key: since when it waits
        self._seen: dict[str, float] = {}  # by key: when the operator was told of it

    def start(self) -> None:
        """Find those that were there before us."""
        now = self._clock()
        for key, ts in self._scheduler.tasks.items():
            if type(key) is str and key.startswith(BARRIER) and ts.state == "waiting":
                self._add(key, now)

    def transition(self, key: Any, start: str, finish: str) -> None:
        """To be called for each one to or from `waiting`."""
        if type(key) is str and key.startswith(BARRIER):
            if finish == "waiting":
                self._add(key, self._clock())
            else:
                self._known.pop(key, None)
            self._seen.pop(key, None)

    def _add(self, key: str, now: float) -> None:
        self._known[key] = now
        if self._first is not None:
            first, self._first = self._first, None
            first()

    def seen(self) -> None:
        """The operator is told of all that are upcoming now."""
        now = self._clock()
        for key in self._known.keys() - self._seen.keys():
            self._seen[key] = now

    def upcoming(self) -> Iterator[Upcoming]:
        """Those that have not begun, in the order in which they became known."""
        for key in list(self._known):
            one = self.get(key[len(BARRIER) :])
            if one is not None:
                yield one

    def get(self, id: str) -> Upcoming | None:
        """The shuffle of that id, unless it has begun or is no more."""
        known_at = self._known.get(BARRIER + id)
        barrier = self._scheduler.tasks.get(BARRIER + id)
        if known_at is None or barrier is None or self._has_begun(id):
            return None
        return Upcoming(id, barrier, known_at, self._seen.get(BARRIER + id, math.inf))

    def is_known(self, id: str) -> bool:
        """Whether somebody still wants what the shuffle is for, begun or not."""
        return (BARRIER + id) in self._scheduler.tasks
