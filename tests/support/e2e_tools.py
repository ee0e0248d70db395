"""Our own programs, run on this machine as people run them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from support.e2e_cluster import LiveCluster
from support.kube_server import ROOT
from support.ports import free_port

_CLI = ["-m", "dask_adaptive.cli.main"]
_FATAL = [str(ROOT / "tests/e2e/fatal_operator.py")]


async def dask_adaptive(c: LiveCluster, *words: str) -> str:
    """Output of `dask-adaptive …` in the cluster's namespace."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, *_CLI, *words, "--namespace", c.namespace,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert 0 == process.returncode, f"dask-adaptive {' '.join(words)}: {err.decode()}"
    return out.decode()


@asynccontextmanager
async def operator_here(
    c: LiveCluster, log: Path, *, fatal: Sequence[str] = ()
) -> AsyncIterator[asyncio.subprocess.Process]:
    """
    Run an operator on this machine, for the cluster's namespace only.

    Args:
        fatal: At which point, and when, it kills itself: see tests/e2e/fatal_operator.py.
    """
    program = [*_FATAL, *fatal] if fatal else _CLI
    options = ["--dev", "--namespace", c.namespace, "--http-port", str(free_port())]
    options += ["--lease-namespace", c.namespace]
    with log.open("ab") as out:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *program, "run", *options, stdout=out, stderr=out,
            env={**os.environ, "PYTHONPATH": str(ROOT / "operator")},
        )  # fmt: skip
    c.more_to_tell = [lambda: f"operator here ({fatal}):\n{log.read_text()[-4000:]}"]
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            await process.wait()


async def until_killed(c: LiveCluster, process: asyncio.subprocess.Process) -> None:
    """Wait until an operator has killed itself."""
    await c.until(lambda: process.returncode is not None, "the operator reaches its fatal point")
    assert -signal.SIGKILL == process.returncode, c.more_to_tell[0]()
