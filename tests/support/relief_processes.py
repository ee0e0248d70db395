"""Schedulers and workers as processes, with the agent's reliefs and without."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dask_adaptive_agent import wire
from dask_adaptive_agent.relief.registry import VARIABLE

ROOT = Path(__file__).resolve().parents[2]
PRELOAD = {"DASK_DISTRIBUTED__SCHEDULER__PRELOAD": "dask_adaptive_agent.preload"}
#: All processes can import the same, whether they run the agent or not.
PATH = f"{ROOT / 'operator'}{os.pathsep}{ROOT / 'tests'}"
ALL_OFF = ",".join(f"{name}={wire.DISABLED}" for name in wire.RELIEFS)

#: What a scheduler's environment has, by the way in which it is run.
WAYS: dict[str, dict[str, str]] = {
    "without the agent": {},
    "with the agent": PRELOAD,
    "all reliefs off": {**PRELOAD, VARIABLE: ALL_OFF},
    "callables shared": {**PRELOAD, VARIABLE: f"pickling={wire.SHARED}"},
}


@contextmanager
def running(folder: Path, way: str) -> Iterator[Path]:
    """A scheduler and two workers, as processes; the file that tells where the scheduler is."""
    folder.mkdir()
    file = folder / "scheduler.json"
    bare = {k: v for k, v in os.environ.items() if not k.startswith(("DASK_", "PYTHONPATH"))}
    bare |= {"PYTHONWARNINGS": "ignore", "PYTHONPATH": PATH, "PYTHONHASHSEED": "0"}
    here = ["--dashboard-address", "127.0.0.1:0", "--no-dashboard", "--scheduler-file", str(file)]
    commands = [["dask_scheduler", "--host", "127.0.0.1", "--port", "0", *here]]
    for name in ("first", "second"):
        commands.append(
            ["dask_worker", "--scheduler-file", str(file), "--no-nanny", "--no-dashboard"]
        )
        commands[-1] += ["--nthreads", "1", "--name", name]
    processes = []
    try:
        for i, (module, *arguments) in enumerate(commands):
            with open(folder / f"{i}.log", "wb") as log:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", f"distributed.cli.{module}", *arguments],
                        env={**bare, **WAYS[way]} if i == 0 else bare,
                        cwd=folder, stdout=log, stderr=log,
                    )
                )  # fmt: skip
        yield file
    finally:
        for process in reversed(processes):
            process.kill()
            process.wait()
