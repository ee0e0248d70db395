"""A scheduler, worker processes and the loop that governs them, started and ended together."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Protocol

from dask_adaptive.local.platform import LocalPlatform
from dask_adaptive.local.scheduler import LocalScheduler
from dask_adaptive.loop.one_pass import ClusterLoop, PassResult
from dask_adaptive.loop.ports import Event, Platform, PlatformError, Ports, SchedulerLink
from dask_adaptive.loop.status import Status
from dask_adaptive.model.environment import of_scheduler, of_worker
from dask_adaptive.model.history import KEPT, Decision
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import Mark
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.scheduler.link import Link, connect

#: Passes come faster than in a cluster: a rehearsal is watched by a person.
PASS_S = 0.5


class Watcher(Protocol):
    """Who follows a rehearsal: the live view, the recorder, a test."""

    def saw(self, result: PassResult) -> None: ...

    def happened(self, event: Event) -> None: ...


class _Reporter:
    """A `Reporter` that passes events on; the status reaches watchers with each pass."""

    def __init__(self, watchers: tuple[Watcher, ...]) -> None:
        self._watchers = watchers
        self.decisions: deque[Decision] = deque(maxlen=KEPT)

    async def status(self, status: Status) -> None:
        """Part of `PassResult`."""

    async def tell(self, events: Sequence[Event]) -> None:
        for event in events:
            for watcher in self._watchers:
                watcher.happened(event)

    async def history(self, decisions: Sequence[Decision]) -> None:
        self.decisions.extend(decisions)

    async def mark(self, worker: str, mark: Mark) -> None:
        """Processes of this machine have nobody who would evict them."""


class Rehearsal:
    """
    One cluster on this machine under one policy; an async context manager.

    Args:
        policy: May be replaced while it runs; the next pass obeys the new one. Its
            `scheduler.config` is what the scheduler starts with.
        directory: For logs, annotations and worker directories; must exist.
        watchers: Told of each pass and each event.
        capacity, nthreads, memory_limit, groups, walltime_s, nanny: As `LocalPlatform` takes them.
        initial: Workers that the cluster starts with, as `spec.worker.replicas` says.
        inject: Whether the scheduler preloads the agent.
        attach: Whether the loop may attach it to a scheduler that runs without.
        port: Of the scheduler; 0 takes a free one.
        timeout_s: For each call to the scheduler.
        python: The interpreter of scheduler and workers: another release of distributed.
    """

    def __init__(
        self,
        policy: Policy,
        directory: Path,
        *,
        watchers: tuple[Watcher, ...] = (),
        capacity: int = 64,
        nthreads: int = 1,
        memory_limit: str = "1GiB",
        groups: tuple[str, ...] = (),
        initial: int = 0,
        inject: bool = True,
        attach: bool = True,
        port: int = 0,
        timeout_s: float = 5.0,
        python: str = sys.executable,
        walltime_s: float = math.inf,
        nanny: bool = False,
    ) -> None:
        self.policy, self.key = policy, ClusterKey("local", policy.cluster)
        self._directory, self._watchers = directory, watchers
        self._local = {
            "capacity": capacity, "nthreads": nthreads, "memory_limit": memory_limit,
            "groups": groups, "python": python, "walltime_s": walltime_s, "nanny": nanny,
            "env": of_worker(policy.scheduler, os.environ).variables if inject else {},
            "manual_max_s": lambda: self.policy.pins.manual_max_s,
        }  # fmt: skip
        self._initial = initial
        self._attach, self._timeout_s = attach, timeout_s
        # As the webhook does: what the shell says already counts, and without injection nothing.
        variables = of_scheduler(policy.scheduler, os.environ).variables if inject else {}
        self.scheduler = LocalScheduler(
            directory, port=port, inject=inject, python=python, env=variables
        )
        self.platform: LocalPlatform
        self.link: Link
        self.wrap_ports: Callable[[Platform, SchedulerLink], tuple[Platform, SchedulerLink]] = (
            lambda platform, link: (platform, link)
        )
        self._passes: asyncio.Task[None] | None = None
        self._reporter = _Reporter(watchers)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """What the loops of this rehearsal have decided, oldest first; the last ones only."""
        return tuple(self._reporter.decisions)

    @property
    def address(self) -> str:
        return self.scheduler.address

    async def __aenter__(self) -> Rehearsal:
        await self.scheduler.start()
        local = dict(self._local)
        self.platform = LocalPlatform(self.key, self._directory, self.address, **local)  # type: ignore[arg-type]
        await self.platform.set_replicas(self.key.default_group, self._initial)
        self.start_loop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            await self.stop_loop()
        finally:
            await self.platform.close()
            await self.scheduler.process.end()

    def start_loop(
        self,
        leaving: Iterable[str] = (),
        recycled: Mapping[Reason, int] = MappingProxyType({}),
        recent: Iterable[float] = (),
    ) -> None:
        """
        Begin to pass over the cluster with no memory of any loop before: a fresh operator.

        Args:
            leaving, recycled, recent: What it reads from the policy's status; see `ClusterLoop`.
        """
        self.link = connect(
            self.address, attach=self._attach, governs=True, tally=True, timeout_s=self._timeout_s
        )
        platform, link = self.wrap_ports(self.platform, self.link)
        ports = Ports(platform, link, self._reporter, time.monotonic)
        loop = ClusterLoop(self.key, ports, leaving, recycled=recycled, recent=recent)
        self._passes = asyncio.create_task(self._run(loop))

    async def stop_loop(self) -> None:
        """End the loop where it stands, as a killed operator would."""
        if self._passes is not None:
            self._passes.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._passes
            self._passes = None
            await self.link.close()

    def raise_if_broken(self) -> None:
        """Raise what ended the loop, if anything did: a defect of ours."""
        if self._passes is not None and self._passes.done() and not self._passes.cancelled():
            self._passes.result()

    async def _run(self, loop: ClusterLoop) -> None:
        while True:
            with contextlib.suppress(PlatformError):  # seen again in the next pass
                result = await loop.one_pass(self.policy)
                for watcher in self._watchers:
                    watcher.saw(result)
            await asyncio.sleep(PASS_S)
