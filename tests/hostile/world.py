"""An operator's process, three honest clusters, and room for others beside them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from bench.scale import bodies
from chaos.apiserver import ApiServer, kubeconfig_of
from chaos.kubernetes import POLICY, Cluster, Kubernetes
from chaos.store import Store
from dask_adaptive.kube.api import CLUSTERS, DEPLOYMENTS, GROUPS, NAMESPACES, POLICIES, SERVICES
from support import kube_bodies
from support.kube_server import ROOT
from support.ports import free_port

#: By how much the process may grow, and what it may say of itself at a time.
MOST_MIB, MOST_LETTERS = 64, 300_000


class World:
    """
    Attributes:
        wrong: What must never be.
        scaled_s: How long honest clusters took to follow their load.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.canary = folder, folder / "canary"
        self.wrong: list[str] = []
        self.scaled_s: list[float] = []
        self.honest = [Cluster(bodies.Cluster(f"honest{i}", "a", 1)) for i in range(3)]
        self.store = Store(time.time)
        self._dice, self._tasks = random.Random(1), set[asyncio.Task[None]]()
        self.kubernetes = Kubernetes(
            self.store, self.honest, self._dice, self._background, lambda text: None,
            self.wrong.append,
        )  # fmt: skip
        self._server = ApiServer(self.store, {"operator": "operator"}, lambda *_: None)
        self._port, self._watched, self._log = free_port(), folder / "watched", folder / "log"
        self._process: asyncio.subprocess.Process | None = None

    def _background(self, work: Any) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Path]:
        """An API server, with a kubeconfig for it."""
        async with self._server.serving():
            for cluster in self.honest:
                await cluster.start()
            self.kubernetes.set_up()
            self.store.create(NAMESPACES, "", {"metadata": {"name": "b"}, "spec": {}})
            config = self.folder / "kubeconfig"
            config.write_text(kubeconfig_of(self._server.port, "operator"))
            try:
                yield config
            finally:
                for task in list(self._tasks):
                    task.cancel()
                for cluster in self.honest:
                    await cluster.stop()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[World]:
        """The operator, too."""
        async with self.serving() as config:
            self._background(self.kubernetes.run())
            path = os.pathsep.join(
                str(ROOT / folder) for folder in (os.environ.get("OPERATOR", "operator"), "tests")
            )
            env = {**os.environ, "PYTHONPATH": path, "HOSTILE_WATCH": str(self._watched)}
            with self._log.open("w") as log:
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "hostile.operator", "run", "--kubeconfig", str(config),
                    "--http-port", str(self._port), "--lease-namespace", "default",
                    stdout=log, stderr=log, env=env,
                )  # fmt: skip
            try:
                await self._until(lambda: not self._unsettled(), 60.0, "honest clusters settle")
                self._began_kib = self._rss_kib()
                yield self
                await self._look()
            finally:
                self._process.terminate()
                await self._process.wait()

    async def use(self) -> None:
        """Honest clusters get more and less work, until it is cancelled; each must follow."""
        while True:
            await self._use(self._dice.choice(self.honest))
            await asyncio.sleep(1.0)

    async def _use(self, cluster: Cluster) -> None:
        cluster.load(self._dice.choice([n for n in (1, 3, 6) if n > cluster.tasks] or [1]))
        began = time.monotonic()
        if cluster.tasks > self.kubernetes.replicas(cluster):
            await self._until(
                    lambda: self.kubernetes.replicas(cluster) >= cluster.tasks,
                    10.0, f"{cluster.name} follows",
                )  # fmt: skip
            self.scaled_s.append(time.monotonic() - began)

    def add(self, name: str, port: int) -> None:
        """A cluster of somebody else's, whose scheduler listens at a port."""
        body = bodies.Cluster(name, "b", 3)
        for kind, made in bodies.cluster_objects(body, policy=POLICY):
            self.store.create(kind, "b", made)
        for i in range(3):
            worker = f"{name}-default-worker-{i}"
            self.store.create(DEPLOYMENTS, "b", bodies.deployment(body, worker))
        self.store.create(SERVICES, "b", kube_bodies.service(name, "127.0.0.1", port))

    def take_away(self, name: str) -> None:
        for kind in (POLICIES, GROUPS, CLUSTERS, SERVICES, DEPLOYMENTS):
            for body in self.store.all(kind, "b"):
                if body["metadata"]["name"].startswith(name):
                    self.store.remove(kind, "b", body["metadata"]["name"])

    def status(self, name: str) -> dict[str, Any]:
        policy = self.store.find(POLICIES, "b", name) or {}
        return policy.get("status") or {}

    def deployments(self, name: str) -> int:
        found = self.store.all(DEPLOYMENTS, "b")
        return sum(b["metadata"]["name"].startswith(f"{name}-") for b in found)

    def _unsettled(self) -> str:
        return "".join(map(self.kubernetes.unsettled, self.honest))

    async def _until(self, holds: Any, most_s: float, what: str) -> None:
        began = time.monotonic()
        while not holds():
            if time.monotonic() > began + most_s:
                self.wrong.append(f"not within {most_s:g} s: {what}")
                return
            await asyncio.sleep(0.05)

    def _rss_kib(self, key: str = "VmRSS") -> int:
        assert self._process is not None
        rows = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return next(int(row.split()[1]) for row in rows if row.startswith(f"{key}:"))

    async def _look(self) -> None:
        """At the process, at the end."""
        assert self._process is not None
        if self._process.returncode is not None:
            self.wrong.append(f"the operator ended with {self._process.returncode}")
            return
        await self._ask()
        if self._watched.exists() and self._watched.read_text():
            self.wrong.append(self._watched.read_text()[:2000])
        if self.canary.exists():
            self.wrong.append("foreign code has run")
        grown_mib = (self._rss_kib("VmHWM") - self._began_kib) / 1024
        if grown_mib > MOST_MIB:
            self.wrong.append(f"it has grown by {grown_mib:.0f} MiB")
        self.wrong += _bugs(self._log.read_text())

    async def _ask(self) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(5.0)) as session:
            for path in ("readyz", "healthz", "metrics"):
                async with session.get(f"http://127.0.0.1:{self._port}/{path}") as answer:
                    text = await answer.text()
                    if answer.status != 200 or len(text) > MOST_LETTERS:
                        said = f"{answer.status}, {len(text):,} characters: {text[:300]}"
                        self.wrong.append(f"/{path} answers {said}")


def _bugs(log: str) -> list[str]:
    """What is logged where nobody has thought of something, with its last line."""
    rows = log.splitlines()
    words = ("internal error", "was never retrieved", "was never awaited", "Traceback")
    found = [row for row in rows if any(word in row for word in words)]
    ends = [row for row in rows if row[:1].isalpha() and "Error: " in row]
    escapes = ["escapes in the log"] if "\x1b" in log or "\u202e" in log else []
    return [*escapes, *sorted({row[-300:] for row in (*found, *ends)})[:20]]
