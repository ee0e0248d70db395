"""Looks at the cluster all the while: its pods, when it recovers, why the operator restarts."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from dask_adaptive.controller.lease import LEASE_NAMESPACE, lease_name
from dask_adaptive.kube.api import LEASES, PODS, Json, KubeApi, KubeError
from dask_adaptive.kube.objects import COMPONENT_LABEL
from dask_adaptive.model.policy import DEFAULT_CONTROLLER
from soak import machine
from soak.journal import Journal
from support.e2e_cluster import LiveCluster
from support.e2e_release import Release
from support.kube_server import Kubectl

_OPERATOR = "app.kubernetes.io/name=dask-adaptive-operator"

#: In the state of the node: `namespace_pod_uid/container/number.log`.
_LOGS = "pod-logs"

#: A lease that was renewed within this time is held by somebody who lives.
_FRESH_S = 12.0

#: The soak kills a container at once; the time of its end comes from kubelet, in whole seconds.
_KILL_S = 5.0


@dataclass(frozen=True)
class Restart:
    """A container of the operator has ended, and begun anew."""

    exit_code: int
    last_words: str
    is_ours: bool  # the soak has killed it

    @property
    def why(self) -> str:
        return "the soak killed it" if self.is_ours else f"{self.exit_code}: `{self.last_words}`"

    @property
    def has_reason(self) -> bool:
        return self.is_ours or (self.exit_code not in (0, 137) and bool(self.last_words))


@dataclass
class Watch:
    """Reads only. What cannot be read stays as it was."""

    journal: Journal
    c: LiveCluster
    api: KubeApi
    admin: Kubectl
    release: Release
    pods: dict[str, Json] = field(default_factory=dict)  # of the DaskCluster, by name
    operators: dict[str, Json] = field(default_factory=dict)
    restarts: list[Restart] = field(default_factory=list)
    trouble: str = "nothing has been seen yet"  # why the cluster has not recovered
    _seen: dict[str, int] = field(default_factory=dict)  # restarts, by pod

    async def run(self) -> None:
        while True:
            began = time.time()
            self._keep_logs()
            try:
                await self._see_pods()
                renewed_at, self.trouble = await self._trouble()
            except (KubeError, AssertionError) as exc:
                self.trouble = str(exc)
            for fault in self.journal.faults:
                if not self.trouble and fault.over < min(began, renewed_at):
                    fault.recovered = min(fault.recovered, began)
            await asyncio.sleep(1)

    def workers(self) -> list[Json]:
        """Pods whose worker runs, and that are not being deleted."""
        return self._running("worker")

    def scheduler(self) -> Json | None:
        return next(iter(self._running("scheduler")), None)

    def operator(self) -> Json | None:
        return next((pod for pod in self.operators.values() if _is_running(pod)), None)

    def _running(self, component: str) -> list[Json]:
        pods = [p for p in self.pods.values() if _is_running(p)]
        return [p for p in pods if p["metadata"]["labels"].get(COMPONENT_LABEL) == component]

    def _keep_logs(self) -> None:
        """Links to them outlive the kubelet's own files, which go with the pod."""
        folder = self.journal.folder / "logs"
        folder.mkdir(exist_ok=True)
        for log in (machine.STATE / _LOGS).glob(f"{self.c.namespace}_*/*/*.log"):
            _, pod, _ = log.parent.parent.name.split("_")
            with suppress(OSError):  # there already, or gone
                os.link(log, folder / f"{pod}-{log.name}")

    async def _see_pods(self) -> None:
        found = await self.api.list(PODS.path(self.c.namespace))
        self.pods = {pod["metadata"]["name"]: pod for pod in found}
        found = await self.api.list(PODS.path(self.release.namespace), selector=_OPERATOR)
        self.operators = {pod["metadata"]["name"]: pod for pod in found}
        for name, pod in self.operators.items():
            before = 0 if self.journal.faults else restarts_of(pod)  # the node may have been up
            if restarts_of(pod) > self._seen.setdefault(name, before):
                self._seen[name] = restarts_of(pod)
                await self._see_restart(name, pod["status"]["containerStatuses"][0])

    async def _see_restart(self, pod: str, container: Json) -> None:
        ended = container.get("lastState", {}).get("terminated") or {}
        at = _seconds(ended.get("finishedAt"))
        words = ("logs", pod, "--previous", "--tail=1")
        said = (await asyncio.to_thread(self.release.kubectl.run, *words)).stdout.strip()[-300:]
        is_ours = any(
            fault.kind.startswith("operator") and fault.target == pod
            for fault in self.journal.faults
            if abs(fault.began - at) < _KILL_S
        )
        self.restarts.append(Restart(int(ended.get("exitCode", -1)), said, is_ours))
        self.journal.say(f"the operator restarts: {self.restarts[-1].why}")

    async def _trouble(self) -> tuple[float, str]:
        """When the lease was renewed; and what is not as it should be, empty: nothing."""
        path = LEASES.path(LEASE_NAMESPACE, lease_name(DEFAULT_CONTROLLER))
        lease = (await self.api.get(path))["spec"]
        renewed_at = _seconds(lease.get("renewTime"))
        if lease.get("holderIdentity") not in self.operators or time.time() > renewed_at + _FRESH_S:
            return renewed_at, "no operator leads"
        policy = await self.c.policy()
        status = policy.get("status") or {}
        if status.get("observedGeneration") != policy["metadata"]["generation"]:
            return renewed_at, "the policy's last edit is not observed"
        for one in status.get("conditions", []):
            if one["type"] in ("Ready", "SchedulerConnected") and one["status"] != "True":
                return renewed_at, f"{one['type']}: {one['message']}"
        seen = await self.c.observe()
        fewest = int(policy["spec"].get("minReplicas", 0))
        if not seen.agent or len(seen.workers) < fewest:
            what = f"agent {seen.agent or 'missing'}, {len(seen.workers)} of {fewest} workers"
            return renewed_at, what
        return renewed_at, ""


def restarts_of(pod: Json) -> int:
    return sum(int(c["restartCount"]) for c in pod["status"].get("containerStatuses", []))


def _is_running(pod: Json) -> bool:
    containers = pod["status"].get("containerStatuses", [])
    is_there = bool(containers) and all(c["ready"] for c in containers)
    return is_there and not pod["metadata"].get("deletionTimestamp")


def _seconds(at: Any) -> float:
    """Of a time as Kubernetes writes it."""
    with suppress(ValueError):
        return datetime.fromisoformat(str(at).replace("Z", "+00:00")).timestamp()
    return 0.0
