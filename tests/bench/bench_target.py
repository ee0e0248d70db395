"""
What upstream's rules ask for, and what ours ask for, on the same simulated work.

    PYTHONPATH=operator:tests python tests/bench/bench_target.py [--json] [--seeds 3] [--idle 60]
        [--only NAME] [--trace]

Simulated time; each line is the mean over seeds, which vary how long workers take to come and when
the timers begin. `upstream` is dask-kubernetes' autoscaler on `Scheduler.adaptive_target` of the
installed distributed; `ours` is the planner with the default policy but for its bounds, and for
`idleTimeout` where --idle says so: how long workers are kept is the policy's choice, and most of
the difference after the work is done.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean

from support.sim_dask import Job, SimDask
from support.sim_scalers import Ours, Upstream, policy_of

#: A run is over when the work is done and the workers are back at the minimum, or after that long.
LONGEST_S = 20_000.0

Work = Callable[[SimDask, random.Random], None]


def _map(sim: SimDask, name: str, n: int, seconds: float, deps: tuple[str, ...] = ()) -> list[Job]:
    start = len(sim.tasks)
    return [
        Job(f"{name}-{start + i}", name, seconds, deps[i : i + 1] if deps else ()) for i in range(n)
    ]


def burst_and_tail(sim: SimDask, _: random.Random) -> None:
    tail = _map(sim, "long", 4, 40.0)
    sim.submit(_map(sim, "short", 240, 0.5), when_done=lambda: sim.submit(tail))


def mixed_tail(sim: SimDask, rng: random.Random) -> None:
    """One function, 300 tasks: most take a second, a few take half a minute."""
    lasts = [30.0 if rng.random() < 0.02 else rng.uniform(0.5, 1.5) for _ in range(300)]
    sim.submit([Job(f"one-{i}", "one", s) for i, s in enumerate(lasts)])


def slow_step(sim: SimDask, _: random.Random) -> None:
    jobs = []
    for i in range(60):
        jobs.append(Job(f"source-{i}", "source", 0.01))
        jobs.append(Job(f"step-{i}", "step", 3.0, (f"source-{i}",)))
    sim.submit(jobs)


def oscillating(sim: SimDask, _: random.Random) -> None:
    for k in range(10):
        sim.at(sim.now + 17.0 * k, lambda: sim.submit(_map(sim, "wave", 40, 0.5)))


def notebook(sim: SimDask, _: random.Random) -> None:
    left = iter(range(8))

    def cell() -> None:
        if next(left, None) is not None:
            sim.submit(_map(sim, "cell", 60, 0.8), when_done=pause)

    def pause() -> None:
        sim.at(sim.now + 9.0, cell)

    cell()


def chain(sim: SimDask, _: random.Random) -> None:
    jobs = [Job("link-0", "link", 0.5)]
    jobs += [Job(f"link-{i}", "link", 0.5, (f"link-{i - 1}",)) for i in range(1, 200)]
    sim.submit(jobs)


def wide(sim: SimDask, _: random.Random) -> None:
    sim.submit(_map(sim, "wide", 1000, 1.0))


def small(sim: SimDask, _: random.Random) -> None:
    sim.submit(_map(sim, "small", 50, 1.0))


def reduction(sim: SimDask, _: random.Random) -> None:
    """256 leaves of 1 s, added up in pairs."""
    jobs = [Job(f"leaf-{i}", "leaf", 1.0) for i in range(256)]
    row = [job.key for job in jobs]
    level = 0
    while len(row) > 1:
        level += 1
        pairs = [(row[i], row[i + 1]) for i in range(0, len(row) - 1, 2)]
        new = [Job(f"add-{level}-{i}", "add", 0.5, pair) for i, pair in enumerate(pairs)]
        jobs += new
        row = [job.key for job in new]
    sim.submit(jobs)


def fan_out(sim: SimDask, _: random.Random) -> None:
    """Twice: one task of 60 s, then 200 of 1 s that wait for it, then one that takes them all."""

    def once(k: int) -> None:
        load = Job(f"load-{k}", "load", 60.0)
        parts = [Job(f"part-{k}-{i}", "part", 1.0, (load.key,)) for i in range(200)]
        end = Job(f"end-{k}", "end", 1.0, tuple(p.key for p in parts))
        sim.submit([load, *parts, end], when_done=(lambda: once(k + 1)) if k < 1 else None)

    once(0)


@dataclass(frozen=True)
class Case:
    name: str
    work: Work
    startup_s: float = 6.0
    minimum: int = 1
    maximum: int = 6
    threads: int = 1


CASES = (
    Case("burst, long tail", burst_and_tail),
    Case("one function, long tail", mixed_tail, maximum=20),
    Case("one function, long tail, max 200", mixed_tail, maximum=200),
    Case("slow step", slow_step),
    Case("slow step, max 20", slow_step, maximum=20),
    Case("oscillating", oscillating),
    Case("notebook", notebook),
    Case("chain", chain),
    Case("reduction, max 20", reduction, maximum=20),
    Case("fan-out, max 20", fan_out, maximum=20),
    Case("wide 1000 x 1 s", wide, maximum=20),
    Case("wide, startup 60 s", wide, startup_s=60.0, maximum=20),
    Case("wide, max 200", wide, maximum=200),
    Case("wide, 4 threads, max 20", wide, maximum=20, threads=4),
    Case("small 50 x 1 s, max 20", small, maximum=20),
    Case("small, startup 60 s, max 20", small, startup_s=60.0, maximum=20),
    Case("burst, startup 60 s", burst_and_tail, startup_s=60.0),
    Case("notebook, startup 60 s", notebook, startup_s=60.0),
    Case("wide, from zero", wide, minimum=0, maximum=20),
)


@dataclass(frozen=True)
class Figures:
    makespan_s: float
    run_s: float  # worker-seconds until the work is done
    all_s: float  # worker-seconds until the workers are gone again
    peak: float
    changes: float
    redone: float


def run(case: Case, who: str, seed: int, *, idle_s: float, trace: bool = False) -> Figures:
    rng = random.Random(seed)
    starts = random.Random(seed + 1_000)
    sim = SimDask(lambda _: case.startup_s * starts.uniform(0.8, 1.3), case.threads)
    sim.grow(case.minimum)
    sim.run_until(200.0)
    scaler = (
        Upstream(sim, case.minimum, case.maximum)
        if who == "upstream"
        else Ours(
            sim,
            policy_of(case.minimum, case.maximum, idle_timeout_s=idle_s),
            arrival_s=case.startup_s + 3,
        )
    )
    if isinstance(scaler, Ours):
        scaler.warm_up()
    began, began_ws = sim.now, sim.worker_seconds
    sim.changes, sim.peak = 0, len(sim.all_workers)
    sim.at(sim.now + rng.uniform(0, 5), lambda: case.work(sim, rng))
    done_ws = 0.0
    while True:
        wait_s = scaler.step()
        if trace:
            _show(sim, scaler, began)
        sim.run_until(sim.now + wait_s)
        if sim.finished == len(sim.tasks) and sim.tasks and not sim._events:
            done_ws = done_ws or sim.worker_seconds_at_last
            if len(sim.all_workers) <= case.minimum:
                break
        else:
            done_ws = 0.0
        if sim.now - began > LONGEST_S:
            raise RuntimeError(f"{case.name}: {who} does not end")
    return Figures(
        makespan_s=sim.last_done_at - began,
        run_s=done_ws - began_ws,
        all_s=sim.worker_seconds - began_ws,
        peak=sim.peak,
        changes=sim.changes,
        redone=sim.redone,
    )


def _show(sim: SimDask, scaler: Upstream | Ours, began: float) -> None:
    message = scaler.plans[-1][1].message if isinstance(scaler, Ours) else ""
    here = len(sim.workers)
    print(f"  {sim.now - began:7.1f} s  {len(sim.all_workers):3} ({here:3} here)  {message}")


def _mean(rows: list[Figures]) -> Figures:
    return Figures(*(mean(getattr(r, f) for r in rows) for f in Figures.__dataclass_fields__))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--idle", type=float, default=60.0, help="idleTimeout of our policy")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    rows = []
    for case in CASES:
        if args.only not in case.name:
            continue
        found = {
            who: _mean(
                [
                    run(case, who, seed, idle_s=args.idle, trace=args.trace)
                    for seed in range(args.seeds)
                ]
            )
            for who in ("upstream", "ours")
        }
        rows.append((case, found["upstream"], found["ours"]))
        if not args.json:
            if len(rows) == 1:
                print(HEAD)
            print(_line(*rows[-1]), flush=True)
    if args.json:
        print(
            json.dumps([{"case": c.name, "upstream": vars(u), "ours": vars(o)} for c, u, o in rows])
        )


HEAD = (
    "| case | makespan | ratio | worker-s to the end | ratio | and until gone | ratio | peak"
    " | changes | redone |\n|---|---|---|---|---|---|---|---|---|---|"
)


def _line(case: Case, theirs: Figures, ours: Figures) -> str:
    def pair(name: str) -> str:
        old, new = getattr(theirs, name), getattr(ours, name)
        return f"{old:.0f} → {new:.0f} | {new / old:.2f}"

    few = " | ".join(
        f"{getattr(theirs, f):.1f} → {getattr(ours, f):.1f}" for f in ("peak", "changes", "redone")
    )
    return f"| {case.name} | {pair('makespan_s')} | {pair('run_s')} | {pair('all_s')} | {few} |"


if __name__ == "__main__":
    main()
