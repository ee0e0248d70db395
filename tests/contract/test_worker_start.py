"""How `dask worker` reads its command line and environment: `kube/worker_pods.py` does as well."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import dask.config
import pytest
from dask.system import CPU_COUNT
from distributed import Scheduler
from distributed.utils_test import gen_cluster

VARIABLE = "DASK_DISTRIBUTED__WORKER__RESOURCES"


@asynccontextmanager
async def started(s: Scheduler, *words: str, **env: str) -> AsyncIterator[None]:
    """A `dask worker`, until the block ends."""
    command = [sys.executable, "-m", "dask", "worker", s.address, "--no-dashboard", *words]
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, **env},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


async def joined(s: Scheduler, number: int) -> None:
    for _ in range(600):
        if len(s.workers) == number:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{len(s.workers)} of {number} workers joined")


@pytest.mark.thorough
@gen_cluster(nthreads=[], timeout=90)
async def test_options_count_for_each_process(s: Scheduler) -> None:
    words = ("--nworkers", "2", "--nthreads", "1", "--nthreads=3", "--resources", "GPU=1, FOO=2")
    async with started(s, *words, **{f"{VARIABLE}__BAR": "9"}):
        await joined(s, 2)

        for ws in s.workers.values():
            assert 3 == ws.nthreads
            assert {"GPU": 1.0, "FOO": 2.0} == dict(ws.resources)


@pytest.mark.thorough
@gen_cluster(nthreads=[], timeout=90)
async def test_a_resource_in_a_variable_has_a_name_in_lower_case(s: Scheduler) -> None:
    async with started(s, "--no-nanny", "--nthreads", "0", **{f"{VARIABLE}__GPU": "2"}):
        await joined(s, 1)

        (ws,) = s.workers.values()
        assert {"gpu": 2.0} == dict(ws.resources)
        assert CPU_COUNT == ws.nthreads


def test_a_dict_in_a_variable_keeps_its_names() -> None:
    found = dask.config.collect_env({VARIABLE: "{'Foo': 1}"})

    assert {"Foo": 1} == found["distributed"]["worker"]["resources"]
