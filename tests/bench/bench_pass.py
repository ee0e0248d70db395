"""
What one pass of the operator costs, against the number of workers, in CPU of the operator alone.

    PYTHONPATH=operator:tests python tests/bench/bench_pass.py [--workers N …]

The cache and the scheduler's answers are real, what they are about is simulated: nearly all workers
are busy. Timed are the first pass of an operator, one in which nothing has changed, one in which
ten workers have (five have run out of tasks, five have got some), and one in which ten pods have.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import time
from collections.abc import Callable
from typing import Any

import msgspec
from measuring import options, show, spread

from bench.scale.bodies import Cluster, cluster_objects, deployment, pod, running
from bench.scale.simulated import SimulatedScheduler
from dask_adaptive.kube.cache.world import KINDS, World
from dask_adaptive.kube.objects import PodObject
from dask_adaptive.loop.one_pass import ClusterLoop
from dask_adaptive.loop.ports import Ports
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.policy import parse_policy
from dask_adaptive.scheduler.snapshot import ANSWER, NoteReader, SnapshotReader
from support.fake_cluster import FakeCluster
from support.kube_objects import platform_of

AT_ONCE, MADE = 10, "2026-11-24T10:00:00Z"


class Scene:
    """One cluster, and what the operator knows of it."""

    def __init__(self, workers: int) -> None:
        self.cluster = Cluster("c0000", "team-00", workers)
        self.key = ClusterKey(self.cluster.namespace, self.cluster.name)
        self.world, self.scheduler = World(), SimulatedScheduler()
        for _, body in cluster_objects(self.cluster, policy={"maxReplicas": 2 * workers}):
            self._take(body)
            if body["kind"] == "AdaptivePolicy":
                self.policy = parse_policy(body["spec"])
        self.scheduler.join(self._join(i) for i in range(workers))
        self.scheduler.load(workers - AT_ONCE // 2)
        self.start()

    def _join(self, number: int) -> tuple[str, str]:
        name, ip = self.cluster.worker(number), f"10.0.{number >> 8}.{number & 255}"
        for body in (deployment(self.cluster, name), pod(self.cluster, name)):
            if body["kind"] == "Pod":
                body["status"] = running(ip, MADE)
            body["metadata"] |= {"creationTimestamp": MADE, "uid": f"{body['kind']}-{name}"}
            self._take(body)
        return name, f"tcp://{ip}:40000"

    def _take(self, body: dict[str, Any]) -> None:
        kind = next((k for k in KINDS if k.resource.kind == body["kind"]), None)
        body["metadata"]["namespace"] = self.cluster.namespace
        if kind is not None:
            self.world.take(kind, "ADDED", body)

    def start(self) -> None:
        """A new operator, whose scheduler has answered for the first time."""
        platform = platform_of(self.key, self.world)
        self._reader, link = SnapshotReader(NoteReader()), Link(self)
        ports = Ports(platform=platform, link=link, reporter=link, clock=time.monotonic)
        self.loop = ClusterLoop(self.key, ports)
        self._runner = asyncio.new_event_loop()
        self.hear()

    def hear(self) -> None:
        """What the scheduler's agent answers comes over the wire."""
        known, sim = self._reader.version, self.scheduler
        request = {"meters": False, "demand": True, **self._reader.request}
        answer = sim._watch.answer("me", known, lambda: sim._snapshot(request))
        self.answer = msgspec.msgpack.decode(msgspec.msgpack.encode(answer), type=ANSWER)

    def read(self) -> Any:
        at = time.monotonic()
        self._reader.read(self.answer, at=at)
        return self._reader.observed(agent="1", version="2026.8.0", at=at)

    def ten_workers(self) -> None:
        workers, now = list(self.scheduler.workers.values()), self.scheduler.clock()
        half = AT_ONCE // 2
        idle, busy = ([w for w in workers if w.busy is is_busy][:half] for is_busy in (False, True))
        for worker in (*idle, *busy):
            worker.busy, worker.active_at = not worker.busy, now

    def ten_pods(self) -> None:
        for known in self.world.of(PodObject, self.key)[:AT_ONCE]:
            started_at = (known.started_at or 0.0) + 1.0
            self.world.put(dataclasses.replace(known, started_at=started_at))

    def one_pass(self) -> None:
        self._runner.run_until_complete(self.loop.one_pass(self.policy, 1))


class Link(FakeCluster):
    def __init__(self, scene: Scene) -> None:
        super().__init__(0)
        self._scene = scene

    async def observe(self, *_: Any, **__: Any) -> Any:
        return self._scene.read()


def cpu_ms(scene: Scene, before: Callable[[], Any], repeat: int) -> dict[str, Any]:
    """Of CPU for one pass; what comes before it does not count."""
    times = []
    for _ in range(repeat):
        before()
        scene.hear()
        began = time.thread_time()
        scene.one_pass()
        times.append((time.thread_time() - began) * 1000)
    return spread(times)


if __name__ == "__main__":
    given = options(__doc__, workers=[1_000, 10_000], repeat=9)
    rows = []
    for n in given.workers:
        scene = Scene(n)
        gc.collect()
        gc.freeze()
        for what, before, repeat in (
            ("the first pass", scene.start, 3),
            ("nothing has changed", lambda: None, given.repeat),
            ("ten workers have changed", scene.ten_workers, given.repeat),
            ("ten pods have changed", scene.ten_pods, given.repeat),
        ):
            rows.append({"workers": n, "what": what, **cpu_ms(scene, before, repeat)})
    show(rows, "milliseconds")
