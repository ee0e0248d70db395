"""The status of a policy as a value: what is reported, before it becomes JSON or a live view."""

from __future__ import annotations

from dataclasses import dataclass, field

from dask_adaptive.model.observed import ReliefState
from dask_adaptive.model.plan import Decision
from dask_adaptive.model.reason import Reason
from dask_adaptive.planner.context import IdleTime

#: Condition types, in the order in which they are shown.
READY = "Ready"
SCHEDULER_CONNECTED = "SchedulerConnected"
INJECTED = "Injected"
SCHEDULER_CONFIGURED = "SchedulerConfigured"
ABLE_TO_SCALE = "AbleToScale"
SCALING_LIMITED = "ScalingLimited"
PAUSED = "Paused"
WATCHING = "Watching"

#: An end is told anew when it moves by more seconds than this; less is two clocks, or a renewal.
SLACK_S = 30.0


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition; who writes it to an API adds when it became so, and of which spec it is."""

    type: str
    status: bool | None  # None: Unknown
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """
    A worker about which there is something to say: pinned, on its way out, pending, held, at a
    quota. One that is busy, or idle for a short time, has no row: it is only counted.
    """

    name: str
    state: str  # Pending, Active, Due, Surging, Stopped, Draining, Drained or Going
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class HeldBy:
    """
    One pin, and the workers that it holds. The end is that of the latest possible renewal, so that
    a lease that is renewed every few seconds changes nothing here.
    """

    source: str  # "shuffle" | "manual" | "client"
    owner: str
    reason: str
    workers: tuple[str, ...]  # the first ten, by name
    count: int
    until: float  # seconds on the loop's clock; moves only when it really has moved
    left_s: float = field(default=0.0, compare=False)  # the same from now, for other clocks


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One worker group that is scaled."""

    name: str
    replicas: int  # asked for: spec.worker.replicas
    desired: int
    wanted: int
    connected: int
    pending: int
    reason: Reason
    message: str
    idle: IdleTime | None = None  # None: idleTimeout is not Auto


@dataclass(frozen=True, slots=True)
class Status:
    """
    One cluster as its policy reports it. Holds no number that changes by itself as time passes,
    so that two equal worlds give two equal values.
    """

    generation: int = 0  # of the spec that the pass read
    replicas: int = 0  # asked for; as all that follow, of all groups that are scaled
    desired: int = 0
    wanted: int = 0
    connected: int = 0
    pending: int = 0
    idle: int = 0
    busy: int = 0
    pinned: int = 0
    retiring: int = 0
    reason: Reason = Reason.RECONCILED
    message: str = ""
    held_by: tuple[HeldBy, ...] = ()  # in all groups; at most 100
    blockers: tuple[tuple[Reason, int], ...] = ()  # workers that are not needed and stay, by reason
    pending_reasons: tuple[tuple[str, int], ...] = ()
    workers: tuple[WorkerRow, ...] = ()  # at most 100
    groups: tuple[GroupRow, ...] = ()  # that are scaled, the default one first; at most 50
    last_decision: Decision | None = None
    recycled: tuple[tuple[Reason, int], ...] = ()  # recycles begun so far, by reason
    recent: tuple[float, ...] = ()  # seconds since 1970: automatic ones of this hour, at most 200
    distributed: str = ""
    agent: str = ""
    tls_secret: str = ""  # by which the scheduler is reached; empty: without TLS
    relief: tuple[ReliefState, ...] = ()
    conditions: tuple[Condition, ...] = ()


def steady(until: float, told: float | None) -> float:
    """An end as it was told, unless it has really moved."""
    return told if told is not None and abs(until - told) < SLACK_S else until
