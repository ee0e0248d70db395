"""
Node-hours by the order in which workers leave, on made-up work in simulated time.

Writes docs/benchmarks/nodes.md and nodes.svg. The same code gives the same figures.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from made_up import WORKLOADS

from bench.drawing import pyplot
from dask_adaptive.model.policy import Disruption, PackNodes
from dask_adaptive_lab.simulate.replay import Assumptions, replay

FOLDER = Path(__file__).resolve().parents[3] / "docs/benchmarks"

#: Workers that a node has room for.
PLACES = (4, 8, 16)

#: So many times the workers of the made-up work: one node is no choice.
TIMES = 4

BEFORE, ORDER, BOTH = PackNodes.DISABLED, PackNodes.LEAVING, PackNodes.LEAVING_AND_NEW


@dataclass(frozen=True, slots=True)
class Seen:
    """One run."""

    node_s: float
    least_node_s: float
    worker_s: float
    redone: int


Results = Mapping[tuple[str, int, PackNodes], Seen]


def measured(job: tuple[str, int, PackNodes]) -> Seen:
    name, places, pack = job
    it = WORKLOADS[name]
    wide = replace(
        it.work,
        arrivals=tuple(
            replace(a, ready=TIMES * a.ready, waiting=TIMES * a.waiting) for a in it.work.arrivals
        ),
        releases=tuple(
            replace(r, after=TIMES * r.after, tasks=TIMES * r.tasks) for r in it.work.releases
        ),
    )
    groups = tuple(
        replace(g, max_replicas=TIMES * (g.max_replicas or 0)) for g in it.policy.worker_groups
    )
    policy = replace(
        it.policy, max_replicas=TIMES * it.policy.max_replicas, worker_groups=groups,
        disruption=Disruption(pack_nodes=pack),
    )  # fmt: skip
    assumed = Assumptions(startup_s=it.startup_s, places=places)
    figures = replay(it.trace, policy, assumed, work=wide).figures
    assert not figures.unfinished
    return Seen(
        figures.node_s or 0.0, figures.least_node_s or 0.0, figures.worker_s, figures.redone or 0
    )


def saved(results: Results, pack: PackNodes, names: Sequence[str], places: Sequence[int]) -> float:
    """The part of the node-hours that is saved, of all these runs together."""

    def total(pack: PackNodes) -> float:
        return sum(results[name, n, pack].node_s for name in names for n in places)

    return 1 - total(pack) / total(BEFORE)


def possible(results: Results, names: Sequence[str]) -> float:
    """What is saved if the workers of before were at each moment on as few nodes as they fit on."""
    before = [results[name, n, BEFORE] for name in names for n in PLACES]
    return 1 - sum(s.least_node_s for s in before) / sum(s.node_s for s in before)


def page(results: Results) -> str:
    names, percent = list(WORKLOADS), "{:.1%}".format
    hours = {p: sum(s.worker_s for (_, _, q), s in results.items() if q is p) for p in PackNodes}
    most = max(abs(hours[p] / hours[BEFORE] - 1) for p in PackNodes)

    def row(title: str, names: Sequence[str]) -> str:
        cells = [
            percent(saved(results, pack, names, places))
            for pack in (ORDER, BOTH)
            for places in [*([n] for n in PLACES), PLACES]
        ]
        return f"| {title} | {' | '.join(cells)} | {percent(possible(results, names))} |"

    lines = [
        "# Nodes that empty",
        "",
        f"The 13 made-up workloads of [the other page](idle.md), {TIMES} times as wide, in",
        "simulated time on nodes with room for 4, 8 and 16 workers. Node-hours that are saved",
        "against the order of before (least data, idle longest), with `packNodes: Leaving` and",
        "with `LeavingAndNew`. Made by `make bench-nodes`.",
        "",
        "![Node-hours saved, by workload](nodes.svg)",
        "",
        "| work | Leaving: 4 | 8 | 16 | all | LeavingAndNew: 4 | 8 | 16 | all | at most |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
        *(row(name, [name]) for name in names),
        row("**all, by node-hours**", names),
        "",
        "At most: if at each moment as many workers were on as few nodes as they fit on. Without",
        "another number of workers no order can save more.",
        "",
        f"Worker-hours differ by {most:.2%} at most, and no run redid a task.",
        "",
        "In the model a node comes at once and is paid for until its last worker is gone; there is",
        "nobody else on it, and results do not count. Kubernetes' scheduler gives a new worker to",
        "the emptiest node with room, with `LeavingAndNew` to the fullest.",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def draw(results: Results, path: Path) -> None:
    """A pair of bars a workload; narrow enough for a phone."""
    plt = pyplot("nodes")
    figure, axis = plt.subplots(figsize=(4.4, 5.6), layout="constrained")
    names = [*WORKLOADS][::-1]
    for shift, pack, colour in ((0.2, ORDER, "#0b57b0"), (-0.2, BOTH, "#2e7d32")):
        values = [100 * saved(results, pack, [name], PLACES) for name in names]
        at = [n + shift for n in range(len(names))]
        axis.barh(at, values, 0.4, color=colour, label=pack.value)
    axis.set_yticks(range(len(names)), names)
    axis.set_xlabel("node-hours saved, %")
    axis.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper left", ncols=2, frameon=False)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--jobs", type=int, default=2)
    jobs = [(name, n, pack) for name in WORKLOADS for n in PLACES for pack in PackNodes]
    with ProcessPoolExecutor(parser.parse_args().jobs) as pool:
        results = dict(zip(jobs, pool.map(measured, jobs), strict=True))
    for pack in (ORDER, BOTH):
        each = [saved(results, pack, [name], PLACES) for name in WORKLOADS]
        every = saved(results, pack, list(WORKLOADS), PLACES)
        print(f"{pack.value:14} saves {every:.1%} of all node-hours, {fmean(each):.1%} on average")
    print(f"as few nodes as possible: {possible(results, list(WORKLOADS)):.1%} of all node-hours")
    assert not any(it.redone for it in results.values())
    (FOLDER / "nodes.md").write_text(page(results))
    draw(results, FOLDER / "nodes.svg")


if __name__ == "__main__":
    main()
