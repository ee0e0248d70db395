"""`dask-adaptive why-not-down CLUSTER`: which workers stay though they are not needed, and why."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import groupby

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
from dask_adaptive.cli.from_here import lookout
from dask_adaptive.cli.paint import FAINT, HEAD, ODD, aligned, line, show, styled
from dask_adaptive.cli.pins import of_cluster
from dask_adaptive.cli.why_not import WhyNot, why_not
from dask_adaptive.kube.api import KubeApi
from dask_adaptive.kube.resources import POLICIES
from dask_adaptive.loop.ports import LinkError
from dask_adaptive.model.keys import ClusterKey


@click.command("why-not-down")
@click.argument("cluster")
@kube_options
@output_option
def command(cluster: str, namespace: str | None, context: str | None, output: str) -> None:
    """
    Say why workers that are not needed stay, and what ends it. The first line is the answer.

    CLUSTER is a DaskCluster or an AdaptivePolicy. Its scheduler is asked through kubectl
    port-forward; where that fails, the policy's status has to do. Exit code 1 if it is under no
    AdaptivePolicy.
    """
    where = namespace or default_namespace(context)

    async def question(api: KubeApi) -> WhyNot | None:
        policies = of_cluster(cluster, await api.list(POLICIES.path(where)))
        if not policies:
            return None
        key = ClusterKey(where, policies[0]["spec"]["clusterRef"]["name"])
        try:
            async with lookout(key, context) as there:
                return why_not(policies[0], await there.explain())
        except (ConnectionError, LinkError) as exc:
            return why_not(policies[0], None, str(exc))

    answer = ask(question, context=context)
    if answer is None:
        fail(f"{cluster} in namespace {where} is under no AdaptivePolicy", NOTHING)
    if output == "json":
        click.echo(json.dumps(asdict(answer), indent=2))
    else:
        show(lines_of(answer))


def lines_of(answer: WhyNot) -> list[Text]:
    """For people."""
    lines = [styled(answer.answer, HEAD)]
    if answer.holds:
        rows = [(h.group or "all groups", h.reason, h.ends, h.message) for h in answer.holds]
        lines += [Text(), *aligned(("HELD", "REASON", "ENDS", "MESSAGE"), rows)]
    if answer.stays:
        lines.append(Text())
        for reason, several in groupby(answer.stays, key=lambda stay: stay.reason):
            stays = list(several)
            lines.append(line(styled(reason, ODD), f": {len(stays)}"))
            told = [(s.worker, s.ends, s.message) for s in stays]
            lines += aligned(("WORKER", "ENDS", "MESSAGE"), told, indent="  ")
    if answer.unknown:
        said = f"The scheduler itself was not asked: {answer.unknown}"
        lines += [Text(), styled(said, FAINT)]
    return lines
