"""A group's number while workers stand in for others, and where floors meet windows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Recycle, Strategy, StrategyType, TaskQuota, Use
from dask_adaptive.model.scaling import RatePolicy, RateType, ScaleUp
from support.worlds import busy, pending, worker

SPENT: dict[str, Any] = {"use": Use(runs=20)}
TASKS = Recycle(TaskQuota(20))
IN_PLACE = replace(TASKS, strategy=Strategy(StrategyType.IN_PLACE))


A, B = busy("a"), busy("b")
OLD_A, OLD_B = busy("a", **SPENT), busy("b", **SPENT)
MAKES_ROOM = worker("r", leaving_reason=Reason.TASK_QUOTA)
COMING = [pending(name) for name in "pqr"]


ONE_A_MINUTE = ScaleUp(policies=(RatePolicy(RateType.PODS, 1, 60.0),))
