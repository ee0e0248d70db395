"""
Declares the status of a policy. `codec.encode` writes it as JSON; a new operator and the command
line read it with `codec.recover`. The CRD's schema is made from these declarations; each field's
comment is its description there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from dask_adaptive.model.amounts import listed
from dask_adaptive.model.codec import LOCAL, Key, Kind, Listed, one_of, whole
from dask_adaptive.model.plan import Decision, Instant
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

#: An end that moves by fewer seconds stays as reported: two clocks differ, and leases are renewed.
SLACK_S = 30.0


#: Values of `WorkerRow.state` for leaving workers.
LEAVING = frozenset({"Draining", "Drained", "Going"})

#: The generation of an object's spec.
Generation = Annotated[int, Kind(whole(least=0), schema={"type": "integer", "format": "int64"})]

_TRUE_FALSE = one_of({"True": True, "False": False, "Unknown": None})


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition. `kube.status_json` adds the time of its last transition and the generation."""

    #: Name of the condition.
    type: str
    #: Whether it holds.
    status: Annotated[bool | None, _TRUE_FALSE]
    #: Why, in one word.
    reason: str = ""
    #: Why, in a sentence.
    message: str = ""
    #: When the status last changed.
    last_transition_time: str = field(default="", compare=False)
    #: The generation of the spec that the condition describes.
    observed_generation: Generation = field(default=0, compare=False)

    @property
    def word(self) -> str:
        """Its status as Kubernetes writes it."""
        return str(_TRUE_FALSE.write(self.status))


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """
    A worker in a state worth reporting: pinned, leaving, pending, held, at a quota. Workers that
    are busy or briefly idle have no row; they are only counted.
    """

    #: Name of the worker and of its Deployment.
    name: str
    #: Pending, Active, Due (waits to be replaced), Surging (its replacement starts), Stopped,
    #: Draining, Drained or Going.
    state: str = ""
    #: Why, in one word.
    reason: str = ""
    #: Why, in a sentence.
    message: str = ""


@dataclass(frozen=True, slots=True)
class HeldBy:
    """
    One pin, and the workers that it holds. Its end is that of the latest possible renewal, so that
    renewing a lease every few seconds does not change the status.
    """

    #: shuffle, manual or client.
    source: str
    #: The shuffle, the client, or the operator for annotations.
    owner: str
    #: Why, as the owner gave it.
    reason: str = ""
    #: Names of the workers, at most 10.
    workers: tuple[str, ...] = ()
    #: How many workers it holds.
    count: int = 0
    #: When it ends at the latest, including renewals.
    until: Instant = math.inf  # in a pass on the loop's clock; moves only when it really has moved
    left_s: Annotated[float, LOCAL] = field(default=0.0, compare=False)  # from now, for any clock
    for_s: Annotated[float, LOCAL] = field(default=0.0, compare=False)  # since it was first set

    @property
    def key(self) -> tuple[str, str, str]:
        """Identity of the pin, unique among rows."""
        return self.source, self.owner, self.reason

    def names(self, most: int = 3) -> str:
        """The first names, and how many more there are."""
        return listed(self.workers, most, self.count)


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One worker group that is scaled."""

    #: Name of the DaskWorkerGroup.
    name: str
    #: Requested workers: its spec.worker.replicas.
    replicas: int = 0
    #: Workers that it should have, after all bounds.
    desired: Annotated[int, Key("desiredReplicas")] = 0
    #: Workers that the load needs, before any bound.
    wanted: Annotated[int, Key("wantedReplicas")] = 0
    #: Workers connected to the scheduler.
    connected: int = 0
    #: Workers that are not connected yet.
    pending: int = 0
    #: Why the number of workers is what it is, in one word.
    reason: str = ""
    #: The same in a sentence, with numbers.
    message: str = ""
    #: With idleTimeout Auto: seconds from the request for a worker until it is in service. A worker
    #: may be removed once it has been idle for this plus moveSeconds, at least 12s and at most 5m.
    #: A restarted operator continues from this.
    start_seconds: int | None = None
    #: With idleTimeout Auto: seconds to move a worker's share of the results.
    move_seconds: int | None = None

    @property
    def idle(self) -> IdleTime | None:
        """None if idleTimeout is not Auto, or not known yet."""
        if self.start_seconds is None or self.move_seconds is None:
            return None
        return IdleTime(self.start_seconds, self.move_seconds)


@dataclass(frozen=True, slots=True)
class SchedulerRow:
    """Versions and features in the scheduler."""

    #: Version of distributed.
    distributed: str = ""
    #: Version of the agent; empty while it does not answer.
    agent: str = ""
    #: The Secret with which the operator connects to the scheduler; empty without TLS.
    tls_secret_name: str = ""
    #: State of each relief, by its name in spec.scheduler.relief: Active, NotNeeded (in this
    #: release of distributed), Disabled or Failed. The metrics and `explain` show what it has done
    #: so far.
    relief: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Status:
    """
    The status of one cluster. No field changes merely because time passes: equal worlds give equal
    values.
    """

    #: The generation of the spec that this status is based on.
    generation: Annotated[Generation, Key("observedGeneration")] = 0
    #: Requested workers: spec.worker.replicas. This and all numbers that follow count all scaled
    #: worker groups together.
    replicas: int = 0
    #: Workers that the load needs, after stabilization and bounds.
    desired: Annotated[int, Key("desiredReplicas")] = 0
    #: Workers that the load needs, before any bound.
    wanted: Annotated[int, Key("wantedReplicas")] = 0
    #: Workers connected to the scheduler.
    connected: int = 0
    #: Workers that are not connected yet.
    pending: int = 0
    #: Connected workers without a task.
    idle: int = 0
    #: Connected workers with a task.
    busy: int = 0
    #: Workers that a pin holds.
    pinned: int = 0
    #: Workers that are leaving.
    retiring: int = 0
    #: Why the number of workers is what it is, in one word.
    reason: str = Reason.RECONCILED
    #: The same in a sentence, with numbers.
    message: str = ""
    #: Each worker group that is scaled, the default one first; at most 50.
    groups: Annotated[tuple[GroupRow, ...], Listed(key="name")] = ()
    #: The last decision and the figures that it is based on. Earlier ones are in the ConfigMap
    #: `<policy>-adaptive-history`.
    last_decision: Decision | None = None
    #: The pins that hold workers; at most 100.
    held_by: tuple[HeldBy, ...] = ()
    #: How many workers stay though they are not needed, by reason.
    blockers: Mapping[str, int] = field(default_factory=dict)
    #: How many workers are pending, by what they wait for, in Kubernetes' terms.
    pending_reasons: Mapping[str, int] = field(default_factory=dict)
    #: Workers in a state worth reporting, such as pinned, pending, leaving or due to be replaced;
    #: at most 100.
    workers: Annotated[tuple[WorkerRow, ...], Listed(key="name")] = ()
    #: How many replacements of workers have begun, by reason.
    recycled: Mapping[str, int] = field(default_factory=dict)
    #: When quotas began to replace workers, within the last hour; at most 200. recycle.maxPerHour
    #: counts these.
    recent: Annotated[tuple[Instant, ...], Key("recentRecycles")] = ()
    #: Versions and features in the scheduler.
    scheduler: SchedulerRow = SchedulerRow()
    #: Ready, SchedulerConnected, Injected, SchedulerConfigured, AbleToScale, ScalingLimited,
    #: Paused, Watching.
    conditions: Annotated[tuple[Condition, ...], Listed(key="type")] = ()

    def worker(self, name: str) -> WorkerRow | None:
        return next((w for w in self.workers if name == w.name), None)

    @property
    def replaced(self) -> list[WorkerRow]:
        """Workers that are to be replaced, or whose replacement starts."""
        return [w for w in self.workers if w.state in ("Due", "Surging")]

    @property
    def leaving(self) -> list[str]:
        """Workers on their way out."""
        return [row.name for row in self.workers if row.state in LEAVING]

    @property
    def recycles(self) -> dict[Reason, int]:
        """Recycles begun, by reasons that this version knows."""
        known = {reason.value: reason for reason in Reason}
        return {known[word]: n for word, n in self.recycled.items() if word in known}

    @property
    def idle_times(self) -> dict[str, IdleTime]:
        """By group: how long `idleTimeout: Auto` keeps an idle worker."""
        return {row.name: row.idle for row in self.groups if row.idle is not None}


def steady(until: float, reported: float | None) -> float:
    """Keep the reported end, unless it has really moved."""
    return reported if reported is not None and abs(until - reported) < SLACK_S else until
