"""
Rounds of chaos, each by a seed: prints a line a round, what happened in those that failed, and a
table of faults.

    python -m chaos --faults 1000            rounds of ten faults
    python -m chaos --seed 17                one round once more
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from chaos import clock

if TYPE_CHECKING:
    from chaos.round import Result

EACH = 10  # faults a round


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Rounds of chaos.")
    parser.add_argument("--faults", type=int, default=100, help="in all rounds together")
    parser.add_argument("--seed", type=int, help="of the first round; default: one after the other")
    parser.add_argument("--at-once", type=int, default=2, help="rounds side by side")
    parser.add_argument("--speed", type=float, default=4.0, help="seconds in a real one, at most")
    parser.add_argument("--only", nargs="+", default=(), help="kinds of faults")
    parser.add_argument("--without", nargs="+", default=(), help="kinds of faults")
    parser.add_argument("--mutant", default="none", help="of `chaos.mutants`")
    parser.add_argument("--logs", type=Path, help="folder for logs; default: a temporary one")
    parser.add_argument("--stories", action="store_true", help="of rounds that passed, too")
    return parser.parse_args()


async def play(options: argparse.Namespace, shared: clock.SharedClock) -> int:
    from chaos.round import Plan, World
    from support.forked_processes import fork_server

    rounds = max(1, round(options.faults / EACH)) if options.seed is None else 1
    first = 1 if options.seed is None else options.seed
    pace = clock.Pace(shared)
    slots = asyncio.Semaphore(options.at_once)
    folder = options.logs or Path(tempfile.mkdtemp(prefix="chaos-"))
    results: list[Result] = []

    async def one(seed: int) -> None:
        async with slots:
            mine = folder / str(seed)
            mine.mkdir(parents=True, exist_ok=True)
            plan = Plan(seed, EACH, tuple(options.only), tuple(options.without), options.mutant)
            began = time.monotonic()
            result = await World(plan, mine, server, pace).play()
            results.append(result)
            took_s = time.monotonic() - began
            settled = "never" if result.settled_s is None else f"{result.settled_s:.1f} s"
            verdict = f"FAILED ({len(result.wrong)})" if result.wrong else "passed"
            say(f"seed {seed}: {verdict}, {took_s:.0f} s, settled in {settled}")
            if result.wrong or options.stories:
                print("\n".join(result.story), flush=True)

    program = ("-m", "chaos.operator", "--serve")
    with tempfile.TemporaryDirectory() as short:
        server = Path(short) / "server"
        with fork_server(server, program):
            pacing = asyncio.create_task(pace.run())
            await asyncio.gather(*(one(first + i) for i in range(rounds)))
            pacing.cancel()
    report(results)
    return any(r.wrong for r in results)


def report(results: list[Result]) -> None:
    faults: Counter[str] = Counter()
    failed: Counter[str] = Counter()
    for result in results:
        faults += result.faults
        if result.wrong:
            failed.update(set(result.faults))
    say("fault                  times  in failed rounds")
    for name, times in sorted(faults.items()):
        say(f"{name:22} {times:5}  {failed[name]:5}")
    tell_times("settled after the last fault", [r.settled_s or 0.0 for r in results])
    tell_times("reaction beside faults", [s for r in results for s in r.reactions_s])
    wrong = [r for r in results if r.wrong]
    exits = sum(r.exits for r in results)
    say(f"{faults.total()} faults in {len(results)} rounds; operators ended themselves: {exits}")
    for result in wrong:
        say(f"failed: python -m chaos --seed {result.plan.seed}: {result.wrong[0]}")


def tell_times(what: str, times: list[float]) -> None:
    if times:
        say(f"{what}: median {statistics.median(times):.1f} s, at most {max(times):.1f} s")


def say(text: str) -> None:
    print(f"chaos: {text}", flush=True)


def main() -> None:
    options = options_of()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    logging.disable(logging.WARNING)  # of connections that break
    with tempfile.NamedTemporaryFile() as file:
        clock.SharedClock.make(Path(file.name), options.speed)
        sys.exit(asyncio.run(play(options, clock.hasten(Path(file.name)))))


if __name__ == "__main__":
    main()
