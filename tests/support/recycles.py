"""Small clusters whose workers are replaced: what `plan` makes of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from dask_adaptive.model.observed import ObservedCluster, ObservedWorker, Retiring
from dask_adaptive.model.past import Past
from dask_adaptive.model.plan import Plan, SetPin
from dask_adaptive.model.policy import Disruption, Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import (
    Budget,
    MemoryQuota,
    Recycle,
    Strategy,
    StrategyType,
    TaskQuota,
    Use,
    Window,
)
from support.worlds import NOW, PAST, POLICY, cluster, dated, past_of, plan, short

RECYCLE = Recycle(tasks=TaskQuota(20), memory=MemoryQuota(hard=0.9))
SPENT = {"use": Use(runs=25)}
FULL = {"use": Use(process=0.95)}
IN_PLACE: dict[str, Any] = {"strategy": Strategy(StrategyType.IN_PLACE)}
DRAINING = {"retiring": Retiring(Reason.TASK_QUOTA)}
DRAINED = {"retiring": Retiring(Reason.TASK_QUOTA, is_drained=True), "pod": "x", "pod_uid": "p"}
AT = 1_700_000_000.0  # 22:13 UTC


def policy_of(disruption: dict[str, Any], policy: dict[str, Any], **recycle: Any) -> Policy:
    return dataclasses.replace(
        POLICY,
        recycle=dataclasses.replace(RECYCLE, **recycle),
        disruption=Disruption(**disruption),
        **policy,
    )


def decide(
    world: ObservedCluster, past: Past = PAST, *, disruption: dict[str, Any] | None = None,
    policy: dict[str, Any] | None = None, **recycle: Any,
) -> Plan:  # fmt: skip
    world = dated(world, AT)
    return plan(world, policy_of(disruption or {}, policy or {}, **recycle), past, now=NOW)


def actions(decided: Plan) -> list[str]:
    return [short(a) for a in decided.actions if not isinstance(a, SetPin)]


def blocked(decided: Plan) -> dict[str, Reason]:
    return {b.worker: b.reason for b in decided.blockers}


#: Open from 2 to 3 at night: not at `AT`.
NIGHT = Window("0 2 * * *", 3600.0)


def states(decided: Plan) -> dict[str, str]:
    return {row.worker: row.state for row in decided.replacing}


def turn(
    workers: Sequence[ObservedWorker], *, desired: int | None = None,
    budgets: tuple[Budget, ...] = (), past: dict[str, Any] | None = None,
    world: dict[str, Any] | None = None, **recycle: Any,
) -> Plan:  # fmt: skip
    """One pass where just so many workers are desired, by default as many as there are."""
    number = len(workers) if desired is None else desired
    seen = dataclasses.replace(cluster(workers, target=number), **(world or {}))
    rules = {"min_replicas": number, "max_replicas": number}
    disruption = {"budgets": budgets}
    return decide(seen, past_of(**(past or {})), disruption=disruption, policy=rules, **recycle)
