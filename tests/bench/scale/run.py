"""
Many clusters, or a large one, under one operator: reaction, CPU, memory, API writes.

    python -m bench.scale.run --clusters 1000 --workers 50 >>scale.jsonl

Needs KUBECONFIG of an API server that nobody else uses (its Deployments and pods are watched), and
ETCD, the address of its etcd; `tests/bench/scale/run.sh` boots both.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.scale.bodies import Cluster
from bench.scale.processes import Farms, MeasuredOperator, together, writes
from bench.scale.seed import seed_clusters, seed_workers
from bench.scale.upstream import Upstream
from dask_adaptive.kube.api import BUDGETS, CONFIG_MAPS, POLICIES, KubeApi
from dask_adaptive.kube.status_json import HISTORY_LABEL, history_of, read_status
from dask_adaptive.loop.decisions import HISTORY_EVERY_S
from support.kube_bodies import body
from support.kube_server import CRDS, Kubectl, add_crds
from support.ports import free_port

#: After the start.
PHASES = ("rest", "churn", "budget", "bad")

#: A worker that has been idle for so long is retired; reactions to a fall are counted from then.
IDLE_S = 15.0

#: However few clusters there are, one changes so often.
MOST_APART_S = 20.0

#: After the last change, for its consequences.
CONSEQUENCES_S = 30.0

#: A scheduler so slow that each answer comes just before the operator gives up (5 s).
SLOW_S = 4.9
NEVER_S = 1e6


class Bench:
    """One size of the world, with everything that runs in it."""

    def __init__(self, options: argparse.Namespace, api: KubeApi) -> None:
        self.options, self.api = options, api
        self.clusters = clusters_of(options)
        self.farms = Farms()
        self.upstream = Upstream(api, self.clusters, join=self.farms.join, leave=self.farms.leave)
        self.logs = Path(tempfile.mkdtemp(prefix="bench-scale-"))
        self.dice = random.Random(7)
        self.retires: list[tuple[str, str, float]] = []
        self.operators: list[MeasuredOperator] = []
        self._turns = itertools.cycle(self.dice.sample(self.clusters, len(self.clusters)))

    async def set_up(self, stack: contextlib.AsyncExitStack) -> None:
        say(f"logs are in {self.logs}")
        names = [c.name for c in self.clusters]
        stack.push_async_callback(self.farms.close)
        await self.farms.start(
            names, processes=self.options.processes, log=self.logs / "schedulers.log"
        )
        most = 2 * self.options.workers
        policy = {"maxReplicas": most, "idleTimeout": f"{IDLE_S:g}s"}
        began = time.monotonic()
        await seed_clusters(self.api, self.clusters, policy=policy)
        workers = await seed_workers(self.api, os.environ["ETCD"], self.clusters)
        self.upstream.seeded({c: [name for name, _ in rows] for c, rows in workers.items()})
        for cluster, rows in workers.items():
            await self.farms.join(cluster, rows)
            await self.farms.load(cluster, len(rows))
        say(f"seeded in {time.monotonic() - began:.0f} s")
        stack.push_async_callback(_end, asyncio.create_task(self.upstream.run()))

    async def start_operators(self, stack: contextlib.AsyncExitStack) -> float:
        """Returns how long it takes until every cluster has been visited and nothing is new."""
        began = time.monotonic()
        for name in sorted({c.controller for c in self.clusters}):
            mine = [c for c in self.clusters if c.controller == name]
            first = {
                "stand_ins": {c.address: self.farms.addresses[c.name] for c in mine},
                "controller": name,
                "namespaces": sorted({c.namespace for c in mine if self.options.operators > 1}),
            }
            log = self.logs / f"{name}.log"
            operator = await MeasuredOperator.start(first, http_port=free_port(), log=log)
            stack.push_async_callback(operator.close)
            self.operators.append(operator)
            say(f"operator {name}: pid {operator.pid}")
        while min((await self.farms.observed()).values()) == 0:
            await asyncio.sleep(0.5)
        visited_s = time.monotonic() - began
        say(f"every cluster was visited after {visited_s:.0f} s")
        for each in self.operators:
            await each.settled(quiet_s=15.0, timeout_s=300.0)
        return visited_s

    def within(self, began: float) -> dict[str, Any]:
        now = time.monotonic()
        return together([each.within(began, now) for each in self.operators])

    async def rest(self) -> dict[str, Any]:
        began, before = time.monotonic(), await self.farms.observed()
        await asyncio.sleep(self.options.rest)
        found = self.within(began)
        passes = sum((await self.farms.observed()).values()) - sum(before.values())
        return {**found, "passes": passes, "writes": writes(found["calls"])}

    async def churn(self, but: Sequence[Cluster] = ()) -> dict[str, Any]:
        """A share of the clusters changes each minute, half up and half down."""
        began, began_at = time.monotonic(), time.time()
        every_s = min(MOST_APART_S, 60.0 / (self.options.churn * len(self.clusters)))
        # A fall that is over before the idle timeout has no consequence.
        least_s = IDLE_S + 5.0 if len(self.clusters) == 1 else 0.0
        changed: list[tuple[Cluster, int, float]] = []
        while time.monotonic() - began < self.options.churn_for:
            cluster = next(c for c in self._turns if c not in but)
            by = self.options.by if len(changed) % 2 == 0 else -self.options.by
            at = await self.farms.load(cluster.name, self.upstream.replicas[cluster.name] + by)
            changed.append((cluster, by, at))
            await asyncio.sleep(max(self.dice.uniform(0.5, 1.5) * every_s, least_s))
            self.retires += await self.farms.retires()
        await asyncio.sleep(IDLE_S + CONSEQUENCES_S)
        self.retires += await self.farms.retires()
        found = self.within(began)
        await asyncio.sleep(HISTORY_EVERY_S + 5.0)
        calls = self.within(began)["calls"]
        made = await self._decisions(began_at)
        raised = [(name, at) for name, was, now, at in self.upstream.changes if now > was]
        retired = [(name, at - IDLE_S) for name, _, at in self.retires]
        return {
            **found,
            "changes": len(changed),
            "rises_s": [_until(raised, c, at) for c, by, at in changed if by > 0],
            "falls_s": [_until(retired, c, at) for c, by, at in changed if by < 0],
            "decisions": made,
            "moved": sum(
                abs(now - was) for _, was, now, at in self.upstream.changes if at >= began
            ),
            "writes": writes(calls),
            "problems": self.upstream.problems,
        }

    async def _decisions(self, since: float) -> int:
        found = set[tuple[float, str]]()
        async for remembered in self.api.each(CONFIG_MAPS.path(), selector=HISTORY_LABEL):
            found |= {(d.at, d.group) for d in history_of(remembered)}
        async for policy in self.api.each(POLICIES.path()):  # the last is written with the next
            last = read_status(policy.get("status")).last_decision
            found |= {(last.at, last.group)} if last else set()
        return sum(at >= since for at, _ in found)

    @contextlib.asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """All clusters share one budget that is large enough for each change."""
        limits = {"workers": 2 * self.options.clusters * self.options.workers}
        await self.api.create(BUDGETS.path(), body(BUDGETS, "all", {"limits": limits}))
        await asyncio.sleep(20)
        yield
        await self.api.delete(BUDGETS.path(name="all"))

    async def spoil(self) -> list[Cluster]:
        """Of every hundred clusters one is slow, one dead and one a black hole; at least one."""
        each = max(1, len(self.clusters) // 100)
        spoilt = self.dice.sample(self.clusters, 3 * each)
        names = [c.name for c in spoilt]
        for i, name in enumerate(names):
            if each <= i < 2 * each:
                await self.farms.die(name)
            else:
                await self.farms.slow_down(name, SLOW_S if i < each else NEVER_S)
        return spoilt


def _until(found: Iterable[tuple[str, float]], cluster: Cluster, since: float) -> float | None:
    """How long until something happened to a cluster; None: it did not."""
    return next((at - since for name, at in found if name == cluster.name and at >= since), None)


def clusters_of(options: argparse.Namespace) -> list[Cluster]:
    """Of several operators each serves the clusters of some namespaces."""
    found = []
    for i in range(options.clusters):
        team = i % options.namespaces
        several = (f"shard-{team % options.operators}",) if options.operators > 1 else ()
        found.append(Cluster(f"c{i:04}", f"team-{team:02}", options.workers, *several))
    return found


async def bench(options: argparse.Namespace) -> None:
    add_crds(Kubectl(os.environ["KUBECONFIG"]), CRDS)
    api = await KubeApi.connect(timeout_s=60.0)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(api.close)
        world = Bench(options, api)
        await world.set_up(stack)
        started_s = await world.start_operators(stack)
        used = {k: sum(o.samples[-1][k] for o in world.operators) for k in ("cpu_s", "rss", "peak")}
        tell(options, "start", {"visited_s": started_s, **used})
        if "rest" in options.phases:
            tell(options, "rest", await world.rest())
        if "churn" in options.phases:
            tell(options, "churn", await world.churn())
        if "budget" in options.phases:
            async with world.shared():
                tell(options, "churn under a budget", await world.churn())
        if "bad" in options.phases and len(world.clusters) >= 4:
            spoilt = await world.spoil()
            await asyncio.sleep(20)
            tell(options, "churn among bad ones", await world.churn(but=spoilt))


def tell(options: argparse.Namespace, phase: str, found: dict[str, Any]) -> None:
    row = {
        "clusters": options.clusters,
        "workers": options.workers,
        "operators": options.operators,
        "phase": phase,
        "load": os.getloadavg()[0],
        **found,
    }
    print(json.dumps(row), flush=True)
    say(json.dumps({k: v for k, v in row.items() if not k.endswith("s_s")})[:1500])


def say(text: str) -> None:
    print(f"bench-scale: {text}", file=sys.stderr, flush=True)


async def _end(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--clusters", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=50)
    parser.add_argument("--namespaces", type=int, default=50)
    parser.add_argument("--operators", type=int, default=1, help="each with some namespaces")
    parser.add_argument("--processes", type=int, default=2, help="of simulated schedulers")
    parser.add_argument("--phases", nargs="*", choices=PHASES, default=PHASES)
    parser.add_argument("--rest", type=float, default=60.0, help="seconds of nothing new")
    parser.add_argument("--churn", type=float, default=0.05, help="share changing each minute")
    parser.add_argument("--churn-for", type=float, default=120.0, help="seconds of changes")
    parser.add_argument("--by", type=int, default=5, help="workers that a change is about")
    asyncio.run(bench(parser.parse_args()))


if __name__ == "__main__":
    main()
