"""
Has clients ask the scheduler for news no more often than somebody looks at them.

**Worker clients** (`get_client`, `worker_client`: ids begin with `Client-worker-`) poll like those
of people, and live as long as their worker; nobody looks at what they hear. A plugin has each
worker slow its own client down as soon as there is one, on every release. Since 2025.4.0 the
scheduler answers heartbeats with an interval for both, heartbeats and polls: worker clients get
`QUIET_S`. No release reads `ClientState.last_seen`; it is TCP's keepalive that notices a dead peer.
Over websockets, where proxies cut a connection that is silent for a minute, heartbeats go on as
upstream has them.

**Clients of people** keep the intervals they were configured with while no more than `FEW` of them
are connected. Upstream would overwrite `distributed.client.scheduler-info-interval` and
`distributed.client.heartbeat` in its answer to the first heartbeat, and make of one poll an hour
one every 5 s. `FEW` clients that poll every 2 s, as is the default, cost 1 ms a second. With more
clients upstream's rule serves, `heartbeat_interval(n) * 10`, where n counts clients of people only.
Who has been told an interval follows the rule from then on, as nobody knows what was configured;
so do clients that were connected before the agent came.

**Before 2025.4.0** no message tells a client of people to poll less: it would log an exception for
an operation that it has no handler for. A later client can't connect to such a scheduler at all, as
it asks `identity(n_workers=...)`. So the interval stays as it is, and `identity` answers from kept
frames. To answer late would slow polls down as well, but an explicit `scheduler_info()`,
`wait_for_workers` and every connection too.

**Without the agent** the environment of a worker's pod (`VARIABLE`) does as much before 2025.4.0;
later releases heed it for 5 s, until the answer to the first heartbeat overwrites it.
"""

from __future__ import annotations

import math
import pickle
import time
from types import SimpleNamespace
from typing import Any, ClassVar

from distributed import Client
from distributed.comm.ws import WSHandlerComm
from distributed.scheduler import heartbeat_interval
from distributed.worker import Worker

from dask_adaptive_agent import patching
from dask_adaptive_agent.relief.base import Mismatch, Relief
from dask_adaptive_agent.relief.errand import Errand
from dask_adaptive_agent.worker import Made

#: For the environment of pods of workers: their clients poll no more. Works by itself before
#: 2025.4.0; later schedulers overwrite it at the first heartbeat unless this relief is active.
VARIABLE, VALUE = "DASK_DISTRIBUTED__CLIENT__SCHEDULER_INFO_INTERVAL", "600s"

#: Seconds between two heartbeats, and two polls, of a worker client. 800 of them make 1.3 a second;
#: and connection tables (IPVS: 900 s) still hear of each.
QUIET_S = 600.0

#: So many clients of people are left alone.
FEW = 20

PREFIX = "Client-worker-"
NAME = "dask-adaptive-client-info"
HEARTBEAT = "heartbeat-client"

#: Runs in workers; see `Errand`. `scheduler-info` is the name of the client's poll.
IN_WORKERS = f"""
import logging
from distributed.diagnostics.plugin import WorkerPlugin

QUIET_MS = {QUIET_S * 1000}

class Quiet(WorkerPlugin):
    name = "{NAME}"
    ours = poll = before_ms = None

    def setup(self, worker):
        try:
            stock = worker._get_client

            def get_client(*args, **kwargs):
                client = stock(*args, **kwargs)
                try:
                    self.hush(client)
                except Exception:
                    logging.getLogger("dask_adaptive_agent").exception("A client polls on")
                return client

            self.ours = worker._get_client = get_client
            if worker._client is not None:
                self.hush(worker._client)
        except Exception:
            logging.getLogger("dask_adaptive_agent").exception("Clients of this worker poll on")

    def teardown(self, worker):
        try:
            if self.ours is not None and worker.__dict__.get("_get_client") is self.ours:
                del worker._get_client
            self.hush = lambda client: None
            if self.poll is not None:
                worker.loop.add_callback(pace, self.poll, self.before_ms)
        except Exception:
            logging.getLogger("dask_adaptive_agent").exception("A client does not poll again")

    def hush(self, client):
        poll = client._periodic_callbacks["scheduler-info"]
        if poll is self.poll or not client.id.startswith("{PREFIX}"):
            return
        if poll.callback_time < QUIET_MS:
            self.poll, self.before_ms = poll, poll.callback_time
            client.loop.add_callback(pace, poll, QUIET_MS)

def pace(poll, ms):
    is_running = poll.is_running()
    poll.stop()
    poll.callback_time = ms
    if is_running:
        poll.start()

plugin = Quiet()
"""


def has_slim_polls() -> bool:
    """Whether clients poll for less than everything, and heed an interval: since 2025.4.0."""
    return hasattr(Client, "_adjust_heartbeat_intervals")


class ClientInfo(Relief):
    """Says how often clients poll, and has those of workers poll hardly at all."""

    name: ClassVar[str] = "clientInfo"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._scheduler: Any = self.place.scheduler
        self._errand = Errand(self._scheduler, NAME, pickle.dumps(Made(IN_WORKERS), protocol=4))
        self._stock: Any = None
        self._told: dict[str, float] = {}  # seconds, by id; 0: what upstream has said
        self._people, self._count_until = 0, -math.inf
        self._is_on = False
        self._counts = {"heartbeats": 0, "adjusted": 0}

    def install(self) -> None:
        if not hasattr(Worker, "_get_client"):
            raise Mismatch("workers make their clients in another way than is known")
        if has_slim_polls():
            self._answer_heartbeats()
        self._errand.give()

    def uninstall(self) -> None:
        self._errand.take()
        if self._is_on:
            self._is_on = False
            super().uninstall()
            interval = heartbeat_interval(len(self._scheduler.clients)) * 10
            for client in self._told:
                if client in self._scheduler.client_comms:
                    self._send(client, interval)

    def counts(self) -> dict[str, int]:
        clients = self._scheduler.clients
        quiet = sum([client.startswith(PREFIX) for client in clients])
        return {**self._counts, "worker_clients": quiet}

    def _answer_heartbeats(self) -> None:
        handlers = self._scheduler.stream_handlers
        self._stock = handlers.get(HEARTBEAT)
        if self._stock != self._scheduler.client_heartbeat:
            raise Mismatch("somebody else answers heartbeats of clients already")
        _prove(self._stock.__func__)
        self._told = dict.fromkeys(self._scheduler.clients, 0.0)
        self.patches.put(patching.CLIENT_HEARTBEAT, lambda stock: self.client_heartbeat)
        self._is_on = True

    def client_heartbeat(self, client: str) -> None:
        """Stands for `Scheduler.client_heartbeat` in the scheduler's stream handlers."""
        if not self._is_on or self._is_over_websocket(client):
            self._stock(client=client)
            return
        self._counts["heartbeats"] += 1
        self._scheduler.clients[client].last_seen = time.time()
        interval = self._interval(client)
        if interval is not None and interval != self._told.get(client):
            self._forget_gone()
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

    def _is_over_websocket(self, client: str) -> bool:
        return isinstance(self._scheduler.client_comms[client].comm, WSHandlerComm)

    def _forget_gone(self) -> None:
        # A client that has lost its connection comes back under its id, with what it was told.
        if len(self._told) > 2 * len(self._scheduler.clients) + 1000:
            self._told = {c: s for c, s in self._told.items() if c in self._scheduler.clients}

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
