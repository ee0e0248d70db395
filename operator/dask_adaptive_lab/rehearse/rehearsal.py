"""
A scheduler, worker processes and the loop that governs them, started and ended together; and a
script that runs in it while people watch.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
from rich.live import Live

from dask_adaptive.cli.output import console
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
from dask_adaptive.text import plain
from dask_adaptive_lab.local import LocalPlatform, LocalScheduler, Machine, end, ending_signals
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
        # For spilled data. What is left there by a killed process goes with the folder.
        self._scratch = directory / "scratch"
        scratch = {"DASK_TEMPORARY_DIRECTORY": str(self._scratch)}
        of_policy = of_worker(policy.scheduler, os.environ).variables if inject else {}
        self._worker_env = {**of_policy, **scratch}
        self._initial, self._attach, self._timeout_s = initial, attach, timeout_s
        # As the webhook does: what the shell says already counts, and without injection nothing.
        variables = of_scheduler(policy.scheduler, os.environ).variables if inject else {}
        self.scheduler = LocalScheduler(
            directory, port=port, inject=inject, python=machine.python, env={**variables, **scratch}
        )
        self.platform: LocalPlatform
        self.link: Link
        self._calls: SchedulerCalls
        self.wrap_ports: Callable[[Platform, SchedulerLink], tuple[Platform, SchedulerLink]] = (
            lambda platform, link: (platform, link)
        )
        self._passes: asyncio.Task[None] | None = None
        self._ends = contextlib.AsyncExitStack()  # what has been started, and how it is ended

    @property
    def address(self) -> str:
        return self.scheduler.address

    async def __aenter__(self) -> Rehearsal:
        async with contextlib.AsyncExitStack() as ends:
            ends.callback(shutil.rmtree, self._scratch, ignore_errors=True)
            ends.push_async_callback(self.scheduler.process.end)
            await self.scheduler.start()
            self.platform = LocalPlatform(
                self.key, self._directory, self.address, self._machine, env=self._worker_env
            )
            ends.push_async_callback(self.platform.close)
            await self.platform.set_replicas(self.key.default_group, self._initial)
            self.start_loop()
            ends.push_async_callback(self.stop_loop)
            self._ends = ends.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._ends.aclose()

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


class Signals:
    """
    Ends a coroutine in order at a signal of `ending_signals()`; at a second one, kills what takes
    its time.

    Signals are held back until the context is left, so that nothing stays behind.
    """

    def __init__(self) -> None:
        self.code = 0  # exit code after a signal, as shells have it; 0: there was none
        self._cancel: Callable[[], object] | None = None

    def __enter__(self) -> Signals:
        self._before = {each: signal.signal(each, self._received) for each in ending_signals()}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _received(self, number: int, _: object) -> None:
        if self.code:
            for child in psutil.Process().children():
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    os.killpg(child.pid, signal.SIGKILL)  # it leads a session, which dies with it
            signal.signal(number, signal.SIG_DFL)  # the third one ends the program itself
            return
        self.code = 128 + number
        if self._cancel is not None:
            self._cancel()

    def run(self, work: Coroutine[object, object, int]) -> int:
        """Run it to its end, or until a signal comes; returns its result, or the exit code."""
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            task = loop.create_task(work)
            self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
            if self.code:
                task.cancel()
            try:
                return loop.run_until_complete(task)
            except asyncio.CancelledError:
                return self.code
            finally:
                self._cancel = None


def rehearse(
    policy: Policy, script: Sequence[str], directory: Path | None, machine: Machine, *, name: str,
    trace: Path | None = None, watchers: Sequence[Watcher] = (),
) -> tuple[int, RehearsalFigures]:  # fmt: skip
    """
    Run a script (path and arguments; empty: the demo) under a policy, watched on standard output.

    Args:
        directory: For logs; None: a temporary one.
        name: Of the policy's file.
        trace: Where what was to do is written, for `simulate`; None: nowhere.
        watchers: Told of it too.

    Returns:
        The exit code, of the script or for a signal, and the figures that were shown.
    """
    default, page = _default(policy), Page(f"rehearsal of {name}")
    screen = console()
    figures = RehearsalFigures(default.maximum)
    run = [sys.executable, *(script or [str(demo.__file__)])]
    watchers, code = [figures, page, *watchers], 0
    with Signals() as signals:
        try:
            with contextlib.ExitStack() as stack:
                if directory is None:
                    made = tempfile.TemporaryDirectory(prefix="dask-adaptive-")
                    directory = Path(stack.enter_context(made))
                directory.mkdir(parents=True, exist_ok=True)
                if screen.is_interactive:
                    live = Live(console=screen, get_renderable=lambda: page, refresh_per_second=4)
                    stack.enter_context(live)
                else:
                    watchers.append(PlainView(screen))
                if trace is not None:
                    trace.unlink(missing_ok=True)
                    file = stack.enter_context(TraceFile(trace, every_s=PASS_S))
                    watchers.append(_Tracing(file))
                rehearsal = Rehearsal(
                    policy,
                    directory,
                    replace(machine, groups=tuple(b.name for b in policy.bounds(default.name)[1:])),
                    watchers=tuple(watchers),
                    initial=min(1, default.maximum),  # as dask-kubernetes' own examples do
                )
                code = signals.run(_rehearse(rehearsal, run, figures))
            screen.print(figures.table())
        except OSError:
            if not signals.code:
                raise
            # The terminal was closed: there is nobody to show the figures to.
    return signals.code or code, figures


async def _rehearse(rehearsal: Rehearsal, run: Sequence[str], figures: RehearsalFigures) -> int:
    rehearsal.say("starting the scheduler and the first worker")
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
        *run,
        env=env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
        limit=1 << 26,  # of a line: bars of progress are one, with many beginnings
    )
    assert script.stdout is not None
    try:
        async for line in script.stdout:
            said(plain(line.decode(errors="replace").rstrip().rpartition("\r")[2]))
        code = await script.wait()
        return code if code >= 0 else 128 - code  # a signal ended it
    finally:
        await end(script)


async def _until_settled(rehearsal: Rehearsal, figures: RehearsalFigures) -> None:
    """Give idle workers the time to leave, so that the figures tell of it."""
    default = _default(rehearsal.policy)
    idle_s = MOST_S if default.idle_timeout_s == AUTO_S else default.idle_timeout_s
    rehearsal.say(f"The script has ended. Idle workers get {idle_s + SETTLE_S:.0f} s to leave.")
    for _ in range(int((idle_s + SETTLE_S) / 0.2)):
        rehearsal.raise_if_broken()
        if figures.present <= default.minimum:
            return
        await asyncio.sleep(0.2)
