"""`dask-adaptive simulate POLICY`: recorded or present work under a policy that is not applied."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict
from pathlib import Path

import click

from dask_adaptive.cli.access import (
    NOTHING,
    USAGE,
    Access,
    clusters,
    duration,
    fail,
    kube_options,
    output_option,
)
from dask_adaptive.cli.output import console, dump
from dask_adaptive_lab.cli.files import REDONE, read_policy, read_trace_file
from dask_adaptive_lab.simulate.draw import draw, plot
from dask_adaptive_lab.simulate.replay import Assumptions, Run, recorded, replay
from dask_adaptive_lab.trace import Trace

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_PICTURE = click.Path(dir_okay=False, writable=True, path_type=Path)


@click.command("simulate")
@click.argument("policy", type=_FILE)
@click.option("--trace", type=_FILE, help="A trace, written by `record`.")
@click.option(
    "--cluster",
    shell_complete=clusters,
    help="Use the current load of this DaskCluster instead of a trace.",
)
@click.option("--against", type=_FILE, help="A second policy to compare with.")
@click.option("--startup", type=duration, help="Start-up time of workers; default: as measured.")
@click.option(
    "--capacity", type=click.IntRange(min=0), help="Number of workers that there is room for."
)
@click.option(
    "--nthreads", type=click.IntRange(min=1), help="Threads of a worker; default: as recorded."
)
@click.option("--price", type=float, help="Price of a worker for an hour, to show the cost.")
@click.option("--svg", type=_PICTURE, help="Draw it into this file as well.")
@click.option("--png", type=_PICTURE, help="Draw it into this file as well.")
@kube_options
@output_option
def command(
    policy: Path, trace: Path | None, cluster: str | None, against: Path | None,
    startup: float | None, capacity: int | None, nthreads: int | None, price: float | None,
    svg: Path | None, png: Path | None, access: Access, output: str,
) -> None:  # fmt: skip
    """
    Say what would have happened under POLICY: workers, time, cost. Nothing is changed anywhere.

    The planner is that of the operator; the cluster is a model in simulated time. Give it a
    --trace that `record` wrote, or the name of a --cluster for what is to do there now.

    Exit codes: 2 for a policy or trace that makes no sense; 5 if work would be redone.
    """
    if (trace is None) == (cluster is None):
        fail("give either --trace FILE or --cluster NAME", USAGE)
    policies = {str(path): read_policy(path) for path in (policy, against) if path is not None}
    assumed = Assumptions(startup, capacity, nthreads, price)
    work = _now(str(cluster), access) if trace is None else read_trace_file(trace)
    runs = [recorded(work, assumed)] if len(work.samples) > 1 else []
    runs += [replay(work, read, assumed, title=title) for title, read in policies.items()]
    if output != "table":
        dump({"runs": [_json(run) for run in runs]}, output)
    else:
        draw(console(), runs)
        sys.stdout.flush()  # before anything is said on the other stream
    for path in (svg, png):
        if path is not None:
            _plot(runs, path)
    if any(run.figures.redone for run in runs):
        fail("work would be redone in the model; please report this", REDONE)


def _now(cluster: str, access: Access) -> Trace:
    from dask_adaptive_lab.cli.record import trace_of_now

    found = access.ask(
        lambda api: trace_of_now(api, access.namespace, cluster, access=access, now=time.time())
    )
    return found if isinstance(found, Trace) else fail(found, NOTHING)


def _json(run: Run) -> dict[str, object]:
    points = [asdict(p) for p in run.points]
    return {"title": run.title, "figures": asdict(run.figures), "points": points}


def _plot(runs: list[Run], path: Path) -> None:
    try:
        plot(runs, path)
    except OSError as exc:
        fail(str(exc), USAGE)
    click.echo(f"drawn into {path}", err=True)
