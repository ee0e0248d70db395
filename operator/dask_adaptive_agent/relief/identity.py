"""
The reliefs `identity` and `host`: what a scheduler says of its workers.

**identity** answers the RPC from frames that are kept for a while. Before 2025.4.0 each client asks
every 2 s for all that is known of every worker: 870 kB and 5 ms of the scheduler's time at 800
workers. Later clients poll for five workers, or none, and that stays stock; but whoever waits for
workers still asks for all, ten times a second.

Whoever joins, leaves or changes status or resources is in the very next answer; metrics and
`last_seen`, which heartbeats bring every 0.5 to 5 s, may be as old as `MAX_AGE_S`, and in a small
cluster are younger: see `SHARE`. Callers within the process (`Scheduler.identity()`, the dashboard,
`subscribe_worker_status`) get the stock answer, and so do clients over inproc://, to whom objects
are handed as they are. Every answer is complete: a poll and an explicit `Client.scheduler_info()`
are the same message, so a slim answer to polls would be one to people too, as upstream's of
2025.4.0 to 2026.6.0. There, people ask for `scheduler_info(n_workers=-1)`, and are answered here.

**host** parses each worker's address once. Before 2025.4.0 `WorkerState.host` does so at each read:
800 times for one answer to `identity`, 5,000 times for `workers_to_close(key=lambda ws: ws.host)`.
"""

from __future__ import annotations

import functools
import inspect
import logging
import time
import zlib
from itertools import islice
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import msgpack  # type: ignore[import-untyped, unused-ignore]
from distributed import scheduler as upstream
from distributed.comm.ws import WSHandlerComm
from distributed.protocol import core as protocol
from distributed.protocol.serialize import Serialized
from distributed.scheduler import WorkerState

from dask_adaptive_agent import patching
from dask_adaptive_agent.relief.registry import Mismatch, Relief

logger = logging.getLogger(__name__)

#: The oldest that metrics get, in seconds.
MAX_AGE_S = 1.0

#: Answers are made anew as often as that costs no more than this share of the scheduler's time: at
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

_server_id, _status = attrgetter("server_id"), attrgetter("status")
_resources = attrgetter("resources")


def kept_answer(info: dict[str, Any], *, is_compressed: bool) -> tuple[Any, int]:
    """One answer, as bytes in a message, and how many bytes compression has saved."""
    frame = msgpack.packb(info, use_bin_type=True)
    nbytes = len(frame)
    header: dict[str, Any] = {"serializer": FAMILY}
    if is_compressed:
        frame = zlib.compress(frame, 1)
        header["compression"] = (COMPRESSION,)
    kept: Any = Serialized  # upstream's have no types
    return kept(header, [frame]), nbytes - len(frame)


class IdentityRelief(Relief):
    """Stands for `Scheduler.identity` in the scheduler's handlers."""

    name = "identity"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._workers: Any = self.place.scheduler.workers
        self._stock: Any = None
        self._kept: Any = None
        self._uses = self._saved = 0  # of the kept answer: how often, and bytes each time
        #: Of all workers: what must be as it was while the kept answer serves.
        self._facts: list[Any] = []
        self._until = 0.0
        self._counts = {"asked": 0, "made": 0, "stock": 0, "saved_bytes": 0}

    def install(self) -> None:
        identity = self.place.scheduler.identity
        arguments = list(inspect.signature(identity).parameters)
        if arguments not in ([], ["n_workers"]):
            raise Mismatch(f"Scheduler.identity takes {', '.join(arguments)}, which is not known")
        self._takes_n = bool(arguments)
        self._stock = self.patches.put(patching.IDENTITY_RPC, lambda stock: self.identity).stock
        info = identity()
        info["workers"] = dict(islice(info["workers"].items(), 50))
        expected = repr(_read(info))
        for is_compressed in (False, True):
            if repr(_read(kept_answer(info, is_compressed=is_compressed)[0])) != expected:
                raise Mismatch("an answer that was kept does not read as a fresh one does")

    def uninstall(self) -> None:
        self._kept = None
        self._facts = []
        super().uninstall()

    def counts(self) -> dict[str, int]:
        return dict(self._counts)

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
            self.place.give_up(f"the answer to identity can't be kept: {error!r:.200}")
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
        workers = list(map(self._workers.get, self._workers))
        # Resources are changed in place, and handed to whoever asks.
        facts = [*map(_server_id, workers), *map(_status, workers)]
        facts += map(dict, map(_resources, workers))
        now = self.place.clock()
        if self._kept is None or now >= self._until or facts != self._facts:
            is_popular = self._kept is not None and self._uses >= POPULAR
            self._kept = None
            begun = time.perf_counter()
            info = self.place.scheduler.identity()
            self._kept, self._saved = kept_answer(info, is_compressed=is_popular)
            took = time.perf_counter() - begun
            self._facts, self._uses = facts, 0
            self._until = now + min(MAX_AGE_S, took / SHARE)
            self._counts["made"] += 1
        self._uses += 1
        self._counts["saved_bytes"] += self._saved
        return self._kept


def _read(message: Any) -> Any:
    """As it arrives at a client."""
    return protocol.loads(protocol.dumps(message))  # type: ignore[no-untyped-call]


@functools.lru_cache(maxsize=50_000)  # some 200 bytes each
def host_of(address: str) -> str:
    """The host of a worker's address, as upstream has it."""
    # Looked up at each use: others may replace it.
    host: str = vars(upstream)["get_address_host"](address)
    return host


class HostRelief(Relief):
    """`WorkerState.host`, parsed once for each address."""

    name = "host"

    @classmethod
    def needless(cls) -> str:
        # A slot since 2025.4.0, set by WorkerState.__init__.
        if isinstance(WorkerState.__dict__.get("host"), property):
            return ""
        return "this release parses a worker's address once"

    def install(self) -> None:
        self.patches.put(patching.HOST, _remembering)
        for ws in self.place.scheduler.workers.values():
            if ws.host != host_of.__wrapped__(ws.address):
                raise Mismatch(f"the host of {ws.address} is not what upstream makes of it")

    def uninstall(self) -> None:
        super().uninstall()
        host_of.cache_clear()

    def counts(self) -> dict[str, int]:
        return {"addresses": host_of.cache_info().currsize}


def _remembering(stock: Any) -> property:
    """Raises `Mismatch` unless upstream's answer follows from an address alone."""
    address = "tcp://192.0.2.1:8786"
    try:
        known = stock.fget(SimpleNamespace(address=address)) == host_of.__wrapped__(address)
    except Exception as error:
        raise Mismatch(f"WorkerState.host asks more than its address: {error!r:.200}") from None
    if not known or stock.fset is not None:
        raise Mismatch("WorkerState.host is not what upstream makes of an address")
    return property(lambda ws: host_of(ws.address), doc=stock.__doc__)
