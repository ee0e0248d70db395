"""`dask-adaptive pins`: who holds which workers, why, and until when at the latest."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import click

from dask_adaptive.cli.access import (
    NOTHING,
    ask,
    default_namespace,
    fail,
    kube_options,
    output_option,
)
from dask_adaptive.cli.get import table
from dask_adaptive.kube.api import Json, KubeApi
from dask_adaptive.kube.resources import POLICIES

_COLUMNS = ("CLUSTER", "SOURCE", "OWNER", "UNTIL", "WORKERS", "REASON")

#: Names of workers in one row of the table; all that are known are in the JSON.
_NAMES_SHOWN = 3


@dataclass(frozen=True, slots=True)
class PinLine:
    """One pin, as a policy's status tells it."""

    cluster: str
    source: str
    owner: str
    reason: str
    until: str  # an instant; empty: not known
    workers: tuple[str, ...]  # the first ten
    count: int


@click.command("pins")
@click.argument("cluster", required=False)
@kube_options
@output_option
def command(cluster: str | None, namespace: str | None, context: str | None, output: str) -> None:
    """
    Show who holds which workers, why, and until when at the latest.

    CLUSTER is a DaskCluster or an AdaptivePolicy; by default all of the namespace. A pin that is
    renewed may end earlier. Exit code 1 if CLUSTER is under no AdaptivePolicy.
    """
    where = namespace or default_namespace(context)

    async def question(api: KubeApi) -> list[Json]:
        return await api.list(POLICIES.path(where))

    policies = of_cluster(cluster, ask(question, context=context))
    if cluster is not None and not policies:
        fail(f"{cluster} in namespace {where} is under no AdaptivePolicy", NOTHING)
    lines = pin_lines(policies)
    if output == "json":
        click.echo(json.dumps({"items": [asdict(line) for line in lines]}, indent=2))
    elif lines:
        click.echo(table(_COLUMNS, map(_row, lines)))
    else:
        click.echo("No pins.")
    for policy in policies:
        if not policy.get("status"):
            name = policy["metadata"]["name"]
            click.echo(f"{name}: the operator has not looked at it yet; is it running?", err=True)


def of_cluster(name: str | None, policies: Iterable[Json]) -> list[Json]:
    """The policies of one cluster, named by itself or by its policy; without a name all."""
    return [
        p
        for p in policies
        if name is None or name in (p["metadata"]["name"], p["spec"]["clusterRef"]["name"])
    ]


def pin_lines(policies: Iterable[Json]) -> list[PinLine]:
    """The pins that the policies' status tells of, cluster by cluster, in the status' order."""
    lines = [
        PinLine(
            cluster=policy["spec"]["clusterRef"]["name"],
            source=row["source"],
            owner=row.get("owner", ""),
            reason=row.get("reason", ""),
            until=row.get("until", ""),
            workers=tuple(row.get("workers") or ()),
            count=row.get("count", 0),
        )
        for policy in policies
        for row in (policy.get("status") or {}).get("heldBy") or []
    ]
    return sorted(lines, key=lambda line: line.cluster)


def _row(line: PinLine) -> list[str]:
    names = ", ".join(line.workers[:_NAMES_SHOWN])
    more = line.count - min(len(line.workers), _NAMES_SHOWN)
    workers = f"{names} and {more} more" if more else names
    return [line.cluster, line.source, line.owner, line.until or "unknown", workers, line.reason]
