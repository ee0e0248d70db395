"""`dask-adaptive simulate POLICY`: recorded or present work under a policy that is not applied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import click
from rich.text import Text

from dask_adaptive.cli.access import duration, output_option
from dask_adaptive.cli.errors import fail
from dask_adaptive.cli.output import aligned, dump, show
from dask_adaptive.model.amounts import format_duration
from dask_adaptive_lab.cli.files import REDONE, read_policy, read_trace_file
from dask_adaptive_lab.simulate.replay import Figures, Run, recorded, replay

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

#: Rows of the table: what a figure is called, and how it reads; empty: there is nothing to say.
_ROWS: tuple[tuple[str, Callable[[Figures], str]], ...] = (
    ("peak workers", lambda f: str(f.peak)),
    ("worker-seconds", lambda f: f"{f.worker_s:.0f}"),
    ("makespan", lambda f: format_duration(f.makespan_s)),
    (
        "mean wait of a task",
        lambda f: "" if f.mean_wait_s is None else format_duration(f.mean_wait_s),
    ),
    ("changes of direction", lambda f: str(f.turns)),
    ("tasks rerun by scaling", lambda f: "" if f.redone is None else str(f.redone)),
    ("unfinished at the end", lambda f: str(f.unfinished or "")),
)


@click.command("simulate")
@click.argument("policy", type=_FILE)
@click.option("--trace", type=_FILE, required=True, help="A trace, written by `record`.")
@click.option("--against", type=_FILE, help="A second policy to compare with.")
@click.option("--startup", type=duration, help="Start-up time of workers; default: as measured.")
@output_option
def command(
    policy: Path, trace: Path, against: Path | None, startup: float | None, output: str
) -> None:
    """
    Simulate POLICY on a trace: workers and time. Changes nothing.

    The planner is that of the operator; the cluster is a model in simulated time.

    Exit codes: 2 for an invalid policy or trace; 5 if scaling would have tasks rerun.

    \b
    Examples:
      dask-adaptive simulate policy.yaml --trace etl.jsonl
      dask-adaptive simulate new.yaml --against old.yaml --trace etl.jsonl
    """
    policies = {str(path): read_policy(path) for path in (policy, against) if path is not None}
    work = read_trace_file(trace)
    runs = [recorded(work)]
    runs += [replay(work, read, startup, title=title) for title, read in policies.items()]
    if output != "table":
        dump({"runs": [_json(run) for run in runs]}, output)
    else:
        show(table_of(runs))
    if any(run.figures.redone for run in runs):
        fail("tasks are rerun by scaling in the model; please report this", REDONE)


def _json(run: Run) -> dict[str, object]:
    points = [asdict(p) for p in run.points]
    return {"title": run.title, "figures": asdict(run.figures), "points": points}


def table_of(runs: Sequence[Run]) -> list[Text]:
    """Return the figures of runs side by side, without rows that are empty for all."""
    rows = [(name, *(cell(run.figures) for run in runs)) for name, cell in _ROWS]
    return aligned(("", *(run.title for run in runs)), [row for row in rows if any(row[1:])])
