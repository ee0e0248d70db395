"""What a pass remembers for the next one. Lost with the process, which only ever delays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import RecyclePast


class Recommendation(NamedTuple):
    """What the load asked for, and when."""

    at: float  # seconds, same clock as `now`
    replicas: int


class Refusal(NamedTuple):
    """The agent would not let a worker go."""

    until: float  # not asked again before
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Past:
    """
    Memory of one cluster's earlier passes.

    A new operator starts with an empty one. All rules read it such that less memory means that a
    worker stays longer, never shorter.
    """

    session: str = ""  # of the scheduler that the rest is about
    since: float | None = None  # first observation of that session
    recommendations: tuple[Recommendation, ...] = ()
    refusals: Mapping[str, Refusal] = field(default_factory=dict)
    leaving: frozenset[str] = frozenset()  # workers we drained or deleted, until all is settled
    deleted: frozenset[str] = frozenset()  # of them: deleted, and not yet seen gone
    told: frozenset[str] = frozenset()  # addresses of Dask workers whose end we have told of
    gap: tuple[int, ...] = (0, 0)  # `fleet.gap_of` as last seen
    gap_since: float = 0.0  # when it was first seen
    desired: int | None = None  # by the last plan that had a number
    seen: frozenset[str] = frozenset()  # workers that have been connected, as long as they exist
    floors: Mapping[str, int] = field(default_factory=dict)  # `Plan.floors`
    aborts: Mapping[str, int] = field(default_factory=dict)  # replacements that did not come
    counted: Mapping[str, str] = field(default_factory=dict)  # pod whose recycle is in the totals
    restarted: Mapping[str, str] = field(default_factory=dict)  # pod that we deleted, by worker
    recycle: RecyclePast = field(default_factory=RecyclePast)
