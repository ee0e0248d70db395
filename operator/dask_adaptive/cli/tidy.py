"""`dask-adaptive tidy`: removes what the operator has written to other objects."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click

from dask_adaptive.cli.access import (
    USAGE,
    Access,
    cluster_options,
    complain,
    dry_run_option,
    fail,
    namespace_selector_option,
    namespaces_option,
    refuse_both,
)
from dask_adaptive.controller.lease import LEASE_NAMESPACE, lease_name
from dask_adaptive.kube import api as kube
from dask_adaptive.kube.annotated import woken_notes
from dask_adaptive.kube.api import Json, KubeApi, KubeError
from dask_adaptive.kube.objects import parse_autoscaler, parse_policy_object
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.policy import DEFAULT_CONTROLLER

#: The operator's pods must be gone within this time; their grace period is 30 s.
STOP_S = 60.0

#: Concurrent writes.
_AT_ONCE = 10


@click.command("tidy")
@namespaces_option
@namespace_selector_option
@click.option(
    "--stop", metavar="NAMESPACE/NAME",
    help="Scale the operator's Deployment to 0 first, lest it restores them; delete its Lease.",
)  # fmt: skip
@click.option(
    "--lease-namespace", default=LEASE_NAMESPACE, show_default=True,
    envvar="DASK_ADAPTIVE_LEASE_NAMESPACE", help="Namespace of that Lease.",
)  # fmt: skip
@click.option(
    "--controller-name", default=DEFAULT_CONTROLLER, show_default=True,
    envvar="DASK_ADAPTIVE_CONTROLLER_NAME",
    help="Operator whose changes are removed; clusters of operators of another name stay.",
)  # fmt: skip
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@dry_run_option
@cluster_options
def command(
    namespaces: tuple[str, ...], namespace_selector: str, stop: str | None, lease_namespace: str,
    controller_name: str, yes: bool, dry_run: bool, access: Access,
) -> None:  # fmt: skip
    """
    Remove everything the operator added.

    Adopted DaskAutoscalers return to dask-kubernetes, and policies that the operator made are
    deleted. People's own settings stay. Helm runs this when the chart is uninstalled.
    """
    refuse_both(namespaces, namespace_selector)
    where, _, name = (stop or "").partition("/")
    if stop and not name:
        fail(f"--stop {stop}: write NAMESPACE/NAME of the operator's Deployment", USAGE)
    sweeps = [replace(sweep, controller=controller_name) for sweep in SWEEPS]

    async def work(api: KubeApi) -> int:
        within = await _scopes(api, namespaces, namespace_selector)
        if not yes and not dry_run:
            for sweep in sweeps:
                click.echo(sweep.planned.format(len(await _found(api, sweep, within))))
            click.confirm("Do this?", abort=True)
        if stop and not dry_run:
            await stop_operator(api, where, name)
            with contextlib.suppress(KubeError):  # forbidden; without a holder it is harmless
                await api.delete(kube.LEASES.path(lease_namespace, lease_name(controller_name)))
        return sum([await _carry_out(api, sweep, within) for sweep in sweeps])

    failed = access.ask(work, dry_run=dry_run)
    if dry_run:
        click.echo("dry run: nothing was written")
    if failed:
        fail(f"{failed} objects could not be written; run this again", 1)


async def _scopes(api: KubeApi, namespaces: tuple[str, ...], selector: str) -> Sequence[str | None]:
    """Return the namespaces to list; None: all at once."""
    if not selector:
        return namespaces or (None,)
    found = await api.list(kube.NAMESPACES.path(), selector=selector)
    return [body["metadata"]["name"] for body in found]


async def stop_operator(api: KubeApi, namespace: str, name: str) -> None:
    """Scale the operator to 0 and wait until its pods are gone. Raises `KubeError`."""
    path = kube.DEPLOYMENTS.path(namespace, name)
    try:
        labels = (await api.get(path))["spec"]["selector"]["matchLabels"]
        await api.patch(f"{path}/scale", {"spec": {"replicas": 0}})
    except kube.NotFound:
        click.echo(f"deployment {namespace}/{name} is gone already")
        return
    selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    end = time.monotonic() + STOP_S
    while await api.list(kube.PODS.path(namespace), selector=selector):
        if time.monotonic() > end:
            click.echo(f"pods of deployment {namespace}/{name} are still there; going on", err=True)
            return
        await asyncio.sleep(1)
    click.echo(f"deployment {namespace}/{name} stopped")


@dataclass(frozen=True, slots=True)
class Sweep:
    """The change to all objects of one kind."""

    resource: kube.Resource
    parse: Callable[[Json], Any]
    is_ours: Callable[[Any], bool]  # of what was parsed
    act: Callable[[KubeApi, str, Json], Awaitable[str]]  # on a path; returns what was done
    planned: str  # with a place for the count
    done: tuple[str, str]  # the same for one and for several
    controller: str = DEFAULT_CONTROLLER  # controllerName whose traces are removed


async def _delete_policy(api: KubeApi, path: str, meta: Json) -> str:
    with contextlib.suppress(kube.Conflict):  # replaced by another object
        await api.delete(path, uid=meta["uid"])
    return "deleted"


async def _wake_autoscaler(api: KubeApi, path: str, meta: Json) -> str:
    await api.patch(path, {"metadata": {"uid": meta["uid"], "annotations": woken_notes()}})
    return "given back to dask-kubernetes"


#: Policies are deleted first: each means that its cluster is scaled by us.
SWEEPS = (
    Sweep(
        kube.POLICIES, parse_policy_object, lambda policy: policy.managed, _delete_policy,
        "policies of the operator's to delete: {}",
        ("{} policy of the operator's deleted", "{} policies of the operator's deleted"),
    ),
    Sweep(
        kube.AUTOSCALERS, parse_autoscaler, lambda one: one.adopted_at is not None,
        _wake_autoscaler, "DaskAutoscalers to give back: {}",
        ("{} DaskAutoscaler given back", "{} DaskAutoscalers given back"),
    ),
)  # fmt: skip


async def _carry_out(api: KubeApi, sweep: Sweep, scopes: Sequence[str | None]) -> int:
    """
    Apply the sweep to all objects, some at a time; return the number of failures. Raises
    `KubeError`.
    """
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(meta: Json) -> bool:
        async with turns:
            try:
                path = sweep.resource.path(meta["namespace"], meta["name"])
                done = await sweep.act(api, path, meta)
            except kube.NotFound:
                return True
            except KubeError as exc:
                complain(f"Error: {exc}")
                return False
        click.echo(f"{meta['namespace']}/{meta['name']}: {done}")
        return True

    outcomes = await asyncio.gather(*map(one, await _found(api, sweep, scopes)))
    click.echo(sweep.done[sum(outcomes) != 1].format(sum(outcomes)))
    return len(outcomes) - sum(outcomes)


async def _found(api: KubeApi, sweep: Sweep, scopes: Sequence[str | None]) -> list[Json]:
    """Yield the metadata of our objects, page by page: there may be thousands."""
    found = []
    for scope in scopes:
        others = set[ClusterKey]()
        with contextlib.suppress(kube.NotFound):
            policies = map(parse_policy_object, await api.list(kube.POLICIES.path(scope)))
            others = {p.key for p in policies if p.controller != sweep.controller}
        with contextlib.suppress(kube.NotFound):  # the kind is not installed
            async for body in api.each(sweep.resource.path(scope)):
                parsed = sweep.parse(body)
                if sweep.is_ours(parsed) and parsed.key not in others:
                    kept = ("namespace", "name", "uid")
                    found.append({k: body["metadata"].get(k) for k in kept})
    return found
