"""`dask-adaptive status`: one screen for each cluster; with -w it stays up to date."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable

import click
from rich.console import Console
from rich.text import Text

from dask_adaptive.cli.access import (
    NOTHING,
    ask,
    default_namespace,
    fail,
    kube_options,
    output_option,
)
from dask_adaptive.cli.paint import console, show
from dask_adaptive.cli.pins import of_cluster
from dask_adaptive.cli.status_page import bounds, page, summary
from dask_adaptive.kube.api import Json, KubeApi
from dask_adaptive.kube.errors import ApiUnreachable
from dask_adaptive.kube.resources import POLICIES

#: The version that a watch begins with was forgotten by the API server: list again.
_GONE = 410

#: Between two attempts to reach the API server.
_AGAIN_S = 2.0


@click.command("status")
@click.argument("name", required=False)
@kube_options
@click.option("-A", "--all-namespaces", is_flag=True, help="In all namespaces.")
@click.option("-w", "--watch", is_flag=True, help="Stay, and show what changes.")
@output_option
def command(
    name: str | None, namespace: str | None, context: str | None, all_namespaces: bool,
    watch: bool, output: str,
) -> None:  # fmt: skip
    """
    Show how clusters fare: workers by group, the last decision, what is wrong, who holds what.

    NAME is a DaskCluster or an AdaptivePolicy; by default all of the namespace. With -w a terminal
    is redrawn, and elsewhere a line is added for each change. Exit code 1 if there is none.
    """
    where = None if all_namespaces else namespace or default_namespace(context)
    if watch:
        with contextlib.suppress(KeyboardInterrupt):
            ask(lambda api: _follow(api, where, name, output), context=context)
        return

    async def question(api: KubeApi) -> list[Json]:
        return await api.list(POLICIES.path(where))

    policies = of_cluster(name, ask(question, context=context))
    if output == "json":
        click.echo(json.dumps({"items": [as_json(p) for p in policies]}, indent=2))
    else:
        show(screen(policies))
    if not policies:
        place = f"namespace {where}" if where else "any namespace"
        fail(f"no AdaptivePolicy for {name or 'any cluster'} in {place}", NOTHING)


def screen(policies: Iterable[Json]) -> list[Text]:
    """The pages of several policies, by namespace and name."""
    lines: list[Text] = []
    for policy in sorted(policies, key=_where):
        lines += [Text()] if lines else []
        lines += page(policy)
    return lines


def as_json(policy: Json) -> Json:
    """What is shown, for programs."""
    return {
        "namespace": policy["metadata"]["namespace"],
        "policy": policy["metadata"]["name"],
        "cluster": policy["spec"]["clusterRef"]["name"],
        "mode": policy["spec"].get("mode", "Auto"),
        "bounds": {name: {"min": low, "max": high} for name, (low, high) in bounds(policy).items()},
        "status": policy.get("status") or {},
    }


def _where(policy: Json) -> tuple[str, str]:
    return policy["metadata"]["namespace"], policy["metadata"]["name"]


async def _follow(api: KubeApi, where: str | None, name: str | None, output: str) -> None:
    screen_of = console()
    told: dict[tuple[str, str], str] = {}
    async for policies in _changes(api, where):
        chosen = of_cluster(name, policies)
        if output == "table" and screen_of.is_terminal:
            _redraw(screen_of, chosen)
            continue
        for policy in sorted(chosen, key=_where):
            said = json.dumps(as_json(policy)) if output == "json" else summary(policy)
            if told.get(_where(policy)) != said:
                told[_where(policy)] = said
                click.echo(said)


def _redraw(screen_of: Console, policies: Iterable[Json]) -> None:
    screen_of.clear()
    show(screen(policies) or [Text("no AdaptivePolicy yet")], screen_of)


async def _changes(api: KubeApi, where: str | None) -> AsyncIterator[list[Json]]:
    """All policies, now and each time that one of them changes; breaks of the watch are bridged."""
    path = POLICIES.path(where)
    listed = await api.get(path)
    while True:
        known = {_where(p): p for p in listed.get("items") or []}
        yield list(known.values())
        version = listed["metadata"]["resourceVersion"]
        try:
            async for event, policy in api.watch(path, version=version):
                if event == "DELETED":
                    known.pop(_where(policy), None)
                else:
                    known[_where(policy)] = policy
                yield list(known.values())
        except ApiUnreachable as exc:
            if exc.status != _GONE:
                click.echo(str(exc), err=True)
        listed = await _listed(api, path)


async def _listed(api: KubeApi, path: str) -> Json:
    """The whole list, once the API server can be reached."""
    while True:
        try:
            return await api.get(path)
        except ApiUnreachable:
            await asyncio.sleep(_AGAIN_S)
