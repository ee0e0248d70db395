"""Decisions as values: a plan with its actions, and decisions as they are remembered."""

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
    """Seconds since 1970; one that no calendar has, as infinite ones are, is not written."""

    def write(at: float) -> str | None:
        if not 0 <= at <= LAST:
            return None
        return datetime.fromtimestamp(at, UTC).isoformat(timespec=precision).replace("+00:00", "Z")

    schema = {"type": "string", "format": "date-time"}
    return Kind(_read_instant, write=write, schema=schema)


Instant = Annotated[float, _instant("seconds")]


@dataclass(frozen=True, slots=True)
class Step:
    """One stage through which a number has gone, and what it made of it."""

    #: load, schedule, window, rate, cap, …
    stage: str  # "load" | "hint" | "schedule" | "idle" | "window" | "rate" | "bounds" | "cap" | …
    #: The number after this stage.
    replicas: int
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Decision:
    """One change of mind about one worker group, or one thing done: an edge, never a heartbeat."""

    at: Annotated[float, _instant("milliseconds")]
    #: The worker group that was decided.
    group: str
    #: Workers in service.
    before: int
    #: Workers that the load needed.
    wanted: int
    #: Workers that the operator decided on.
    desired: int
    #: Why, in one word.
    reason: Reason
    #: The same in a sentence, with numbers.
    message: str
    #: Done, Advised, Held, or the error.
    outcome: str = ""  # "Done" | "Refused: …" | "Failed: …" | "Advised" | "Held"
    #: load, policy, or the name of a client, a schedule or an annotation.
    asked_by: str = "load"  # "load" | "client …" | "schedule …" | "annotation …" | "policy"
    #: The figures that it was made from, by name.
    inputs: Mapping[str, float] = field(default_factory=dict)  # queued, serving, arrival_s, …
    #: Each stage that changed the number, in order.
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
    """Something that is done to one worker, and why."""

    worker: str
    dask_names: tuple[str, ...]
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class Retire(_OfWorker):
    """Begin to drain a worker. The agent may refuse."""

    busy_ok: bool = False  # it leaves even though it has tasks: they finish, or move
    over_pins: bool = False  # pins of people and of code do not hold it (never those of shuffles)


@dataclass(frozen=True, slots=True)
class Leave(_OfWorker):
    """Tell the agent that a worker's pod is being deleted, and how long it has."""

    left_s: float


@dataclass(frozen=True, slots=True)
class Cancel(_OfWorker):
    """Put a worker that is on its way out back to service."""


@dataclass(frozen=True, slots=True)
class Delete(_OfWorker):
    """
    Take a worker off the platform: it is drained, or it never connected and has no Dask names.
    Those are checked once more with the agent.
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
    """Tell the agent of a pin that a person set."""

    ttl_s: float
    note: str  # the person's own reason


@dataclass(frozen=True, slots=True)
class Unpin(_OfWorker):
    """Tell the agent that a person's pin is gone."""


@dataclass(frozen=True, slots=True)
class DeleteCluster:
    """Delete the DaskCluster: nobody has used it for as long as its policy allows."""

    uid: str
    reason: Reason
    message: str


Action: TypeAlias = (
    SetReplicas | Retire | Leave | Cancel | Delete | Restart | SetPin | Unpin | DeleteCluster
)


@dataclass(frozen=True, slots=True)
class Blocker:
    """The objection that keeps a worker which is not needed."""

    worker: str
    reason: Reason
    message: str


class Claimed(NamedTuple):
    """The workers that a group would have without a shared budget."""

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
    limited: Step | None = None  # what kept it from what the load asks for, if anything did
    asked_by: str = "load"  # as `Decision.asked_by`
    current: int = 0  # what the stages started from: `serving`, and those asked for and not made
    blocked: Blocked | None = None  # for the next pass: more would not come
    is_frozen: bool = False  # nothing was recommended: paused, or too much is unknown
    claim: Claimed | None = None  # what it would have, did it share nothing; None: not known


@dataclass(frozen=True, slots=True)
class Arriving:
    """Workers that were asked for and are not connected yet, and when they are expected."""

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
    floors: Mapping[str, int] = field(default_factory=dict)  # how many shall serve without it
    waiting: frozenset[str] = frozenset()  # workers whose replacement has not connected yet
    aborting: Mapping[str, str] = field(default_factory=dict)  # no replacement came in time: why
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
