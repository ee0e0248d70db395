"""One group's recycles in one pass, of a few workers: what `take_turns` makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dask_adaptive.model.observed import Ending, ObservedWorker
from dask_adaptive.model.past import Past
from dask_adaptive.model.policy import Disruption
from dask_adaptive.model.recycle import Amount, Budget, Recycle, RecyclePast
from dask_adaptive.planner.budget import rules_for
from dask_adaptive.planner.due import Due
from dask_adaptive.planner.fleet import sort_fleet
from dask_adaptive.planner.recycle import Turn, take_turns
from dask_adaptive.planner.turns import Scene
from support.worlds import NOW, POLICY, cluster

THREE = Recycle(max_surge=Amount(3))


def turn(
    workers: Sequence[ObservedWorker], dues: Sequence[Due], *, desired: int | None = None,
    recycle: Recycle = THREE, budgets: tuple[Budget, ...] = (), free_gpus: int | None = None,
    recycle_past: RecyclePast = RecyclePast(),  # noqa: B008
    ending: tuple[Ending, ...] = (), **past: Any,
) -> Turn:  # fmt: skip
    world = replace(cluster(workers), free_gpus=free_gpus, ending=ending)
    policy = replace(POLICY, recycle=recycle, disruption=Disruption(budgets=budgets))
    before = Past(recycle=recycle_past, **past)
    rules = rules_for(world, policy, recycle, before.recycle, is_scaled=True, now=NOW)
    wanted = len(workers) if desired is None else desired
    scene = Scene(world, world.groups[0], policy, recycle, rules, before, wanted, 99, NOW)
    return take_turns(sort_fleet(world.groups[0]), dues, scene)
