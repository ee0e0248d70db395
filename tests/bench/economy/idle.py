"""
What workers cost and how long work waits, by `idleTimeout`, on made-up work in simulated time.

Prints a line a run, and writes docs/benchmarks/idle.md and idle.svg. The same code gives the same
figures.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from math import exp, log
from pathlib import Path
from statistics import fmean

from made_up import DEFAULT_GROUP, WORKLOADS

from bench.pages import FOLDER, filled, pyplot, table
from dask_adaptive.model.observed import Want
from dask_adaptive.model.scaling import AUTO_S
from dask_adaptive_lab.simulate.replay import Figures, Run, replay
from dask_adaptive_lab.trace import Sample, Trace

AUTO, HINDSIGHT = "Auto", "hindsight"
FIXED_S = {"15s": 15.0, "60s": 60.0, "5m": 300.0}
SIDES = (AUTO, *FIXED_S, HINDSIGHT)

#: A second that work waits for a worker costs as much as so many seconds of a worker.
WAITING = 1.0


@dataclass(frozen=True, slots=True)
class Seen:
    """One run."""

    figures: Figures
    missing_s: float  # sum over the workers that were needed and not there yet

    @property
    def cost_s(self) -> float:
        """In seconds of a worker."""
        return self.figures.worker_s + WAITING * self.missing_s

    @property
    def wait_s(self) -> float:
        """Of a task in the queue, mean."""
        return self.figures.mean_wait_s or 0.0


def seen(run: Run) -> Seen:
    missing = (max(0, a.desired - a.connected) * (b.t - a.t) for a, b in pairwise(run.points))
    return Seen(run.figures, sum(missing))


def run_of(name: str, idle_timeout_s: float, wants: tuple[tuple[float, int], ...] = ()) -> Run:
    made_up = WORKLOADS[name]
    policy = replace(made_up.policy, idle_timeout_s=idle_timeout_s)
    trace = with_wants(made_up.trace, wants) if wants else made_up.trace
    return replay(trace, policy, made_up.startup_s, work=made_up.work)


def hindsight(name: str) -> Run:
    """
    Each worker goes at once, unless it will be needed sooner than its return would cost.

    Whoever knows that asks for it as a client does (`want`). A return takes time in which others do
    not rest, so pauses are those of a run that lets workers go as well.
    """
    cost_s = (1 + WAITING) * WORKLOADS[name].startup_s
    return run_of(name, 0.0, tuple(kept(run_of(name, cost_s), cost_s)))


def kept(run: Run, cost_s: float) -> Iterator[tuple[float, int]]:
    """How many workers are worth keeping, and from when on."""
    spans = list[tuple[float, float, int]]()
    for n in range(1, 1 + max(p.running for p in run.points)):
        busy = [p.t for p in run.points if p.running >= n]
        ends = [a for a, b in pairwise(busy) if b - a > cost_s]
        begins = [b for a, b in pairwise(busy) if b - a > cost_s]
        spans += [(a, b, n) for a, b in zip([busy[0], *begins], [*ends, busy[-1]], strict=True)]
    for at in sorted({0.0, *(a for a, _, _ in spans), *(b for _, b, _ in spans)}):
        yield at, max((n for a, b, n in spans if a <= at < b), default=0)


def with_wants(trace: Trace, wants: tuple[tuple[float, int], ...]) -> Trace:
    first, last = trace.samples[0], trace.samples[-1]
    samples = [
        Sample(
            at, groups=first.groups, wants=(Want(n, 1e6, "hindsight", DEFAULT_GROUP),) if n else ()
        )
        for at, n in wants
    ]
    return Trace(trace.origin, (*samples, *([last] if last.t > samples[-1].t else [])))


def measured(job: tuple[str, str]) -> Seen:
    name, side = job
    if side == HINDSIGHT:
        return seen(hindsight(name))
    return seen(run_of(name, FIXED_S.get(side, AUTO_S)))


Results = Mapping[tuple[str, str], Seen]


def ratio(results: Results, name: str, side: str) -> float:
    return results[name, side].cost_s / results[name, HINDSIGHT].cost_s


def page(results: Results) -> str:
    """Markdown: what each time costs on each work."""
    ratios = {name: [ratio(results, name, side) for side in SIDES] for name in WORKLOADS}
    means = [fmean(column) for column in zip(*ratios.values(), strict=True)]
    costs = [
        [name, *(f"{one:.2f}" for one in row)]
        for name, row in {**ratios, "**mean**": means}.items()
    ]
    work = [
        [
            name, it.about, f"{it.minimum} to {it.maximum + it.second_group}",
            f"{it.startup_s:.0f} s to start",
        ]
        for name, it in WORKLOADS.items()
    ]  # fmt: skip
    return filled(
        __file__,
        costs=table(["work", *SIDES], costs),
        work=table(["work", "what comes", "workers", "a worker takes"], work, texts=4),
    )


def draw(results: Results, path: Path) -> None:
    """A dot a run, and a large one for the mean of each side; narrow enough for a phone."""
    plt = pyplot("idle")
    colours = dict(zip(SIDES, ("#0b57b0", "#2e7d32", "#c25a00", "#8e24aa", "#555555"), strict=True))
    figure, axis = plt.subplots(figsize=(4.4, 4.4), layout="constrained")
    for side, colour in colours.items():
        runs = [(results[name, side], results[name, HINDSIGHT]) for name in WORKLOADS]
        hours = [mine.figures.worker_s / best.figures.worker_s for mine, best in runs]
        waits = [mine.wait_s / best.wait_s for mine, best in runs]
        if side != HINDSIGHT:
            axis.scatter(hours, waits, s=14, color=colour, alpha=0.35, lw=0)
        means = [exp(fmean(map(log, values))) for values in (hours, waits)]
        axis.scatter(*means, s=110, color=colour, label=side, zorder=3)
    axis.set_xscale("log", base=2)
    axis.set_xticks((1, 2, 4, 8), ("1x", "2x", "4x", "8x"))
    axis.set_xlabel("worker-hours, to hindsight's")
    axis.set_ylabel("mean wait of a task, to hindsight's")
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper left", ncols=3, frameon=False)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--jobs", type=int, default=2)
    jobs = [(name, side) for name in WORKLOADS for side in SIDES]
    results: dict[tuple[str, str], Seen] = {}
    with ProcessPoolExecutor(parser.parse_args().jobs) as pool:
        for (name, side), it in zip(jobs, pool.map(measured, jobs), strict=True):
            results[name, side] = it
            print(f"{name:20} {side:10} {it.missing_s:5.0f} s missing, {it.figures}", flush=True)
            assert (0, 0) == (it.figures.redone or 0, it.figures.unfinished)
    (FOLDER / "idle.md").write_text(page(results))
    draw(results, FOLDER / "idle.svg")


if __name__ == "__main__":
    main()
