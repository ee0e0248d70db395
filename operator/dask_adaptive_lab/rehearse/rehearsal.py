"""
A scheduler, worker processes and the loop that governs them, started and ended together; and a
script that runs in it while people watch.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.live import Live

from dask_adaptive.loop.one_pass import NO_STATUS, ClusterLoop, PassResult
from dask_adaptive.loop.ports import Event, LinkError, Platform, PlatformError, Ports, SchedulerLink
from dask_adaptive.loop.status import Status
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.plan import Decision
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.scaling import AUTO_S, MOST_S, GroupBounds
from dask_adaptive.model.scheduler_settings import of_scheduler, of_worker
from dask_adaptive.scheduler.calls import SchedulerCalls
from dask_adaptive.scheduler.link import Link, connect
from dask_adaptive_lab.local import LocalPlatform, LocalScheduler, Machine
from dask_adaptive_lab.rehearse import demo
from dask_adaptive_lab.rehearse.views import Page, PlainView, RehearsalFigures, Watcher
from dask_adaptive_lab.tally import tally_of
from dask_adaptive_lab.trace import TraceFile

#: Passes come faster than in a cluster: a rehearsal is watched by a person.
PASS_S = 0.5


class Rehearsal:
    """
    One cluster on this machine under one policy; an async context manager.

    Args:
        policy: May be replaced while it runs; the next pass obeys the new one. Its
            `scheduler.config` is what the scheduler starts with.
        directory: For logs and worker directories; must exist.
        watchers: Told of each pass and each event.
        initial: Workers that the cluster starts with, as `spec.worker.replicas` says.
        inject: Whether the scheduler preloads the agent.
        attach: Whether the loop may attach it to a scheduler that runs without.
        port: Of the scheduler; 0 takes a free one.
        timeout_s: For each call to the scheduler.
    """

    def __init__(
        self,
        policy: Policy,
        directory: Path,
        machine: Machine,
        *,
        watchers: tuple[Watcher, ...] = (),
        initial: int = 0,
        inject: bool = True,
        attach: bool = True,
        port: int = 0,
        timeout_s: float = 5.0,
    ) -> None:
        self.policy, self.key = policy, ClusterKey("local", policy.cluster)
        self._directory, self._machine, self._watchers = directory, machine, watchers
        self._worker_env = of_worker(policy.scheduler, os.environ).variables if inject else {}
        self._initial, self._attach, self._timeout_s = initial, attach, timeout_s
        # As the webhook does: what the shell says already counts, and without injection nothing.
        variables = of_scheduler(policy.scheduler, os.environ).variables if inject else {}
        self.scheduler = LocalScheduler(
            directory, port=port, inject=inject, python=machine.python, env=variables
        )
        self.platform: LocalPlatform
        self.link: Link
        self._calls: SchedulerCalls
        self.wrap_ports: Callable[[Platform, SchedulerLink], tuple[Platform, SchedulerLink]] = (
            lambda platform, link: (platform, link)
        )
        self._passes: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        return self.scheduler.address

    async def __aenter__(self) -> Rehearsal:
        await self.scheduler.start()
        self.platform = LocalPlatform(
            self.key, self._directory, self.address, self._machine, env=self._worker_env
        )
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

    def say(self, line: str) -> None:
        """Pass a line on to all watchers."""
        for watcher in self._watchers:
            watcher.said(line)

    # The reporter: the status reaches watchers with each pass.

    async def status(self, status: Status) -> None: ...

    async def tell(self, events: Sequence[Event]) -> None:
        for event in events:
            for watcher in self._watchers:
                watcher.happened(event)

    async def history(self, decisions: Sequence[Decision]) -> None: ...

    def start_loop(self, before: Status = NO_STATUS) -> None:
        """
        Begin to pass over the cluster with no memory of any loop before: a fresh operator.

        Args:
            before: The policy's status as it reads it; see `ClusterLoop`.
        """
        self.link = connect(
            self.address, attach=self._attach, governs=True, timeout_s=self._timeout_s
        )
        self._calls = SchedulerCalls(self.address, timeout_s=self._timeout_s)
        platform, link = self.wrap_ports(self.platform, self.link)
        ports = Ports(platform, link, self, time.monotonic)
        loop = ClusterLoop(self.key, ports, before)
        self._passes = asyncio.create_task(self._run(loop))

    async def stop_loop(self) -> None:
        """End the loop where it stands, as a killed operator would."""
        if self._passes is not None:
            self._passes.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._passes
            self._passes = None
            await self.link.close()
            await self._calls.close()

    def heard(self, line: str) -> None:
        """Pass a line of the script on, unless the loop has ended: that ends the script."""
        self.say(line)
        self.raise_if_broken()

    def raise_if_broken(self) -> None:
        """Raise what ended the loop, if anything did: a defect of ours."""
        if self._passes is not None and self._passes.done() and not self._passes.cancelled():
            self._passes.result()

    async def _run(self, loop: ClusterLoop) -> None:
        while True:
            with contextlib.suppress(PlatformError):  # seen again in the next pass
                result = await loop.one_pass(self.policy)
                if result.observed.scheduler.is_connected:
                    await self._count()
                for watcher in self._watchers:
                    watcher.saw(result)
            await asyncio.sleep(PASS_S)

    async def _count(self) -> None:
        with contextlib.suppress(LinkError):  # asked again after the next pass
            tally = await tally_of(self._calls)
            for watcher in self._watchers:
                watcher.counted(tally)


#: After the script, workers get their idleTimeout and this much more to leave.
SETTLE_S = 20.0


class _Tracing(Watcher):
    """Writes the load of each pass; a trace holds nothing of what was done."""

    def __init__(self, file: TraceFile) -> None:
        self._file = file

    def saw(self, result: PassResult) -> None:
        self._file.write(result.observed)


def rehearse(
    policy: Policy, script: Sequence[str], directory: Path, machine: Machine, *, name: str,
    trace: Path | None = None, watchers: Sequence[Watcher] = (),
) -> tuple[int, RehearsalFigures]:  # fmt: skip
    """
    Run a script (path and arguments; empty: the demo) under a policy, watched on standard output.

    Args:
        name: Of the policy's file.
        trace: Where what was to do is written, for `simulate`; None: nowhere.
        watchers: Told of it too.

    Returns:
        The script's exit code, and the figures that were shown.
    """
    default, console, page = _default(policy), Console(), Page(f"rehearsal of {name}")
    figures = RehearsalFigures(default.maximum)
    run = [sys.executable, *(script or [str(demo.__file__)])]
    directory.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        watchers = [figures, page, *watchers]
        if console.is_terminal:
            live = Live(console=console, get_renderable=lambda: page, refresh_per_second=4)
            stack.enter_context(live)
        else:
            watchers.append(PlainView(console))
        if trace is not None:
            trace.unlink(missing_ok=True)
            watchers.append(_Tracing(stack.enter_context(TraceFile(trace, every_s=PASS_S))))
        rehearsal = Rehearsal(
            policy,
            directory,
            replace(machine, groups=tuple(b.name for b in policy.bounds(default.name)[1:])),
            watchers=tuple(watchers),
            initial=min(1, default.maximum),  # as dask-kubernetes' own examples do
        )
        code = asyncio.run(_rehearse(rehearsal, run, figures))
    console.print(figures.table())
    return code, figures


async def _rehearse(rehearsal: Rehearsal, run: Sequence[str], figures: RehearsalFigures) -> int:
    async with rehearsal:
        rehearsal.say(f"scheduler at {rehearsal.address}")
        rehearsal.say(f"dashboard at {rehearsal.scheduler.dashboard}")
        code = await run_script(run, rehearsal.address, rehearsal.heard)
        if code == 0:
            await _until_settled(rehearsal, figures)
        return code


def _default(policy: Policy) -> GroupBounds:
    return policy.bounds(ClusterKey("local", policy.cluster).default_group)[0]


async def run_script(run: Sequence[str], address: str, said: Callable[[str], None]) -> int:
    """Run a script against a scheduler, passing on what it prints; returns its exit code."""
    env = {**os.environ, "DASK_SCHEDULER_ADDRESS": address, "PYTHONUNBUFFERED": "1"}
    script = await asyncio.create_subprocess_exec(
        *run, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    assert script.stdout is not None
    try:
        async for line in script.stdout:
            said(line.decode(errors="replace").rstrip())
        return await script.wait()
    finally:
        if script.returncode is None:
            script.send_signal(signal.SIGTERM)
            await script.wait()


async def _until_settled(rehearsal: Rehearsal, figures: RehearsalFigures) -> None:
    """Give idle workers the time to leave, so that the figures tell of it."""
    default = _default(rehearsal.policy)
    idle_s = MOST_S if default.idle_timeout_s == AUTO_S else default.idle_timeout_s
    for _ in range(int((idle_s + SETTLE_S) / 0.2)):
        rehearsal.raise_if_broken()
        if figures.present <= default.minimum:
            return
        await asyncio.sleep(0.2)
