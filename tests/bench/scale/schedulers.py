"""
Many simulated schedulers in one process, and one more port by which the bench drives them.

    python schedulers.py        reads [cluster, …]; prints {"control": address, "clusters": …}
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from typing import Any

from distributed.core import Server

from bench.scale.simulated import SimulatedScheduler, serve


class Farm:
    """The schedulers of some clusters."""

    def __init__(self, names: Sequence[str]) -> None:
        self.schedulers = {name: SimulatedScheduler() for name in names}
        self.addresses: dict[str, str] = {}
        self._servers: dict[str, Any] = {}
        self._control: Any = None

    async def start(self) -> dict[str, Any]:
        for name, scheduler in self.schedulers.items():
            self._servers[name], self.addresses[name] = await serve(scheduler)
        messages = (self.do, self.die, self.retires, self.observed)
        self._control = Server({f"sim_{message.__name__}": message for message in messages})
        await self._control.listen("tcp://127.0.0.1:0")
        return {"control": self._control.address, "clusters": self.addresses}

    async def do(self, cluster: str, what: str, about: Any) -> Any:
        """A method of a cluster's scheduler."""
        return getattr(self.schedulers[cluster], what)(about)

    async def die(self, cluster: str) -> str:
        """Connections are refused from now on, and those that are there break."""
        await self._servers.pop(cluster).close()
        return "OK"

    async def retires(self) -> list[tuple[str, str, float]]:
        """Who was asked to leave when, since the last time."""
        found = [(c, name, at) for c, s in self.schedulers.items() for name, at in s.retires]
        for scheduler in self.schedulers.values():
            scheduler.retires.clear()
        return found

    async def observed(self) -> dict[str, int]:
        return {cluster: s.observed for cluster, s in self.schedulers.items()}

    async def close(self) -> None:
        for server in [*self._servers.values(), self._control]:
            await server.close()


async def main() -> None:
    farm = Farm(json.loads(sys.stdin.readline()))
    print(json.dumps(await farm.start()), flush=True)
    # Until the one who started it closes the pipe, or ends.
    await asyncio.to_thread(sys.stdin.read)
    await farm.close()


if __name__ == "__main__":
    asyncio.run(main())
