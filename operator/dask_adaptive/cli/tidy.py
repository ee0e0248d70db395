"""`dask-adaptive tidy`: takes the operator's annotations off the workers' pods."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

import click

from dask_adaptive.cli.access import USAGE, ask, fail
from dask_adaptive.kube.api import Json, KubeApi
from dask_adaptive.kube.errors import KubeError, NotFound
from dask_adaptive.kube.marks import changes
from dask_adaptive.kube.objects import COMPONENT_LABEL
from dask_adaptive.kube.resources import DEPLOYMENTS, PODS
from dask_adaptive.model.observed import Mark

#: How long to wait for the operator's pods to be gone; their grace period is 30 s.
STOP_S = 60.0

#: Pods that are written at the same time.
_AT_ONCE = 10


@click.command("tidy")
@click.option(
    "-n",
    "--namespace",
    "namespaces",
    multiple=True,
    envvar="DASK_ADAPTIVE_NAMESPACES",
    help="Only in this namespace; may be repeated. Default: all.",
)
@click.option(
    "--stop",
    metavar="NAMESPACE/NAME",
    help="Scale the operator's Deployment to 0 first, or it would put them back.",
)
@click.option("--context", help="Context of the kubeconfig.")
def command(namespaces: tuple[str, ...], stop: str | None, context: str | None) -> None:
    """
    Remove our annotations from the pods of all Dask workers.

    These are the hints to autoscalers of machines, and who pins a worker. What people have set
    themselves stays. Helm runs this when the chart is uninstalled.
    """
    where, _, name = (stop or "").partition("/")
    if stop and not name:
        fail(f"--stop {stop}: write NAMESPACE/NAME of the operator's Deployment", USAGE)

    async def work(api: KubeApi) -> tuple[int, list[str]]:
        if stop:
            await stop_operator(api, where, name)
        return await tidy(api, namespaces)

    tidied, failures = ask(work, context=context)
    for failure in failures:
        click.echo(f"Error: {failure}", err=True)
    click.echo(f"annotations removed from {tidied} {'pod' if tidied == 1 else 'pods'}")
    if failures:
        fail(f"{len(failures)} pods could not be written; run this again", 1)


async def stop_operator(api: KubeApi, namespace: str, name: str) -> None:
    """Scale the operator to 0 and wait until its pods are gone. Raises `KubeError`."""
    path = DEPLOYMENTS.path(namespace, name)
    try:
        labels = (await api.get(path))["spec"]["selector"]["matchLabels"]
        await api.patch(f"{path}/scale", {"spec": {"replicas": 0}})
    except NotFound:
        click.echo(f"deployment {namespace}/{name} is gone already")
        return
    selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    end = time.monotonic() + STOP_S
    while await api.list(PODS.path(namespace), selector=selector):
        if time.monotonic() > end:
            click.echo(f"pods of deployment {namespace}/{name} are still there; going on", err=True)
            return
        await asyncio.sleep(1)
    click.echo(f"deployment {namespace}/{name} stopped")


async def tidy(api: KubeApi, namespaces: Sequence[str]) -> tuple[int, list[str]]:
    """Returns how many pods were changed, and which could not be. Raises `KubeError`."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(pod: Json) -> str:
        meta = pod["metadata"]
        notes = changes(meta.get("annotations") or {}, Mark())
        body = {"metadata": {"uid": meta["uid"], "annotations": notes}}
        async with turns:
            try:
                await api.patch(PODS.path(meta["namespace"], meta["name"]), body)
            except NotFound:
                return ""
            except KubeError as exc:
                return str(exc)
        click.echo(f"{meta['namespace']}/{meta['name']}: {', '.join(sorted(notes))}")
        return ""

    found = [pod async for pod in _marked(api, namespaces)]
    failures = [said for said in await asyncio.gather(*map(one, found)) if said]
    return len(found) - len(failures), failures


async def _marked(api: KubeApi, namespaces: Sequence[str]) -> AsyncIterator[Json]:
    """Pods of workers that carry annotations of ours."""
    for scope in tuple(namespaces) or (None,):
        async for pod in api.each(PODS.path(scope), selector=f"{COMPONENT_LABEL}=worker"):
            meta = pod["metadata"]
            if changes(meta.get("annotations") or {}, Mark()):
                # Of a page of pods only this is needed, and there may be thousands.
                yield {"metadata": {k: meta.get(k) for k in _NEEDED}}


_NEEDED = ("namespace", "name", "uid", "annotations")
