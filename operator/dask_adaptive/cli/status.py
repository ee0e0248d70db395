"""`dask-adaptive status`: a line for each cluster, or one cluster on one screen."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import click
from rich.text import Text

from dask_adaptive.cli.access import Access, kube_options, output_option
from dask_adaptive.cli.errors import complain
from dask_adaptive.cli.output import BAD, FAINT, GOOD, HEAD, ODD, Cell, aligned, console, dump, show
from dask_adaptive.cli.status_view import (
    NOT_LOOKED,
    PolicyView,
    fail_without_policy,
    list_policies,
    most_first,
)
from dask_adaptive.kube.api import ApiUnreachable
from dask_adaptive.loop.status import Status

if TYPE_CHECKING:
    from dask_adaptive.kube.api import Json

#: Conditions that should be False; all others should be True.
_BAD_WHEN_TRUE = ("ScalingLimited", "Paused")

#: Interval of `-w`, in seconds.
_EVERY_S = 2.0


#: Figures of a cluster, on its line and its page.
_FIGURES = ("replicas", "desired", "pending", "idle", "busy", "pinned", "retiring")

_COLUMNS = ("NAMESPACE", "CLUSTER", "POLICY", "MODE", *map(str.upper, _FIGURES), "READY", "REASON")


@click.command("status")
@click.argument("name", required=False)
@kube_options
@click.option("-A", "--all-namespaces", is_flag=True, help="In all namespaces.")
@click.option("-l", "--selector", default="", help="Only policies with these labels, such as a=b.")
@click.option("-w", "--watch", is_flag=True, help="Show all again after each change.")
@output_option
def command(
    name: str | None, access: Access, all_namespaces: bool, selector: str, watch: bool, output: str
) -> None:
    """
    Summarise clusters: a line for each, or NAME on one screen.

    NAME is a DaskCluster or an AdaptivePolicy; by default all of the namespace are shown. `explain`
    gives reasons. Exit code 1 if none is found.

    \b
    Examples:
      kubectl dask-adaptive status -A -l team=data   # those with this label, in all namespaces
      kubectl dask-adaptive status etl -w            # one cluster, again after each change
    """
    which = (None if all_namespaces else access.namespace, name, selector)
    if watch:
        with contextlib.suppress(KeyboardInterrupt):
            access.ask(lambda api: _follow(lambda: list_policies(api, *which), name, output))
        return
    policies = access.ask(lambda api: list_policies(api, *which))
    _print(policies, name, output)
    if not policies:
        fail_without_policy(*which)


def _print(policies: Sequence[PolicyView], name: str | None, output: str) -> None:
    if output != "table":
        dump({"items": [as_json(p) for p in policies]}, output)
    else:
        show(screen(policies, name))


def as_json(policy: PolicyView) -> Json:
    """Render a policy for programs."""
    return {
        "namespace": policy.namespace,
        "policy": policy.name,
        "cluster": policy.cluster,
        "mode": policy.mode,
        "bounds": {name: {"min": low, "max": high} for name, (low, high) in policy.bounds.items()},
        "status": policy.body.get("status") or {},
    }


def screen(policies: Sequence[PolicyView], name: str | None) -> list[Cell]:
    """Render a line for each policy, or a page for a named one."""
    if name is None:
        return list(aligned(_COLUMNS, map(_line, policies)))
    lines = [line for policy in policies for line in ("", *page(policy))]
    return lines[1:]


def _line(policy: PolicyView) -> list[Cell]:
    status = policy.status
    cells = [policy.namespace, policy.cluster, policy.name, policy.mode]
    if status is None:
        return [*cells, *[""] * len(_FIGURES), "Unknown", "not processed yet"]
    figures = [str(getattr(status, name)) for name in _FIGURES]
    ready = next((c.word for c in status.conditions if c.type == "Ready"), "Unknown")
    return [*cells, *figures, Text(ready, "" if ready == "True" else BAD), status.reason]


def page(policy: PolicyView) -> list[Cell]:
    """Render all lines about one policy and its cluster."""
    status = policy.status
    head = Text.assemble(
        Text(f"DaskCluster {policy.cluster}", HEAD),
        f" in {policy.namespace}, under AdaptivePolicy {policy.name}: ",
        Text(policy.mode, GOOD if policy.mode == "Auto" else ODD),
    )
    if status is None:
        return [head, Text.assemble("  ", Text(NOT_LOOKED, BAD))]
    lines = [head, *_summary(status)]
    for part in (_groups(policy, status), _conditions(status), _counts(status)):
        lines += ["", *part] if part else []
    return lines


def _summary(status: Status) -> Iterable[Cell]:
    yield f"  {status.reason}: {status.message}"
    scheduler = status.scheduler
    agent = f"agent {scheduler.agent}" if scheduler.agent else "no agent"
    yield Text(f"  scheduler: distributed {scheduler.distributed or '?'}, {agent}", FAINT)
    names = ("connected", "pending", "busy", "idle", "pinned", "retiring")
    yield f"  workers: {', '.join(f'{getattr(status, name)} {name}' for name in names)}"


def _groups(policy: PolicyView, status: Status) -> list[Text]:
    columns = ("GROUP", "BOUNDS", "REPLICAS", "DESIRED", "WANTED", "CONNECTED", "PENDING", "REASON",
               "MESSAGE")  # fmt: skip
    rows: list[list[Cell]] = [
        [
            group.name,
            " to ".join(map(str, policy.bounds.get(group.name, ()))),
            *map(str, (group.replicas, group.desired, group.wanted, group.connected)),
            Text(str(group.pending), ODD if group.pending else ""),
            group.reason,
            group.message,
        ]
        for group in status.groups
    ]
    return aligned(columns, rows, indent="  ")


def _conditions(status: Status) -> list[Text]:
    """Render the conditions that are not as they should be."""
    rows = [
        (c.type, Text(c.word, ODD if c.status is None or c.type in _BAD_WHEN_TRUE else BAD),
         c.reason, c.message)
        for c in status.conditions
        if c.status is not (c.type not in _BAD_WHEN_TRUE)
    ]  # fmt: skip
    return aligned(("CONDITION", "STATUS", "REASON", "MESSAGE"), rows, "  ")


def _counts(status: Status) -> list[str]:
    counts = (
        ("not needed but kept", most_first(status.blockers)),
        ("pending", most_first(status.pending_reasons)),
        ("recycled so far", most_first(status.recycled)),
        ("being replaced", [f"{r.name} ({r.state}): {r.reason}" for r in status.replaced]),
    )
    return [f"  {what}: {', '.join(rows)}" for what, rows in counts if rows]


async def _follow(
    look: Callable[[], Awaitable[list[PolicyView]]], name: str | None, output: str
) -> None:
    terminal = console()
    shown: list[Json] = []
    policies = await look()
    while True:
        found = [as_json(policy) for policy in policies]
        if found != shown:
            shown = found
            if terminal.is_terminal:
                terminal.clear()
            _print(policies, name, output)
        await asyncio.sleep(_EVERY_S)
        try:
            policies = await look()
        except ApiUnreachable as exc:
            complain(str(exc))
