"""
`dask-adaptive recycle`: the annotation that has a worker, or a whole cluster, replaced.

Of a cluster it is the DaskCluster that is annotated, and not its policy's `spec.restartAt`: what
stands in Git stays as it is there, and who made the policy does not matter.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from dask_adaptive.cli.access import NOTHING, USAGE, ask, default_namespace, fail, kube_options
from dask_adaptive.cli.pin import MANAGER
from dask_adaptive.cli.pins import of_cluster
from dask_adaptive.kube.api import Json, KubeApi
from dask_adaptive.kube.errors import NotFound
from dask_adaptive.kube.objects import COMPONENT_LABEL, parse_pod
from dask_adaptive.kube.quotas import PREFIX, RECYCLE
from dask_adaptive.kube.resources import CLUSTERS, PODS, POLICIES, Resource
from dask_adaptive.model.pins import instant

ANNOTATION = PREFIX + RECYCLE


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be annotated, as it is before."""

    resource: Resource
    body: Json
    cluster: str  # name of the DaskCluster

    def __str__(self) -> str:
        kind = "pod" if self.resource is PODS else self.resource.kind
        return f"{kind} {self.name}"

    @property
    def name(self) -> str:
        return str(self.body["metadata"]["name"])

    @property
    def asked(self) -> str | None:
        return (self.body["metadata"].get("annotations") or {}).get(ANNOTATION)


@click.command("recycle")
@click.argument("target")
@click.option("--cancel", is_flag=True, help="Take the wish back; what drains already goes on.")
@kube_options
def command(target: str, cancel: bool, namespace: str | None, context: str | None) -> None:
    """
    Replace the worker in TARGET, or all workers of TARGET, without redoing any work.

    TARGET is a worker, its pod, or a DaskCluster. Workers are replaced within the budgets of the
    cluster's AdaptivePolicy; those that start from now on are not meant. See how it goes with
    `explain`. Exit code 1 if there is no TARGET, or nothing to cancel.
    """
    where = namespace or default_namespace(context)

    async def question(api: KubeApi) -> tuple[Target | None, list[Json]]:
        found = await _find(api, where, target)
        if found is None:
            return None, []
        if cancel and found.asked is None:
            return found, []
        policies = await api.list(POLICIES.path(where))
        if not cancel and not of_cluster(found.cluster, policies):
            fail(f"{found.cluster} is under no AdaptivePolicy: nobody would do it", USAGE)
        await _annotate(api, where, found, None if cancel else _value(found))
        return found, of_cluster(found.cluster, policies)

    found, policies = ask(question, context=context)
    if found is None:
        hint = f"kubectl -n {where} get daskclusters,pods -l {COMPONENT_LABEL}!=scheduler"
        fail(f"no worker, pod or DaskCluster {target} in namespace {where}; see: {hint}", NOTHING)
    _tell(found, policies, cancel=cancel)


def _value(target: Target) -> str:
    # Of a pod `now` is when the API server notes it, whatever the clock here says. But said again
    # of a cluster it would be the same annotation, and no change.
    return "now" if target.resource is PODS else instant(time.time())


def _tell(target: Target, policies: list[Json], *, cancel: bool) -> None:
    if cancel and target.asked is None:
        click.echo(f"{target} has no annotation {ANNOTATION} to take back.", err=True)
        sys.exit(NOTHING)
    if cancel:
        click.echo(f"{target} no longer asks to be recycled")
    else:
        what = "" if target.resource is PODS else ": all workers that run by now"
        click.echo(f"{target} is to be recycled{what}")
    for policy in policies:
        for note in _remarks(policy["spec"], cancel=cancel):
            click.echo(f"AdaptivePolicy {policy['metadata']['name']}: {note}", err=True)


def _remarks(spec: Mapping[str, Any], *, cancel: bool) -> list[str]:
    """What in a policy makes it go otherwise than one may think."""
    if cancel:
        since = spec.get("restartAt")
        return [f"spec.restartAt ({since}) still replaces workers"] if since else []
    mode = spec.get("mode", "Auto")
    return [] if mode == "Auto" else [f"spec.mode is {mode}: nothing happens until it is Auto"]


async def _find(api: KubeApi, namespace: str, name: str) -> Target | None:
    """A pod of this name, else the pod of the worker of this name, else the DaskCluster."""
    pod = await _get(api, PODS, namespace, name)
    if pod is not None:
        if (pod["metadata"].get("labels") or {}).get(COMPONENT_LABEL) != "worker":
            fail(f"pod {name} in {namespace} is not a Dask worker", USAGE)
        return Target(PODS, pod, parse_pod(pod).key.name)
    cluster = await _get(api, CLUSTERS, namespace, name)
    if cluster is not None:
        return Target(CLUSTERS, cluster, name)
    pods = await api.list(PODS.path(namespace), selector=f"{COMPONENT_LABEL}=worker")
    mine = [p for p in pods if parse_pod(p).worker == name and not parse_pod(p).meta.going]
    return Target(PODS, mine[-1], parse_pod(mine[-1]).key.name) if mine else None


async def _get(api: KubeApi, resource: Resource, namespace: str, name: str) -> Json | None:
    try:
        return await api.get(resource.path(namespace, name))
    except NotFound:
        return None


async def _annotate(api: KubeApi, namespace: str, target: Target, value: str | None) -> None:
    body = {"metadata": {"annotations": {ANNOTATION: value}}}
    await api.patch(target.resource.path(namespace, target.name), body, manager=MANAGER)
