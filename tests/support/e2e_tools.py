"""Our own command line, as people run it."""

from __future__ import annotations

import asyncio
import sys

from support.e2e_cluster import LiveCluster

_CLI = ["-m", "dask_adaptive.cli.main"]


async def dask_adaptive(c: LiveCluster, *words: str) -> str:
    """Output of `dask-adaptive …` in the cluster's namespace."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, *_CLI, *words, "--namespace", c.namespace,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert 0 == process.returncode, f"dask-adaptive {' '.join(words)}: {err.decode()}"
    return out.decode()
