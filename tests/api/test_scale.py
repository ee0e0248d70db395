"""The bench of scale in small: that it runs, and what it has to show of five clusters already."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from bench.scale.bodies import Cluster
from bench.scale.processes import writes
from bench.scale.runner import CountingApi
from bench.scale.schedulers import Farm
from bench.scale.seed import seed_clusters
from bench.scale.simulated import SimulatedScheduler
from bench.scale.upstream import Upstream
from dask_adaptive.backoff import end
from dask_adaptive.kube.api import KubeApi
from dask_adaptive.scheduler.link import connect
from dask_adaptive_agent import wire
from dask_adaptive_agent.protocol.requests import Request
from support.kube_operator import running, until
from support.kube_server import Kubectl

CLUSTERS, WORKERS = 5, 3
#: After the last change, for what may still be told (`STATUS_EVERY_S` and a pass), and then for
#: what must not.
CALM_S, REST_S = 10.0, 5.0


class Scene:
    """Clusters without workers, their schedulers, and one who plays upstream."""

    def __init__(self, api: KubeApi, namespace: str) -> None:
        self.clusters = [Cluster(f"c{i}", namespace, 0) for i in range(CLUSTERS)]
        self.farm = Farm([c.name for c in self.clusters])
        self.upstream = Upstream(api, self.clusters, join=self._join, leave=self._leave)

    async def _join(self, cluster: str, workers: Any) -> None:
        self.farm.schedulers[cluster].join(workers)

    async def _leave(self, cluster: str, names: Any) -> None:
        self.farm.schedulers[cluster].leave(names)

    def connect(self, address: str, **how: Any) -> Any:
        stand_ins = {c.address: self.farm.addresses[c.name] for c in self.clusters}
        return connect(stand_ins[address], **how)

    def busy(self) -> Mapping[str, int]:
        schedulers = self.farm.schedulers.items()
        return {name: sum(w.busy for w in s.workers.values()) for name, s in schedulers}


@pytest.fixture
async def scene(api: KubeApi, kubectl: Kubectl) -> AsyncIterator[Scene]:
    made = Scene(api, kubectl.namespace)
    await made.farm.start()
    policy = {"maxReplicas": 2 * WORKERS, "idleTimeout": "15s"}
    await seed_clusters(api, made.clusters, policy=policy)
    playing = asyncio.create_task(made.upstream.run(kubectl.namespace))
    yield made
    await end([playing])
    await made.farm.close()


async def test_all_clusters_reach_their_number_and_then_nothing_is_written(
    scene: Scene, counting: CountingApi, kubectl: Kubectl
) -> None:
    async with running(counting, kubectl.namespace, connect=scene.connect):
        for scheduler in scene.farm.schedulers.values():
            scheduler.load(WORKERS)
        await until(lambda: set(scene.busy().values()) == {WORKERS}, timeout_s=30)
        await asyncio.sleep(CALM_S)
        before = Counter(writes(counting.counts))
        await asyncio.sleep(REST_S)
        assert {} == Counter(writes(counting.counts)) - before

    # Of each decision: one that acts, one event, one entry in the history.
    status = before.pop("PATCH adaptivepolicies/status")
    assert 3 * CLUSTERS >= before.total(), before
    assert CLUSTERS == before["PATCH daskworkergroups/scale"]
    # At first sight, decided, on their way, there.
    assert 4 * CLUSTERS >= status
    assert 0 == before["PATCH pods"], "each has borne its hint from the start"

    assert CLUSTERS == len(scene.upstream.changes), "each in one step"
    assert [] == scene.upstream.problems


def test_simulated_schedulers_say_what_agents_say() -> None:
    scheduler = SimulatedScheduler()
    scheduler.join([("a", "tcp://10.0.0.1:1"), ("b", "tcp://10.0.0.2:1")])
    scheduler.load(1)
    scheduler._retire(Request(names=["b"], reason="Underutilized"))
    snapshot = scheduler._observe(Request(meters=True, demand=True))

    parts: dict[Any, Any] = {
        wire.Snapshot: snapshot, wire.Columns: snapshot["workers"],
        wire.Introduction: snapshot["introduced"], wire.Totals: snapshot["totals"],
        wire.QuietPart: snapshot["quiet"], wire.Meters: snapshot["meters"],
        wire.DemandPart: snapshot["demand"], wire.RetirementRow: snapshot["retirements"][0],
        wire.PrefixColumns: (snapshot["demand"] or {})["prefixes"],
        wire.HelloAnswer: scheduler._hello(Request()),
    }  # fmt: skip
    assert {of: set(of.__annotations__) for of in parts} == {of: set(parts[of]) for of in parts}
