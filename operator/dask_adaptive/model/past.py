"""The memory of earlier passes. It is lost with the process, which only ever delays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import RecyclePast


class Recommendation(NamedTuple):
    """The number that the load asked for, and when."""

    at: float  # seconds, same clock as `now`
    replicas: int


class Refusal(NamedTuple):
    """The agent would not let a worker go."""

    until: float  # not asked again before
    reason: Reason
    message: str


class Change(NamedTuple):
    """A number of workers was asked for (or workers were let go), and when."""

    at: float
    workers: int  # more than before; negative: fewer


@dataclass(frozen=True, slots=True)
class Blocked:
    """More workers are not asked for, until then: they would not come."""

    until: float
    reason: Reason
    message: str
    times: int = 1  # in a row; the wait doubles
    workers: frozenset[str] = frozenset()  # that were waited for: one that comes ends it


@dataclass(frozen=True, slots=True)
class GroupPast:
    """The memory of one worker group that is scaled."""

    recommendations: tuple[Recommendation, ...] = ()
    changes: tuple[Change, ...] = ()  # as far back as any rate policy looks
    gap: tuple[int, ...] = (0, 0)  # `groups.gap_of` as last seen
    gap_since: float = 0.0  # when it was first seen
    corrected_at: float | None = None  # `replicas` told the truth, because none came that it asked
    desired: int | None = None  # by the last plan that had a number
    asked: int | None = None  # most that was asked for, and got, since workers were last let go
    up_at: float | None = None  # when more workers were last asked for
    arrival_s: float | None = None  # how long its workers take to come, measured; None: none has
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
    told: frozenset[str] = frozenset()  # addresses of Dask workers whose end we have told of
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
