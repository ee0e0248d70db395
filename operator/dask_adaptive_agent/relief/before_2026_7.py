"""
The reliefs `identity` and `clientInfo`, for releases before 2026.7.0: clients that ask for news.

From 2026.7.0 on a client's poll asks for no worker (`Client._update_scheduler_info`).

**identity** answers the RPC from frames that are kept for a while. Before 2025.4.0 each client asks
every 2 s for all that is known of every worker: 870 kB and 5 ms of the scheduler's time at 800
workers. Later clients poll for five workers, and that stays stock; but whoever waits for workers
still asks for all, ten times a second.

Whoever joins, leaves or changes status or resources is in the very next answer; metrics and
`last_seen`, which heartbeats bring every 0.5 to 5 s, may be as old as `MAX_AGE_S`, and in a small
cluster are younger: see `SHARE`. Callers within the process (`Scheduler.identity()`, the dashboard,
`subscribe_worker_status`) get the stock answer, and so do clients over inproc://, to whom objects
are handed as they are. Every answer is complete: a poll and an explicit `Client.scheduler_info()`
are the same message, so a slim answer to polls would be one to people too, as upstream's of
2025.4.0 to 2026.6.0. There, people ask for `scheduler_info(n_workers=-1)`, and are answered here.

**clientInfo** has clients of workers hardly ask at all. Since 2025.4.0 the scheduler answers a
client's heartbeat with an interval for heartbeats and polls. Worker clients (`get_client`,
`worker_client`: ids begin with `Client-worker-`) poll like those of people, and live as long as
their worker; nobody looks at what they hear. They get `QUIET_S`. Nothing reads
`ClientState.last_seen`, and TCP's keepalive notices a dead peer; but over websockets, where proxies
cut a connection that is silent for a minute, heartbeats go on as upstream has them. So do those of
people everywhere: their clients are slowed down by upstream's rule, and never ask more often.

Before 2025.4.0 no message tells a client to poll less. A variable in the pods of workers slows
their clients down (`scheduler_settings.of_worker`), and `identity` answers from kept frames.
"""

from __future__ import annotations

import inspect
import logging
import time
import zlib
from itertools import islice
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import msgpack  # type: ignore[import-untyped, unused-ignore]
from distributed.comm.ws import WSHandlerComm
from distributed.protocol import core as protocol
from distributed.protocol.serialize import Serialized
from distributed.scheduler import heartbeat_interval

from dask_adaptive_agent import patching
from dask_adaptive_agent.relief.registry import Mismatch, Relief

logger = logging.getLogger(__name__)

#: The oldest that metrics get, in seconds.
MAX_AGE_S = 1.0

#: Answers are renewed as often as that costs no more than this share of the scheduler's time: at
#: 800 workers about once a second, at 10 every few milliseconds.
SHARE = 1 / 250

#: When frames have answered so often, the next ones are compressed, fifteenfold: 2 ms at 800
#: workers, paid back by what sending 0.9 MB costs more than sending 60 kB.
POPULAR = 5

#: Over these, and websockets, messages are bytes. Over what we don't know, stock code answers.
SCHEMES = ("tcp://", "tls://")

#: What `Comm.write` makes of a dict, where `serialize` calls this family "msgpack"; each client has
#: its reader, and that of zlib, which needs no package.
FAMILY, COMPRESSION = "msgpack", "zlib"

#: Seconds between two heartbeats, and two polls, of a worker client. Connection tables forget after
#: 900 s (IPVS): they still hear of each.
QUIET_S = 600.0

PREFIX = "Client-worker-"

_server_id, _status, _resources = map(attrgetter, ("server_id", "status", "resources"))


def kept_answer(info: dict[str, Any], *, is_compressed: bool) -> Any:
    """One answer, as bytes in a message."""
    frame = msgpack.packb(info, use_bin_type=True)
    header: dict[str, Any] = {"serializer": FAMILY}
    if is_compressed:
        frame = zlib.compress(frame, 1)
        header["compression"] = (COMPRESSION,)
    kept: Any = Serialized  # upstream's have no types
    return kept(header, [frame])


class IdentityRelief(Relief):
    """Stands for `Scheduler.identity` in the scheduler's handlers."""

    name = "identity"

    def install(self) -> None:
        self._kept: Any = None
        self._uses = 0  # of the kept answer
        #: Of all workers: what must be as it was while the kept answer serves.
        self._facts: list[Any] = []
        self._until = 0.0
        self._counts = {"asked": 0, "made": 0, "stock": 0}
        identity = self.scheduler.identity
        arguments = list(inspect.signature(identity).parameters)
        if arguments not in ([], ["n_workers"]):
            raise Mismatch(f"Scheduler.identity takes {', '.join(arguments)}, which is not known")
        self._takes_n = bool(arguments)
        self._stock = self.patches.put(patching.IDENTITY_RPC, lambda stock: self.identity).stock
        info = identity()
        info["workers"] = dict(islice(info["workers"].items(), 50))
        expected = repr(_read(info))
        for is_compressed in (False, True):
            if repr(_read(kept_answer(info, is_compressed=is_compressed))) != expected:
                raise Mismatch("an answer that was kept does not read as a fresh one does")

    # Server.handle_comm gives `comm` to handlers whose first argument is called so, and
    # `serializers` to those that have an argument of that name. Others who call it have neither.
    def identity(self, comm: Any = None, serializers: Any = None, **request: Any) -> Any:
        """The handler: kept frames, or whatever stock code answers."""
        try:
            if self._may_be_kept(comm, serializers, request):
                return self._current()
        except Exception as error:
            # Fail open: metrics that are no plain data, above all.
            logger.debug("Failed to keep the answer to identity", exc_info=True)
            why = f"the answer to identity can't be kept: {error!r:.200}"
            self.reliefs.give_up(self.name, why)
        self._counts["stock"] += 1
        return self._stock(**request)

    def _may_be_kept(self, comm: Any, serializers: Any, request: dict[str, Any]) -> bool:
        return (
            comm is not None
            and (not request or (self._takes_n and request == {"n_workers": -1}))
            and (serializers is None or FAMILY in serializers)
            # A websocket's handler does not say its scheme.
            and (comm.peer_address.startswith(SCHEMES) or isinstance(comm, WSHandlerComm))
        )

    def _current(self) -> Any:
        self._counts["asked"] += 1
        # A SortedDict walks its values in Python code; its keys, and dict.get, are C: 40 us at 800
        # workers. A worker that comes back at its old address has another server_id.
        workers = list(map(self.scheduler.workers.get, self.scheduler.workers))
        # Resources are changed in place, and handed to whoever asks.
        facts = [*map(_server_id, workers), *map(_status, workers)]
        facts += map(dict.copy, map(_resources, workers))
        now = self.clock()
        if self._kept is None or now >= self._until or facts != self._facts:
            is_popular = self._kept is not None and self._uses >= POPULAR
            self._kept = None
            begun = time.perf_counter()
            info = self.scheduler.identity()
            self._kept = kept_answer(info, is_compressed=is_popular)
            took = time.perf_counter() - begun
            self._facts, self._uses = facts, 0
            self._until = now + min(MAX_AGE_S, took / SHARE)
            self._counts["made"] += 1
        self._uses += 1
        return self._kept


def _read(message: Any) -> Any:
    """The message that arrives at a client."""
    return protocol.loads(protocol.dumps(message))  # type: ignore[no-untyped-call]


class ClientInfoRelief(Relief):
    """Stands for `Scheduler.client_heartbeat` in the scheduler's stream handlers."""

    name = "clientInfo"

    def install(self) -> None:
        self._slowed: set[str] = set()  # ids of those that are quiet
        self._counts = {"heartbeats": 0, "adjusted": 0}
        _prove(type(self.scheduler).client_heartbeat)
        hook = self.patches.put(patching.CLIENT_HEARTBEAT, lambda stock: self.client_heartbeat)
        self._stock = hook.stock

    def uninstall(self) -> None:
        super().uninstall()
        interval = heartbeat_interval(len(self.scheduler.clients)) * 10
        for client in self._slowed:
            comm = self.scheduler.client_comms.get(client)
            if comm is not None and not comm.closed():
                self._send(client, interval)

    def client_heartbeat(self, client: str) -> None:
        """The handler. Each heartbeat of a client comes here."""
        comm = self.scheduler.client_comms[client].comm
        if not client.startswith(PREFIX) or isinstance(comm, WSHandlerComm):
            self._stock(client=client)
            return
        self._counts["heartbeats"] += 1
        self.scheduler.clients[client].last_seen = time.time()
        # A client that has lost its connection comes back under its id, with what it was told.
        if client not in self._slowed:
            if len(self._slowed) > 2 * len(self.scheduler.clients) + 1000:
                self._slowed &= self.scheduler.clients.keys()
            self._slowed.add(client)
            self._counts["adjusted"] += 1
            self._send(client, QUIET_S)

    def _send(self, client: str, interval: float) -> None:
        message = {"op": "adjust-heartbeat-interval", "interval": interval}
        self.scheduler.client_comms[client].send(message)


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
