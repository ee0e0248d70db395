"""`dask-adaptive history CLUSTER`: what was decided, when, why, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click
from rich.text import Text

from dask_adaptive.cli.access import (
    Access,
    duration,
    found,
    kube_options,
    output_option,
    policies_and_clusters,
)
from dask_adaptive.cli.output import BAD, FAINT, GOOD, Cell, aligned, dump, show
from dask_adaptive.cli.status_view import policies_of
from dask_adaptive.kube.api import CONFIG_MAPS
from dask_adaptive.kube.status_json import decision_json, history_name, history_of, merged
from dask_adaptive.model.amounts import format_duration, instant
from dask_adaptive.model.plan import Decision

if TYPE_CHECKING:
    from dask_adaptive.kube.api import KubeApi

_COLUMNS = ("WHEN", "GROUP", "FROM", "WANTED", "TO", "ASKED BY", "OUTCOME", "REASON", "MESSAGE")


@click.command("history")
@click.argument("cluster", shell_complete=policies_and_clusters)
@click.option("--since", type=duration, help="Only decisions of this period, such as 1h.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="Maximum number of decisions.",
)
@click.option("--steps", is_flag=True, help="Show the steps of each decision as well.")
@kube_options
@output_option
def command(
    cluster: str, since: float | None, limit: int, steps: bool, access: Access, output: str
) -> None:
    """
    Show the last decisions about CLUSTER, oldest first.

    CLUSTER is a DaskCluster or an AdaptivePolicy. 200 decisions of each policy are kept, in the
    ConfigMap POLICY-adaptive-history. Exit code 1 if it has no AdaptivePolicy.
    """
    where = access.namespace

    async def question(api: KubeApi) -> Sequence[Decision]:
        policies = await policies_of(api, where, cluster)
        paths = [CONFIG_MAPS.path(where, history_name(policy.name)) for policy in policies]
        kept = [history_of(await found(api.get(path)) or {}) for path in paths]
        # The last one is written together with those that follow.
        lasts = [(p.status.decision,) for p in policies if p.status and p.status.decision]
        return merged(*kept, *lasts)

    decisions = access.ask(question)
    earliest = 0.0 if since is None else time.time() - since
    chosen = [d for d in decisions if d.at >= earliest][-limit:]
    if output != "table":
        dump({"items": [decision_json(d) for d in chosen]}, output)
    elif chosen:
        show(lines_of(chosen, steps=steps))
    else:
        within = "" if since is None else f" within {format_duration(since)}"
        click.echo(f"No decisions{within}.")


def lines_of(decisions: Iterable[Decision], *, steps: bool = False) -> list[Cell]:
    """Render a table; with `steps` each row is followed by its own."""
    decisions = list(decisions)
    rows = [
        (instant(d.at), d.group, str(d.before), str(d.wanted), str(d.desired), d.asked_by,
         outcome(d), d.reason.value, d.message)
        for d in decisions
    ]  # fmt: skip
    head, *table = aligned(_COLUMNS, rows)
    lines: list[Cell] = [head]
    for decision, row in zip(decisions, table, strict=True):
        lines += [row, *(details(decision) if steps else ())]
    return lines


def outcome(decision: Decision) -> Cell:
    is_good = decision.outcome in ("", "Done", "Held", "Advised")
    return Text(decision.outcome or "?", GOOD if is_good else BAD)


def details(decision: Decision) -> Iterable[Cell]:
    """The steps of a decision, and what it was made from."""
    width = max((len(s.stage) for s in decision.steps), default=0)
    for s in decision.steps:
        yield f"    {s.stage.ljust(width)} → {s.replicas:>3}   {s.reason}: {s.message}"
    if decision.inputs:
        figures = ", ".join(f"{name} {value:g}" for name, value in sorted(decision.inputs.items()))
        yield Text(f"    made from: {figures}", FAINT)
