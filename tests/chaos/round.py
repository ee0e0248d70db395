"""One round of chaos: a world by a seed, faults on a timeline, and what must be so at its end."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import inspect
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from bench.scale import bodies
from chaos.apiserver import ApiServer, Trouble, kubeconfig_of
from chaos.clock import Pace
from chaos.faults import MAKERS, PARTIAL, Fault, schedule
from chaos.judge import Judge
from chaos.kubernetes import LEAST, Cluster, Kubernetes
from chaos.store import Backup, Store
from dask_adaptive.controller.lease import lease_name
from dask_adaptive.controller.visits import LONGEST_BACKOFF_S
from dask_adaptive.kube.api import LEASES
from dask_adaptive.model.policy import DEFAULT_CONTROLLER
from support.forked_processes import ForkedProcess
from support.ports import free_port

#: After the last fault the world has to be as policies want it within so long, and to stay so. A
#: cluster that nobody wakes rests for the longest backoff first.
SETTLE_S, STAY_S = LONGEST_BACKOFF_S + 30.0, 2.0

#: How long after more work has come to a cluster that no fault is about, `replicas` is raised.
REACTION_S = 6.0

#: An operator that is told to end has ended by then; a pod's grace.
END_S = 30.0

#: What is logged where nobody has thought of something. (kopf logs what ends it as errors, too.)
_BUGS = ("ERROR   dask_adaptive", "internal error", "was never retrieved", "was never awaited")


@dataclass(frozen=True)
class Plan:
    """How a round is made."""

    seed: int
    faults: int = 10
    only: tuple[str, ...] = ()  # names of `MAKERS`; empty: all
    without: tuple[str, ...] = ()
    mutant: str = "none"


@dataclass
class Result:
    plan: Plan
    wrong: list[str] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    settled_s: float | None = None
    reactions_s: list[float] = field(default_factory=list)
    exits: int = 0  # of operators by themselves


@dataclass
class Process:
    """An operator, which a kubelet starts again when it ends."""

    who: str
    log: Path
    process: ForkedProcess | None = None
    http_port: int = 0
    is_told: bool = False  # to end
    was_killed: bool = False
    exits: int = 0
    logged: int = 0  # bytes, before the present process began

    def __post_init__(self) -> None:
        self.log.touch()  # one that is told to end at once writes none

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def last_words(self) -> str:
        return (self.log.read_text().strip().splitlines() or [""])[-1]

    @property
    def has_reason(self) -> bool:
        """It has said why it ended by itself, or was told to end before it had begun."""
        if self.log.stat().st_size == self.logged:
            return self.process is not None and self.process.returncode == -signal.SIGTERM
        return self.last_words.startswith("Error: ")

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.returncode is None


class World:
    """
    All that there is in a round.

    Attributes:
        wrong_s: By how much the API server's clock is wrong.
        is_partial: No fault is about the last cluster, which must not feel any.
    """

    def __init__(self, plan: Plan, folder: Path, fork_server: Path, pace: Pace) -> None:
        self.plan, self._folder, self._fork_server = plan, folder, fork_server
        dice = random.Random(plan.seed)  # for what is the same each time
        self.dice = random.Random(plan.seed)  # for what depends on who comes first
        self.result = Result(plan)
        self._clock = asyncio.get_running_loop().time
        self._began, self._pace, self.wrong_s = self._clock(), pace, 0.0
        names = [n for n in plan.only or MAKERS if n not in plan.without]
        self.is_partial = dice.random() < 0.35 and bool(set(names) & set(PARTIAL))
        self.is_namespaced = self.is_partial or dice.random() < 0.5
        names = [n for n in names if n in PARTIAL or not self.is_partial]
        names = [n for n in names if n != "namespace_forbidden" or self.is_namespaced]
        self.namespaces = ("a", "b")
        self.clusters = [
            Cluster(bodies.Cluster(f"c{i}", self.namespaces[i // 3], dice.randint(1, 3)))
            for i in range(6)
        ]
        self.store = Store(lambda: time.time() + self.wrong_s)
        self.kubernetes = Kubernetes(
            self.store, self.clusters, self.dice, self._background, self.tell, self.wrong
        )
        self.kubernetes.scaled = self._scaled
        self.operators: dict[str, Process] = {}
        self.judge = Judge(self.kubernetes, self.operators, self._pace, self.tell, self.wrong)
        self._users: dict[str, str] = {}
        self.server = ApiServer(self.store, self._users, self.judge.write, self.judge.refused)
        self._backups: collections.deque[tuple[float, Backup]] = collections.deque(maxlen=40)
        self._tasks: set[asyncio.Task[None]] = set()
        self._asked: tuple[float, int] | None = None  # since when the last cluster needs how many
        self._is_over = False
        self._faults = schedule(self, dice, plan.faults, names)

    def tell(self, text: str) -> None:
        self.result.story.append(f"{self._clock() - self._began:7.2f} s  {text}")

    def wrong(self, text: str) -> None:
        self.tell(f"WRONG: {text}")
        self.result.wrong.append(text)

    async def play(self) -> Result:
        async with self._running():
            await self._settle("at the start")
            users = self._background(self._use())
            began = self._clock()
            doing = []
            for at, name, fault in self._faults:
                await asyncio.sleep(max(began + at - self._clock(), 0.0))
                doing.append(asyncio.create_task(self._do(name, fault)))
            await asyncio.gather(*doing)
            users.cancel()
            self.tell("the last fault is over")
            self._reacts()
            self.result.settled_s = await self._settle("after the last fault")
            await self._probe()
        self._read_logs()
        return self.result

    async def _do(self, name: str, fault: Fault) -> None:
        self.result.faults[name] += 1
        self.tell(f"FAULT {name} {fault.about} for {fault.seconds:.0f} s")
        if fault.trouble is not None:
            self.server.troubles.append(fault.trouble)
        await self._step(fault.begin(self))
        await asyncio.sleep(fault.seconds)
        if fault.trouble in self.server.troubles:
            self.server.troubles.remove(fault.trouble)
        await self._step(fault.end(self))
        self.tell(f"over: {name} {fault.about}")

    async def _step(self, work: Any) -> None:
        self.server.stir()
        if inspect.isawaitable(work):
            await work

    # Operators.

    async def start_operator(self, who: str = "") -> None:
        who = who or f"operator-{len(self.operators) + 1}"
        self._users[who] = who
        one = self.operators.setdefault(who, Process(who, self._folder / f"{who}.log"))
        if one.runs:
            return
        kubeconfig = self._folder / f"{who}.kubeconfig"
        kubeconfig.write_text(kubeconfig_of(self.server.port, who))
        one.http_port, one.was_killed, one.is_told = free_port(), False, False
        wrong_s = self.dice.choice((0, 0, 600, -600))
        command = [
            "chaos.operator", str(wrong_s), self.plan.mutant, "run", "--kubeconfig",
            str(kubeconfig), "--http-port", str(one.http_port), "--identity", who,
            "--lease-namespace", "default",
        ]  # fmt: skip
        if self.is_namespaced:
            command += [word for name in self.namespaces for word in ("--namespace", name)]
        one.logged = one.log.stat().st_size
        one.process = await ForkedProcess.fork(self._fork_server, command, one.log, {})
        self.tell(f"{who} starts; its clock is {wrong_s:+} s wrong")
        self._background(self._look_after(one, one.process))

    async def _look_after(self, one: Process, process: ForkedProcess) -> None:
        """As the kubelet does."""
        code = await process.wait()
        self.tell(f"{one.who} ended with {code}: {one.last_words}")
        if one.is_told:
            return
        wait_s = 1.0
        if not one.was_killed:
            self.result.exits += 1
            wait_s = min(10.0 * one.exits, 40.0)
            one.exits += 1
            if code == 0 or not one.has_reason:
                self.wrong(f"{one.who} ended by itself, code {code}, without a reason")
        await asyncio.sleep(wait_s)
        if not self._is_over:
            await self.start_operator(one.who)

    def kill(self, who: str, when: str) -> None:
        """One operator, of this name if one is given."""
        running = [o for o in self.operators.values() if o.runs and who in ("", o.who)]
        if running:
            one = self.dice.choice(running)
            one.was_killed = True
            self.tell(f"{one.who} is killed {when}")
            os.kill(one.pid, signal.SIGKILL)

    async def end_one(self) -> None:
        """Of several operators all but one are told to end."""
        wanted = [o for o in self.operators.values() if not o.is_told]
        self.dice.shuffle(wanted)
        for one in wanted[1:]:
            await self.end(one.who)

    async def end(self, who: str) -> None:
        one = self.operators[who]
        one.is_told = True
        if not one.runs or one.process is None:
            return
        self.tell(f"{one.who} is told to end")
        os.kill(one.pid, signal.SIGTERM)
        began = self._clock()
        while one.runs and self._clock() - began < END_S + self._pace.late_s(began):
            await asyncio.sleep(0.5)
        if one.runs:
            self.wrong(f"{one.who} did not end within {END_S:g} s")
            os.kill(one.pid, signal.SIGKILL)
        elif one.process.returncode and not one.was_killed and not one.has_reason:
            # It has not just been about to end by itself, either.
            self.wrong(f"{one.who} was told to end, and ended with {one.process.returncode}")

    def steal_lease(self) -> None:
        name = lease_name(DEFAULT_CONTROLLER)
        if self.store.find(LEASES, "default", name) is not None:
            spec = {"holderIdentity": "thief", "renewTime": self.store.stamp()}
            self.judge.holds(self.store.patch(LEASES, "default", name, {"spec": spec}))

    # The API server.

    def restore(self, ago_s: float) -> None:
        """etcd is what it was so long ago; dask-kubernetes looks at all anew."""
        wanted = self._clock() - ago_s
        _, backup = min(self._backups, key=lambda b: abs(b[0] - wanted))
        self.tell(f"etcd goes back from version {self.store.version} to {backup.version}")
        self.kubernetes.forget()
        self.store.restore(backup)
        self._backups.clear()
        for lease in self.store.all(LEASES):
            self.judge.holds(lease)

    def for_a_moment(self, trouble: Trouble) -> None:
        """What open streams meet once."""

        async def meet() -> None:
            self.server.troubles.append(trouble)
            self.server.stir()
            await asyncio.sleep(0.3)
            self.server.troubles.remove(trouble)

        self._background(meet())

    async def _keep_backups(self) -> None:
        while True:
            self._backups.append((self._clock(), self.store.backup()))
            await asyncio.sleep(0.5)

    # Users, and what they see.

    async def _use(self) -> None:
        """People change the load, pin workers; to the last cluster work comes often."""
        last = self.clusters[-1]
        while True:
            await asyncio.sleep(self.dice.uniform(1.0, 4.0))
            cluster = self.dice.choice([*self.clusters, last, last])
            if cluster is last:
                rises = cluster.tasks <= LEAST
                self._load(cluster, self.dice.randint(2, cluster.most) if rises else LEAST)
            else:
                self._use_one(cluster, self.dice.random())

    def _use_one(self, cluster: Cluster, what: float) -> None:
        scheduler = cluster.scheduler
        staying = [w.name for w in scheduler.workers.values() if w.leaving_at is None]
        if what < 0.6:
            self._load(cluster, self.dice.randint(0, 8))
        elif what < 0.7 and staying:
            scheduler.pinned = {self.dice.choice(staying)}
            self.tell(f"a client pins {', '.join(scheduler.pinned)}")
        elif what < 0.8:
            scheduler.pinned = set()
        elif what < 0.9:
            self.kubernetes.allow(cluster, self.dice.randint(4, 8))
        elif what < 0.95:
            self.tell(f"the process of {self.kubernetes.crash(cluster) or 'nobody'} ends")
        else:
            self.tell(f"a person deletes {self.kubernetes.remove(cluster) or 'nothing'}")

    def _load(self, cluster: Cluster, tasks: int) -> None:
        self.tell(f"{cluster.name} has {tasks} tasks now")
        cluster.load(tasks)
        if cluster is self.clusters[-1]:
            self._reacts()
            rises = tasks > self.kubernetes.replicas(cluster)
            self._asked = (self._clock(), tasks) if rises else None

    def _scaled(self, cluster: Cluster) -> None:
        """dask-kubernetes acts on another number."""
        if cluster is self.clusters[-1] and self._asked is not None:
            since, tasks = self._asked
            if self.kubernetes.replicas(cluster) >= tasks:
                if self.is_partial:
                    self.result.reactions_s.append(self._clock() - since)
                self._reacts()
                self._asked = None

    def _reacts(self) -> None:
        """Look whether the last cluster has waited too long, where it must feel no fault."""
        since = self._asked[0] if self._asked else self._clock()
        waited_s = self._clock() - since
        if self.is_partial and waited_s > REACTION_S + self._pace.late_s(since):
            self.wrong(
                f"{self.clusters[-1].name} waited {waited_s:.1f} s, and no fault is about it"
            )

    async def _settle(self, when: str) -> float | None:
        """Until all is as policies want it, and stays so; returns how long that took."""
        began, good_since = self._clock(), None
        while self._clock() - began < SETTLE_S + self._pace.late_s(began):
            problems = {c.name: self.kubernetes.unsettled(c) for c in self.clusters}
            if any(problems.values()):
                good_since = None
            elif good_since is None:
                good_since = self._clock()
            elif self._clock() - good_since >= STAY_S:
                self.tell(f"settled {when}")
                return good_since - began
            await asyncio.sleep(0.25)
        for name, problem in problems.items():
            if problem:
                self.wrong(f"{name} is not as it should be {SETTLE_S:.0f} s {when}: {problem}")
        return None

    async def _probe(self) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(5.0)) as session:
            for one in filter(lambda o: o.runs, self.operators.values()):
                for path in ("healthz", "readyz"):
                    try:
                        url = f"http://127.0.0.1:{one.http_port}/{path}"
                        async with session.get(url) as answer:
                            if answer.status != 200:
                                self.wrong(f"{one.who} is not well: {await answer.text()}")
                    except (TimeoutError, aiohttp.ClientError, OSError) as exc:
                        self.wrong(f"{one.who} does not answer {path}: {exc!r}")

    def _read_logs(self) -> None:
        for bug in self.server.bugs:
            self.wrong(f"chaos has a bug: {bug}")
        for one in self.operators.values():
            for line in one.log.read_text().splitlines():
                if any(word in line for word in _BUGS):
                    self.wrong(f"{one.who} has a bug: {line}")

    # All that runs.

    def _background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception():
            self.wrong(f"chaos has a bug: {task.exception()!r}")

    @contextlib.asynccontextmanager
    async def _running(self) -> AsyncIterator[None]:
        async with self.server.serving():
            for cluster in self.clusters:
                await cluster.start()
            self.kubernetes.set_up()
            for work in (self.kubernetes.run(), self._keep_backups()):
                self._background(work)
            await self.start_operator()
            try:
                yield
            finally:
                self._is_over = True
                for who in self.operators:
                    await self.end(who)
                tasks = list(self._tasks)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                for cluster in self.clusters:
                    await cluster.stop()
