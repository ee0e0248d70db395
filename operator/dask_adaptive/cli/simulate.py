"""`dask-adaptive simulate POLICY`: recorded or present work under a policy that is not applied."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from dask_adaptive.cli.access import (
    NOTHING,
    USAGE,
    ask,
    default_namespace,
    fail,
    kube_options,
    output_option,
)
from dask_adaptive.cli.paint import console
from dask_adaptive.cli.rehearse import read_policy
from dask_adaptive.model.duration import parse_duration
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.trace import InvalidTrace, Trace, read_trace
from dask_adaptive.simulate.draw import Shown, draw
from dask_adaptive.simulate.figures import figures_of, figures_of_trace, recorded_points
from dask_adaptive.simulate.plot import PlotUnavailable, plot
from dask_adaptive.simulate.replay import Settings, replay

#: Exit code when the model says that work would be redone: what this program exists to prevent.
REDONE = 5

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_PICTURE = click.Path(dir_okay=False, writable=True, path_type=Path)


@dataclass(frozen=True, slots=True)
class _Pictures:
    svg: Path | None
    png: Path | None


@click.command("simulate")
@click.argument("policy", type=_FILE)
@click.option("--trace", type=_FILE, help="What `record` wrote.")
@click.option("--cluster", help="Instead of a trace: what this DaskCluster has to do now.")
@click.option("--against", type=_FILE, help="A second policy, beside the first.")
@click.option("--startup", metavar="DURATION", help="How long workers take to come; else measured.")
@click.option("--capacity", type=click.IntRange(min=0), help="Workers that there is room for.")
@click.option("--nthreads", type=click.IntRange(min=1), help="Threads of a worker; else recorded.")
@click.option("--price", type=float, help="Of a worker for an hour, to show what it costs.")
@click.option("--svg", type=_PICTURE, help="Draw it into this file as well.")
@click.option("--png", type=_PICTURE, help="Draw it into this file as well.")
@kube_options
@output_option
def command(
    policy: Path, trace: Path | None, cluster: str | None, against: Path | None,
    startup: str | None, capacity: int | None, nthreads: int | None, price: float | None,
    svg: Path | None, png: Path | None, namespace: str | None, context: str | None, output: str,
) -> None:  # fmt: skip
    """
    Say what would have happened under POLICY: workers, time, cost. Nothing is changed anywhere.

    The planner is that of the operator; the cluster is a model in simulated time. Give it a
    --trace that `record` wrote, or the name of a --cluster for what is to do there now.

    Exit codes: 2 for a policy or trace that makes no sense; 5 if work would be redone.
    """
    if (trace is None) == (cluster is None):
        fail("give either --trace FILE or --cluster NAME", USAGE)
    policies = [(str(path), read_policy(path)) for path in (policy, against) if path is not None]
    settings = Settings(_seconds(startup), capacity, nthreads)
    if trace is not None:
        recorded = _read(trace)
    else:
        recorded = _live(str(cluster), namespace or default_namespace(context), context)
    shown = runs(recorded, policies, settings, price=price)
    if output == "json":
        click.echo(json.dumps({"runs": [_json(s) for s in shown]}, indent=2))
    else:
        draw(console(), shown)
        sys.stdout.flush()  # before anything is said on the other stream
    _picture(shown, _Pictures(svg, png))
    if any(s.figures.redone for s in shown):
        fail("the model says that work would be redone; please report this", REDONE)


def runs(
    trace: Trace, policies: Sequence[tuple[str, Policy]], settings: Settings,
    *, price: float | None = None,
) -> list[Shown]:  # fmt: skip
    """What was recorded, if it lasted, and what each policy would have made of it."""
    shown = []
    if len(trace.samples) > 1:
        figures = figures_of_trace(trace, price=price)
        shown.append(Shown("as recorded", figures, recorded_points(trace)))
    for title, policy in policies:
        run = replay(trace, policy, settings)
        shown.append(Shown(title, figures_of(run, price=price), run.points))
    return shown


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return parse_duration(text)
    except ValueError as exc:
        raise click.BadParameter(f"--startup: {exc}") from exc


def _read(path: Path) -> Trace:
    try:
        return read_trace(path.read_text(encoding="utf-8").splitlines())
    except (InvalidTrace, UnicodeDecodeError) as exc:
        raise click.BadParameter(f"{path}: {exc}") from exc


def _live(cluster: str, namespace: str, context: str | None) -> Trace:
    from dask_adaptive.cli.cluster_now import trace_of_now

    found = ask(
        lambda api: trace_of_now(api, namespace, cluster, context=context, now=time.time()),
        context=context,
    )
    return found if isinstance(found, Trace) else fail(found, NOTHING)


def _json(shown: Shown) -> dict[str, object]:
    points = [asdict(p) for p in shown.points]
    return {"title": shown.title, "figures": asdict(shown.figures), "points": points}


def _picture(shown: Sequence[Shown], pictures: _Pictures) -> None:
    for path in (pictures.svg, pictures.png):
        if path is None:
            continue
        try:
            plot(shown, path)
        except (PlotUnavailable, OSError) as exc:
            fail(str(exc), USAGE)
        click.echo(f"drawn into {path}", err=True)
