"""`dask-adaptive tidy`: takes back what the operator has written to objects of other people."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

import click

from dask_adaptive.cli.access import USAGE, ask, fail
from dask_adaptive.kube.adoption import woken_notes
from dask_adaptive.kube.api import Json, KubeApi
from dask_adaptive.kube.errors import Conflict, KubeError, NotFound
from dask_adaptive.kube.marks import changes
from dask_adaptive.kube.objects import COMPONENT_LABEL, parse_autoscaler, parse_policy_object
from dask_adaptive.kube.resources import AUTOSCALERS, DEPLOYMENTS, PODS, POLICIES, Resource
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
    Give everything back that the operator has taken.

    DaskAutoscalers that it took over go back to dask-kubernetes, policies that it made itself are
    deleted, and its annotations are removed from the pods of all Dask workers (hints to autoscalers
    of machines, and who pins a worker). What people have set themselves stays, their
    AdaptivePolicies as well. Helm runs this when the chart is uninstalled.
    """
    where, _, name = (stop or "").partition("/")
    if stop and not name:
        fail(f"--stop {stop}: write NAMESPACE/NAME of the operator's Deployment", USAGE)

    async def work(api: KubeApi) -> list[Tidied]:
        if stop:
            await stop_operator(api, where, name)
        return [await sweep(api, namespaces) for sweep in SWEEPS]

    tidied = ask(work, context=context)
    for row in tidied:
        for failure in row.failures:
            click.echo(f"Error: {failure}", err=True)
        click.echo((row.one if row.count == 1 else row.many).format(row.count))
    failed = sum(len(row.failures) for row in tidied)
    if failed:
        fail(f"{failed} objects could not be written; run this again", 1)


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


@dataclass(frozen=True, slots=True)
class Tidied:
    """What came of one kind of object."""

    one: str  # the sentence about it, with a place for the count
    many: str
    count: int
    failures: tuple[str, ...]


async def remove_policies(api: KubeApi, namespaces: Sequence[str]) -> Tidied:
    """Delete the policies that the operator made; with each goes its history. `KubeError`."""

    async def one(policy: Json) -> str:
        meta = policy["metadata"]
        path = POLICIES.path(meta["namespace"], meta["name"])
        with contextlib.suppress(Conflict):  # another one by now
            await api.delete(path, uid=meta["uid"])
        return "deleted"

    made = _found(api, POLICIES, namespaces, lambda p: parse_policy_object(p).managed)
    words = ("{} policy of the operator's deleted", "{} policies of the operator's deleted")
    return await _each(made, one, words)


async def wake_autoscalers(api: KubeApi, namespaces: Sequence[str]) -> Tidied:
    """Let upstream's autoscaler go on where it was put to rest. Raises `KubeError`."""

    async def one(autoscaler: Json) -> str:
        meta = autoscaler["metadata"]
        body = {"metadata": {"uid": meta["uid"], "annotations": woken_notes()}}
        await api.patch(AUTOSCALERS.path(meta["namespace"], meta["name"]), body)
        return "given back to dask-kubernetes"

    def is_adopted(body: Json) -> bool:
        return parse_autoscaler(body).adopted_at is not None

    adopted = _found(api, AUTOSCALERS, namespaces, is_adopted)
    words = ("{} DaskAutoscaler given back", "{} DaskAutoscalers given back")
    return await _each(adopted, one, words)


async def clean_pods(api: KubeApi, namespaces: Sequence[str]) -> Tidied:
    """Take our annotations off the pods of workers. Raises `KubeError`."""

    async def one(pod: Json) -> str:
        meta = pod["metadata"]
        notes = changes(meta.get("annotations") or {}, Mark())
        body = {"metadata": {"uid": meta["uid"], "annotations": notes}}
        await api.patch(PODS.path(meta["namespace"], meta["name"]), body)
        return ", ".join(sorted(notes))

    def is_marked(pod: Json) -> bool:
        return bool(changes(pod["metadata"].get("annotations") or {}, Mark()))

    workers = f"{COMPONENT_LABEL}=worker"
    marked = _found(api, PODS, namespaces, is_marked, selector=workers)
    words = ("annotations removed from {} pod", "annotations removed from {} pods")
    return await _each(marked, one, words)


#: Policies go first: as long as one is there, its cluster has somebody who scales it.
SWEEPS = (remove_policies, wake_autoscalers, clean_pods)


async def _each(
    objects: AsyncIterator[Json], one: Callable[[Json], Awaitable[str]], words: tuple[str, str]
) -> Tidied:
    """Do the same to all objects, some at a time; `one` says what it did."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def guarded(body: Json) -> str:
        meta = body["metadata"]
        async with turns:
            try:
                done = await one(body)
            except NotFound:
                return ""
            except KubeError as exc:
                return str(exc)
        click.echo(f"{meta['namespace']}/{meta['name']}: {done}")
        return ""

    found = [body async for body in objects]
    failures = tuple(said for said in await asyncio.gather(*map(guarded, found)) if said)
    return Tidied(*words, len(found) - len(failures), failures)


async def _found(
    api: KubeApi,
    resource: Resource,
    namespaces: Sequence[str],
    is_ours: Callable[[Json], bool],
    *,
    selector: str = "",
) -> AsyncIterator[Json]:
    for scope in tuple(namespaces) or (None,):
        with contextlib.suppress(NotFound):  # the kind is not installed (any more)
            async for body in api.each(resource.path(scope), selector=selector):
                if is_ours(body):
                    # Of a page of objects only this is needed, and there may be thousands.
                    yield {"metadata": {k: body["metadata"].get(k) for k in _NEEDED}}


_NEEDED = ("namespace", "name", "uid", "annotations")
