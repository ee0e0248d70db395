"""
Whole clusters under load, stock and ours in turns, on the release that this Python has.

    python run.py [--cases map-script,clients-50] [--repeats 3] [--scale 1.0]

Prints a line of JSON a figure: what was measured, each side's median, and all of its repetitions.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import distributed
from distributed.core import rpc
from processes import OURS, SHARED, STOCK, Cluster, Clusters, Ended, Talker

from dask_adaptive_agent import wire

#: Tasks of one repetition: a second or two at stock's rate.
MAPPED = {
    "map-mod": 1000,
    "map-main": 1000,
    "map-script": 800,
    "map-lambda": 1000,
    "map-bigpartial": 400,
    "map-bigpartial-shared": 400,
    "submit-main": 800,
}
GROUPS = 50_000
CROWD = 800
ASKS = 300
TALKERS: Mapping[str, tuple[int, ...]] = {"clients-50": (50,), "clients-200": (200,)}
ALL = (*MAPPED, "prefixes", "identity", *TALKERS)
#: From 2025.4.0 on, clients are told to ask every 20 s, and for few workers; before, every 2 s.
ARE_TOLD = tuple(map(int, distributed.__version__.split(".")[:2])) >= (2025, 4)

Samples = dict[str, list[float]]  # by side


@dataclass(frozen=True)
class Asked:
    cases: tuple[str, ...]
    repeats: int
    scale: float

    def scaled(self, count: int) -> int:
        return max(10, round(count * self.scale))


def rounded(value: float) -> float:
    return float(f"{value:.4g}")


def tell(case: str, unit: str, samples: Samples, ours: str = "ours", **more: Any) -> None:
    sides = [[rounded(x) for x in samples[side]] for side in ("stock", ours)]
    stock, mine = (rounded(statistics.median(values)) for values in sides)
    row = {"case": case, "unit": unit, "stock": stock, "ours": mine, "spread": sides, **more}
    print(json.dumps(row), flush=True)


async def measured(cluster: Cluster, script: Talker, case: str, count: int) -> tuple[float, float]:
    """Seconds of wall clock, and of the scheduler's CPU."""
    before = await cluster.call("relief_cpu", clean=True)
    wall_s = (await script.ask(f"{case} {count}"))["wall_s"]
    after = await cluster.call("relief_cpu")
    await cluster.until("tasks", 0, before["tasks"])
    return wall_s, after["cpu_s"] - before["cpu_s"]


async def map_cases(asked: Asked) -> None:
    cases = [case for case in asked.cases if case in MAPPED]
    is_shared = any(case.endswith("-shared") for case in cases)
    async with Clusters(STOCK, OURS, *([SHARED] if is_shared else [])) as clusters:
        for cluster in clusters:
            await tell_reliefs(cluster)
        scripts = [await cluster.talker("script.py", cluster.address) for cluster in clusters]
        for case in cases:
            await map_case(asked, case, list(zip(clusters, scripts, strict=True)))


async def map_case(asked: Asked, case: str, all_sides: list[tuple[Cluster, Talker]]) -> None:
    ours = "shared" if case.endswith("-shared") else "ours"
    count, name = asked.scaled(MAPPED[case]), case.removesuffix("-shared")
    sides = [(c, script) for c, script in all_sides if c.side.name in ("stock", ours)]
    for cluster, script in sides:
        await measured(cluster, script, name, 20)

    async def rates(cluster: Cluster, script: Talker) -> dict[str, float]:
        wall_s, cpu_s = await measured(cluster, script, name, count)
        return {"tasks/s": count / wall_s, "tasks/scheduler CPU s": count / cpu_s}

    await take_turns(asked, case, sides, rates, ours=ours, tasks=count)


async def take_turns(
    asked: Asked, case: str, sides: Sequence[Any], measure: Callable[..., Any], **more: Any
) -> None:
    """Measure each side as often as asked, in turns; whoever was first is last in the next."""
    samples: dict[str, Samples] = {}
    for i in range(asked.repeats):
        for side in sides if i % 2 == 0 else sides[::-1]:
            for unit, value in (await measure(*side)).items():
                samples.setdefault(unit, {}).setdefault(side[0].side.name, []).append(value)
    for unit, by_side in samples.items():
        tell(case, unit, by_side, **more)


async def tell_reliefs(cluster: Cluster) -> None:
    """Which reliefs are at work, so that nobody takes credit for what is not there."""
    if cluster.side is not STOCK:
        answer = await cluster.call(wire.OBSERVE, protocol=wire.PROTOCOL)
        states = {row["name"]: row["state"] for row in answer["relief"]}
        print(json.dumps({"side": cluster.side.name, "relief": states}), flush=True)


async def read(asked: Asked, clusters: Sequence[Cluster], name: str) -> None:
    """How long a scheduler takes to read something of itself."""

    async def took(cluster: Cluster) -> dict[str, float]:
        return {"us": (await cluster.call("relief_reads_us"))[name]}

    await take_turns(asked, name, [(cluster,) for cluster in clusters], took)


async def prefixes(asked: Asked) -> None:
    """The totals of a prefix with many groups, which the dashboard and `/metrics` read."""
    async with Clusters(STOCK, OURS) as clusters:
        for cluster in clusters:
            await cluster.call("relief_groups", count=asked.scaled(GROUPS))
        await read(asked, clusters, "get_task_prefix_states")


async def identity(asked: Asked) -> None:
    """CPU of the scheduler for one full answer to who it is and which workers it has."""
    full = {"n_workers": -1} if ARE_TOLD else {}

    async def ask(cluster: Cluster) -> dict[str, float]:
        async with rpc(cluster.address) as link:
            before = await link.relief_cpu()
            for _ in range(ASKS):
                await link.identity(**full)
            after = await link.relief_cpu()
        return {"ms CPU": (after["cpu_s"] - before["cpu_s"]) / ASKS * 1000}

    async with Clusters(STOCK, OURS) as clusters:
        for cluster in clusters:
            await cluster.call("relief_crowd", count=CROWD - 1)
        sides = [(cluster,) for cluster in clusters]
        await take_turns(asked, f"identity, {CROWD} workers", sides, ask)
        await read(asked, clusters, "WorkerState.host")


async def shares(clusters: Sequence[Cluster], window_s: float, repeats: int) -> list[list[float]]:
    """
    Percent of a core that each scheduler uses, in each window.

    All schedulers run at the same time: what else the machine does hits them alike.
    """
    loop = asyncio.get_running_loop()
    out: list[list[float]] = [[] for _ in clusters]
    for _ in range(repeats):
        start = [(loop.time(), await c.call("relief_cpu")) for c in clusters]
        await asyncio.sleep(window_s)
        for cluster, (at, before), into in zip(clusters, start, out, strict=True):
            after = await cluster.call("relief_cpu")
            into.append((after["cpu_s"] - before["cpu_s"]) / (loop.time() - at) * 100)
    return out


async def clients(asked: Asked) -> None:
    """Idle clients on many workers."""
    counts = [n for case in asked.cases for n in TALKERS.get(case, ())]
    # Those that are told to ask seldom cost so little that all of them can be watched at once.
    for together in [counts] if ARE_TOLD else [[n] for n in counts]:
        await clients_together(asked, together, 20.1 if ARE_TOLD else 4.0)


async def clients_together(asked: Asked, counts: list[int], window_s: float) -> None:
    async with Clusters(*(side for _ in counts for side in (STOCK, OURS))) as clusters:
        idlers = []
        for i, cluster in enumerate(clusters):
            await cluster.call("relief_crowd", count=CROWD - 1)
            count = str(counts[i // 2])
            idlers.append(await cluster.talker("idlers.py", cluster.address, count))
        # They are told their interval by the answer to their first heartbeat.
        await asyncio.sleep(6)
        loop = asyncio.get_running_loop()
        start, before = loop.time(), [await idler.ask() for idler in idlers]
        used = await shares(clusters, window_s, asked.repeats)
        took_s, after = loop.time() - start, [await idler.ask() for idler in idlers]
    for i, count in enumerate(counts):
        at = slice(2 * i, 2 * i + 2)
        per_s, cpu = ({}, {})
        for side, a, b in zip(("stock", "ours"), before[at], after[at], strict=True):
            per_s[side] = [(b["asked"] - a["asked"]) / took_s]
            cpu[side] = round((b["cpu_s"] - a["cpu_s"]) / took_s * 100)
        name = f"{count} idle clients, {CROWD} workers"
        used_at = dict(zip(("stock", "ours"), used[at], strict=True))
        # Near 100, the clients are what is slow, and the scheduler is asked too seldom.
        tell(name, "% of a core", used_at, clients_percent=cpu)
        tell(name, "identities/s", per_s)


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default=",".join(ALL))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the tasks and groups")
    given = parser.parse_args()
    asked = Asked(tuple(given.cases.split(",")), given.repeats, given.scale)
    if unknown := set(asked.cases) - set(ALL):
        parser.error(f"no such case: {', '.join(sorted(unknown))}; there are {', '.join(ALL)}")
    parts: list[tuple[set[str], Callable[[Asked], Awaitable[None]]]] = [
        (set(MAPPED), map_cases),
        ({"prefixes"}, prefixes),
        ({"identity"}, identity),
        (set(TALKERS), clients),
    ]
    failed = 0
    for names, part in parts:
        if names & set(asked.cases):
            try:
                await part(asked)
            except (TimeoutError, Ended, OSError) as error:
                failed += 1
                print(f"{part.__name__}: {error!r}", file=sys.stderr)
    return failed


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
