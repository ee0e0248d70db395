"""
Three workloads as people write them: `workloads.py NAME`, on the cluster at hand.

Each is large enough that all workers are worth having. Of work that is on the edge of asking for
one worker more, chance decides in reality, and one worker more or less is 25 % here.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from dask.distributed import Client


def work(_: Any, seconds: float) -> int:
    time.sleep(seconds)
    return 1


def burst_and_tail(client: Any) -> None:
    """Many short tasks, a few long ones, and then something small."""
    short = client.map(work, range(80), seconds=0.5, pure=False, key="short")
    long = client.map(work, range(2), seconds=12.0, pure=False, key="long")
    client.gather([*short, *long])
    del short, long
    client.submit(work, 0, seconds=1.0, key="last").result()


def waves(client: Any) -> None:
    """A notebook: each cell waits for its result, and somebody reads it."""
    for n in range(3):
        client.gather(client.map(work, range(24), seconds=2.0, pure=False, key=f"wave-{n}"))
        time.sleep(4.0)


def stages(client: Any) -> None:
    """Each stage hangs on the one before; the whole runs twice."""
    for n in range(2):
        parts = client.map(work, range(24), seconds=2.0, pure=False, key=f"load-{n}")
        groups = [parts[i : i + 4] for i in range(0, 24, 4)]
        sums = client.map(work, groups, seconds=2.0, pure=False, key=f"join-{n}")
        client.submit(work, sums, seconds=3.0, pure=False, key=f"write-{n}").result()
        del parts, groups, sums
        time.sleep(2.0)


WORKLOADS = {"burst-and-tail": burst_and_tail, "waves": waves, "stages": stages}

if __name__ == "__main__":
    make: Any = Client
    with make() as connected:  # the address comes from DASK_SCHEDULER_ADDRESS
        WORKLOADS[sys.argv[1]](connected)
