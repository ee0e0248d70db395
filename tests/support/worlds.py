"""Small worlds for tests of the planner: quiet defaults, so a case says only what matters."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Any

from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import (
    NOBODY,
    Closing,
    Cordon,
    Deleting,
    Lifecycle,
    ManualPin,
    ObservedCluster,
    ObservedGroup,
    ObservedScheduler,
    ObservedWorker,
    Pending,
    Pin,
    PlatformWorker,
    Retiring,
    SchedulerWorker,
    Serving,
    Want,
)
from dask_adaptive.model.past import GroupPast, Past, Recommendation
from dask_adaptive.model.plan import Action, DeleteCluster, Outcome, Plan, Retire, SetReplicas
from dask_adaptive.model.policy import ClusterRef, Policy
from dask_adaptive.model.recycle import Quota
from dask_adaptive.planner import memory
from dask_adaptive.planner import plan as planner
from dask_adaptive.planner.context import PassContext
from dask_adaptive.planner.quotas import at_walltime, walltimes

NOW = 1_000.0
KEY = ClusterKey("ns", "etl")
GROUP, GPU = KEY.default_group, "etl-gpu"
SHUFFLE = Pin("shuffle", "5f3a", "", 60.0)

#: What a worker is, as `worker` takes it.
DRAINING: dict[str, Any] = {"retiring": Retiring()}
DRAINED: dict[str, Any] = {"retiring": Retiring(is_drained=True)}
GOING: dict[str, Any] = {"node_terminating": "node n1: cordoned"}

#: A policy without waiting, so that each case shows one rule.
POLICY = Policy(ClusterRef("etl"), 10, idle_timeout_s=30.0)

#: A scheduler that has been watched for long, and always wanted nothing.
PAST = Past(
    session="s",
    since=0.0,
    groups={GROUP: GroupPast(recommendations=(Recommendation(NOW - 5, 0),), since=0.0)},
)


def past_of(past: Past = PAST, *, group: str = GROUP, **changes: Any) -> Past:
    """The same past, with these changes: those about a group in that of the group."""
    names = {f.name for f in dataclasses.fields(GroupPast)} - {"since"}
    own = {name: value for name, value in changes.items() if name in names}
    rest = {name: value for name, value in changes.items() if name not in names}
    groups = {**past.groups, group: dataclasses.replace(past.of(group), **own)}
    return dataclasses.replace(past, groups=groups, **rest)


def watched(*groups: str) -> Past:
    """The same past, of several groups."""
    return dataclasses.replace(PAST, groups=dict.fromkeys((GROUP, *groups), PAST.of(GROUP)))


def _taken(kind: type, changes: dict[str, Any]) -> dict[str, Any]:
    """Those of the changes that are about fields of this kind, which are taken out."""
    names = {f.name for f in dataclasses.fields(kind)}
    return {name: changes.pop(name) for name in names & changes.keys()}


def changed(worker: ObservedWorker, **changes: Any) -> ObservedWorker:
    """The same worker, with these changes to it, or to what its process or the platform says."""
    if changes.pop("paused", False):
        changes["status"] = "paused"
    name = {"name": changes.pop("name", worker.name)}
    own = name | _taken(ObservedWorker, changes)
    platform = dataclasses.replace(worker.platform, **name, **_taken(PlatformWorker, changes))
    process = dataclasses.replace(worker.process, **changes)
    return dataclasses.replace(worker, platform=platform, process=process, **own)


def worker(name: str, **changes: Any) -> ObservedWorker:
    """A connected worker that has been idle for long and may go."""
    base = ObservedWorker(
        name,
        PlatformWorker(name, f"uid-{name}", GROUP, made_at=-500.0),
        dataclasses.replace(NOBODY, idle_since=-100.0, closable=True),
        (name,),
    )
    facts = {key: changes.pop(key) for key in _FACTS & changes.keys()}
    stopped, quota = changes.pop("stopped", ""), changes.pop("stopped_for", None)
    if stopped:
        changes["cordon"] = Cordon(quota or Quota.LIFETIME, stopped)
    is_connected = bool(changes.get("dask_names", base.dask_names))
    known: dict[str, Any] = {"lifecycle": lifecycle_of(is_connected=is_connected, **facts)}
    if changes.get("processing") or not is_connected:
        changes["idle_s"] = -math.inf
    return changed(base, **{**known, **instants(**changes)})


def instants(
    *, age_s: float | None = None, pod_age_s: float | None = None, idle_s: float | None = None,
    ends_in_s: float | None = None, unschedulable_s: float | None = None, **changes: Any,
) -> dict[str, Any]:  # fmt: skip
    """Fields of a worker, some of them given as durations until or from an instant 0."""
    durations = (
        ("made_at", age_s, -1), ("pod_made_at", pod_age_s, -1), ("idle_since", idle_s, -1),
        ("ends_at", ends_in_s, 1), ("unscheduled_at", unschedulable_s or None, -1),
    )  # fmt: skip
    known = {name: sign * s for name, s, sign in durations if s is not None}
    return {**known, **changes}


def dated(observed: ObservedCluster, at: float) -> ObservedCluster:
    """The same cluster of instant 0, observed later: all that counts time stays as long."""

    def pin(known: ManualPin | None) -> ManualPin | None:
        return known and dataclasses.replace(known, until=known.until + at)

    def moved(one: ObservedWorker) -> ObservedWorker:
        known = one.platform
        since = known.unscheduled_at
        return changed(
            one, made_at=known.made_at + at, pod_made_at=known.pod_made_at + at,
            ends_at=known.ends_at + at, unscheduled_at=None if since is None else since + at,
            manual_pin=pin(known.manual_pin),
        )  # fmt: skip

    groups = tuple(
        dataclasses.replace(g, workers=tuple(map(moved, g.workers))) for g in observed.groups
    )
    ending = tuple(
        dataclasses.replace(t, manual_pin=pin(t.manual_pin)) for t in observed.terminating
    )
    return dataclasses.replace(observed, groups=groups, terminating=ending, at=at)


#: What `worker` takes that decides about a worker's `lifecycle`.
_FACTS = {"deleting", "retiring", "in_service", "terminating"}


def lifecycle_of(
    *, is_connected: bool = True, deleting: bool = False, retiring: Retiring | None = None,
    in_service: bool = True, terminating: str = "",
) -> Lifecycle:  # fmt: skip
    """As the loop's `join` would make it."""
    if deleting:
        return Deleting()
    if not is_connected:
        return Pending(terminating)
    return retiring or (Serving() if in_service else Closing())


def busy(name: str, **changes: Any) -> ObservedWorker:
    return worker(name, processing=1, closable=False, **changes)


def pending(name: str, **changes: Any) -> ObservedWorker:
    return worker(name, dask_names=(), closable=False, **changes)


def group_of(
    name: str, workers: Sequence[ObservedWorker] = (), *, replicas: int | None = None,
    **changes: Any,
) -> ObservedGroup:  # fmt: skip
    """These workers in a group of that name; settled unless `replicas` says otherwise."""
    rows = tuple(changed(w, group=name) for w in workers)
    return ObservedGroup(name, len(rows) if replicas is None else replicas, rows, **changes)


def cluster(
    workers: Sequence[ObservedWorker], *, target: int = 0, replicas: int | None = None,
    others: Sequence[ObservedGroup] = (), **scheduler: Any,
) -> ObservedCluster:  # fmt: skip
    """The default group with these workers; settled unless `replicas` says otherwise."""
    groups = (group_of(GROUP, workers, replicas=replicas), *others)
    processes = tuple(
        SchedulerWorker(
            name=name, address=f"tcp://{name}", status="running", nthreads=1,
            processing=w.process.processing, idle_since=w.idle_since,
            sole_bytes=w.process.sole_bytes,
            retiring=w.retiring,
        )
        for g in groups for w in g.workers for name in w.dask_names
    )  # fmt: skip
    settings = {"session": "s", "agent": "1", "target": target, "workers": processes, **scheduler}
    return ObservedCluster(key=KEY, groups=groups, scheduler=ObservedScheduler(**settings))


def plan(observed: ObservedCluster, policy: Policy, past: Past, *, now: float) -> Plan:
    return planner.plan(PassContext.of(observed, policy, past, now=now))


def remember(
    past: Past, observed: ObservedCluster, policy: Policy, decided: Plan,
    outcomes: Sequence[Outcome], *, now: float,
) -> Past:  # fmt: skip
    context = PassContext.of(observed, policy, past, now=now)
    return memory.remember(context, decided, outcomes, now=now)


def decide(world: ObservedCluster, past: Past = PAST, *, now: float = NOW, **policy: Any) -> Plan:
    """What `plan` makes of a world, with these changes to the policy."""
    return plan(world, dataclasses.replace(POLICY, **policy), past, now=now)


def wanting(number: int, group: str = "") -> Want:
    """A client asks for so many workers: the simplest load."""
    return Want(number, 60.0, "me", group)


def short(action: Action) -> str:
    """An action as a word or two, so that a table stays readable."""
    match action:
        case SetReplicas(group, replicas):
            return f"={replicas}" if group == GROUP else f"{group}={replicas}"
        case DeleteCluster(uid):
            return f"end {uid}"
        case Retire(over_pins=True):
            return f"retire! {action.worker}"
    return f"{type(action).__name__.lower()} {action.worker}"


def facts(message: str) -> str:
    """Its figures, and the fields that it names: what it says of them may be said better."""
    return " ".join(re.findall(r"[\w,.-]*\d[\w%.]*\b%?|[a-z][\w-]*(?:\.\w+)+(?:/[\w-]+)?", message))


def actions(decided: Plan) -> list[str]:
    return [short(action) for action in decided.actions]


def with_walltimes(observed: ObservedCluster, policy: Policy) -> ObservedCluster:
    """What the join makes of a cluster whose policy has walltimes."""
    ends = walltimes(observed.groups, policy)
    groups = (
        dataclasses.replace(g, workers=tuple(at_walltime(w, ends[g.name]) for w in g.workers))
        if g.name in ends
        else g
        for g in observed.groups
    )
    return dataclasses.replace(observed, groups=tuple(groups))
