"""`dask-adaptive status`: one screen for each cluster; with -w it stays up to date."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING

import click
from rich.text import Text

from dask_adaptive.cli.access import (
    NOTHING,
    Access,
    all_namespaces_option,
    fail,
    kube_options,
    output_option,
    policies_and_clusters,
)
from dask_adaptive.cli.history import details, outcome
from dask_adaptive.cli.output import (
    BAD,
    FAINT,
    GOOD,
    HEAD,
    ODD,
    Cell,
    aligned,
    console,
    dump,
    show,
    stream,
)
from dask_adaptive.cli.status_view import (
    NOT_LOOKED,
    PolicyView,
    StatusView,
    list_policies,
    views_of,
)
from dask_adaptive.kube.api import POLICIES, ApiUnreachable
from dask_adaptive.model.amounts import instant

if TYPE_CHECKING:
    from dask_adaptive.kube.api import Json, KubeApi

#: The version that a watch begins with was forgotten by the API server: list again.
_GONE = 410

#: Conditions that should be False; all others should be True.
_BAD_WHEN_TRUE = ("ScalingLimited", "Paused")

#: Between two attempts to reach the API server.
_AGAIN_S = 2.0


@click.command("status")
@click.argument("name", required=False, shell_complete=policies_and_clusters)
@kube_options
@all_namespaces_option
@click.option("-w", "--watch", is_flag=True, help="Keep watching, and show changes.")
@output_option
def command(
    name: str | None, access: Access, all_namespaces: bool, watch: bool, output: str
) -> None:
    """
    Show how clusters fare: workers by group, the last decision, what is wrong, who holds what.

    NAME is a DaskCluster or an AdaptivePolicy; by default all of the namespace. With -w a terminal
    is redrawn, and elsewhere a line is added for each change. Exit code 1 if there is none.
    """
    where = None if all_namespaces else access.namespace
    if watch:
        with contextlib.suppress(KeyboardInterrupt):
            access.ask(lambda api: _follow(api, where, name, output))
        return
    policies = access.ask(lambda api: list_policies(api, where, name))
    if output == "table":
        show(screen(policies))
    else:
        dump({"items": [as_json(p) for p in policies]}, output)
    if not policies:
        place = f"namespace {where}" if where else "any namespace"
        fail(f"no AdaptivePolicy for {name or 'any cluster'} in {place}", NOTHING)


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


def screen(policies: Iterable[PolicyView]) -> list[Cell]:
    """The pages of several policies."""
    lines: list[Cell] = []
    for policy in policies:
        lines += [""] if lines else []
        lines += page(policy)
    return lines


def page(policy: PolicyView) -> list[Cell]:
    """All lines about one policy and its cluster."""
    head = Text.assemble(
        Text(f"DaskCluster {policy.cluster}", HEAD),
        f" in {policy.namespace}, under AdaptivePolicy {policy.name}: ",
        Text(policy.mode, GOOD if policy.mode == "Auto" else ODD),
    )
    status = policy.status
    if status is None:
        return [head, Text.assemble("  ", Text(NOT_LOOKED, BAD))]
    parts = (_groups(policy, status), _decision(status), _conditions(status), _pins(status),
             _rest(status))  # fmt: skip
    lines = [head, *_summary(status)]
    for part in parts:
        lines += ["", *part] if part else []
    return lines


def summary(policy: PolicyView) -> str:
    """The same in one line, for logs."""
    said, status = f"{policy.namespace}/{policy.cluster}: ", policy.status
    if status is None:
        return said + NOT_LOOKED
    names = ("replicas", "desired", "wanted", "pending", "busy", "idle")
    return f"{said}{_numbers(status, names)}: {status.reason}: {status.message}"


def _numbers(status: StatusView, names: Iterable[str]) -> str:
    return ", ".join(f"{getattr(status, name)} {name}" for name in names)


def _summary(status: StatusView) -> Iterable[Cell]:
    yield f"  {status.reason}: {status.message}"
    if pause := status.pause:
        until = f" (until {pause.until})" if pause.until else ""
        yield Text.assemble("  ", Text(f"held: {pause.message}{until}", ODD))
    scheduler = status.scheduler
    agent = f"agent {scheduler.agent}" if scheduler.agent else "no agent"
    yield Text(f"  scheduler: distributed {scheduler.distributed or '?'}, {agent}", FAINT)
    names = ("connected", "pending", "busy", "idle", "pinned", "retiring")
    yield f"  workers: {_numbers(status, names)}"


def _groups(policy: PolicyView, status: StatusView) -> list[Text]:
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


def _decision(status: StatusView) -> list[Cell]:
    """The last decision with its steps and what it was made from."""
    decision = status.decision
    if decision is None:
        return []
    return [
        Text.assemble(
            "  last decision ",
            Text(instant(decision.at), FAINT),
            f", {decision.group}: {decision.before} → {decision.desired} workers, ",
            outcome(decision),
            f", asked by {decision.asked_by}",
        ),
        f"    {decision.reason}: {decision.message}",
        *details(decision),
    ]


def _conditions(status: StatusView) -> list[Text]:
    """Render the conditions that are not as they should be."""
    rows = [
        (c.name, Text(c.state, ODD if c.state == "Unknown" or c.name in _BAD_WHEN_TRUE else BAD),
         c.reason, c.message)
        for c in status.conditions
        if c.state != ("False" if c.name in _BAD_WHEN_TRUE else "True")
    ]  # fmt: skip
    return aligned(("CONDITION", "STATUS", "REASON", "MESSAGE"), rows, "  ")


def _pins(status: StatusView) -> list[Text]:
    rows = [
        (
            f"{pin.source} {pin.owner}".strip(),
            pin.until or "until it is released",
            pin.names(),
            pin.reason,
        )
        for pin in status.held_by
    ]
    return aligned(("HELD BY", "AT THE LATEST UNTIL", "WORKERS", "REASON"), rows, "  ")


def _rest(status: StatusView) -> list[str]:
    counts = (("not needed, and stay", status.blockers), ("pending", status.pending_reasons))
    said = [
        f"  {what}: " + ", ".join(f"{row.workers} {row.reason}" for row in rows)
        for what, rows in counts
        if rows
    ]
    replaced = [f"{row.name} ({row.state}): {row.reason}" for row in status.replacing]
    return [*said, *(f"  being replaced: {row}" for row in replaced)]


async def _follow(api: KubeApi, where: str | None, name: str | None, output: str) -> None:
    terminal, told = console(), dict[tuple[str, str], str]()
    async for bodies in _changes(api, where):
        policies = views_of(bodies, name)
        if output == "table" and terminal.is_terminal:
            terminal.clear()
            show(screen(policies) or ["no AdaptivePolicy yet"], terminal)
            continue
        for policy in policies:
            said = summary(policy) if output == "table" else stream(as_json(policy), output)
            if told.get((policy.namespace, policy.name)) != said:
                told[policy.namespace, policy.name] = said
                click.echo(said)


async def _changes(api: KubeApi, where: str | None) -> AsyncIterator[list[Json]]:
    """All policies, now and each time that one of them changes; breaks of the watch are bridged."""
    path = POLICIES.path(where)
    listed = await api.get(path)
    while True:
        known = {_key(p): p for p in listed.get("items") or []}
        yield list(known.values())
        version = listed["metadata"]["resourceVersion"]
        try:
            async for event, policy in api.watch(path, version=version):
                if event == "DELETED":
                    known.pop(_key(policy), None)
                else:
                    known[_key(policy)] = policy
                yield list(known.values())
        except ApiUnreachable as exc:
            if exc.status != _GONE:
                click.echo(str(exc), err=True)
        listed = await _listed(api, path)


def _key(policy: Json) -> tuple[str, str]:
    return policy["metadata"]["namespace"], policy["metadata"]["name"]


async def _listed(api: KubeApi, path: str) -> Json:
    """The whole list, once the API server can be reached."""
    while True:
        try:
            return await api.get(path)
        except ApiUnreachable:
            await asyncio.sleep(_AGAIN_S)
