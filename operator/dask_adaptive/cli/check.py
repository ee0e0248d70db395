"""`dask-adaptive check`: is everything in order, and how is it mended?"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict

import click
from rich.text import Text

from dask_adaptive.cli.access import (
    NOTHING,
    ask,
    default_namespace,
    kube_options,
    output_option,
)
from dask_adaptive.cli.check_facts import gather
from dask_adaptive.cli.check_finding import Finding, Level
from dask_adaptive.cli.check_rules import findings
from dask_adaptive.cli.paint import BAD, FAINT, GOOD, ODD, line, show, styled
from dask_adaptive.kube.api import KubeApi
from dask_adaptive.kube.errors import KubeError
from dask_adaptive.model.duration import parse_duration

_STYLES = {Level.OK: GOOD, Level.WARNING: ODD, Level.ERROR: BAD}

#: Between two looks of `--wait`.
_AGAIN_S = 2.0


@click.command("check")
@click.argument("cluster", required=False)
@click.option("--wait", metavar="DURATION", help="Look again until nothing is wrong, so long.")
@kube_options
@output_option
def command(
    cluster: str | None, wait: str | None, namespace: str | None, context: str | None, output: str
) -> None:
    """
    Look whether everything is in order, and say how to mend what is not.

    CLUSTER is a DaskCluster or an AdaptivePolicy; by default all of the namespace. Exit code 1 if
    anything is an error; warnings are none.
    """
    where = namespace or default_namespace(context)
    try:
        wait_s = parse_duration(wait) if wait else 0.0
    except ValueError as exc:
        raise click.BadParameter(f"--wait: {exc}") from exc

    async def question(api: KubeApi) -> list[Finding]:
        return findings(await gather(api, where, cluster, context))

    found = ask(lambda api: _patiently(lambda: question(api), wait_s), context=context)
    if output == "json":
        click.echo(json.dumps({"items": [asdict(f) for f in found]}, indent=2))
    else:
        show(lines_of(found))
    if any(f.level is Level.ERROR for f in found):
        sys.exit(NOTHING)


async def _patiently(
    question: Callable[[], Awaitable[list[Finding]]], wait_s: float
) -> list[Finding]:
    """Ask until there is no error, or the time is up; then it is as it is."""
    end = time.monotonic() + wait_s
    while True:
        is_last = time.monotonic() >= end
        try:
            found = await question()
            if is_last or not any(f.level is Level.ERROR for f in found):
                return found
        except KubeError:
            if is_last:
                raise
        await asyncio.sleep(_AGAIN_S)


def lines_of(found: Iterable[Finding]) -> list[Text]:
    """A line for each finding, with a second one that says how to mend it."""
    found = list(found)
    lines = []
    for f in found:
        lines.append(
            line(styled(f"{f.level.value:<8}", _STYLES[f.level]), f"{f.what}: {f.message}")
        )
        if f.mend:
            lines.append(styled(f"        mend: {f.mend}", FAINT))
    counts = {level: sum(f.level is level for f in found) for level in Level}
    errors, warnings = counts[Level.ERROR], counts[Level.WARNING]
    style = BAD if errors else ODD if warnings else GOOD
    said = f"{counts[Level.OK]} in order, {warnings} warnings, {errors} errors"
    return [*lines, styled(said, style)]
