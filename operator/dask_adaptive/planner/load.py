"""Computes the workers that the load, and people's code, need: `loads` is the entry."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dask_adaptive.model.amounts import counted, joined
from dask_adaptive.model.observed import Demand, ObservedCluster, ObservedGroup
from dask_adaptive.model.plan import Step
from dask_adaptive.model.reason import Reason
from dask_adaptive.planner.capacity import (
    Bound,
    Part,
    Supply,
    bound_workers,
    fill,
    left_after,
    other_threads,
    parts_of,
    serving_elsewhere,
    supplies,
    threads_for,
    widest_level,
)
from dask_adaptive.planner.context import PassContext

#: Lower bound of `target.duration`.
SHORTEST_S = 0.1

#: Memory filled with results beyond which the workers are doubled, with or without a task (as
#: `Scheduler.adaptive_target` does).
FULL = 0.6

#: If recurring work would keep at least this fraction of the threads busy, current work stands for
#: future work.
RECURRING = 0.5

#: After this multiple of the usual gap, no more such work is expected.
LATE = 2.0


@dataclass(frozen=True, slots=True)
class Load:
    """The workers needed in one group, before any limit."""

    wanted: int
    reason: Reason
    message: str
    inputs: Mapping[str, float] = field(default_factory=dict)
    asked_by: str = "load"  # "load" | "client …"
    assumption: str = ""  # the assumption behind it
    steps: tuple[Step, ...] = ()
    is_lasting: bool = False  # changes while tasks run

    def at_least(self, number: int, stage: str, reason: Reason, message: str) -> Load:
        """Raise the load to a number of workers."""
        if number <= self.wanted:
            return self
        steps = (*self.steps, Step(stage, number, reason, message))
        return replace(self, wanted=number, reason=reason, message=message, steps=steps)


def loads(context: PassContext) -> Mapping[str, Load]:
    """Return one load for each existing scaled group. The scheduler must have answered."""
    demand = context.observed.scheduler.demand
    every = supplies(context)
    if demand is None:
        found = _scheduler_target(context, every)
    else:
        found = startup_aware(context, every, demand)
    default = context.default_group
    able = [s.name for s in every if s.maximum]
    home = default if default in able else next(iter(able), default)
    return {name: _with_wants(load, context, name, home) for name, load in found.items()}


def _with_wants(load: Load, context: PassContext, group: str, home: str) -> Load:
    """Raise loads to the requests of clients; those without a group go to `home`."""
    wants = context.observed.scheduler.wants
    mine = [w for w in wants if (w.group or home) == group and w.left_s > 0]
    most = max(mine, key=lambda w: (w.workers, w.owner), default=None)
    if most is None or most.workers <= load.wanted:
        return load
    # Without the remaining time: a countdown would be news in every pass.
    message = f"client {most.owner} wants at least {counted(most.workers, 'worker')}"
    raised = load.at_least(most.workers, "hint", Reason.CLIENT_WANTS, message)
    return replace(raised, asked_by=f"client {most.owner}")


def _load(one: Supply, wanted: int, message: str, inputs: Mapping[str, float]) -> Load:
    reason = Reason.LOAD_INCREASED if wanted > one.serving else Reason.UNDERUTILIZED
    if wanted == one.serving:
        reason = Reason.DESIRED_WITHIN_RANGE
    known = {
        **inputs,
        "serving": float(one.serving),
        "pending": float(len(one.pending)),
        "arrival_s": one.arrival_s,
        "threads": one.threads,
    }
    return Load(wanted, reason, message, known, steps=(Step("load", wanted, reason, message),))


# What the agent could not say is taken from the scheduler


def _scheduler_target(context: PassContext, every: Sequence[Supply]) -> dict[str, Load]:
    """Compute loads from the scheduler's own adaptive_target, which knows no groups."""
    observed = context.observed
    scheduler = observed.scheduler
    inputs = {"queued": float(scheduler.queued), "running": float(scheduler.processing)}
    found = {}
    for one in every:
        group = observed.group(one.name)
        if one.name == context.default_group and group is not None:
            wanted = wanted_workers(observed, group)
            message = f"the scheduler's adaptive_target gives {counted(wanted, 'worker')}"
        else:
            # The use of other groups is unknown: keep all of their workers.
            wanted, message = one.serving, "the load of this group is not known: nothing changes"
        found[one.name] = _load(one, wanted, message, inputs)
    return found


def wanted_workers(cluster: ObservedCluster, group: ObservedGroup) -> int:
    """
    Turn the scheduler's adaptive_target into workers (Deployments) of one group.

    adaptive_target speaks of all Dask workers of the cluster. Those of other groups serve the load
    too, so they are taken off; a Deployment that runs several Dask workers counts as that many.
    """
    mine = [w for w in group.workers if w.is_connected]
    processes = sum(len(w.dask_names) for w in mine)
    each = max(1, round(processes / len(mine))) if mine else 1
    others = sum(1 for _ in serving_elsewhere(cluster, [group.name]))
    return math.ceil(max(0, cluster.scheduler.target - others) / each)


# What the agent has counted


def startup_aware(context: PassContext, every: Sequence[Supply], demand: Demand) -> dict[str, Load]:
    """Compute loads from the work, as far as new workers would start in time."""
    observed = context.observed
    duration_s = max(context.policy.target.duration_s, SHORTEST_S)
    bound = bound_workers(observed, every, demand, duration_s)
    other = other_threads(observed, every)
    threads = other + sum(s.free for s in every)
    parts = parts_of(demand, threads=int(threads), duration_s=duration_s)
    growing = _growing(observed, [_without(s, bound.workers[s.name]) for s in every])
    need = _free_need(demand, parts, growing, other, duration_s)
    free = fill(growing, need, other=other)
    is_lasting = not _is_wide_enough(demand, parts, growing, every, other)
    ahead_of = _shuffled_threads(demand, parts, duration_s)
    ahead = fill(growing, lambda *_: ahead_of, other=other)
    crowded = _crowded(observed, growing)

    inputs = _inputs(demand, parts, threads)
    full = "results fill over 60% of the workers' memory: twice as many are wanted"
    shuffles = f"{counted(len(demand.shuffles), 'P2P shuffle')} about to assign outputs to workers"
    found = {}
    for one in every:
        mine = bound.workers[one.name]
        wanted, soon = max(free[one.name] + mine, one.busy), ahead[one.name] + mine
        message = _message(one, wanted, bound, inputs)
        load = _load(one, wanted, message, {**inputs, "bound_workers": float(mine)})
        load = replace(load, assumption=_assumption(one, inputs), is_lasting=is_lasting)
        load = load.at_least(crowded.get(one.name, 0), "memory", Reason.LOAD_INCREASED, full)
        found[one.name] = load.at_least(
            soon, "shuffle", Reason.SHUFFLE_AHEAD, f"{shuffles}: {counted(soon, 'worker')}"
        )
    return found


def _is_wide_enough(
    demand: Demand, parts: Sequence[Part], growing: Sequence[Supply], every: Sequence[Supply],
    other: float,
) -> bool:  # fmt: skip
    """True if all tasks that can run do: then their duration does not matter."""
    if demand.needs or demand.shuffles or demand.incoming:
        return False
    widest = widest_level(parts)
    most = fill(growing, lambda *_: widest, other=other)
    return all(most[one.name] <= one.busy for one in every)


def _free_need(
    demand: Demand, parts: Sequence[Part], every: Sequence[Supply], other: float,
    duration_s: float,
) -> Callable[[float, float], float]:  # fmt: skip
    """Return the threads that unrestricted work needs, at each instant."""
    if not _goes_on(demand, every, other):
        return lambda at_s, done: threads_for(left_after(parts, at_s, done), duration_s)
    # Recurring work will still arrive when new workers start, even if the current tasks are done;
    # workers requested during it are for the next. If the queue never empties, as much work is
    # expected as has arrived.
    kept = other + sum(s.serving * s.threads for s in every)
    there_s = sum(p.seconds for p in parts) or 1.0
    whole = [replace(p, seconds=p.seconds * (1 + demand.trickle_s / there_s)) for p in parts]
    needed = max(kept, threads_for(whole, duration_s))
    return lambda *_: needed


def _goes_on(demand: Demand, every: Sequence[Supply], other: float) -> bool:
    """True if work arrives faster than new workers do, at too few workers."""
    threads = other + sum(s.free for s in every)
    # A queue that never empties needs no such rate: it is checked no more often than passes are
    # made.
    is_frequent = demand.trickle_s or all(demand.every_s < s.arrival_s for s in every)
    if not is_frequent or demand.incoming <= RECURRING * max(threads, 1):
        return False
    # A queue that has not been empty for some time is expected to last as long again.
    lasted_s = demand.trickle_s / demand.incoming if demand.trickle_s else math.inf
    if any(lasted_s < s.arrival_s for s in every):
        return False
    # No more has come since it was measured.
    return demand.every_s <= 0 or demand.age_s <= LATE * demand.every_s


def _crowded(observed: ObservedCluster, growing: Sequence[Supply]) -> Mapping[str, int]:
    """Double the workers of the group that grows first, if results fill the memory."""
    scheduler, first = observed.scheduler, next((s for s in growing if s.grows), None)
    if first is None or not scheduler.results:
        return {}
    limit = sum(w.memory_limit for w in scheduler.workers)
    if scheduler.results <= FULL * limit or not limit:
        return {}
    return {first.name: 2 * first.connected}


def _growing(observed: ObservedCluster, every: Sequence[Supply]) -> list[Supply]:
    """
    Mark the groups that grow for unrestricted work: resources are reserved for tasks that need
    them.
    """
    default = observed.key.default_group
    usual = next((s.priority for s in every if s.name == default), 0)
    special = {g.name for g in observed.groups if g.resources and g.name != default}
    return [replace(s, grows=s.name not in special or s.priority > usual) for s in every]


def _without(supply: Supply, taken: int) -> Supply:
    """Return the group without workers that restricted tasks use."""
    come = max(0, taken - supply.connected)
    return replace(
        supply,
        connected=max(0, supply.connected - taken),
        pending=supply.pending[come:],
        maximum=max(0, supply.maximum - taken),
    )


def _shuffled_threads(demand: Demand, parts: Sequence[Part], duration_s: float) -> float:
    """Count the threads worth having when upcoming shuffles assign their outputs."""
    outputs = sum(s.outputs for s in demand.shuffles)
    if not outputs:
        return 0.0
    behind_s = sum(p.seconds for p in parts if p.level > 0)
    each_s = max(demand.unknown_s, behind_s / outputs)
    return min(float(outputs), math.ceil(outputs * each_s / duration_s))


def _assumption(one: Supply, inputs: Mapping[str, float]) -> str:
    if not one.is_assumed or not inputs["work_s"]:
        return ""
    there = f"{inputs['work_s']:.0f} s of work, {counted(one.connected, 'worker')}"
    return f"{there}, a new one is assumed to take {one.arrival_s:.0f} s"


def _message(one: Supply, wanted: int, bound: Bound, inputs: Mapping[str, float]) -> str:
    coming = f", {len(one.pending)} pending" if one.pending else ""
    stuck = f", {one.stuck:g} threads stuck" if one.stuck else ""
    return joined(
        f"{inputs['running']:.0f} tasks run, {inputs['queued']:.0f} are queued,"
        f" {inputs['waiting']:.0f} wait for others",
        f"{inputs['work_s']:.0f} s of work, at most {inputs['width']:.0f} tasks at once",
        f"{counted(one.connected, 'worker')} of {one.threads:g} threads there{stuck}{coming},"
        f" a new one takes {one.arrival_s:.0f} s{' (assumed)' * one.is_assumed}: {wanted} wanted",
        bound.messages.get(one.name, ""),
        bound.nobody,
    )


def _inputs(demand: Demand, parts: Sequence[Part], threads: float) -> dict[str, float]:
    rows = demand.prefixes
    ready = float(sum(r.ready for r in rows))
    return {
        "queued": ready,
        "ready": ready,
        "running": float(sum(r.running for r in rows)),
        "waiting": float(sum(r.waiting for r in rows)),
        "work_s": round(sum(p.seconds for p in parts), 3),
        "width": round(widest_level(parts), 3),
        "cluster_threads": float(threads),
    }
