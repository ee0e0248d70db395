"""`dask-adaptive history CLUSTER`: what was decided, when, why, and what came of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence

import click
from rich.text import Text

from dask_adaptive.cli.access import (
    NOTHING,
    ask,
    default_namespace,
    fail,
    kube_options,
    output_option,
)
from dask_adaptive.cli.paint import BAD, FAINT, GOOD, aligned, show, styled
from dask_adaptive.cli.pins import of_cluster
from dask_adaptive.kube.api import KubeApi
from dask_adaptive.kube.errors import NotFound
from dask_adaptive.kube.history import decision_json, history_name, history_of
from dask_adaptive.kube.resources import CONFIG_MAPS, POLICIES
from dask_adaptive.model.duration import parse_duration
from dask_adaptive.model.history import Decision
from dask_adaptive.model.pins import instant

_COLUMNS = ("WHEN", "GROUP", "FROM", "WANTED", "TO", "ASKED BY", "OUTCOME", "REASON", "MESSAGE")


@click.command("history")
@click.argument("cluster")
@click.option("--since", metavar="DURATION", help="Only what was decided since then, such as 1h.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=50, show_default=True, help="The last so many."
)
@click.option("--steps", is_flag=True, help="Show the steps of each decision as well.")
@kube_options
@output_option
def command(
    cluster: str, since: str | None, limit: int, steps: bool, namespace: str | None,
    context: str | None, output: str,
) -> None:  # fmt: skip
    """
    Show the last decisions about CLUSTER, oldest first.

    CLUSTER is a DaskCluster or an AdaptivePolicy. 200 decisions of each policy are kept, in the
    ConfigMap POLICY-adaptive-history. Exit code 1 if it is under no AdaptivePolicy.
    """
    where = namespace or default_namespace(context)
    try:
        since_s = parse_duration(since) if since else None
    except ValueError as exc:
        raise click.BadParameter(f"--since: {exc}") from exc

    async def question(api: KubeApi) -> list[Decision] | None:
        policies = of_cluster(cluster, await api.list(POLICIES.path(where)))
        found: list[Decision] = []
        for policy in policies:
            path = CONFIG_MAPS.path(where, history_name(policy["metadata"]["name"]))
            try:
                found += history_of(await api.get(path))
            except NotFound:
                continue
        return found if policies else None

    decisions = ask(question, context=context)
    if decisions is None:
        fail(f"{cluster} in namespace {where} is under no AdaptivePolicy", NOTHING)
    earliest = 0.0 if since_s is None else time.time() - since_s
    chosen = sorted((d for d in decisions if d.at >= earliest), key=lambda d: d.at)[-limit:]
    if output == "json":
        click.echo(json.dumps({"items": [decision_json(d) for d in chosen]}, indent=2))
    elif chosen:
        show(lines_of(chosen, steps=steps))
    else:
        click.echo("No decisions." if since is None else f"No decisions within {since}.")


def lines_of(decisions: Iterable[Decision], *, steps: bool = False) -> list[Text]:
    """A table; with `steps` each row is followed by its own."""
    decisions = list(decisions)
    head, *rows = aligned(_COLUMNS, map(_row, decisions))
    lines = [head]
    for decision, row in zip(decisions, rows, strict=True):
        lines.append(row)
        if steps:
            lines += _steps(decision)
    return lines


def _row(decision: Decision) -> Sequence[str | Text]:
    outcome = decision.outcome or "?"
    is_good = outcome in ("Done", "Held", "Advised", "?")
    return (
        instant(decision.at),
        decision.group,
        str(decision.before),
        str(decision.wanted),
        str(decision.desired),
        decision.asked_by,
        styled(outcome, GOOD if is_good else BAD),
        decision.reason.value,
        decision.message,
    )


def _steps(decision: Decision) -> Iterable[Text]:
    width = max((len(s.stage) for s in decision.steps), default=0)
    for s in decision.steps:
        yield Text(f"    {s.stage.ljust(width)} → {s.replicas:>3}   {s.reason}: {s.message}")
    if decision.inputs:
        figures = ", ".join(f"{name} {value:g}" for name, value in sorted(decision.inputs.items()))
        yield styled(f"    made from: {figures}", FAINT)
