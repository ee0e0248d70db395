"""
Which workers of a group are due to be replaced, and why. Not: when, and how many at once.

The entry to what is about quotas: `due` has the rules, `rations` what each worker may use.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dask_adaptive.model.observed import ObservedCluster, ObservedGroup
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.recycle import QuotaUse, RecyclePast
from dask_adaptive.planner.due import Due as Due
from dask_adaptive.planner.due import Scene, due, urgency
from dask_adaptive.planner.due import has_spent as has_spent
from dask_adaptive.planner.outliers import find_outliers
from dask_adaptive.planner.quota_lines import QuotaLine as QuotaLine
from dask_adaptive.planner.quota_lines import quota_lines as quota_lines
from dask_adaptive.planner.quota_past import remember_quotas as remember_quotas
from dask_adaptive.planner.quota_uses import group_uses
from dask_adaptive.planner.rations import limit_of as limit_of
from dask_adaptive.planner.rations import profile_of as profile_of
from dask_adaptive.planner.screen import suspects


@dataclass(frozen=True, slots=True)
class Assessment:
    """What quotas say of one group."""

    due: tuple[Due, ...] = ()  # most urgent first, one for each worker; a total order
    uses: tuple[QuotaUse, ...] = ()  # the highest use of each quota that the group has


def assess(
    observed: ObservedCluster,
    group: ObservedGroup,
    policy: Policy,
    past: RecyclePast,
    *,
    now: float,
) -> Assessment:
    """
    Find the workers of a group that are due. Those that drain are assessed like any other; those
    that are not connected, deleted, or about to end are never due.

    Args:
        now: Seconds, on the clock that stamped `past`; `observed.at` is on that of the platform.
    """
    recycle = policy.recycle_of(group.name)
    live = [w for w in group.workers if w.dask_names and not w.going and not w.ending]
    has_begun = policy.restart_at is not None and policy.restart_at <= observed.at
    scene = Scene(
        recycle=recycle,
        past=past,
        now=now,
        at=observed.at,
        restart_at=policy.restart_at if policy.restart_at is not None and has_begun else -math.inf,
        expected_s=observed.scheduler.expected_s,
        outliers=find_outliers(live, recycle.selection),
    )
    found = [d for worker in suspects(live, scene) if (d := due(worker, scene)) is not None]
    uses = group_uses(group.name, live, recycle, past)
    return Assessment(tuple(sorted(found, key=urgency)), uses)
