"""`dask-adaptive simulate POLICY`: recorded or present work under a policy that is not applied."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

import click

from dask_adaptive.cli.access import (
    USAGE,
    duration,
    fail,
    output_option,
)
from dask_adaptive.cli.output import console, dump
from dask_adaptive_lab.cli.files import REDONE, read_policy, read_trace_file
from dask_adaptive_lab.simulate.draw import plot, table_of
from dask_adaptive_lab.simulate.replay import Assumptions, Run, recorded, replay

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_PICTURE = click.Path(dir_okay=False, writable=True, path_type=Path)


@click.command("simulate")
@click.argument("policy", type=_FILE)
@click.option("--trace", type=_FILE, required=True, help="A trace, written by `record`.")
@click.option("--against", type=_FILE, help="A second policy to compare with.")
@click.option("--startup", type=duration, help="Start-up time of workers; default: as measured.")
@click.option(
    "--capacity", type=click.IntRange(min=0), help="Number of workers that there is room for."
)
@click.option(
    "--nthreads", type=click.IntRange(min=1), help="Threads of a worker; default: as recorded."
)
@click.option("--plot", "picture", type=_PICTURE, help="Draw it into this file, .svg or .png.")
@output_option
def command(
    policy: Path, trace: Path, against: Path | None, startup: float | None, capacity: int | None,
    nthreads: int | None, picture: Path | None, output: str,
) -> None:  # fmt: skip
    """
    Say what would have happened under POLICY: workers and time. Nothing is changed anywhere.

    The planner is that of the operator; the cluster is a model in simulated time.

    Exit codes: 2 for a policy or trace that makes no sense; 5 if work would be redone.
    """
    policies = {str(path): read_policy(path) for path in (policy, against) if path is not None}
    assumed = Assumptions(startup, capacity, nthreads)
    work = read_trace_file(trace)
    runs = [recorded(work)]
    runs += [replay(work, read, assumed, title=title) for title, read in policies.items()]
    if output != "table":
        dump({"runs": [_json(run) for run in runs]}, output)
    else:
        console().print(table_of(runs))
        sys.stdout.flush()  # before anything is said on the other stream
    if picture is not None:
        _plot(runs, picture)
    if any(run.figures.redone for run in runs):
        fail("work would be redone in the model; please report this", REDONE)


def _json(run: Run) -> dict[str, object]:
    points = [asdict(p) for p in run.points]
    return {"title": run.title, "figures": asdict(run.figures), "points": points}


def _plot(runs: list[Run], path: Path) -> None:
    try:
        plot(runs, path)
    except OSError as exc:
        fail(str(exc), USAGE)
    click.echo(f"drawn into {path}", err=True)
