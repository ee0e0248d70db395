"""Pins from code against real processes: what is left when somebody is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time

from dask_adaptive_agent import wire
from support.agent_pins import pins, until_pins
from support.agent_work import OPERATOR
from support.stage import Start

DOOMED = """
import sys, time
from distributed import Client
from dask_adaptive_agent import pinned
with Client(sys.argv[1]) as client, pinned(ttl=sys.argv[2], reason="doomed"):
    print("pinned", flush=True)
    time.sleep(3600)
"""


def doomed(address: str, ttl: str) -> subprocess.Popen[str]:
    """A process that pins all workers until somebody ends it."""
    path = {**os.environ, "PYTHONPATH": str(OPERATOR)}
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", DOOMED, address, ttl],
        stdout=subprocess.PIPE, text=True, env=path,
    )  # fmt: skip
    assert process.stdout
    assert "pinned" == process.stdout.readline().strip()
    process.stdout.close()
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


async def test_a_killed_client_leaves_nothing(stage: Start) -> None:
    s = await stage(workers=2)
    address = s.rehearsal.address
    process = await asyncio.to_thread(doomed, address, "3s")
    try:
        assert [(wire.CLIENT, "doomed", sorted(s.names()))] == await pins(address)
        await s.change(minReplicas=0)
    finally:
        end(process)
    killed_at = time.monotonic()
    await until_pins(address, [])

    assert time.monotonic() - killed_at < 3 + 1
    await s.gone()
