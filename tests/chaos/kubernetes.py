"""
Everybody in a cluster but the operator: people who change the load, Dask's schedulers (those of the
scale bench) and workers, dask-kubernetes, Kubernetes' controllers, the kubelet. They are one
program beside the store and know no faults but their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
from collections.abc import Callable
from typing import Any

from distributed.core import Server

from bench.scale import bodies
from bench.scale.simulated import SimulatedScheduler
from bench.scale.upstream import ip_of
from chaos.store import Json, Store
from dask_adaptive.kube.api import DEPLOYMENTS, GROUPS, NAMESPACES, NODES, PODS, POLICIES, SERVICES
from dask_adaptive.kube.objects import handled_replicas
from dask_adaptive_agent import wire
from support import kube_bodies

#: Of every policy. Short times: a round is not about them.
POLICY: Json = {"minReplicas": 1, "maxReplicas": 6, "idleTimeout": "3s"}
LEAST, MOST = POLICY["minReplicas"], POLICY["maxReplicas"]

#: How often controllers and the kubelet look, and dask-kubernetes makes a Deployment.
LOOK_S, MAKE_S = 0.25, 0.1

Tell = Callable[[str], None]


class Scheduler(SimulatedScheduler):
    """Knows what it was asked about whom, and what must not be taken away."""

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[str, tuple[float, str]] = {}  # by worker, the last answer about leaving

    def keeps(self, name: str) -> str:
        """Why a worker must stay; empty if it may go."""
        worker = self.workers.get(name)
        if worker is None:
            return ""
        if worker.busy:
            return "it has a task"
        if name in self.pinned:
            return "it is pinned"
        drained = worker.leaving_at is not None and self._state(worker) == wire.DRAINED
        return "" if drained else "it holds the last copy of a result"

    def _retire(self, request: Any) -> wire.RetireAnswer:
        answer = super()._retire(request)
        for outcome in answer["outcomes"]:
            self.told[outcome["name"]] = (self.clock(), outcome["state"])
        return answer


#: Below those that the kernel gives to connections: else one takes it while a scheduler is away.
_PORTS = itertools.count(12_000 + os.getpid() % 1000 * 20)


class Cluster:
    """One cluster, its scheduler's process, and the load that its users have."""

    def __init__(self, body: bodies.Cluster) -> None:
        self.body, self.name, self.namespace, self.group = (
            body, body.name, body.namespace, body.group,
        )  # fmt: skip
        self.tasks, self.most, self.port = 1, MOST, 0
        self.scheduler = Scheduler()
        self.joined: dict[str, str] = {}  # worker by its pod's uid
        self._server: Any = None

    async def start(self) -> None:
        """Another scheduler process: it knows nothing of the one before."""
        if self.is_up:
            return
        before, self.scheduler = self.scheduler, Scheduler()
        self.scheduler.delay_s = before.delay_s
        self.scheduler.load(self.tasks)  # by clients, once more
        self._server = Server(self.scheduler.handlers())
        if self.port:
            await self._server.listen(f"tcp://127.0.0.1:{self.port}")
        while not self.port:
            port = next(_PORTS)
            with contextlib.suppress(OSError):  # somebody has it
                await self._server.listen(f"tcp://127.0.0.1:{port}")
                self.port = port

    async def stop(self) -> None:
        self.joined.clear()  # workers end with their scheduler, and are started anew
        if self._server is not None:
            server, self._server = self._server, None
            await server.close()

    @property
    def is_up(self) -> bool:
        return self._server is not None

    @property
    def wanted(self) -> int:
        """Workers that there should be, in the end."""
        scheduler = self.scheduler
        held = {w.name for w in scheduler.workers.values() if w.busy} | scheduler.pinned
        return max(min(max(self.tasks, LEAST), self.most), len(held))

    def load(self, tasks: int) -> None:
        self.tasks = tasks
        self.scheduler.load(tasks)


class Kubernetes:
    """
    Args:
        background: Begins a task.
        wrong: Told of what must never happen.
        tell: Told of what happens.
    """

    def __init__(
        self, store: Store, clusters: list[Cluster], dice: random.Random, background: Any,
        tell: Tell, wrong: Tell,
    ) -> None:  # fmt: skip
        self.store, self.clusters, self._dice = store, clusters, dice
        self._background, self._tell, self._wrong = background, tell, wrong
        self.handle_s = 0.5  # until dask-kubernetes acts on a change
        self.scaled: Callable[[Cluster], None] = lambda cluster: None  # upstream acts on a number
        self._by_group = {(c.namespace, c.group): c for c in clusters}
        self._numbers = itertools.count(1)
        self._busy: dict[str, asyncio.Task[None]] = {}  # dask-kubernetes' handlers, by group
        self._due: dict[str, float] = {}  # by a pod's uid: when its next step is
        self._clock = asyncio.get_running_loop().time

    def set_up(self) -> None:
        for name in sorted({"default", "other", *(c.namespace for c in self.clusters)}):
            self.store.create(NAMESPACES, "", {"metadata": {"name": name}, "spec": {}})
        node = {"metadata": {"name": "node-1"}, "spec": {}, "status": {}}
        self.store.create(NODES, "", node)
        for cluster in self.clusters:
            for kind, body in bodies.cluster_objects(cluster.body, policy=POLICY):
                self.store.create(kind, cluster.namespace, body)
            service = kube_bodies.service(cluster.name, "127.0.0.1", cluster.port)
            self.store.create(SERVICES, cluster.namespace, service)
            for _ in range(cluster.body.workers):
                self._make_worker(cluster)

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                self._control()
                await asyncio.sleep(LOOK_S)
        finally:
            self.forget()

    def forget(self) -> None:
        """dask-kubernetes begins anew: what it was at is off, and is looked at once more."""
        for task in self._busy.values():
            task.cancel()
        self._busy.clear()

    def is_at_rest(self, cluster: Cluster) -> bool:
        task = self._busy.get(cluster.group)
        return task is None or task.done()

    def deployments(self, cluster: Cluster) -> list[str]:
        labels = {"dask.org/workergroup-name": cluster.group}
        found = self.store.all(DEPLOYMENTS, cluster.namespace, **labels)
        return [body["metadata"]["name"] for body in found]

    def replicas(self, cluster: Cluster) -> int:
        group = self.store.get(GROUPS, cluster.namespace, cluster.group)
        return int(group["spec"]["worker"]["replicas"])

    def status(self, cluster: Cluster) -> Json:
        policy = self.store.get(POLICIES, cluster.namespace, cluster.name)
        return policy.get("status") or {}

    def unsettled(self, cluster: Cluster) -> str:
        """How a cluster is not as its policy wants it; empty if it is."""
        scheduler, exist = cluster.scheduler, self.deployments(cluster)
        if cluster.wanted != len(exist):
            return f"{len(exist)} Deployments, {cluster.wanted} are wanted"
        if cluster.wanted != self.replicas(cluster) or not self.is_at_rest(cluster):
            return f"{self.replicas(cluster)} replicas, {cluster.wanted} are wanted"
        serving = [w for w in scheduler.workers.values() if w.leaving_at is None]
        if {w.name for w in serving} != set(exist):
            return f"{len(serving)} workers serve, {cluster.wanted} are wanted"
        return self._untold(cluster)

    def _untold(self, cluster: Cluster) -> str:
        """What the policy's status does not say rightly."""
        policy = self.store.get(POLICIES, cluster.namespace, cluster.name)
        status, generation = self.status(cluster), policy["metadata"]["generation"]
        told = {key: status.get(key) for key in ("replicas", "connected", "observedGeneration")}
        true = dict(
            replicas=cluster.wanted, connected=cluster.wanted, observedGeneration=generation
        )
        conditions = {c["type"]: c["status"] for c in status.get("conditions", ())}
        if told != true or conditions.get("Ready") != "True":
            return f"status says {told}, Ready={conditions.get('Ready')}"
        return ""

    # dask-kubernetes: `daskworkergroup_replica_update`.

    def _upstream(self) -> None:
        for (namespace, group), cluster in self._by_group.items():
            body = self.store.find(GROUPS, namespace, group)
            if body is None or not self.is_at_rest(cluster):
                continue
            if handled_replicas(body["metadata"]) != body["spec"]["worker"]["replicas"]:
                self._busy[group] = self._background(self._scale(cluster))

    async def _scale(self, cluster: Cluster) -> None:
        await asyncio.sleep(self.handle_s)
        replicas = self.replicas(cluster)
        exist = self.deployments(cluster)
        self.scaled(cluster)
        for _ in range(replicas - len(exist)):
            self._make_worker(cluster)
            await asyncio.sleep(MAKE_S)
        surplus = exist[replicas:]  # `retire_workers_lifo`, of a list by name
        if surplus:
            self._wrong(f"dask-kubernetes chose to remove {', '.join(surplus)}")
        for name in surplus:
            self.store.remove(DEPLOYMENTS, cluster.namespace, name)
        note = {"metadata": {"annotations": bodies.handled(replicas)}}
        self.store.patch(GROUPS, cluster.namespace, cluster.group, note)

    def _make_worker(self, cluster: Cluster) -> None:
        name = cluster.body.worker(self._dice.getrandbits(40))
        self.store.create(DEPLOYMENTS, cluster.namespace, bodies.deployment(cluster.body, name))

    # Controllers, the kubelet, and the processes in the pods.

    def _control(self) -> None:
        self._upstream()
        for cluster in self.clusters:
            exist = set(self.deployments(cluster))
            pods = self.store.all(PODS, cluster.namespace, **bodies.labels(cluster.body))
            of = {pod["metadata"]["name"].removesuffix("-ab-x"): pod for pod in pods}
            for name in sorted(exist - set(of)):
                self.store.create(PODS, cluster.namespace, bodies.pod(cluster.body, name))
            for name, pod in of.items():
                self._keep(cluster, name, pod, is_wanted=name in exist)
            there = {pod["metadata"]["uid"] for pod in of.values()}
            self._end(cluster, [uid for uid in cluster.joined if uid not in there])

    def _keep(self, cluster: Cluster, name: str, pod: Json, *, is_wanted: bool) -> None:
        """The next step of a pod, if it is time: it runs, its process joins, it ends."""
        uid, pod_name = pod["metadata"]["uid"], pod["metadata"]["name"]
        if not is_wanted and not pod["metadata"].get("deletionTimestamp"):
            self.store.delete(PODS, cluster.namespace, pod_name, {})
        if not is_wanted or pod["metadata"].get("deletionTimestamp"):
            self._end(cluster, [uid])
            if self._is_due(f"end of {uid}", 1.0):
                self.store.remove(PODS, cluster.namespace, pod_name)
        elif uid not in cluster.joined and cluster.is_up:
            if not self._is_due(uid, self._dice.uniform(1.0, 3.0)):
                return
            if not pod.get("status"):
                status = bodies.running(ip_of(next(self._numbers)), self.store.stamp())
                pod = self.store.patch(
                    PODS, cluster.namespace, pod_name, {"status": status}, "status"
                )
            cluster.joined[uid] = name
            cluster.scheduler.join([(name, f"tcp://{pod['status']['podIP']}:40000")])

    def _is_due(self, what: str, in_s: float) -> bool:
        due = self._due.setdefault(what, self._clock() + in_s)
        if self._clock() < due:
            return False
        del self._due[what]
        return True

    def _end(self, cluster: Cluster, uids: list[str]) -> None:
        names = [cluster.joined.pop(uid) for uid in uids if uid in cluster.joined]
        if names:
            cluster.scheduler.leave(names)

    # What else happens.

    def allow(self, cluster: Cluster, most: int) -> None:
        """A person edits the policy."""
        cluster.most = most
        self._tell(f"{cluster.name} may have {most} workers now")
        spec = {"spec": {"maxReplicas": most}}
        self.store.patch(POLICIES, cluster.namespace, cluster.name, spec)

    def crash(self, cluster: Cluster) -> str:
        """A worker's process ends, and its container starts another one."""
        uid = self._dice.choice(sorted(cluster.joined) or [""])
        name = cluster.joined.get(uid, "")
        self._end(cluster, [uid])
        return name

    def remove(self, cluster: Cluster) -> str:
        """A person deletes a worker's Deployment."""
        name = self._dice.choice(self.deployments(cluster) or [""])
        self.store.remove(DEPLOYMENTS, cluster.namespace, name)
        return name
