"""Decisions as they are remembered: what was seen, decided and done, bounded, across restarts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dask_adaptive.model.reason import Reason


@dataclass(frozen=True, slots=True)
class Step:
    """One stage through which a number has gone, and what it made of it."""

    stage: str  # "load" | "hint" | "schedule" | "idle" | "window" | "rate" | "bounds" | "cap" | …
    replicas: int
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Decision:
    """
    One change of mind about one worker group, or one thing done: an edge, never a heartbeat.

    `inputs` are the figures that it was made from, by name (queued, processing, serving, pending,
    arrival_s, …), numbers only.
    """

    at: float  # seconds since 1970
    group: str
    before: int  # workers that served
    wanted: int
    desired: int
    reason: Reason
    message: str
    outcome: str = ""  # "Done" | "Refused: …" | "Failed: …" | "Advised" | "Held"
    asked_by: str = "load"  # "load" | "client …" | "schedule …" | "annotation …" | "policy"
    inputs: Mapping[str, float] = field(default_factory=dict)
    steps: tuple[Step, ...] = ()


#: Decisions of one policy that are kept; the oldest go first.
KEPT = 200
