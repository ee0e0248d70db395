"""What asks for workers of one group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dask_adaptive.model.history import Step
from dask_adaptive.model.reason import Reason


@dataclass(frozen=True, slots=True)
class Load:
    """What asks for workers of one group, before any limit."""

    wanted: int
    reason: Reason
    message: str
    inputs: Mapping[str, float] = field(default_factory=dict)
    asked_by: str = "load"  # "load" | "client …"
    steps: tuple[Step, ...] = ()


def compared(wanted: int, serving: int) -> Reason:
    """Why a number is what it is, where nothing but the load has made it."""
    if wanted == serving:
        return Reason.DESIRED_WITHIN_RANGE
    return Reason.LOAD_INCREASED if wanted > serving else Reason.UNDERUTILIZED


def at_least(load: Load, number: int, stage: str, reason: Reason, message: str) -> Load:
    """The same load, with so many workers where it is fewer."""
    if number <= load.wanted:
        return load
    step = Step(stage, number, reason, message)
    return replace(load, wanted=number, reason=reason, message=message, steps=(*load.steps, step))
