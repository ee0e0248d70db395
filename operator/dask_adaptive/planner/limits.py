"""Computes messages to the agent: limits that it enforces between passes, and expected workers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from dask_adaptive.model.observed import Clocks, ObservedGroup, ObservedWorker
from dask_adaptive.model.plan import Action, Arriving, SetReplicas
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Limit, Limits, Profile, Recycle
from dask_adaptive.planner.context import PassContext
from dask_adaptive.planner.groups import on_the_way
from dask_adaptive.planner.quotas import own_margin_s, own_tasks
from dask_adaptive.planner.replace import GroupRecycling
from dask_adaptive.planner.stages import Draft

#: Remaining time of a worker within its final margin: almost none. After an end in the past the
#: agent would give it tasks again.
IMMINENT_S = 0.001

#: A worker that takes this many times longer than others is not expected any more.
LATE = 3.0

#: A late worker is expected within this fraction of others' time.
SOON = 0.25

#: Interval of repeating expected workers: the agent drops overdue ones.
OVERDUE_S = 3.0

_NO_LIMIT = Limit()

#: For workers without limits, sent only if the agent watches newcomers.
_UNBOUND = _NO_LIMIT, Profile()


def limits_for(context: PassContext, groups: Iterable[GroupRecycling], *, left: int) -> Limits:
    """
    Compute the limits of all workers.

    A worker that must not be replaced now has no limit of runs or failures: it serves on over its
    quota. An exact quota of tasks, and an end that others have set, hold whatever happens.

    Workers that join before the next pass are watched by the rules that are the same for all: one
    on a broken node fails a hundred tasks a second, and one that nobody counts runs past its
    quota while the operator is away. Where groups have rules of their own, the lowest exact quota
    holds for a newcomer until the next pass.

    Args:
        left: Recycles that maxPerHour still allows beyond those that are under way.
    """
    of_groups = [_GroupLimits(context, group, left=left) for group in groups]
    newcomers = _newcomers(context, of_groups)
    profiles: dict[Profile, int] = {} if newcomers is None else {newcomers: 0}
    workers: dict[str, Limit] = {}
    last, number = None, 0  # most workers share a profile, and one is slow to hash
    rows = chain(*(limits.rows(others=newcomers is not None) for limits in of_groups))
    for names, row in chain(rows, [(context.observed.strangers, _UNBOUND)]):
        if not names or (row is _UNBOUND and newcomers is None):
            continue
        limit, profile = row
        if profile is not last:
            last, number = profile, profiles.setdefault(profile, len(profiles))
        if number:
            limit = Limit(limit.runs, limit.left_s, number)
        for name in names:
            workers[name] = limit
    cordons = {limits.group.name: limits.cordons for limits in of_groups}
    under_way = sum(len(limits.under_way) for limits in of_groups)
    others = None if newcomers is None else 0
    most = min(sum(cordons.values()), left + under_way)
    return Limits(workers, tuple(profiles), most, others, cordons if len(cordons) > 1 else {})


def _newcomers(context: PassContext, of_groups: Iterable[_GroupLimits]) -> Profile | None:
    """Return the rules for workers that join before the next pass."""
    if context.policy.group_recycle:
        exact = [limits.exact_runs for limits in of_groups if limits.exact_runs]
        return Profile(exact=True, runs=min(exact)) if exact else None
    return next(ls.newcomers for ls in of_groups if ls.group.name == context.default_group)


class _GroupLimits:
    """The limits of one group's workers."""

    def __init__(self, context: PassContext, recycled: GroupRecycling, *, left: int) -> None:
        at = recycled.at
        self.group, self._recycle, self._heads = at.group, at.recycle, recycled.heads
        self._at, self._begun = at, len(recycled.retire)
        self.under_way = recycled.under_way
        self._expected_s = context.observed.scheduler.expected_s
        self._is_exact = self._recycle.tasks.exact
        #: 0: no exact quota of tasks.
        self.exact_runs = self._recycle.tasks.max if self._is_exact else 0
        # Recycles under way already count for maxPerHour.
        is_open = at.is_open and not at.hold and (left > 0 or bool(self.under_way))
        may_runs = is_open and Reason.TASK_QUOTA not in at.forbidden
        self._may_runs = self._is_exact or may_runs
        self._may_fail = is_open and Reason.FAILURES not in at.forbidden
        full = profile_of(self._recycle, self.group, at.clocks)
        self._loose = replace(full, failures=0, patterns=())
        runs = self._recycle.tasks.max if self._may_runs else 0
        self._profile = replace(full if self._may_fail else self._loose, runs=runs)
        self._is_counted = False  # any worker's runs are: see `_of`
        self._is_watched = bool(self._profile.failures or self._profile.patterns)
        self._by_runs = {0: _NO_LIMIT}  # thousands of workers may have the same quota

    @property
    def newcomers(self) -> Profile | None:
        """
        Return the rules for this group's workers that join before the next pass. Their own jitter
        follows once they are known.
        """
        if self._recycle.min_age_s:
            return replace(self._loose, runs=self.exact_runs) if self.exact_runs else None
        is_bounded = self._is_watched or self._profile.runs
        return self._profile if is_bounded else None

    @property
    def cordons(self) -> int:
        """
        Limit of simultaneously cordoned workers, present ones included. Exact quotas ignore it.
        Read it after `rows`.
        """
        reasons = [Reason.TASK_QUOTA] if self._is_counted and not self._is_exact else []
        reasons += [Reason.FAILURES] if self._is_watched else []
        if not reasons:  # agents of 0.1.0 never cordon beyond this, even for exact quotas
            return self._heads.in_service if self._is_counted else 0
        total = max(1, self._heads.base)
        allowed = min(self._at.allowance(reason, total) for reason in reasons)
        missing = self._heads.missing - self._heads.cordoned + self._begun
        return int(max(0, min(allowed, total) - missing))

    def rows(self, *, others: bool) -> Iterator[tuple[tuple[str, ...], tuple[Limit, Profile]]]:
        """Yield workers that may have a limit; with `others` all of them."""
        are_all = others or self._recycle.tasks.max or self._is_watched
        workers = self.group.workers if are_all else self.group.table.ends.values()
        return ((worker.dask_names, self._of(worker)) for worker in workers)

    def _of(self, worker: ObservedWorker) -> tuple[Limit, Profile]:
        clocks, least_s = self._at.clocks, self._recycle.min_age_s
        may_cordon = worker.name in self.under_way or (
            worker.name not in self._at.aborted
            and (not least_s or clocks.pod_age_s(worker) >= least_s)
        )
        runs_out = self._is_exact or (may_cordon and self._may_runs)
        profile = self._profile if may_cordon else self._loose
        if not worker.has_end:
            runs = own_tasks(worker, self._recycle.tasks) if runs_out else 0
            limit = self._by_runs.get(runs) or self._by_runs.setdefault(runs, Limit(runs))
        else:
            limit = self._limit_by_end(worker)
            limit = limit if runs_out else replace(limit, runs=0)
        self._is_counted |= limit.runs > 0
        is_watched = self._is_watched and may_cordon
        return (limit, profile) if is_watched or limit != _NO_LIMIT else _UNBOUND

    def _limit_by_end(self, worker: ObservedWorker) -> Limit:
        """
        Return the limits for each Dask worker of this worker; `profile` is 0.

        `left_s` is about ends that others set: of the pod, or of Dask's --lifetime. At
        `recycle.lifetime.max` nothing ends, unless it is a walltime: see `with_walltimes`.
        """
        recycle, expected_s, clocks = self._recycle, self._expected_s, self._at.clocks
        left_s, ends_in_s = 0.0, clocks.ends_in_s(worker)
        if ends_in_s > 0:
            margin_s = own_margin_s(worker, recycle.lifetime, clocks)
            left_s = max(IMMINENT_S, ends_in_s - margin_s)
        runs = own_tasks(worker, recycle.tasks)
        if recycle.tasks.from_walltime and expected_s > 0 and math.isfinite(left_s):
            # Exact limits count assigned tasks too.
            given = worker.use.runs + (worker.process.processing if self._is_exact else 0)
            fitting = max(1, given + math.floor(min(left_s / expected_s, 1e9)))
            runs = min(runs, fitting) if runs else fitting
        return Limit(runs, left_s)


def profile_of(recycle: Recycle, group: ObservedGroup, clocks: Clocks) -> Profile:
    """
    Return the rules that the workers of one group share.

    The youngest worker tells how long a new one will live; without it tasks that are too long for
    every worker would wait forever for a new one.
    """
    fresh_s = math.inf
    if group.table.ends:
        connected = (w for w in group.workers if w.dask_names)
        youngest = min(connected, key=lambda w: (-w.platform.pod_made_at, w.name), default=None)
        if youngest is not None:
            left_s = clocks.ends_in_s(youngest) - own_margin_s(youngest, recycle.lifetime, clocks)
            fresh_s = max(0.0, clocks.pod_age_s(youngest) + left_s)
    return Profile(
        exact=recycle.tasks.exact,
        failures=recycle.failures.max,
        window_s=recycle.failures.window_s,
        patterns=recycle.failures.patterns,
        fresh_s=fresh_s,
        floor_s=recycle.lifetime.min_task_duration_s,
        group=group.name,
    )


def arriving(
    drafts: Sequence[Draft], actions: Sequence[Action], context: PassContext
) -> tuple[Arriving, ...]:
    """List requested workers by expected arrival, the soonest first."""
    requested = {a.group: a.replicas for a in actions if isinstance(a, SetReplicas)}
    found = Counter[tuple[int, str]]()
    for draft in drafts:
        for in_s, workers in _expected(draft, requested.get(draft.name, 0), context):
            found[round(in_s), draft.name] += workers
    return tuple(Arriving(n, float(in_s), group) for (in_s, group), n in sorted(found.items()))


def _expected(draft: Draft, requested: int, context: PassContext) -> Iterator[tuple[float, int]]:
    """Yield seconds and numbers of expected workers."""
    takes_s = context.past.of(draft.name).arrival_s or context.past.recycle.ready_s
    clocks = context.clocks
    for worker in draft.workers.pending:
        platform, age_s = worker.platform, clocks.age_s(worker)
        is_stuck = platform.gated or platform.refused or clocks.unplaced_s(worker) > takes_s
        if not is_stuck and age_s <= LATE * takes_s:
            yield max(takes_s - age_s, SOON * takes_s), 1
    unmade = max(on_the_way(context, draft.workers), requested - draft.workers.present)
    if unmade > 0:
        yield takes_s, unmade
