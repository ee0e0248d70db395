"""For how long nobody has used the scheduler: no task, no client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from distributed.scheduler import Scheduler

    from dask_adaptive_agent import wire

#: Futures that nobody waits for belong to a client of that name, which is none.
NOBODY = "fire-and-forget"


class Quietness:
    """
    Remembers when somebody was last there. The operator's own connections are no clients.

    Args:
        scheduler: Whose tasks and clients are meant.
        clock: Seconds that never go backwards.
    """

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float]) -> None:
        self._scheduler: Any = scheduler
        self._clock = clock
        self._task_at = self._client_at = clock()
        self._transitions = -1
        self._begun = -1

    def client_left(self, client: str) -> None:
        if client != NOBODY:
            self._client_at = self._clock()

    def answer(self, *, processing: int) -> wire.Quiet:
        """
        Args:
            processing: Tasks that are assigned to workers now.
        """
        now = self._clock()
        if self._has_tasks(processing):
            self._task_at = now
        if self._scheduler.clients.keys() - {NOBODY}:
            self._client_at = now
        return {
            "no_task_ms": int((now - self._task_at) * 1000),
            "no_client_ms": int((now - self._client_at) * 1000),
        }

    def _has_tasks(self, processing: int) -> bool:
        """Whether there is a task, or was one since the last look."""
        scheduler = self._scheduler
        transitions: int = scheduler.transition_counter
        is_same, self._transitions = transitions == self._transitions, transitions
        if processing or scheduler.queued or scheduler.unrunnable:
            self._begun = -1
            return True
        if is_same:
            return False
        # Results that are let go are transitions as well: only tasks that were assigned count.
        prefixes = scheduler.task_prefixes.values()
        begun = sum([prefix.state_counts.get("processing", 0) for prefix in prefixes])
        before, self._begun = self._begun, int(begun)
        return before != self._begun
