"""`dask-adaptive recommend TRACE…`: policies that would have served recorded work better."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import yaml
from rich.text import Text

from dask_adaptive.cli.errors import NOTHING, fail
from dask_adaptive.cli.output import aligned, show
from dask_adaptive.kube.api import POLICIES
from dask_adaptive.model.amounts import counted, format_duration
from dask_adaptive_lab.cli.files import read_manifest, read_trace_file
from dask_adaptive_lab.cli.progress import progress
from dask_adaptive_lab.simulate.advice import Result, Tried, advise, changed, search, too_short
from dask_adaptive_lab.trace import Trace

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

#: The most policies that are tried.
TRIES = 80


@click.command("recommend")
@click.argument("traces", nargs=-1, required=True, type=_FILE)
@click.option("--policy", type=_FILE, help="Today's AdaptivePolicy, to compare with.")
def command(traces: tuple[Path, ...], policy: Path | None) -> None:
    """
    Suggest policies for the recorded TRACES, with the cost and savings of each.

    TRACES are files that `record` wrote, best of several days. Policies are tried in the model of
    `simulate`; nothing is changed anywhere. The same traces always give the same advice.

    Exit codes: 1 if the traces are too short to tell; 2 for a policy or trace that is invalid.

    \b
    Examples:
      dask-adaptive recommend etl.jsonl
      dask-adaptive recommend monday.jsonl tuesday.jsonl --policy policy.yaml
    """
    manifest = None if policy is None else read_manifest(policy)
    read = [read_trace_file(path) for path in traces]
    if said := too_short(read):
        fail(said, NOTHING)
    today = manifest or _default_for(read)
    name = today["metadata"]["name"]
    tried = _search(today["spec"], read)
    advice = advise(tried)
    show(_table(tried, advice, "the defaults" if manifest is None else "today's policy"))
    for n, (title, each) in enumerate(advice.items(), 1):
        # A patch of the policy that there is, or a whole one.
        spec = changed({} if manifest else today["spec"], each.changes)
        document = {**POLICIES.head, "metadata": {"name": name}, "spec": spec}
        show(["", "---", *(f"# {line}" for line in _sentences(f"{n} {title}", each, tried[0]))])
        show(yaml.safe_dump(document, sort_keys=False).rstrip().split("\n"))


def _search(spec: Mapping[str, Any], read: Sequence[Trace]) -> list[Tried]:
    with progress(TRIES) as tell:

        def told(n: int) -> None:
            tell(n, f"policies tried: {n} of at most {TRIES}")

        tried = search(spec, read, limit=TRIES, told=told)
    if not any(one.is_done for one in tried):
        fail(f"none of {len(tried)} policies completes all work: allow more workers", NOTHING)
    return tried


def _default_for(traces: Sequence[Trace]) -> dict[str, Any]:
    """A policy with the defaults, and as many workers as there were."""
    peak = max(s.present for t in traces for s in t.samples)
    name = traces[0].origin.cluster or "cluster"
    spec = {"clusterRef": {"name": name}, "maxReplicas": max(peak, 1)}
    return {"metadata": {"name": name}, "spec": spec}


def _table(tried: Sequence[Tried], advice: Mapping[str, Tried], today: str) -> Iterator[str | Text]:
    done = sum(one.is_done for one in tried)
    yield f"{counted(len(tried[0].results), 'trace')}; policies that complete all work: {done}"
    if not tried[0].is_done:
        yield f"Work is left undone under {today}."
    yield ""
    rows = [_row(today, tried[0].total())]
    rows += [_row(f"{n} {title}", advice[title].total()) for n, title in enumerate(advice, 1)]
    yield from aligned(("", "WORKER-HOURS", "MEAN WAIT", "MAKESPAN"), rows)
    if not advice:
        yield "No other policy that was tried is better."


def _row(title: str, result: Result) -> tuple[str, str, str, str]:
    hours, makespan = f"{result.worker_s / 3600:.3g}", format_duration(result.makespan_s)
    return (title, hours, f"{result.wait_s:.1f}s", makespan)


def _sentences(title: str, advice: Tried, today: Tried) -> Iterator[str]:
    now, then = today.total(), advice.total()
    waits = f"mean wait of a task {then.wait_s:.1f} s, before {now.wait_s:.1f} s"
    yield f"{title}: {_more(now, then):+.0%} worker-hours; {waits}"
    if len(today.results) == 1:
        yield "Confidence: low, with one trace. Record other days, too."
        return
    spread = [_more(*both) for both in zip(today.results, advice.results, strict=True)]
    low, high = min(spread), max(spread)
    yield f"Confidence: {low:+.0%} to {high:+.0%} worker-hours in {len(spread)} traces."


def _more(now: Result, then: Result) -> float:
    """So much more does the second cost, as a part of the first."""
    return then.worker_s / max(now.worker_s, 1e-9) - 1
