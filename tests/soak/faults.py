"""What is done to the cluster, at random and in part at once, while people compute on it."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dask_adaptive.kube.api import NODES, PODS, Json, KubeError, NotFound, Throttled
from dask_adaptive.kube.objects import INJECTED
from soak import machine
from soak.books import Fault, Task
from soak.users import Lives
from soak.watch import Watch, restarts_of

#: Causes of work that is done again: nothing could have handed it over.
KILLED = "a worker was killed at once, with what only it had"
NO_HOOK = "a pod was deleted that had no hook: it was made while the operator's webhook was away"
NO_TIME = "a pod's grace period was over"

#: So often a container is killed before its pod is: kubelet waits ever longer until it restarts it.
_MOST_RESTARTS = 2

#: The longest that an eviction is tried again.
_EVICTION_S = 90.0

POLICY: dict[str, Any] = {
    "mode": "Auto",
    "minReplicas": 1,
    "maxReplicas": 4,
    "idleTimeout": "8s",
    "target": {"duration": "3s"},
    "disruption": {"budgets": [{"workers": "50%"}]},
    "recycle": {"tasks": {"max": 100, "jitter": "20%"}, "lifetime": None},
}


def _by_value() -> Callable[..., Any]:
    def had_by(
        host: str, dead: Sequence[str], dask_scheduler: Any = None
    ) -> tuple[list[str], list[str]]:
        """
        Keys that run on a host or are only there; of unnamed ones, what is made of them. And the
        addresses there. `dead`: those of workers of whose end the scheduler may not know yet.
        """
        ours = ("plain-", "byvalue-", "source-", "summary-", "total-")
        known = dask_scheduler.workers
        workers = {ws for ws in known.values() if host in (ws.host, ws.address)}
        gone = workers | {known[address] for address in dead if address in known}
        plugin = dask_scheduler.plugins.get("shuffle")
        found = {
            dask_scheduler.tasks.get(f"shuffle-barrier-{state.id}")
            for state in (plugin.active_shuffles.values() if plugin else ())
            if {ws.address for ws in workers} & set(state.participating_workers)
        }
        for ws in workers:
            found |= set(ws.processing) | {ts for ts in ws.has_what if ts.who_has <= gone}
        left, seen = [ts for ts in found if ts is not None], set()
        while left:
            ts = left.pop()
            if ts not in seen:
                seen.add(ts)
                if not str(ts.key).startswith(ours):
                    left += ts.dependents
        named = [str(ts.key) for ts in seen if str(ts.key).startswith(ours)]
        return named, [ws.address for ws in workers]

    return had_by


_had_by = _by_value()


@dataclass(frozen=True)
class Kind:
    """One way in which something happens."""

    name: str
    weight: int
    slot: str  # of a slot only one happens at a time; empty: any number
    act: Callable[[Faults, str], Awaitable[None]]
    needs_api: bool = True


class Faults:
    """Happen one after the other, but do not wait for each other's end."""

    def __init__(self, watch: Watch, lives: Lives, dice: random.Random) -> None:
        self._watch, self._lives, self._dice = watch, lives, dice
        self._journal, self._c = watch.journal, watch.c
        self._busy: dict[str, str] = {}  # slots, and what happens there
        self._going: list[asyncio.Task[None]] = []
        self._doomed: set[str] = set()  # pods that something happens to
        self._dead: list[str] = []  # addresses of workers that were killed

    async def run(self, *, until: float) -> None:
        deck = self._dice.sample(KINDS, len(KINDS))  # each once, before anything comes again
        while time.time() < until and not self._journal.problems:
            await asyncio.sleep(self._dice.uniform(2, 9))
            kind = next((kind for kind in deck if self._is_possible(kind)), None)
            if kind is not None:
                deck.remove(kind)
                self._going.append(asyncio.ensure_future(self._one(kind)))
            if not deck:
                deck = [kind for kind in KINDS for _ in range(kind.weight)]
                self._dice.shuffle(deck)

    async def end(self) -> None:
        """Wait until all is over, and take back all edits."""
        await asyncio.gather(*self._going)
        await _until_taken(lambda: self._c.edit(**POLICY))

    def _is_possible(self, kind: Kind) -> bool:
        is_api_there = self._busy.get("node", "kubelet killed") == "kubelet killed"
        return kind.slot not in self._busy and (is_api_there or not kind.needs_api)

    async def _one(self, kind: Kind) -> None:
        if kind.slot:
            self._busy[kind.slot] = kind.name
        try:
            await kind.act(self, kind.name)
        except (KubeError, AssertionError, OSError) as exc:
            self._journal.say(f"{kind.name} is not possible now: {_brief(exc)}")
        except Exception as exc:
            self._journal.problem(f"the soak itself fails at '{kind.name}': {exc!r}")
        finally:
            self._busy.pop(kind.slot, None)

    async def _refused(self, fault: Fault, call: Awaitable[Any]) -> bool:
        """Whether it has certainly not happened."""
        try:
            await call
        except (KubeError, AssertionError) as exc:
            self._journal.end(fault, refused=f"refused ({_brief(exc)})")
            return True
        return False

    # The node and the control plane.

    async def outage(self, name: str) -> None:
        [seconds] = self._dice.choices([1, 3, 8, 20, 60], [3, 3, 3, 2, 1])
        fault = self._journal.begin(name, f"for {seconds} s")
        for process in name.removesuffix(" killed").split(" and "):
            machine.kill(process)
            if process == "etcd":
                # Of Kubernetes 1.34: its EndpointSlice controller may never trust its cache again
                # ("informer cache is out of date"), and Services lead nowhere.
                machine.kill("controller-manager")
        await asyncio.sleep(seconds)
        while said := await machine.bring_back():
            self._journal.say(f"the node does not come back: {said}")
        self._journal.end(fault)

    async def cordon(self, name: str) -> None:
        [node] = [n["metadata"]["name"] for n in await self._watch.api.list(NODES.path())]
        seconds = self._dice.choice([5, 15, 30])
        fault = self._journal.begin(name, f"for {seconds} s")
        if not await self._refused(fault, self._c.kubectl("cordon", node)):
            await asyncio.sleep(seconds)
            await _until_taken(lambda: self._c.kubectl("uncordon", node))
            self._journal.end(fault)

    # The operator and its policy.

    async def operator(self, name: str) -> None:
        pod = self._watch.operator()
        if pod is None:
            return
        fault = self._journal.begin(name, pod["metadata"]["name"])
        if name.endswith("deleted"):
            grace = self._dice.choice(["0", "30"])
            if await self._refused(fault, self._delete(pod, grace)):
                return
        else:
            machine.kill_pod(pod["metadata"]["uid"])
        self._journal.end(fault)

    async def edit(self, name: str) -> None:
        dice = self._dice
        fewest = dice.randint(0, 2)
        bounds = {"minReplicas": fewest, "maxReplicas": fewest + dice.randint(1, 3)}
        edits: list[dict[str, Any]] = [
            bounds,
            bounds,
            {"idleTimeout": dice.choice(["3s", "8s", "30s"])},
            {"recycle": {"tasks": {"max": dice.choice([0, 30, 100])}}},
            {"recycle": {"lifetime": dice.choice([None, {"max": "1m"}])}},
        ]
        spec = dice.choice(edits)
        fault = self._journal.begin(name, json.dumps(spec))
        if not await self._refused(fault, self._c.edit(**spec)):
            self._journal.end(fault)

    async def pause(self, name: str) -> None:
        seconds = self._dice.choice([5, 20])
        fault = self._journal.begin(name, f"for {seconds} s")
        if not await self._refused(fault, self._c.edit(mode="Paused")):
            await asyncio.sleep(seconds)
            await _until_taken(lambda: self._c.edit(mode="Auto"))
            self._journal.end(fault)

    # The scheduler: all that it has is lost with it.

    async def scheduler(self, name: str) -> None:
        pod = self._watch.scheduler()
        if pod is None:
            return
        await self._lives.end()
        fault = self._journal.begin(name, pod["metadata"]["name"])
        is_refused = False
        if name.endswith("deleted"):
            is_refused = await self._refused(fault, self._delete(pod, "1"))
        else:
            machine.kill_pod(pod["metadata"]["uid"])
        self._journal.end(fault)
        await self._lives.begin(another=not is_refused)
        self._journal.say("a scheduler answers again")

    # Workers.

    async def worker(self, name: str) -> None:
        """Its pod ends, in one of four ways; two of them leave the time to hand over its work."""
        pod = self._any_worker(to_kill=name.endswith("killed"))
        if pod is None:
            return
        meta = pod["metadata"]
        self._doomed.add(meta["name"])
        is_hooked = INJECTED in (meta.get("annotations") or {})
        cause = KILLED if name.endswith(("no grace", "killed")) else "" if is_hooked else NO_HOOK
        held = await self._held_by(pod, is_killed=cause is KILLED)
        fault = self._journal.begin(
            name, meta["name"], cause=cause, pod=meta["name"], held=frozenset(held)
        )
        if name.endswith("killed"):
            machine.kill_pod(meta["uid"])
            self._doomed.discard(meta["name"])  # the next container may be killed, too
        elif name.endswith("evicted"):
            if await self._refused(fault, self._evict(pod)):
                return
        elif await self._refused(fault, self._delete(pod, "0" if cause is KILLED else "")):
            return
        else:
            await self._until_gone(pod)
        if not cause and time.time() - fault.began >= pod["spec"]["terminationGracePeriodSeconds"]:
            fault.cause = NO_TIME
        self._journal.end(fault)

    def _any_worker(self, *, to_kill: bool) -> Json | None:
        free = [
            pod
            for pod in self._watch.workers()
            if pod["metadata"]["name"] not in self._doomed
            and not (to_kill and restarts_of(pod) >= _MOST_RESTARTS)
        ]
        return self._dice.choice(free) if free else None

    async def _held_by(self, pod: Json, *, is_killed: bool) -> list[Task]:
        life = self._lives.current
        if life is None:
            return []
        try:
            asked = life.client.run_on_scheduler(_had_by, pod["status"]["podIP"], self._dead)
            keys, addresses = await life.within(asked)
        except Exception:  # it is being killed: then it has nothing that could be excused
            return []
        self._dead += addresses if is_killed else []
        return [Task.parse(key) for key in keys]

    async def _delete(self, pod: Json, grace: str) -> None:
        meta = pod["metadata"]
        words = ["delete", "pod", meta["name"], "--namespace", meta["namespace"], "--wait=false"]
        words += [f"--grace-period={grace}"] if grace else []
        await asyncio.to_thread(self._watch.admin, *words, *(["--force"] if grace == "0" else []))

    async def _evict(self, pod: Json) -> None:
        """As `kubectl drain` does: again while the API server says that it is too early."""
        meta = pod["metadata"]
        where = {"name": meta["name"], "namespace": meta["namespace"]}
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": where}
        path = PODS.path(meta["namespace"], meta["name"], "eviction")
        end = time.monotonic() + _EVICTION_S
        while time.monotonic() < end:
            try:
                await self._watch.api.create(path, body)
                break
            except NotFound:  # it has drained, and the operator was faster
                return
            except Throttled:
                await asyncio.sleep(5)
        await self._until_gone(pod)

    async def _until_gone(self, pod: Json) -> None:
        meta = pod["metadata"]
        while meta["name"] in self._watch.pods or machine.pids_of(meta["uid"]):
            await asyncio.sleep(0.5)


def _brief(error: Exception) -> str:
    return str(error).partition("\n")[0][:160]


async def _until_taken(call: Callable[[], Awaitable[Any]]) -> None:
    """Edits that must be made, whoever is away."""
    while True:
        try:
            await call()
            return
        except AssertionError:  # kubectl's
            await asyncio.sleep(1)


KINDS = (
    Kind("apiserver killed", 2, "node", Faults.outage),
    Kind("etcd killed", 1, "node", Faults.outage),
    Kind("apiserver and etcd killed", 1, "node", Faults.outage),
    Kind("kubelet killed", 2, "node", Faults.outage),
    Kind("node cordoned", 2, "cordon", Faults.cordon),
    Kind("operator's pod deleted", 2, "operator", Faults.operator),
    Kind("operator's process killed", 2, "operator", Faults.operator, needs_api=False),
    Kind("scheduler's pod deleted", 1, "scheduler", Faults.scheduler),
    Kind("scheduler's process killed", 1, "scheduler", Faults.scheduler, needs_api=False),
    Kind("worker's pod deleted", 5, "", Faults.worker),
    Kind("worker's pod evicted", 4, "", Faults.worker),
    Kind("worker's pod deleted with no grace", 2, "", Faults.worker),
    Kind("worker's processes killed", 1, "", Faults.worker, needs_api=False),
    Kind("policy edited", 6, "", Faults.edit),
    Kind("policy paused", 1, "mode", Faults.pause),
)
