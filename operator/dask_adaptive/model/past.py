"""Declares the memory of earlier passes. Losing it with the process only causes delays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import RecyclePast


class Recommendation(NamedTuple):
    """The number that the load needed, with its time."""

    at: float  # seconds, same clock as `now`
    replicas: int


class Refusal(NamedTuple):
    """The agent refused to retire a worker."""

    until: float  # not requested again before
    reason: Reason
    message: str


class Change(NamedTuple):
    """Workers were requested or let go, at an instant."""

    at: float
    workers: int  # more than before; negative: fewer


@dataclass(frozen=True, slots=True)
class Blocked:
    """More workers are not requested until an instant, because they would not come."""

    until: float
    reason: Reason
    message: str
    times: int = 1  # in a row; the wait doubles
    workers: frozenset[str] = frozenset()  # that were waited for: one that comes ends it


@dataclass(frozen=True, slots=True)
class GroupPast:
    """The memory of one scaled worker group."""

    recommendations: tuple[Recommendation, ...] = ()
    changes: tuple[Change, ...] = ()  # as far back as any rate policy looks
    gap: tuple[int, ...] = (0, 0)  # `groups.gap_of` as last seen
    gap_since: float = 0.0  # when it was first seen
    corrected_at: float | None = None  # when `replicas` was corrected: no worker had come
    desired: int | None = None  # by the last plan that had a number
    requested: int | None = None  # most workers requested successfully since some were last let go
    up_at: float | None = None  # when more workers were last requested
    arrival_s: float | None = None  # measured start time of its workers; None: none has started
    starts: tuple[float, ...] = ()  # how long the last ones took
    blocked: Blocked | None = None
    since: float | None = None  # scaled, and seen without a gap, since then; None: just now


@dataclass(frozen=True, slots=True)
class Past:
    """
    Memory of one cluster's earlier passes.

    A new operator starts with an empty one. All rules read it such that less memory means that a
    worker stays longer, never shorter.
    """

    session: str = ""  # of the scheduler that the rest is about
    since: float | None = None  # first observation of that session
    heard_at: float | None = None  # when its scheduler last answered, with or without a pass
    groups: Mapping[str, GroupPast] = field(default_factory=dict)  # those that are scaled
    refusals: Mapping[str, Refusal] = field(default_factory=dict)
    leaving: frozenset[str] = frozenset()  # workers we drained or deleted, until all is settled
    homes: Mapping[str, str] = field(default_factory=dict)  # the groups of those that are leaving
    deleted: frozenset[str] = frozenset()  # of them: deleted, and not yet seen gone
    announced: frozenset[str] = frozenset()  # addresses of Dask workers whose end was announced
    seen: frozenset[str] = frozenset()  # workers that have been connected, as long as they exist
    lost: Mapping[str, float] = field(default_factory=dict)  # of them, not now: since, our clock
    awaited: Mapping[str, float] = field(default_factory=dict)  # the others: since when, our clock
    floors: Mapping[str, int] = field(default_factory=dict)  # `Plan.floors`
    aborts: Mapping[str, int] = field(default_factory=dict)  # replacements that did not come
    counted: Mapping[str, str] = field(default_factory=dict)  # pod whose recycle is in the totals
    restarted: Mapping[str, str] = field(default_factory=dict)  # pod that we deleted, by worker
    recycle: RecyclePast = field(default_factory=RecyclePast)

    def of(self, group: str) -> GroupPast:
        return self.groups.get(group, NO_PAST)


NO_PAST = GroupPast()
