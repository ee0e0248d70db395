"""Run a script inside a rehearsal, and say what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from dask_adaptive.local.annotations import ENVIRONMENT
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.scaling import GroupBounds
from dask_adaptive.rehearse import demo
from dask_adaptive.rehearse.record import Figures, Recorder
from dask_adaptive.rehearse.rehearsal import Rehearsal, Watcher
from dask_adaptive.rehearse.tape import Tape
from dask_adaptive.rehearse.view import LiveView, PlainView, table_of

#: After the script, workers get their idleTimeout and this much more to leave.
SETTLE_S = 20.0


@dataclass(frozen=True, slots=True)
class Machine:
    """What of this machine the workers get; as `LocalPlatform` takes it."""

    capacity: int
    nthreads: int
    memory_limit: str


def rehearse(
    policy: Policy, script: Sequence[str], directory: Path, machine: Machine, *, title: str,
    plain: bool, trace: Path | None = None,
) -> tuple[int, Figures]:  # fmt: skip
    """
    Run a script (path and arguments; empty: the demo) under a policy, watched on standard output.

    Args:
        trace: Where what was to do is written, for `simulate`; None: nowhere.

    Returns:
        The script's exit code, and the figures that were shown.
    """
    console = Console()
    is_live = console.is_terminal and not plain
    view = LiveView(console, title) if is_live else PlainView(console)
    recorder = Recorder(_default(policy).maximum)
    run = [sys.executable, *(script or [str(demo.__file__)])]
    directory.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        tapes = [stack.enter_context(contextlib.closing(Tape(trace)))] if trace else []
        watchers = (recorder, view, *tapes)
        code = asyncio.run(_rehearse(policy, directory, run, watchers, recorder, view, machine))
    console.print(table_of(recorder.figures()))
    return code, recorder.figures()


async def _rehearse(
    policy: Policy, directory: Path, run: Sequence[str], watchers: tuple[Watcher, ...],
    recorder: Recorder, view: LiveView | PlainView, machine: Machine,
) -> int:  # fmt: skip
    rehearsal = Rehearsal(
        policy,
        directory,
        watchers=watchers,
        capacity=machine.capacity,
        nthreads=machine.nthreads,
        memory_limit=machine.memory_limit,
        initial=min(1, _default(policy).maximum),  # as dask-kubernetes' own examples do
    )
    with view:
        async with rehearsal:
            view.said(f"scheduler at {rehearsal.address}")
            view.said(f"dashboard at {rehearsal.scheduler.dashboard}")
            for line in missing_here(policy):
                view.said(line)
            code = await _run_script(run, rehearsal, directory, view)
            if code == 0:
                await _until_settled(rehearsal, recorder)
            return code


def missing_here(policy: Policy) -> list[str]:
    """What of a policy a rehearsal can't show, in sentences."""
    return [
        f"worker group {bounds.name} is not here: a rehearsal has only the default one, and tasks"
        f" that need a worker of {bounds.name} wait"
        for bounds in policy.bounds(_default(policy).name)[1:]
    ]


def _default(policy: Policy) -> GroupBounds:
    return policy.bounds(ClusterKey("local", policy.cluster).default_group)[0]


async def _run_script(
    run: Sequence[str], rehearsal: Rehearsal, directory: Path, view: LiveView | PlainView
) -> int:
    env = {
        **os.environ,
        "DASK_SCHEDULER_ADDRESS": rehearsal.address,
        "PYTHONUNBUFFERED": "1",
        ENVIRONMENT: str(directory),
    }
    script = await asyncio.create_subprocess_exec(
        *run, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    assert script.stdout is not None
    try:
        async for line in script.stdout:
            view.said(line.decode(errors="replace").rstrip())
            rehearsal.raise_if_broken()
        return await script.wait()
    finally:
        if script.returncode is None:
            script.send_signal(signal.SIGTERM)
            await script.wait()


async def _until_settled(rehearsal: Rehearsal, recorder: Recorder) -> None:
    """Give idle workers the time to leave, so that the figures tell of it."""
    policy, default = rehearsal.policy, _default(rehearsal.policy)
    limit_s, least = policy.idle_timeout_of(default) + SETTLE_S, default.minimum
    for _ in range(int(limit_s / 0.2)):
        rehearsal.raise_if_broken()
        if recorder.present <= least:
            return
        await asyncio.sleep(0.2)
