"""`dask-adaptive get`: policies and how they fare."""

from __future__ import annotations

from collections.abc import Sequence

import click

from dask_adaptive.cli.access import (
    NOTHING,
    Access,
    all_namespaces_option,
    fail,
    kube_options,
    output_formats,
    policies,
)
from dask_adaptive.cli.output import aligned, dump, show
from dask_adaptive.cli.status_view import NOT_LOOKED, PolicyView, list_policies
from dask_adaptive.kube.api import POLICIES

_FIGURES = ("replicas", "desired", "pending", "idle", "busy", "pinned", "retiring")
_COLUMNS = ("NAMESPACE", "NAME", "CLUSTER", "MODE", *map(str.upper, _FIGURES), "READY", "REASON")
_WIDE = ("MIN", "MAX", "WANTED", "CONNECTED", "AGENT", "MESSAGE")


@click.command("get")
@click.argument("names", nargs=-1, shell_complete=policies)
@kube_options
@all_namespaces_option
@output_formats("table", "wide", "json", "yaml", "name")
def command(names: tuple[str, ...], access: Access, all_namespaces: bool, output: str) -> None:
    """
    List AdaptivePolicies with their state.

    NAMES are those of policies; by default all of the namespace. Exit code 1 if one is missing.
    """
    where = None if all_namespaces else access.namespace
    policies = access.ask(lambda api: list_policies(api, where))
    found = [p for p in policies if not names or p.name in names]
    if output in ("json", "yaml"):
        dump({"apiVersion": "v1", "kind": "List", "items": [p.body for p in found]}, output)
    elif output == "name":
        show(f"{POLICIES.kind.lower()}.{POLICIES.group}/{p.name}" for p in found)
    else:
        more = _WIDE if output == "wide" else ()
        rows = [(*_row(p), *(_wide(p) if more else ())) for p in found]
        show(aligned((*_COLUMNS, *more), rows))
    place = f"namespace {where}" if where else "any namespace"
    if missing := set(names) - {p.name for p in found}:
        fail(f"no AdaptivePolicy {', '.join(sorted(missing))} in {place}", NOTHING)
    if not found and output in ("table", "wide"):
        click.echo(f"No resources found{f' in {where} namespace' if where else ''}.", err=True)


def _row(policy: PolicyView) -> list[str]:
    status = policy.status
    ready = [c.state for c in status.conditions if c.name == "Ready"] if status else []
    return [
        policy.namespace,
        policy.name,
        policy.cluster,
        policy.mode,
        *_figures(policy, _FIGURES),
        *(ready or ["Unknown"]),
        status.reason if status else "not processed yet",
    ]


def _wide(policy: PolicyView) -> list[str]:
    low, high = next(iter(policy.bounds.values()), ("", ""))
    status = policy.status
    agent, message = (status.scheduler.agent, status.message) if status else ("", NOT_LOOKED)
    return [str(low), str(high), *_figures(policy, ("wanted", "connected")), agent, message]


def _figures(policy: PolicyView, names: Sequence[str]) -> list[str]:
    return [str(getattr(policy.status, name)) if policy.status else "" for name in names]
