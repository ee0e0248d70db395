"""`dask-adaptive get`: policies and how they fare."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import click

from dask_adaptive.cli.access import NOTHING, ask, default_namespace, kube_options, output_option
from dask_adaptive.kube.api import Json, KubeApi
from dask_adaptive.kube.resources import POLICIES

_COLUMNS = (
    "NAMESPACE",
    "NAME",
    "CLUSTER",
    "MODE",
    "REPLICAS",
    "DESIRED",
    "PENDING",
    "IDLE",
    "BUSY",
    "PINNED",
    "RETIRING",
    "READY",
    "REASON",
)


@click.command("get")
@click.argument("names", nargs=-1)
@kube_options
@click.option("-A", "--all-namespaces", is_flag=True, help="In all namespaces.")
@output_option
def command(
    names: tuple[str, ...],
    namespace: str | None,
    context: str | None,
    all_namespaces: bool,
    output: str,
) -> None:
    """List AdaptivePolicies and how they fare. Exit code 1 if there is none."""
    where = None if all_namespaces else namespace or default_namespace(context)

    async def question(api: KubeApi) -> list[Json]:
        return await api.list(POLICIES.path(where))

    found = ask(question, context=context)
    found = [p for p in found if not names or p["metadata"]["name"] in names]
    if output == "json":
        click.echo(json.dumps({"items": found}, indent=2))
    elif found:
        click.echo(table(_COLUMNS, map(_row, found)))
    if not found:
        wanted = " ".join(names) if names else "AdaptivePolicy"
        place = f"namespace {where}" if where else "any namespace"
        click.echo(f"No {wanted} in {place}.", err=True)
        sys.exit(NOTHING)


def _row(policy: Mapping[str, Any]) -> list[str]:
    meta, spec, status = policy["metadata"], policy["spec"], policy.get("status") or {}
    ready: Mapping[str, Any] = next(
        (c for c in status.get("conditions", []) if c["type"] == "Ready"), {}
    )
    numbers = ("replicas", "desiredReplicas", "pending", "idle", "busy", "pinned", "retiring")
    return [
        meta["namespace"],
        meta["name"],
        spec["clusterRef"]["name"],
        spec.get("mode", "Auto"),
        *(str(status.get(number, "")) for number in numbers),
        ready.get("status", "Unknown"),
        status.get("reason", "not looked at yet"),
    ]


def table(columns: Iterable[str], rows: Iterable[list[str]]) -> str:
    """Columns as kubectl aligns them."""
    lines = [list(columns), *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
