"""Workers for the work that there is, as far as they would come in time: `StartupAware`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from dask_adaptive.model.demand import Demand
from dask_adaptive.model.history import Step
from dask_adaptive.model.observed import ObservedCluster
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.planner.load import Load, at_least, compared
from dask_adaptive.planner.needs import Bound, bound_workers
from dask_adaptive.planner.supply import Supply, fill, other_threads
from dask_adaptive.planner.work import Part, left_after, parts_of, threads_for

#: Nothing is done faster than this, whatever `target.duration` says.
SHORTEST_S = 0.1

#: From so much of the workers' memory full of results on, twice the workers are asked for while
#: there is work (as `Scheduler.adaptive_target` does).
FULL = 0.6

#: Where work that keeps coming would keep at least this part of the threads busy all the time, what
#: is there now stands for what there will be.
RECURRING = 0.5


def startup_aware(
    observed: ObservedCluster, policy: Policy, every: Sequence[Supply], demand: Demand
) -> dict[str, Load]:
    """One load for each of the groups, what clients want left aside."""
    duration_s = max(policy.target_duration_s, SHORTEST_S)
    bound = bound_workers(observed, every, demand, duration_s)
    other = other_threads(observed, every)
    threads = other + sum(s.connected * s.threads for s in every)
    parts = parts_of(demand, threads=int(threads), duration_s=duration_s)
    growing = _growing(observed, [_without(s, bound.workers[s.name]) for s in every])
    free = fill(growing, _free_need(demand, parts, growing, other, duration_s), other=other)
    ahead_of = _shuffled_threads(demand, parts, duration_s)
    ahead = fill(growing, lambda *_: ahead_of, other=other)
    crowded = _crowded(observed, growing) if parts else {}

    inputs = _inputs(demand, parts, threads)
    found = {}
    for one in every:
        mine = bound.workers[one.name]
        load = _load(one, max(free[one.name] + mine, one.busy), bound, inputs)
        full = "results fill over 60% of the memory of workers: twice as many are wanted"
        load = at_least(load, crowded.get(one.name, 0), "memory", Reason.LOAD_INCREASED, full)
        soon = ahead[one.name] + mine
        shuffles = f"{len(demand.shuffles)} P2P shuffles are about to give their outputs to workers"
        found[one.name] = at_least(
            load, soon, "shuffle", Reason.SHUFFLE_AHEAD, f"{shuffles}: {soon} workers"
        )
    return found


def _free_need(
    demand: Demand, parts: Sequence[Part], every: Sequence[Supply], other: float, duration_s: float
) -> Callable[[float, float], float]:
    """Threads that work which any worker may do needs, at each instant."""
    if not _goes_on(demand, every, other):
        return lambda at_s, done: threads_for(left_after(parts, at_s, done), duration_s)
    # Work that keeps coming will be there when new workers are, though this lot may be done; and
    # those that were asked for in its course are for the next.
    kept = other + sum(s.serving * s.threads for s in every)
    needed = max(kept, threads_for(parts, duration_s))
    return lambda *_: needed


def _goes_on(demand: Demand, every: Sequence[Supply], other: float) -> bool:
    """Whether work keeps coming faster than new workers do, and there are too few for it."""
    threads = other + sum(s.connected * s.threads for s in every)
    is_frequent = all(demand.every_s < s.arrival_s for s in every)
    return is_frequent and demand.incoming > RECURRING * max(threads, 1)


def _crowded(observed: ObservedCluster, growing: Sequence[Supply]) -> Mapping[str, int]:
    """Workers of the group that grows first, where results fill most of the memory."""
    limit = sum(w.memory_limit for w in observed.scheduler.workers)
    first = next((s for s in growing if s.grows), None)
    if first is None or observed.scheduler.results <= FULL * limit or not limit:
        return {}
    return {first.name: 2 * first.connected}


def _growing(observed: ObservedCluster, every: Sequence[Supply]) -> list[Supply]:
    """Who grows for work that any worker may do: a group with resources is for what needs them."""
    default = observed.key.default_group
    usual = next((s.priority for s in every if s.name == default), 0)
    special = {g.name for g in observed.groups if g.resources and g.name != default}
    return [replace(s, grows=s.name not in special or s.priority > usual) for s in every]


def _without(supply: Supply, taken: int) -> Supply:
    """What is left of a group when so many of its workers do what only they may do."""
    come = max(0, taken - supply.connected)
    return replace(
        supply,
        connected=max(0, supply.connected - taken),
        pending=supply.pending[come:],
        maximum=max(0, supply.maximum - taken),
    )


def _shuffled_threads(demand: Demand, parts: Sequence[Part], duration_s: float) -> float:
    """Threads worth having when the outputs of upcoming shuffles are given to workers."""
    outputs = sum(s.outputs for s in demand.shuffles)
    if not outputs:
        return 0.0
    behind_s = sum(p.seconds for p in parts if p.level > 0)
    each_s = max(demand.unknown_s, behind_s / outputs)
    return min(float(outputs), math.ceil(outputs * each_s / duration_s))


def _load(one: Supply, wanted: int, bound: Bound, inputs: Mapping[str, float]) -> Load:
    needed = bound.workers[one.name]
    reason = compared(wanted, one.serving)
    if reason is Reason.LOAD_INCREASED and 2 * needed > wanted:
        reason = Reason.NEEDED_RESOURCES
    own = {
        **inputs, "arrival_s": one.arrival_s, "serving": float(one.serving),
        "pending": float(len(one.pending)), "threads": one.threads,
        "bound_workers": float(needed),
    }  # fmt: skip
    message = _message(one, wanted, bound, own)
    return Load(wanted, reason, message, own, steps=(Step("load", wanted, reason, message),))


def _message(one: Supply, wanted: int, bound: Bound, inputs: Mapping[str, float]) -> str:
    tasks = (
        f"{inputs['running']:.0f} tasks run, {inputs['queued']:.0f} are queued,"
        f" {inputs['waiting']:.0f} wait for others"
    )
    work = f"{inputs['work_s']:.0f} s of work, at most {inputs['width']:.0f} tasks at once"
    there = f"{one.connected} workers of {one.threads:g} threads are there"
    if one.pending:
        there += f", {len(one.pending)} on their way"
    there += f", a new one takes {one.arrival_s:.0f} s: {wanted} wanted"
    said = [tasks, work, there]
    if one.name in bound.messages:
        said.append(bound.messages[one.name])
    if bound.nobody:
        said.append(bound.nobody)
    return "; ".join(said)


def _inputs(demand: Demand, parts: Sequence[Part], threads: float) -> dict[str, float]:
    rows = demand.prefixes
    by_level: dict[int, float] = {}
    for part in parts:
        by_level[part.level] = by_level.get(part.level, 0.0) + part.width
    ready = float(sum(r.ready for r in rows))
    return {
        "queued": ready,
        "ready": ready,
        "running": float(sum(r.running for r in rows)),
        "waiting": float(sum(r.waiting for r in rows)),
        "work_s": round(sum(p.seconds for p in parts), 3),
        "width": round(max(by_level.values(), default=0.0), 3),
        "cluster_threads": float(threads),
    }
