"""
Answers the RPC `identity` from frames that are kept for a while.

Before 2025.4.0 each client asks every 2 s for all that is known of every worker: 870 kB and 5 ms of
the scheduler's time at 800 workers. Later clients poll for five workers, or none, and that stays
stock; but whoever waits for workers still asks for all, ten times a second.

**What is fresh.** Whoever joins, leaves or changes status or resources is in the very next answer;
metrics and `last_seen`, which heartbeats bring every 0.5 to 5 s, may be as old as `MAX_AGE_S`, and
in a small cluster are younger: see `SHARE`. Callers within the process (`Scheduler.identity()`, the
dashboard, `subscribe_worker_status`) get the stock answer, and so do clients over inproc://, to
whom objects are handed as they are.

**What is complete.** Every answer. A poll and an explicit `Client.scheduler_info()` are the same
message, so a slim answer to polls would be one to people too: upstream's of 2025.4.0 to 2026.6.0,
five workers, broke them. That can't be mended here either: to answer those polls in full would cost
each client 5 MB and 12 ms a poll, asked for or not. There, people ask for
`scheduler_info(n_workers=-1)`, and are answered from here.
"""

from __future__ import annotations

import inspect
import logging
import time
import zlib
from itertools import islice
from operator import attrgetter
from typing import Any, ClassVar

import msgpack  # type: ignore[import-untyped, unused-ignore]
from distributed.comm.ws import WSHandlerComm
from distributed.protocol import core as protocol
from distributed.protocol.serialize import Serialized

from dask_adaptive_agent import patching
from dask_adaptive_agent.relief.base import Mismatch, Relief

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


class Kept:
    """One answer, as bytes, and what must not change while it stands."""

    def __init__(self, info: dict[str, Any], *, is_compressed: bool) -> None:
        frame = msgpack.packb(info, use_bin_type=True)
        self.nbytes = len(frame)
        self.uses = 0
        header: dict[str, Any] = {"serializer": FAMILY}
        if is_compressed:
            frame = zlib.compress(frame, 1)
            header["compression"] = (COMPRESSION,)
        self.saved = self.nbytes - len(frame)
        self.answer: Any = Serialized(header, [frame])  # type: ignore[no-untyped-call]


class Identity(Relief):
    """Stands for `Scheduler.identity` in the scheduler's handlers."""

    name: ClassVar[str] = "identity"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._workers: Any = self.place.scheduler.workers
        self._stock: Any = None
        self._kept: Kept | None = None
        self._members: list[str] = []
        self._states: list[Any] = []
        self._until = 0.0
        self._is_on = False
        self._counts = {"asked": 0, "made": 0, "stock": 0, "saved_bytes": 0}

    def install(self) -> None:
        handlers: Any = self.place.scheduler.handlers
        if handlers.get("identity") != self.place.scheduler.identity:
            raise Mismatch("somebody else answers identity on this scheduler already")
        arguments = list(inspect.signature(self.place.scheduler.identity).parameters)
        if arguments not in ([], ["n_workers"]):
            raise Mismatch(f"Scheduler.identity takes {', '.join(arguments)}, which is not known")
        self._takes_n = bool(arguments)
        self._stock = handlers["identity"]
        self._is_on = True
        self.patches.put(patching.IDENTITY_RPC, lambda stock: self.identity)

    def check(self) -> None:
        info = self.place.scheduler.identity()
        info["workers"] = dict(islice(info["workers"].items(), 50))
        expected = repr(_read(info))
        for is_compressed in (False, True):
            answer = Kept(info, is_compressed=is_compressed).answer
            if repr(_read(answer)) != expected:
                raise Mismatch("an answer that was kept does not read as a fresh one does")

    def uninstall(self) -> None:
        self._is_on = False
        self._kept = None
        self._members, self._states = [], []
        super().uninstall()

    def counts(self) -> dict[str, int]:
        return dict(self._counts)

    # Server.handle_comm gives `comm` to handlers whose first argument is called so, and
    # `serializers` to those that have an argument of that name. Others who call it have neither.
    def identity(self, comm: Any = None, serializers: Any = None, **request: Any) -> Any:
        """The handler: kept frames, or whatever stock code answers."""
        if self._is_on:
            try:
                if self._may_be_kept(comm, serializers, request):
                    return self._current()
            except Exception as error:
                # Fail open: metrics that are no plain data, above all.
                logger.debug("Cannot keep the answer to identity", exc_info=True)
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
        members = list(map(_server_id, workers))
        # Resources are changed in place, and handed to whoever asks.
        states = list(map(_status, workers)) + list(map(dict, map(_resources, workers)))
        now = self.place.clock()
        kept = self._kept
        if kept is None or now >= self._until or members != self._members or states != self._states:
            kept = self._make(now)
            self._members, self._states = members, states
        kept.uses += 1
        self._counts["saved_bytes"] += kept.saved
        return kept.answer

    def _make(self, now: float) -> Kept:
        was = self._kept
        self._kept = None
        begun = time.perf_counter()
        info = self.place.scheduler.identity()
        self._kept = Kept(info, is_compressed=was is not None and was.uses >= POPULAR)
        took = time.perf_counter() - begun
        self._until = now + min(MAX_AGE_S, took / SHARE)
        self._counts["made"] += 1
        return self._kept


def _read(message: Any) -> Any:
    """As it arrives at a client."""
    return protocol.loads(protocol.dumps(message))  # type: ignore[no-untyped-call]
