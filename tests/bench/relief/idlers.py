"""
Many clients that only sit there, in one process.

    python idlers.py ADDRESS COUNT

Answers each line of standard input with how often they have asked who the scheduler is. What comes
back is read from the socket, but decoded only once: people's clients decode on machines of their
own, and the scheduler is what is measured.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from distributed import Client
from distributed.comm import tcp

#: Bytes above which a message is taken for the answer that all clients get.
LARGE = 10_000

asked = 0


class Idler(Client):
    async def _update_scheduler_info(self, *args: Any, **kwargs: Any) -> Any:
        global asked
        answer = await super()._update_scheduler_info(*args, **kwargs)
        asked += 1
        return answer


def decode_large_once() -> None:
    stock = tcp.from_frames
    known: list[Any] = []

    async def from_frames(frames: Any, *args: Any, **kwargs: Any) -> Any:
        if sum(memoryview(frame).nbytes for frame in frames) < LARGE:
            return await stock(frames, *args, **kwargs)
        if not known:
            known.append(await stock(frames, *args, **kwargs))
        return known[0]

    tcp.from_frames = from_frames


async def main() -> None:
    address, count = sys.argv[1], int(sys.argv[2])
    decode_large_once()
    clients = [Idler(address, asynchronous=True, set_as_default=False) for _ in range(count)]
    for client in clients:
        await client
    print(json.dumps({"ready": len(clients)}), flush=True)
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps({"asked": asked, "cpu_s": time.process_time()}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
