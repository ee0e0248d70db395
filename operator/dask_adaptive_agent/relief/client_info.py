"""
Has clients ask the scheduler for news no more often than somebody looks at them.

Since 2025.4.0 the scheduler answers a client's heartbeat with an interval for heartbeats and polls.

**Worker clients** (`get_client`, `worker_client`: ids begin with `Client-worker-`) poll like those
of people, and live as long as their worker; nobody looks at what they hear. They get `QUIET_S`.
Nothing reads `ClientState.last_seen`, and TCP's keepalive notices a dead peer; but over websockets,
where proxies cut a connection that is silent for a minute, heartbeats go on as upstream has them.

**Clients of people** keep the intervals they were configured with while no more than `FEW` of them
are connected: `FEW` that poll every 2 s, as is the default, cost 1 ms a second. Upstream would make
of one poll an hour one every 5 s. With more, upstream's rule serves, `heartbeat_interval(n) * 10`,
where n counts clients of people only. Who has been told an interval follows the rule from then on,
as nobody knows what was configured; so do clients that were connected before the agent came.

**Before 2025.4.0** no message tells a client to poll less. A variable in the pods of workers slows
their clients down (`scheduler_settings.of_worker`), and `identity` answers from kept frames.
"""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import Any

from distributed import Client
from distributed.comm.ws import WSHandlerComm
from distributed.scheduler import heartbeat_interval

from dask_adaptive_agent import patching
from dask_adaptive_agent.relief.registry import Mismatch, Relief

#: Seconds between two heartbeats, and two polls, of a worker client. Connection tables forget after
#: 900 s (IPVS): they still hear of each.
QUIET_S = 600.0

#: Clients of people that keep their own intervals.
FEW = 20

PREFIX = "Client-worker-"


def has_slim_polls() -> bool:
    """Tells whether clients poll for less than everything, and heed an interval: since 2025.4.0."""
    return hasattr(Client, "_adjust_heartbeat_intervals")


class ClientInfoRelief(Relief):
    """Stands for `Scheduler.client_heartbeat` in the scheduler's stream handlers."""

    name = "clientInfo"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._scheduler: Any = self.place.scheduler
        self._stock: Any = None
        self._told: dict[str, float] = {}  # seconds, by id; 0: what upstream has said
        self._people, self._count_until = 0, -math.inf
        self._counts = {"heartbeats": 0, "adjusted": 0}

    @classmethod
    def needless(cls) -> str:
        if has_slim_polls():
            return ""
        return "in this release a scheduler can't tell clients to poll less; pods of workers do"

    def install(self) -> None:
        _prove(type(self._scheduler).client_heartbeat)
        hook = self.patches.put(patching.CLIENT_HEARTBEAT, lambda stock: self.client_heartbeat)
        self._stock = hook.stock
        self._told = dict.fromkeys(self._scheduler.clients, 0.0)

    def uninstall(self) -> None:
        super().uninstall()
        interval = heartbeat_interval(len(self._scheduler.clients)) * 10
        for client in self._told:
            comm = self._scheduler.client_comms.get(client)
            if comm is not None and not comm.closed():
                self._send(client, interval)

    def counts(self) -> dict[str, int]:
        clients = self._scheduler.clients
        quiet = sum([client.startswith(PREFIX) for client in clients])
        return {**self._counts, "worker_clients": quiet}

    def client_heartbeat(self, client: str) -> None:
        """The handler. Each heartbeat of a client comes here."""
        if isinstance(self._scheduler.client_comms[client].comm, WSHandlerComm):
            self._stock(client=client)
            return
        self._counts["heartbeats"] += 1
        self._scheduler.clients[client].last_seen = time.time()
        interval = self._interval(client)
        if interval is not None and interval != self._told.get(client):
            # A client that has lost its connection comes back under its id, with what it was told.
            if len(self._told) > 2 * len(self._scheduler.clients) + 1000:
                self._told = {c: s for c, s in self._told.items() if c in self._scheduler.clients}
            self._told[client] = interval
            self._counts["adjusted"] += 1
            self._send(client, interval)

    def _interval(self, client: str) -> float | None:
        """Seconds it shall take from poll to poll; None: it is left to the client."""
        if client.startswith(PREFIX):
            return QUIET_S
        of_people = self._count_people()
        if of_people <= FEW and client not in self._told:
            return None
        return float(heartbeat_interval(of_people) * 10)

    def _count_people(self) -> int:
        now = self.place.clock()
        if now >= self._count_until:  # with thousands of clients, counting costs
            clients = self._scheduler.clients.keys() - {"fire-and-forget"}
            self._people = sum([not client.startswith(PREFIX) for client in clients])
            self._count_until = now + 1.0
        return self._people

    def _send(self, client: str, interval: float) -> None:
        message = {"op": "adjust-heartbeat-interval", "interval": interval}
        self._scheduler.client_comms[client].send(message)


def _prove(heartbeat: Any) -> None:
    """It notes the time, answers with an interval, and needs nothing else of a scheduler."""
    client = SimpleNamespace(last_seen=0.0)
    sent: list[dict[str, Any]] = []
    stand_in = SimpleNamespace(
        clients={"a": client}, client_comms={"a": SimpleNamespace(send=sent.append)}
    )
    try:
        heartbeat(stand_in, client="a")
    except Exception as error:
        raise Mismatch(f"heartbeats of clients do more than is known: {error!r:.200}") from None
    answer = {"op": "adjust-heartbeat-interval", "interval": heartbeat_interval(1) * 10}
    if sent != [answer] or client.last_seen < time.time() - 60:
        raise Mismatch("heartbeats of clients are answered in another way than is known")
