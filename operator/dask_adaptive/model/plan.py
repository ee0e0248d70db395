"""Declares decisions as values: a plan with its actions, and decisions for the history."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple, TypeAlias

from dask_adaptive.model.amounts import LAST, read_instant
from dask_adaptive.model.codec import Kind
from dask_adaptive.model.past import Blocked
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Limits, QuotaUse, Replacing


def _read_instant(value: Any) -> float:
    at = read_instant(value) if isinstance(value, str) else None
    if at is None:
        raise ValueError("must be an instant such as 2026-01-31T18:00:00Z")
    return at


def _instant(precision: str) -> Kind:
    """Seconds since 1970; instants outside the calendar, such as infinity, are not written."""

    def write(at: float) -> str | None:
        if not 0 <= at <= LAST:
            return None
        return datetime.fromtimestamp(at, UTC).isoformat(timespec=precision).replace("+00:00", "Z")

    schema = {"type": "string", "format": "date-time"}
    return Kind(_read_instant, write=write, schema=schema)


Instant = Annotated[float, _instant("seconds")]


@dataclass(frozen=True, slots=True)
class Step:
    """One stage of a number, and its result."""

    #: The stage: load, schedule, window, rate, cap, …
    stage: str  # "load" | "hint" | "schedule" | "idle" | "window" | "rate" | "bounds" | "cap" | …
    #: Number of workers after this stage.
    replicas: int
    #: Why the stage changed it, in one word.
    reason: Reason
    #: The same in a sentence, with numbers.
    message: str


@dataclass(frozen=True, slots=True)
class Decision:
    """One changed decision about one worker group, or one action: an edge, never a heartbeat."""

    #: When it was made.
    at: Annotated[float, _instant("milliseconds")]
    #: The worker group that the decision is about.
    group: str
    #: Number of workers in service before it.
    before: int
    #: Number of workers that the load needed.
    wanted: int
    #: Number of workers that the operator decided on.
    desired: int
    #: Why, in one word.
    reason: Reason
    #: The same in a sentence, with numbers.
    message: str
    #: Done, Advised, Held, or the error.
    outcome: str = ""  # "Done" | "Refused: …" | "Failed: …" | "Advised" | "Held"
    #: What caused it: load, policy, or a client, schedule or annotation by name.
    asked_by: str = "load"  # "load" | "client …" | "schedule …" | "annotation …" | "policy"
    #: The figures that it is based on, by name.
    inputs: Mapping[str, float] = field(default_factory=dict)  # queued, serving, arrival_s, …
    #: The stages that changed the number, in order.
    steps: tuple[Step, ...] = ()


#: Decisions of one policy that are kept; the oldest go first.
KEPT = 200


@dataclass(frozen=True, slots=True)
class SetReplicas:
    """Ask the platform for a number of workers in a group."""

    group: str
    replicas: int
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class _OfWorker:
    """An action on one worker, with its reason."""

    worker: str
    dask_names: tuple[str, ...]
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Retire(_OfWorker):
    """Begin to drain a worker. The agent may refuse."""

    busy_ok: bool = False  # retire it with tasks: they finish, or move
    over_pins: bool = False  # pins of people and of code do not hold it (never those of shuffles)


@dataclass(frozen=True, slots=True)
class Leave(_OfWorker):
    """Tell the agent that a worker's pod is being deleted, and how long it has."""

    left_s: float


@dataclass(frozen=True, slots=True)
class Cancel(_OfWorker):
    """Return a leaving worker to service."""


@dataclass(frozen=True, slots=True)
class Delete(_OfWorker):
    """
    Delete a worker that is drained, or never connected and has no Dask names. Its names are checked
    once more with the agent.
    """

    uid: str


@dataclass(frozen=True, slots=True)
class Restart(_OfWorker):
    """
    Delete a drained worker's pod; its Deployment brings the next one. The Dask names are checked
    once more with the agent.
    """

    pod: str
    pod_uid: str


@dataclass(frozen=True, slots=True)
class SetPin(_OfWorker):
    """Send a person's pin to the agent."""

    ttl_s: float
    note: str  # the person's own reason


@dataclass(frozen=True, slots=True)
class Unpin(_OfWorker):
    """Release a person's pin in the agent."""


@dataclass(frozen=True, slots=True)
class DeleteCluster:
    """Delete the DaskCluster: it has been unused for as long as its policy allows."""

    uid: str
    reason: Reason
    message: str


Action: TypeAlias = (
    SetReplicas | Retire | Leave | Cancel | Delete | Restart | SetPin | Unpin | DeleteCluster
)


@dataclass(frozen=True, slots=True)
class Blocker:
    """The objection that keeps an unneeded worker."""

    worker: str
    reason: Reason
    message: str


class Claimed(NamedTuple):
    """A budget claim: the workers that a group would have without a shared budget."""

    needed: int  # workers, for the load and its floors
    number: int  # with those that are only kept for a while


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """The number of workers of one group, and the steps that led to it."""

    group: str
    serving: int  # there now, those that are to leave not counted
    wanted: int  # what the load asks for
    desired: int  # after all stages
    reason: Reason
    message: str
    steps: tuple[Step, ...] = ()  # each stage that changed the number, in order
    inputs: Mapping[str, float] = field(default_factory=dict)  # figures that it was made from
    limited: Step | None = None  # the stage that limits it, if any
    asked_by: str = "load"  # as `Decision.asked_by`
    current: int = 0  # what the stages started from: `serving`, and those asked for and not made
    blocked: Blocked | None = None  # for the next pass: more would not come
    is_frozen: bool = False  # nothing was recommended: paused, or too little is known
    claim: Claimed | None = None  # its budget claim; None: unknown


@dataclass(frozen=True, slots=True)
class Arriving:
    """Requested workers that are not connected yet, and when they are expected."""

    workers: int
    in_s: float
    group: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """
    The decision of one pass over one cluster.

    `actions` are to be done now, in this order; `advice` would be done if the mode were Auto.
    """

    reason: Reason
    message: str
    wanted: int = 0  # what the load asks for, in workers of the group
    desired: int = 0  # after the stabilization window and the bounds
    actions: tuple[Action, ...] = ()
    advice: tuple[Action, ...] = ()
    blockers: tuple[Blocker, ...] = ()
    limits: Limits = field(default_factory=Limits)
    uses: tuple[QuotaUse, ...] = ()
    replacing: tuple[Replacing, ...] = ()
    storm: str = ""  # not empty: maxPerHour is used up; a sentence
    floors: Mapping[str, int] = field(default_factory=dict)  # workers that must serve without it
    waiting: frozenset[str] = frozenset()  # workers whose replacement has not connected yet
    aborting: Mapping[str, str] = field(default_factory=dict)  # why no replacement came in time
    groups: tuple[GroupPlan, ...] = ()  # each that is scaled, the default one first
    arriving: tuple[Arriving, ...] = ()  # for shuffles that are about to begin, soonest first
    #: Until this instant, on the clock of `now`, time alone makes no other plan: see `plan`.
    valid_until: float = field(default=math.inf, compare=False)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one action."""

    action: Action
    done: bool
    reason: Reason
    message: str
