"""
Many simulated schedulers in one process, and one more port by which the bench drives them.

    python schedulers.py CLUSTER...        prints {"control": address, "clusters": {name: address}}
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from distributed.core import Server

from bench.scale.simulated import SimulatedScheduler, serve


class Farm:
    """The schedulers of some clusters. Each method is a message of the control port."""

    def __init__(self, names: Sequence[str]) -> None:
        self.schedulers = {name: SimulatedScheduler() for name in names}
        self.addresses: dict[str, str] = {}
        self._servers: dict[str, Any] = {}
        self._control: Any = None

    async def start(self) -> dict[str, Any]:
        for name, scheduler in self.schedulers.items():
            self._servers[name], self.addresses[name] = await serve(scheduler)
        self._control = Server(
            {
                "sim_join": self.join,
                "sim_leave": self.leave,
                "sim_load": self.load,
                "sim_delay": self.delay,
                "sim_fall_silent": self.fall_silent,
                "sim_die": self.die,
                "sim_retires": self.retires,
                "sim_observed": self.observed,
            }
        )
        await self._control.listen("tcp://127.0.0.1:0")
        return {"control": self._control.address, "clusters": self.addresses}

    async def join(self, rows: Mapping[str, Sequence[tuple[str, str]]]) -> str:
        for cluster, workers in rows.items():
            self.schedulers[cluster].join(workers)
        return "OK"

    async def leave(self, rows: Mapping[str, Sequence[str]]) -> str:
        for cluster, workers in rows.items():
            self.schedulers[cluster].leave(workers)
        return "OK"

    async def load(self, rows: Mapping[str, int]) -> dict[str, float]:
        """When each was told; the clock is the machine's monotonic one, the same everywhere."""
        return {cluster: self.schedulers[cluster].load(tasks) for cluster, tasks in rows.items()}

    async def delay(self, clusters: Sequence[str], delay_s: float) -> str:
        for cluster in clusters:
            self.schedulers[cluster].delay_s = delay_s
        return "OK"

    async def fall_silent(self, clusters: Sequence[str]) -> str:
        """A black hole: connections are taken, the handshake included, and nothing is said."""
        return await self.delay(clusters, 1e6)

    async def die(self, clusters: Sequence[str]) -> str:
        """Connections are refused from now on, and those that are there break."""
        for cluster in clusters:
            server = self._servers.pop(cluster)
            await server.close()
        return "OK"

    async def retires(self) -> list[tuple[str, str, float]]:
        """Who was asked to leave when, since the last time."""
        found = []
        for cluster, scheduler in self.schedulers.items():
            found += [(cluster, name, at) for name, at in scheduler.retires]
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
