"""Keeps what was decided until it is written, and what was decided last."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from dask_adaptive.loop.decisions import Mind, decisions
from dask_adaptive.loop.ports import PlatformError, Reporter
from dask_adaptive.loop.told import MAX_DECISIONS
from dask_adaptive.model.history import KEPT, Decision
from dask_adaptive.model.observed import ObservedCluster
from dask_adaptive.model.plan import Outcome, Plan
from dask_adaptive.model.policy import Policy

#: The history is written at most once in so long: many workers leave one after the other.
EVERY_S = 10.0


class Chronicle:
    """
    The decisions of one policy.

    Args:
        last: The last one, as an earlier process has told.
    """

    def __init__(self, last: Decision | None = None) -> None:
        self.last = last
        self._minds: Mapping[str, Mind] = {}
        self._recent = deque[Decision]([last] if last else [], maxlen=MAX_DECISIONS)
        self._unwritten: list[Decision] = []
        self._written_at: float | None = None

    @property
    def recent(self) -> Iterable[Decision]:
        return tuple(self._recent)

    def note(
        self, observed: ObservedCluster, policy: Policy, decided: Plan, outcomes: Sequence[Outcome]
    ) -> None:
        """Take down what is new."""
        made, self._minds = decisions(self._minds, observed, policy, decided, outcomes)
        self._recent.extend(made)
        self._unwritten = [*self._unwritten, *made][-KEPT:]
        if made:
            self.last = made[-1]

    async def write(self, reporter: Reporter, *, now: float) -> None:
        """Have what is new kept, the first at once; what can't be is tried again later."""
        if not self._unwritten:
            return
        if self._written_at is not None and now - self._written_at < EVERY_S:
            return
        self._written_at = now
        with contextlib.suppress(PlatformError):
            await reporter.history(tuple(self._unwritten))
            self._unwritten = []
