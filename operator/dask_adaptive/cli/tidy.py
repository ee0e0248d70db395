"""`dask-adaptive tidy`: removes what the operator has written to other objects."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import click

from dask_adaptive.cli.access import (
    Access,
    cluster_options,
    namespace_selector_option,
    namespaces_option,
    refuse_both,
)
from dask_adaptive.cli.errors import NOTHING, USAGE, complain, fail
from dask_adaptive.controller.lease import LEASE_NAMESPACE, lease_name
from dask_adaptive.kube import api as kube
from dask_adaptive.kube.annotated import woken_notes
from dask_adaptive.kube.api import Json, KubeApi, KubeError
from dask_adaptive.kube.objects import Meta, parse_autoscaler, parse_policy_object
from dask_adaptive.model.amounts import counted
from dask_adaptive.model.policy import DEFAULT_CONTROLLER

#: The operator's pods must be gone within this time; their grace period is 30 s.
STOP_S = 60.0


@click.command("tidy")
@namespaces_option
@namespace_selector_option
@click.option(
    "--stop", metavar="NAMESPACE/NAME",
    help="Scale the operator's Deployment to 0 first, and delete its Lease.",
)  # fmt: skip
@click.option(
    "--lease-namespace", default=LEASE_NAMESPACE, show_default=True,
    envvar="DASK_ADAPTIVE_LEASE_NAMESPACE", help="Namespace of that Lease.",
)  # fmt: skip
@click.option(
    "--controller-name", default=DEFAULT_CONTROLLER, show_default=True,
    envvar="DASK_ADAPTIVE_CONTROLLER_NAME",
    help="Remove the changes of the operator with this name; those of others stay.",
)  # fmt: skip
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Let the API server check changes; write nothing.")
@cluster_options
def command(
    namespaces: tuple[str, ...], namespace_selector: str, stop: str | None, lease_namespace: str,
    controller_name: str, yes: bool, dry_run: bool, access: Access,
) -> None:  # fmt: skip
    """
    Remove everything the operator added.

    Adopted DaskAutoscalers return to dask-kubernetes, and policies that the operator made are
    deleted. Your own settings stay. Helm runs this when the chart is uninstalled.

    \b
    Examples:
      kubectl dask-adaptive tidy --dry-run           # show what would be removed
      kubectl dask-adaptive tidy -n team --yes       # in one namespace, without asking
    """
    refuse_both(namespaces, namespace_selector)
    where, _, name = (stop or "").partition("/")
    if stop and not name:
        fail(f"--stop {stop}: write NAMESPACE/NAME of the operator's Deployment", USAGE)

    async def work(api: KubeApi) -> int:
        within = await _scopes(api, namespaces, namespace_selector)
        if not yes and not dry_run:
            planned = map(len, await _ours(api, within, controller_name))
            click.echo(_summary("to delete", "to give back", *planned))
            click.confirm("Do this?", abort=True)
        if stop and not dry_run:
            await stop_operator(api, where, name)
            with contextlib.suppress(KubeError):  # forbidden; without a holder it is harmless
                await api.delete(kube.LEASES.path(lease_namespace, lease_name(controller_name)))
        # Policies are deleted first: each means that its cluster is scaled by us.
        found = await _ours(api, within, controller_name)
        acts = (
            (kube.POLICIES, _delete, "deleted"),
            (kube.AUTOSCALERS, _give_back, "given back to dask-kubernetes"),
        )
        done = [await _carry_out(api, *act, metas) for act, metas in zip(acts, found, strict=True)]
        click.echo(_summary("deleted", "given back", *done))
        return sum(map(len, found)) - sum(done)

    failed = access.ask(work, dry_run=dry_run)
    if dry_run:
        click.echo("dry run: nothing was written")
    if failed:
        fail(f"{counted(failed, 'object')} could not be written; run this again", NOTHING)


def _summary(deleted: str, given_back: str, policies: int, autoscalers: int) -> str:
    return f"policies {deleted}: {policies:,}; DaskAutoscalers {given_back}: {autoscalers:,}"


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


async def _delete(api: KubeApi, path: str, uid: str) -> None:
    with contextlib.suppress(kube.Conflict):  # replaced by another object
        await api.delete(path, uid=uid)


async def _give_back(api: KubeApi, path: str, uid: str) -> None:
    await api.patch(path, {"metadata": {"uid": uid, "annotations": woken_notes()}})


async def _carry_out(
    api: KubeApi, resource: kube.Resource, act: Callable[[KubeApi, str, str], Awaitable[None]],
    done: str, metas: Sequence[Meta],
) -> int:  # fmt: skip
    """Change objects, as many at a time as `KubeApi` allows; return how many were."""

    async def one(meta: Meta) -> bool:
        try:
            await act(api, resource.path(meta.namespace, meta.name), meta.uid)
        except kube.NotFound:
            return True
        except KubeError as exc:
            complain(f"Error: {exc}")
            return False
        click.echo(f"{meta.namespace}/{meta.name}: {done}")
        return True

    return sum(await asyncio.gather(*map(one, metas)))


async def _ours(
    api: KubeApi, scopes: Sequence[str | None], controller: str
) -> tuple[list[Meta], list[Meta]]:
    """Return the policies that the operator made, and the DaskAutoscalers that it adopted."""
    policies = [parse_policy_object(b) async for b in _each(api, kube.POLICIES, scopes)]
    autoscalers = [parse_autoscaler(b) async for b in _each(api, kube.AUTOSCALERS, scopes)]
    others = {p.key for p in policies if p.controller != controller}
    adopted = (a for a in autoscalers if a.adopted_at is not None)
    return (
        [p.meta for p in policies if p.managed and p.key not in others],
        [a.meta for a in adopted if a.key not in others],
    )


async def _each(
    api: KubeApi, resource: kube.Resource, scopes: Sequence[str | None]
) -> AsyncIterator[Json]:
    """Yield objects page by page: there may be thousands."""
    for scope in scopes:
        with contextlib.suppress(kube.NotFound):  # the kind is not installed
            async for body in api.each(resource.path(scope)):
                yield body
