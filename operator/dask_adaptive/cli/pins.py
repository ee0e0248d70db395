"""`dask-adaptive pins`, `pin` and `unpin`: who holds which workers, and holding one."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from dask_adaptive.cli.access import (
    NOTHING,
    USAGE,
    Access,
    all_namespaces_option,
    dry_run_option,
    fail,
    found,
    kube_options,
    output_formats,
    policies_and_clusters,
    workers,
    would,
)
from dask_adaptive.cli.output import aligned, dump, show
from dask_adaptive.cli.status_view import NOT_LOOKED, list_policies, policies_of
from dask_adaptive.kube.api import PODS
from dask_adaptive.kube.notes import PIN, PIN_REASON
from dask_adaptive.kube.objects import COMPONENT_LABEL
from dask_adaptive.model.amounts import parse_duration, read_instant

if TYPE_CHECKING:
    from dask_adaptive.kube.api import Json, KubeApi

#: In managedFields: a person's own pin, by way of this command.
MANAGER = "dask-adaptive-cli"

_COLUMNS = ("NAMESPACE", "CLUSTER", "SOURCE", "OWNER", "UNTIL", "WORKERS", "REASON")


@click.command("pins")
@click.argument("cluster", required=False, shell_complete=policies_and_clusters)
@kube_options
@all_namespaces_option
@output_formats("table", "wide", "json", "yaml")
def command(cluster: str | None, access: Access, all_namespaces: bool, output: str) -> None:
    """
    Show who holds which workers, why, and until when at the latest.

    CLUSTER is a DaskCluster or an AdaptivePolicy; by default all of the namespace. A pin that is
    renewed may end earlier. With -o wide more workers are named. Exit code 1 if CLUSTER is under no
    AdaptivePolicy.
    """
    where = None if all_namespaces else access.namespace
    policies = access.ask(
        lambda api: policies_of(api, where, cluster) if cluster else list_policies(api, where)
    )
    pins = [(p, pin) for p in policies if p.status for pin in p.status.held_by]
    pins.sort(key=lambda pair: (pair[0].namespace, pair[0].cluster))
    if output in ("json", "yaml"):
        items = [{"namespace": p.namespace, "cluster": p.cluster, **asdict(pin)} for p, pin in pins]
        dump({"items": items}, output)
    elif pins:
        most = 10 if output == "wide" else 3
        rows = [
            (p.namespace, p.cluster, pin.source, pin.owner, pin.until or "unknown",
             pin.names(most), pin.reason)
            for p, pin in pins
        ]  # fmt: skip
        first = 0 if all_namespaces else 1
        show(aligned(_COLUMNS[first:], [row[first:] for row in rows]))
    else:
        click.echo("No pins.")
    for policy in policies:
        if policy.status is None:
            click.echo(f"{policy.name}: {NOT_LOOKED}", err=True)


@click.command("pin")
@click.argument("pod", shell_complete=workers)
@click.option("--for", "lasts", help="Duration, such as 90m or 4h. Default: the policy's maximum.")
@click.option("--until", help="End, such as 2026-01-31T18:00:00Z.")
@click.option("--reason", default="", help="Reason; explain, status and events show it.")
@kube_options
@dry_run_option
def pin(
    pod: str, lasts: str | None, until: str | None, reason: str, access: Access, dry_run: bool
) -> None:
    """Hold the worker in POD: it is not retired until the pin ends."""
    value = _value(lasts, until)
    _annotate(pod, {PIN: value, PIN_REASON: reason or None}, access, dry_run=dry_run)
    lasting = "" if value == "true" else f" ({value})"
    click.echo(f"pod {pod} pinned{lasting}{would(dry_run)}")


@click.command("unpin")
@click.argument("pod", shell_complete=workers)
@kube_options
@dry_run_option
def unpin(pod: str, access: Access, dry_run: bool) -> None:
    """Lift the pin of POD. Exit code 1 if it had none."""
    before = _annotate(pod, {PIN: None, PIN_REASON: None}, access, dry_run=dry_run)
    if PIN not in (before["metadata"].get("annotations") or {}):
        click.echo(f"pod {pod} has no pin of its own.", err=True)
        sys.exit(NOTHING)
    click.echo(f"pod {pod} unpinned{would(dry_run)}")


def _value(lasts: str | None, until: str | None) -> str:
    if lasts and until:
        fail("give --for or --until, not both", USAGE)
    if until:
        if read_instant(until) is None:
            fail(f"--until {until} is not an instant; write one like 2026-01-31T18:00:00Z", USAGE)
        return until
    if lasts:
        try:
            parse_duration(lasts)
        except ValueError as exc:
            fail(f"--for: {exc}", USAGE)
        return lasts
    return "true"


def _annotate(pod: str, notes: dict[str, str | None], access: Access, *, dry_run: bool) -> Json:
    """Set or remove annotations; returns the pod as it was before."""
    where = access.namespace

    async def question(api: KubeApi) -> Json | None:
        path = PODS.path(where, pod)
        before = await found(api.get(path))
        if before is None:
            return None
        if (before["metadata"].get("labels") or {}).get(COMPONENT_LABEL) != "worker":
            fail(f"pod {pod} in {where} is not a Dask worker", USAGE)
        body = {"metadata": {"annotations": notes}}
        return before if await found(api.patch(path, body, manager=MANAGER)) else None

    before = access.ask(question, dry_run=dry_run)
    if before is None:
        hint = f"kubectl -n {where} get pods -l {COMPONENT_LABEL}=worker"
        fail(f"no pod {pod} in namespace {where}; see: {hint}", NOTHING)
    return before
