"""
How far one worker has used up its quotas, asked of its scheduler.

The status does not say it: a number that changes with every task would be written with every task.
"""

from __future__ import annotations

import time

from dask_adaptive.cli.from_here import look_from_here
from dask_adaptive.kube.api import Json, KubeApi
from dask_adaptive.kube.errors import KubeError
from dask_adaptive.kube.objects import PodObject
from dask_adaptive.kube.resources import CLUSTERS, DEPLOYMENTS, GROUPS
from dask_adaptive.kube.view import view
from dask_adaptive.kube.world import KINDS, World
from dask_adaptive.loop.join import join
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import ObservedWorker
from dask_adaptive.model.policy import InvalidPolicy, Policy, parse_policy
from dask_adaptive.model.recycle import Quota, RecyclePast
from dask_adaptive.planner.quotas import QuotaLine, quota_lines
from dask_adaptive.planner.walltime import with_walltimes

Facts = tuple[tuple[str, str], ...]


async def quota_facts(
    api: KubeApi, policy: Json, pod: Json, parsed: PodObject, *, context: str | None
) -> Facts:
    """
    Lines about each quota that holds for the worker in a pod; what can't be known is said.

    Args:
        policy: The AdaptivePolicy that its cluster is under.
        pod, parsed: The worker's pod, as JSON and as read.
    """
    try:
        rules = parse_policy(policy["spec"])
        world = await _world(api, rules, pod, parsed)
    except (InvalidPolicy, KubeError) as exc:
        return (("quotas", f"not known: {exc}"),)
    key = ClusterKey(parsed.meta.namespace, rules.cluster)
    seen = view(world, key, now=time.time(), read_pin=lambda _: None)
    scheduler = await look_from_here(key, context)
    observed = with_walltimes(join(key, seen, scheduler), rules)
    worker = next((w for g in observed.groups for w in g.workers if w.name == parsed.worker), None)
    if worker is None:
        return ()
    return facts_of(worker, rules, scheduler.message)


def facts_of(worker: ObservedWorker, policy: Policy, problem: str = "") -> Facts:
    """
    A worker's quotas as facts. Pure.

    Args:
        problem: Why its scheduler did not say what it has used; empty: it did.
    """
    recycle = policy.recycle_of(worker.group)
    lines = quota_lines(worker, recycle, RecyclePast(), now=0.0)
    known = [line for line in lines if not problem or line.quota is Quota.LIFETIME]
    facts = [(f"quota {line.quota.value}", _sentence(line)) for line in known]
    if worker.stopped:
        facts.append(("gets no more tasks", worker.stopped))
    if worker.quota_notes is not None and worker.quota_notes.problem:
        facts.append(("annotation", worker.quota_notes.problem))
    if worker.recycle_asked:
        facts.append(("to be replaced", worker.recycle_asked))
    if worker.drift:
        facts.append(("differs from its group", worker.drift))
    if problem:
        facts.append(("quotas", f"what the scheduler counts is missing here: {problem}"))
    return tuple(facts)


def _sentence(line: QuotaLine) -> str:
    return f"{line.used}, of {line.limit} ({line.ratio:.0%})"


async def _world(api: KubeApi, policy: Policy, pod: Json, parsed: PodObject) -> World:
    """The few objects that say what holds for one worker."""
    world, namespace = World(), parsed.meta.namespace
    deployment = await api.get(DEPLOYMENTS.path(namespace, parsed.worker))
    group = deployment["metadata"].get("labels", {}).get("dask.org/workergroup-name", "")
    found = {"Deployment": deployment, "Pod": pod}
    found["DaskCluster"] = await api.get(CLUSTERS.path(namespace, policy.cluster))
    found["DaskWorkerGroup"] = await api.get(
        GROUPS.path(namespace, group or f"{policy.cluster}-default")
    )
    for kind in KINDS:
        if kind.resource.kind in found:
            world.take(kind, "ADDED", found[kind.resource.kind])
    return world
