"""
`dask-adaptive recycle`: the annotation that has a worker, or a whole cluster, replaced.

Of a cluster it is the DaskCluster that is annotated, and not its policy's `spec.restartAt`: what
stands in Git stays as it is there, and who made the policy does not matter.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from dask_adaptive.cli.access import (
    NOTHING,
    USAGE,
    Access,
    dry_run_option,
    fail,
    found,
    kube_options,
    workers_and_clusters,
    would,
)
from dask_adaptive.cli.pins import MANAGER
from dask_adaptive.cli.status_view import PolicyView, list_policies
from dask_adaptive.kube.api import CLUSTERS, PODS, Resource
from dask_adaptive.kube.notes import PREFIX, RECYCLE
from dask_adaptive.kube.objects import COMPONENT_LABEL, parse_pod
from dask_adaptive.model.amounts import instant

if TYPE_CHECKING:
    from dask_adaptive.kube.api import Json, KubeApi

ANNOTATION = PREFIX + RECYCLE


@dataclass(frozen=True, slots=True)
class Target:
    """The object to annotate, as it was before."""

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
@click.argument("target", shell_complete=workers_and_clusters)
@click.option(
    "--cancel", is_flag=True, help="Withdraw the request; workers that drain already continue."
)
@kube_options
@dry_run_option
def command(target: str, cancel: bool, access: Access, dry_run: bool) -> None:
    """
    Replace the worker in TARGET, or all workers of TARGET, without redoing any work.

    TARGET is a worker, its pod, or a DaskCluster. Workers are replaced within the budgets of the
    cluster's AdaptivePolicy; those that start from now on are not meant. See how it goes with
    `explain`. Exit code 1 if there is no TARGET, or nothing to cancel.
    """
    where = access.namespace

    async def question(api: KubeApi) -> tuple[Target | None, list[PolicyView]]:
        it = await _find(api, where, target)
        if it is None or (cancel and it.asked is None):
            return it, []
        policies = [p for p in await list_policies(api, where) if p.cluster == it.cluster]
        if not cancel and not policies:
            fail(f"{it.cluster} has no AdaptivePolicy: nothing would replace it", USAGE)
        # On a pod, `now` means the time at which the API server records it, whatever this clock
        # says. On a cluster a second `now` would be the same annotation, and no change.
        value = None if cancel else "now" if it.resource is PODS else instant(time.time())
        body = {"metadata": {"annotations": {ANNOTATION: value}}}
        await api.patch(it.resource.path(where, it.name), body, manager=MANAGER)
        return it, policies

    it, policies = access.ask(question, dry_run=dry_run)
    if it is None:
        hint = f"kubectl -n {where} get daskclusters,pods -l {COMPONENT_LABEL}!=scheduler"
        fail(f"no worker, pod or DaskCluster {target} in namespace {where}; see: {hint}", NOTHING)
    if cancel and it.asked is None:
        click.echo(f"{it} has no annotation {ANNOTATION} to remove.", err=True)
        sys.exit(NOTHING)
    all_workers = "" if it.resource is PODS else ": all workers that run now"
    said = "is no longer to be recycled" if cancel else f"is to be recycled{all_workers}"
    click.echo(f"{it} {said}{would(dry_run)}")
    for policy in policies:
        if remark := _remark(policy, cancel=cancel):
            click.echo(f"AdaptivePolicy {policy.name}: {remark}", err=True)


def _remark(policy: PolicyView, *, cancel: bool) -> str:
    """Warn if the policy does something unexpected with the request; empty: it does not."""
    if not cancel:
        mode = policy.mode
        return "" if mode == "Auto" else f"spec.mode is {mode}: nothing happens until it is Auto"
    since = policy.rules.restart_at if policy.rules else None
    return "" if since is None else f"spec.restartAt ({instant(since)}) still replaces workers"


async def _find(api: KubeApi, namespace: str, name: str) -> Target | None:
    """Find the pod of this name, else the DaskCluster, else the pod of the worker."""
    if pod := await found(api.get(PODS.path(namespace, name))):
        if (pod["metadata"].get("labels") or {}).get(COMPONENT_LABEL) != "worker":
            fail(f"pod {name} in {namespace} is not a Dask worker", USAGE)
        return Target(PODS, pod, parse_pod(pod).key.name)
    if cluster := await found(api.get(CLUSTERS.path(namespace, name))):
        return Target(CLUSTERS, cluster, name)
    pods = await api.list(PODS.path(namespace), selector=f"{COMPONENT_LABEL}=worker")
    mine = [p for p in pods if parse_pod(p).worker == name and not parse_pod(p).meta.deleting]
    return Target(PODS, mine[-1], parse_pod(mine[-1]).key.name) if mine else None
