"""One DaskCluster on a real node, with a client and eyes: what the e2e tests are written in."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from distributed import Client, Event

from dask_adaptive.kube.api import (
    DEPLOYMENTS,
    EVENTS,
    GROUPS,
    PODS,
    POLICIES,
    SERVICES,
    Json,
    KubeApi,
    NotFound,
)
from dask_adaptive.kube.drift import MAKING_S
from dask_adaptive.kube.objects import CLUSTER_LABEL, COMPONENT_LABEL, GROUP_LABEL, HANDLED
from dask_adaptive.loop.ports import Tls
from dask_adaptive.model.amounts import read_instant
from dask_adaptive.model.observed import ObservedScheduler
from dask_adaptive.model.policy import ClusterRef, Policy
from dask_adaptive.scheduler.calls import SchedulerCalls
from dask_adaptive.scheduler.link import Link, connect
from dask_adaptive_lab.tally import Tally, tally_of
from support.certificates import security
from support.e2e_objects import adaptive_policy
from support.kube_server import Kubectl, ran
from support.tasks import held

#: No single wait of a test may take longer: a machine under load is slow, a hang is a failure.
PATIENCE_S = 240.0

#: Upstream tries again after 60 s what has failed.
COMPLETE_S = 90.0

_LOOK_S = 0.25

#: What a scheduler says of workers that go, and of work that goes with them.
_LOSS = re.compile(r"Remov|Lost|Retir|lose|recomput|closing|dask_adaptive", re.IGNORECASE)


class LiveCluster:
    """Reads through the API; acts with kubectl, as people do."""

    def __init__(
        self, api: KubeApi, kubectl: Kubectl, name: str, *, tls: Tls | None = None
    ) -> None:
        self.api, self.name, self._kubectl, self._tls = api, name, kubectl, tls
        self.namespace = kubectl.namespace
        self.group = f"{name}-default"
        self.client: Any = None
        self.more_to_tell: list[Callable[[], str]] = []  # of whoever knows more about a failure
        self._link: Link | None = None
        self._calls: SchedulerCalls | None = None

    async def create(self, *objects: dict[str, Any]) -> None:
        """
        Apply them, among them the DaskCluster, and wait until upstream has made its parts.

        A handler of dask-kubernetes fails when kr8s reloads its credentials meanwhile (ReadError).
        It is tried again each minute, often at the moment when others are, and fails again: then it
        is given the same once more.
        """
        await self.apply(*objects)
        try:
            await self.until(self._is_complete, "upstream makes all parts", patience_s=COMPLETE_S)
        except AssertionError:
            await self.kubectl("delete", "daskcluster", self.name)
            await self.apply(*objects)
            await self.until(self._is_complete, "upstream makes all parts, at the second try")

    async def open(self, *, tally: bool = True) -> None:
        """Connect a client once the scheduler answers; `tally`: have it count runs."""
        await self.until(self._is_scheduler_ready, "the scheduler's pod is ready")
        service = await self.api.get(SERVICES.path(self.namespace, f"{self.name}-scheduler"))
        address = f"{'tls' if self._tls else 'tcp'}://{service['spec']['clusterIP']}:8786"
        await self.count(address, tally=tally)
        make: Any = Client
        who = security(self._tls) if self._tls else None
        self.client = await make(address, asynchronous=True, timeout="30s", security=who)

    async def count(self, address: str, *, tally: bool) -> None:
        """Connect anew; `tally`: have the scheduler count runs from now on."""
        await self._disconnect()
        self._link = connect(address, tls=self._tls, attach=False)
        self._calls = SchedulerCalls(address, tls=self._tls)

        async def answers() -> bool:
            seen = await self.observe()
            return seen.is_connected or seen.lacks_agent

        # kube-proxy may be a moment behind; until then who knows who answers at a Service's IP.
        await self.until(answers, f"the scheduler answers at {address}")
        if tally:
            await self.tally()

    async def close(self) -> None:
        if self.client is not None:
            await self.client.close()
        self.client = None
        await self._disconnect()

    async def _disconnect(self) -> None:
        for one in (self._link, self._calls):
            if one is not None:
                await one.close()
        self._link = self._calls = None

    async def kubectl(self, *words: str, stdin: str | None = None) -> str:
        return await asyncio.to_thread(self._kubectl, *words, stdin=stdin)

    async def kubectl_run(
        self, *words: str, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """A command that may fail."""
        return await asyncio.to_thread(self._kubectl.run, *words, stdin=stdin)

    async def apply(self, *objects: dict[str, Any]) -> None:
        await asyncio.to_thread(self._kubectl.apply, *objects)

    async def govern(self, **spec: Any) -> None:
        """Apply a policy for this cluster."""
        await self.apply(adaptive_policy(self.name, **spec))

    async def edit(self, **spec: Any) -> None:
        patch = json.dumps({"spec": spec})
        await self.kubectl("patch", "dap", self.name, "--type=merge", "--patch", patch)

    async def change_workers(self, path: str, value: Any) -> None:
        """Edit the container that the group makes workers of, later than its making is over."""
        made = (await self.api.get(GROUPS.path(self.namespace, self.group)))["metadata"]
        age_s = time.time() - (read_instant(made["creationTimestamp"]) or 0.0)
        await asyncio.sleep(max(0.0, MAKING_S + 2.0 - age_s))
        op = {"op": "add", "path": f"/spec/worker/spec/containers/0{path}", "value": value}
        patch = json.dumps([op])
        await self.kubectl("patch", "daskworkergroup", self.group, "--type=json", "--patch", patch)

    async def dask_adaptive(self, *words: str) -> str:
        """Output of our own command line, as people run it, in the cluster's namespace."""
        command = [sys.executable, "-m", "dask_adaptive.cli.main", *words, "-n", self.namespace]
        done = await asyncio.to_thread(ran, *command)
        assert 0 == done.returncode, f"dask-adaptive {' '.join(words)}: {done.stderr}"
        return done.stdout

    # What is so.

    async def policy(self) -> Json:
        try:
            return await self.api.get(POLICIES.path(self.namespace, self.name))
        except NotFound:
            return {"spec": adaptive_policy(self.name)["spec"]}

    async def status(self) -> Json:
        return dict((await self.policy()).get("status") or {})

    async def recycled(self) -> dict[str, int]:
        """Workers whose replacement has begun, by reason."""
        return dict((await self.status()).get("recycled") or {})

    async def condition(self, kind: str) -> tuple[str, str]:
        """Status and reason."""
        conditions = (await self.status()).get("conditions") or []
        found = next((c for c in conditions if c["type"] == kind), {})
        return found.get("status", ""), found.get("reason", "")

    async def observe(self) -> ObservedScheduler:
        assert self._link is not None
        # The link only reads: any policy will do. That of an earlier release could not be parsed.
        return await self._link.observe(Policy(ClusterRef(self.name), 1))

    async def connected(self) -> set[str]:
        """Names of the workers that the scheduler knows."""
        return {w.name for w in (await self.observe()).workers}

    async def address_of(self, worker: str) -> str:
        return next(w.address for w in (await self.observe()).workers if w.name == worker)

    async def is_processing(self, worker: str) -> bool:
        return any(w.processing for w in (await self.observe()).workers if w.name == worker)

    async def are_connected(self, names: set[str]) -> bool:
        return names == await self.connected()

    async def sole_bytes(self, worker: str) -> int:
        """Bytes of results that only this worker holds."""
        return sum(w.sole_bytes for w in (await self.observe()).workers if w.name == worker)

    async def deployments(self, group: str | None = None) -> dict[str, str]:
        """Workers that exist, by name, with their uid."""
        selector = f"{COMPONENT_LABEL}=worker,{GROUP_LABEL}={group or self.group}"
        found = await self.api.list(DEPLOYMENTS.path(self.namespace), selector=selector)
        return {d["metadata"]["name"]: d["metadata"]["uid"] for d in found}

    async def replicas(self, group: str | None = None) -> int:
        found = await self.api.get(GROUPS.path(self.namespace, group or self.group))
        return int(found["spec"]["worker"]["replicas"])

    async def scheduler_pod(self) -> Json:
        selector = f"{COMPONENT_LABEL}=scheduler,{CLUSTER_LABEL}={self.name}"
        pods = await self.api.list(PODS.path(self.namespace), selector=selector)
        return next(p for p in pods if not p["metadata"].get("deletionTimestamp"))

    async def pods_of(self, worker: str) -> list[str]:
        """Those that are not being deleted: one, and for a moment none."""
        pods = await self.api.list(PODS.path(self.namespace), selector=f"{COMPONENT_LABEL}=worker")
        names = [p["metadata"]["name"] for p in pods if not p["metadata"].get("deletionTimestamp")]
        return [name for name in names if name.startswith(f"{worker}-")]

    async def pod_of(self, worker: str) -> str:
        [pod] = await self.pods_of(worker)
        return pod

    async def is_pinned(self, worker: str) -> bool:
        """Whether the agent holds a pin of it."""
        return any(w.pins for w in (await self.observe()).workers if w.name == worker)

    async def events(self, *reasons: str) -> list[Json]:
        """Our events on the policy, oldest first."""
        path = EVENTS.path(self.namespace)
        about = "involvedObject.kind=AdaptivePolicy"
        found = [
            e
            for e in await self.api.list(path, field=f"{about},involvedObject.name={self.name}")
            if not reasons or e["reason"] in reasons
        ]
        return sorted(found, key=lambda e: str(e["firstTimestamp"]))

    async def counts(self) -> tuple[int, int, int]:
        """Tasks, runs, and how many of them were redone."""
        tally = await self.tally()
        return tally.tasks, tally.runs, tally.redone

    async def tally(self) -> Tally:
        assert self._calls is not None
        return await tally_of(self._calls)

    # Waiting.

    async def until(
        self, holds: Callable[[], Any], what: str, *, patience_s: float = PATIENCE_S
    ) -> None:
        """Poll until something is so; else fail with all that is known."""
        end = time.monotonic() + patience_s
        while True:
            answer = holds()
            if inspect.isawaitable(answer):
                answer = await answer
            if answer:
                return
            if time.monotonic() > end:
                raise AssertionError(f"not within {patience_s:.0f} s: {what}\n{await self.told()}")
            await asyncio.sleep(_LOOK_S)

    async def throughout(self, seconds: float, holds: Callable[[], Any], what: str) -> None:
        """Poll for some time: something must stay so."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert await holds(), f"no longer so: {what}\n{await self.told()}"
            await asyncio.sleep(_LOOK_S)

    async def until_ready(self) -> None:
        async def is_ready() -> bool:
            return (await self.condition("Ready"))[0] == "True"

        await self.until(is_ready, "the policy is Ready")

    async def until_condition(self, kind: str, status: str, reason: str) -> None:
        async def is_so() -> bool:
            return (status, reason) == await self.condition(kind)

        await self.until(is_so, f"{kind} is {status}, {reason}")

    async def until_connected(self, count: int) -> None:
        async def is_there() -> bool:
            return len(await self.connected()) == count

        await self.until(is_there, f"{count} workers are connected")

    async def grow_to(self, workers: int, *, tasks: int) -> list[Any]:
        """
        Submit tasks, each of 100 kB, that end once so many workers are connected; their futures.

        Tasks of a fixed length are done before the last pod of a slow node is there. A worker
        that leaves doesn't count: it may have joined late, and wait for these tasks to end.
        """

        async def have_come() -> bool:
            return workers <= len(await self.connected() & set(await self.deployments()))

        event = f"{workers} workers ({tasks} tasks)"
        futures: list[Any] = self.client.map(
            held, range(tasks), event=event, size=100_000, pure=False
        )
        await self.until(have_come, f"{workers} workers that stay are connected")
        await Event(event, self.client).set()
        return futures

    async def until_settled(self, count: int) -> None:
        """`replicas`, Deployments, Dask workers and the status all say the same number."""

        async def is_settled() -> bool:
            status = await self.status()
            numbers = {
                await self.replicas(),
                len(await self.deployments()),
                len(await self.connected()),
                status.get("replicas"),
            }
            return numbers == {count} and not status.get("retiring")

        await self.until(is_settled, f"all is settled at {count} workers")

    async def until_event(self, reason: str, text: str = "") -> Json:
        found: list[Json] = []

        async def is_told() -> bool:
            found[:] = [e for e in await self.events(reason) if text in e["message"]]
            return bool(found)

        await self.until(is_told, f"an event {reason} with {text!r}")
        return found[0]

    async def told(self) -> str:
        """What a person would look at: for messages of failures."""
        status = await self.status()
        rows = [f"  {w['name']} {w['state']} {w['reason']}" for w in status.pop("workers", [])]
        conditions = [
            f"  {c['type']}={c['status']} {c['reason']}: {c['message']}"
            for c in status.pop("conditions", [])
        ]
        events = [f"  {e['reason']} x{e['count']}: {e['message']}" for e in await self.events()]
        pods = await self.kubectl_run("get", "pods,daskworkergroups")
        scheduler = await self.kubectl_run("logs", f"deployment/{self.name}-scheduler")
        losses = [line for line in scheduler.stdout.splitlines() if _LOSS.search(line)]
        return "\n".join(
            [
                f"namespace {self.namespace}, cluster {self.name}",
                f"status: {json.dumps(status)}",
                *conditions,
                *rows,
                "events:",
                *events[-30:],
                pods.stdout,
                "scheduler:",
                *losses[-30:],
                *(more() for more in self.more_to_tell),
            ]
        )

    async def _is_complete(self) -> bool:
        try:
            group = await self.api.get(GROUPS.path(self.namespace, self.group))  # it is made last
        except NotFound:
            return False
        return HANDLED in (group["metadata"].get("annotations") or {})

    async def _is_scheduler_ready(self) -> bool:
        name = f"{self.name}-scheduler"
        try:
            found = await self.api.get(DEPLOYMENTS.path(self.namespace, name))
            await self.api.get(SERVICES.path(self.namespace, name))  # upstream makes it last
        except NotFound:
            return False
        return bool(found.get("status", {}).get("availableReplicas"))


#: What the fixture `start` is: makes a DaskCluster called `name`, its policy, and a client.
Start = Callable[..., Awaitable[LiveCluster]]


def workers_in(events: Iterable[Json]) -> list[str]:
    """The workers that events on a policy name, at most three each, before the reason."""
    heads = [part.partition(":")[0] for e in events for part in e["message"].split("; ")]
    return [name for head in heads for name in re.findall(r"\S+-worker-\w+", head)]


def count_workers(events: Sequence[Json]) -> int:
    """How many workers events on a policy are about: those that they name, and how many more."""
    more = (n for e in events for n in re.findall(r"and (\d+) more", e["message"]))
    return len(workers_in(events)) + sum(map(int, more))
