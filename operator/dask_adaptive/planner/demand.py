"""How many workers of each group the load, and people's code, ask for: `loads` is the entry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dask_adaptive.model.demand import Demand
from dask_adaptive.model.history import Step
from dask_adaptive.model.observed import ObservedCluster
from dask_adaptive.model.past import Past
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.scaling import Source
from dask_adaptive.planner.load import Load as Load
from dask_adaptive.planner.load import at_least, compared
from dask_adaptive.planner.needs import bound_workers
from dask_adaptive.planner.startup_aware import SHORTEST_S, startup_aware
from dask_adaptive.planner.supply import Supply, supplies
from dask_adaptive.planner.target import wanted_workers


def loads(observed: ObservedCluster, policy: Policy, past: Past) -> Mapping[str, Load]:
    """
    One load for each worker group that is scaled and exists.

    Args:
        observed: The cluster; its scheduler has answered.
        policy: Whose `scaling.source` says what is asked, and whose bounds say which groups.
        past: How long workers of a group took to arrive is read from it.
    """
    demand = observed.scheduler.demand
    every = supplies(observed, policy, past)
    if demand is not None and policy.scaling.source is Source.STARTUP_AWARE:
        found = startup_aware(observed, policy, every, demand)
    else:
        found = _scheduler_target(observed, policy, every, demand)
    return {name: _with_wants(load, observed, name) for name, load in found.items()}


def _scheduler_target(
    observed: ObservedCluster, policy: Policy, every: Sequence[Supply], demand: Demand | None
) -> dict[str, Load]:
    """As the scheduler's own adaptive_target says; it knows nothing of groups."""
    default = observed.key.default_group
    needs: Mapping[str, int] = {}
    if demand is not None:
        duration_s = max(policy.target_duration_s, SHORTEST_S)
        needs = bound_workers(observed, every, demand, duration_s).workers
    found = {}
    for one in every:
        group = observed.group(one.name)
        if one.name == default and group is not None:
            wanted = wanted_workers(observed, group)
            message = f"the scheduler's adaptive_target comes to {wanted} workers of this group"
        elif demand is None:
            # Nobody can say what other groups are for: nothing of them is taken away.
            wanted, message = one.serving, "nobody can say what asks for this group: it is left"
        else:
            needed = needs[one.name]
            wanted = max(needed, one.busy)
            message = f"{needed} needed by tasks that only this group may run"
        found[one.name] = _plain(observed, one, wanted, message)
    return found


def _plain(observed: ObservedCluster, one: Supply, wanted: int, message: str) -> Load:
    reason = compared(wanted, one.serving)
    inputs = {
        "queued": float(observed.scheduler.queued),
        "running": float(observed.scheduler.processing),
        "serving": float(one.serving),
        "pending": float(len(one.pending)),
        "arrival_s": one.arrival_s,
        "threads": one.threads,
    }
    return Load(wanted, reason, message, inputs, steps=(Step("load", wanted, reason, message),))


def _with_wants(load: Load, observed: ObservedCluster, group: str) -> Load:
    """At least what clients have asked for."""
    default = observed.key.default_group
    mine = [w for w in observed.scheduler.wants if (w.group or default) == group and w.left_s > 0]
    most = max(mine, key=lambda w: (w.workers, w.owner), default=None)
    if most is None or most.workers <= load.wanted:
        return load
    # Without the time that is left: a sentence that counts down would be news all the time.
    message = f"client {most.owner} wants at least {most.workers} workers"
    raised = at_least(load, most.workers, "hint", Reason.CLIENT_WANTS, message)
    return replace(raised, asked_by=f"client {most.owner}")
