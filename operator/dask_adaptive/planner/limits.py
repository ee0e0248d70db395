"""What the agent is to enforce by itself between two passes, for all groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from dask_adaptive.model.observed import ObservedCluster, ObservedGroup, ObservedWorker
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Limit, Limits, Profile, Recycle
from dask_adaptive.planner.budget import Headcount, Rules, allowance
from dask_adaptive.planner.quotas import limit_of, profile_of


@dataclass(frozen=True, slots=True)
class Bounded:
    """One group whose workers may have limits."""

    group: ObservedGroup
    rules: Rules
    heads: Headcount
    under_way: frozenset[str]  # its workers that are being replaced: no rule is asked about them
    begun: int  # of them: retired in this pass


def limits_for(
    groups: Iterable[Bounded], observed: ObservedCluster, policy: Policy, *, left: int
) -> Limits:
    """
    Say what may go on with how much.

    A worker that must not be replaced now has no limit of runs or failures: it serves on over its
    quota. Only an exact quota of tasks holds whatever happens. Its end, if others have set one, is
    told always: no task should begin that cannot finish.

    Workers that join before the next pass are watched by the rules that are the same for all: one
    on a broken machine fails a hundred tasks a second, and one that nobody counts runs past its
    quota while the operator is away. Then whoever is not to be watched is named. Where groups have
    rules of their own, the lowest exact quota holds for a newcomer until the next pass.

    Args:
        left: Recycles that maxPerHour still allows beyond those that are under way.
    """
    if not observed.scheduler.agent:
        return Limits()
    told = _Told()
    stops = chosen = 0
    rows_of = [(bounded, _Rows(bounded, observed, policy, left=left)) for bounded in groups]
    told.newcomers(_newcomers(rows_of, observed, policy))
    for bounded, rows in rows_of:
        for worker in bounded.group.workers:
            if worker.dask_names:
                told.add(worker.dask_names, rows.of(worker))
        stops += rows.stops
        chosen += len(bounded.under_way)
    if observed.strangers:
        told.add(observed.strangers, None)
    return Limits(told.workers, tuple(told.profiles), min(stops, left + chosen), told.others)


def _newcomers(
    rows_of: Iterable[tuple[Bounded, _Rows]], observed: ObservedCluster, policy: Policy
) -> Profile | None:
    """By what workers are watched that nobody has seen yet."""
    if policy.group_recycle:
        exact = [rows.exact_runs for _, rows in rows_of if rows.exact_runs]
        return Profile(exact=True, runs=min(exact)) if exact else None
    default = observed.key.default_group
    return next(
        (rows.newcomers for bounded, rows in rows_of if bounded.group.name == default), None
    )


class _Told:
    """Collects what is said of each Dask worker."""

    def __init__(self) -> None:
        self.workers: dict[str, Limit] = {}
        self.profiles: dict[Profile, int] = {}
        self.others: int | None = None
        self._last: tuple[Profile, int] | None = None

    def newcomers(self, profile: Profile | None) -> None:
        self.others = None if profile is None else self._number(profile)

    def add(self, names: Iterable[str], row: tuple[Limit, Profile] | None) -> None:
        if row is None:
            if self.others is None:
                return
            row = _NONE, _UNWATCHED
        limit, number = row[0], self._number(row[1])
        limit = replace(limit, profile=number) if number else limit
        for name in names:
            self.workers[name] = limit

    def _number(self, profile: Profile) -> int:
        if self._last is None or self._last[0] is not profile:  # most share one; slow to hash
            self._last = profile, self.profiles.setdefault(profile, len(self.profiles))
        return self._last[1]


class _Rows:
    """The limits of one group's workers."""

    def __init__(
        self, bounded: Bounded, observed: ObservedCluster, policy: Policy, *, left: int
    ) -> None:
        self._rules, self._heads = bounded.rules, bounded.heads
        self._under_way, self._begun = bounded.under_way, bounded.begun
        self._budgets = policy.disruption.budgets
        self._recycle = bounded.rules.recycle
        self._expected_s = observed.scheduler.expected_s
        # Those that are under way have been counted by maxPerHour already.
        is_open = self._rules.is_open and not self._rules.hold and (left > 0 or self._under_way)
        self._is_exact = self._recycle.tasks.exact
        self._may_runs = self._is_exact or (
            bool(is_open) and Reason.TASK_QUOTA not in self._rules.forbidden
        )
        self._may_fail = bool(is_open) and Reason.FAILURES not in self._rules.forbidden
        full = profile_of(self._recycle, bounded.group.workers)
        self._loose = _loosened(full)
        self._profile = replace(
            full if self._may_fail else self._loose,
            runs=self._recycle.tasks.maximum if self._may_runs else 0,
        )
        self._is_counted = self._may_runs and _counts_runs(self._recycle)
        self._is_watched = self._may_fail and _watches(self._profile)

    @property
    def newcomers(self) -> Profile | None:
        """
        By what workers of this group are watched that nobody has seen yet. Their own jitter and
        annotations are told once they have been.
        """
        if self._recycle.min_age_s:
            return replace(self._loose, runs=self.exact_runs) if self.exact_runs else None
        is_bounded = self._is_watched or self._profile.runs
        return self._profile if is_bounded else None

    @property
    def exact_runs(self) -> int:
        """The exact quota of tasks of this group's workers; 0: there is none."""
        return self._recycle.tasks.maximum if self._is_exact else 0

    @property
    def stops(self) -> int:
        """
        How many workers may be stopped at once, those that are already included. Exact quotas are
        not held back by that.
        """
        reasons = [Reason.TASK_QUOTA] if self._is_counted and not self._is_exact else []
        reasons += [Reason.FAILURES] if self._is_watched else []
        if not reasons:  # agents of 0.1.0 stop nobody beyond this, however exact
            return self._heads.in_service if self._is_counted else 0
        total = max(1, self._heads.base)
        allowed = min(allowance(self._budgets, reason, total) for reason in reasons)
        missing = self._heads.missing - self._heads.stopped + self._begun
        return int(max(0, min(allowed, total) - missing))

    def of(self, worker: ObservedWorker) -> tuple[Limit, Profile] | None:
        limit = limit_of(worker, self._recycle, expected_s=self._expected_s)
        profile = self._profile
        if not self._may_stop(worker):
            limit = limit if self._is_exact else replace(limit, runs=0)
            profile = self._loose
        else:
            if not self._may_runs and limit.runs:
                limit = replace(limit, runs=0)
            notes = worker.quota_notes
            if self._may_fail and notes is not None and notes.failures is not None:
                profile = replace(profile, failures=notes.failures)
        self._is_counted |= bool(limit.runs)
        is_watched = _watches(profile)
        self._is_watched |= is_watched
        if limit == _NONE and not is_watched and not profile.measure:
            return None
        return limit, profile

    def _may_stop(self, worker: ObservedWorker) -> bool:
        if worker.name in self._under_way:
            return True
        if worker.name in self._rules.aborted:
            return False
        return worker.pod_age_s >= self._recycle.min_age_s


_NONE = Limit()
_UNWATCHED = Profile()


def _loosened(profile: Profile) -> Profile:
    return replace(profile, failures=0, patterns=())


def _counts_runs(recycle: Recycle) -> bool:
    return bool(recycle.tasks.maximum) or recycle.tasks.from_walltime


def _watches(profile: Profile) -> bool:
    return bool(profile.failures or profile.patterns)
