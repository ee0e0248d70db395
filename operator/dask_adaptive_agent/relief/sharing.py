"""
Callables that cross to each worker once: the scheduler's half.

A worker that holds callables says so on its stream; from then on its tasks come through a `Link`.
All others, whatever their reason, get what stock code sends.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from time import perf_counter
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
from distributed.batched import BatchedSend
from distributed.protocol.serialize import ToPickle

from dask_adaptive_agent.relief import shared_check
from dask_adaptive_agent.relief.base import Place
from dask_adaptive_agent.relief.errand import Errand
from dask_adaptive_agent.relief.memo import Memo
from dask_adaptive_agent.relief.serialization import SerializationMeter
from dask_adaptive_agent.relief.shared_books import MOST_HELD_BYTES, Held
from dask_adaptive_agent.relief.shared_known import Known
from dask_adaptive_agent.relief.shared_pickle import Link, dropping
from dask_adaptive_agent.relief.shared_plugin import NAME, pickled, workers_half
from dask_adaptive_agent.wrap import Wrap

logger = logging.getLogger(__name__)

#: How a worker speaks to its scheduler beside its tasks (`Worker.log_event`).
EVENT = "log-event"
#: A worker that lacks what it was sent so many times is sent everything from then on.
MOST_LACKS = 3
#: The part of a worker's memory that what it holds may take, as pickled.
PART_OF_MEMORY = 0.05


class Sharing:
    """Shared callables in one scheduler. All on its event loop; nothing raises into it."""

    def __init__(self, place: Place, memo: Memo, meter: SerializationMeter | None = None) -> None:
        """
        Args:
            memo: Gives a callable's bytes, or None where it is best left alone.
            meter: Told of each task that is pickled here, and so nowhere else.
        """
        self._scheduler: Any = place.scheduler
        self._meter = meter
        self._known = Known(memo)
        self._lines: dict[str, _Line] = {}  # by the worker's address
        self._n_lacks = 0
        self._half = workers_half()
        self._errand = Errand(place.scheduler, NAME, pickled())
        self._stock: Callable[..., Any] | None = None
        self._hearing: Callable[..., Any] | None = None

    def install(self) -> None:
        """Raises `Mismatch` when upstream is not as expected."""
        shared_check.upstream(self._scheduler)
        handlers = self._scheduler.stream_handlers
        self._stock = handlers[EVENT]
        self._hearing = handlers[EVENT] = functools.partial(self._heard, self._stock)
        self._errand.give()

    def check(self) -> None:
        """Prove on a few tasks that they arrive as they were. Raises `Mismatch`."""
        shared_check.round_trip(self._half, self._known.memo)

    def uninstall(self) -> None:
        """Stop; what is on its way still finds what it refers to."""
        handlers = self._scheduler.stream_handlers
        if self._hearing is not None and handlers.get(EVENT) is self._hearing:
            handlers[EVENT] = self._stock
        self._hearing = None
        for address in list(self._lines):
            self._end(address)
        self._errand.take()

    def counts(self) -> dict[str, int]:
        self._forget_the_gone()
        return {
            "shared_workers": len(self._lines),
            "shared_uses": self._known.library.uses,
            "shared_definitions": self._known.library.definitions,
            "shared_lacks": self._n_lacks,
        }

    def _heard(self, stock: Callable[..., Any], **event: Any) -> Any:
        """In the place of `Scheduler.log_worker_event`."""
        if self._hearing is None or event.get("topic") != self._half.TOPIC:
            return stock(**event)
        try:
            self._hear(event["worker"], event["msg"])
        except Exception:
            # Fail open: who is not known to hold anything gets stock messages.
            logger.exception("Cannot read what a worker says of shared callables")
        return None

    def _hear(self, worker: str, said: dict[str, Any]) -> None:
        stream = self._scheduler.stream_comms.get(worker)
        if stream is None:
            return
        if said["what"] == self._half.READY:
            self._end(worker)
            if self._can_share(worker, said):
                link = self._link(worker, said["token"])
                self._lines[worker] = _Line(stream, link, self._meter)
            return
        line = self._lines.get(worker)
        if line is None or line.stream is not stream or line.link.token != said["token"]:
            return
        if said["what"] == self._half.LACKS:
            self._n_lacks += 1
            line.n_lacks += 1
            if line.n_lacks <= MOST_LACKS:
                line.link.held.forget()
                return
            logger.warning("Worker %s lacks callables again: it gets them with all tasks", worker)
        self._end(worker)

    def _can_share(self, worker: str, said: dict[str, Any]) -> bool:
        """Whether it is the worker that we know, has our text and pickles, and reads a stream."""
        ws = self._scheduler.workers.get(worker)
        return (
            ws is not None
            and ws.server_id == said["id"]
            and said["module"] == self._half.__name__
            and list(said["python"]) == list(sys.version_info[:2])
            # Nothing is pickled on the way to a worker in this process (comm.inproc).
            and not worker.startswith("inproc://")
        )

    def _link(self, worker: str, token: int) -> Link:
        memory_limit = self._scheduler.workers[worker].memory_limit
        most_bytes = int(memory_limit * PART_OF_MEMORY) if memory_limit else MOST_HELD_BYTES
        held = Held(min(most_bytes, MOST_HELD_BYTES))
        return Link(token, self._half, self._known, held)

    def _end(self, worker: str) -> None:
        line = self._lines.pop(worker, None)
        if line is not None:
            line.end(self._half.__name__)
        if len(self._lines) > 2 * len(self._scheduler.workers):
            self._forget_the_gone()

    def _forget_the_gone(self) -> None:
        """Streams end with their workers, and nobody says so."""
        streams = self._scheduler.stream_comms
        for worker, line in list(self._lines.items()):
            if streams.get(worker) is not line.stream:
                del self._lines[worker]


class _Line:
    """
    One worker's stream, with a link in its way.

    In the way of `BatchedSend.send`: whoever sends, there the order of messages is decided.
    """

    def __init__(self, stream: BatchedSend, link: Link, meter: SerializationMeter | None) -> None:
        self.link = link
        self.n_lacks = 0
        self._meter = meter
        self.stream = stream
        self._wrap = Wrap(stream, "send", self._sending)

    def end(self, half: str) -> None:
        """Let stock code send everything from now on; the worker then drops what it holds."""
        self._wrap.undo()
        try:
            self.stream.send(dropping(half, self.link.token))
        except Exception:
            # The stream is closed, and the worker with it.
            logger.debug("A worker is not told to drop its callables", exc_info=True)

    def _sending(self, stock: Callable[..., Any]) -> Callable[..., Any]:
        def send(*messages: Any) -> Any:
            for message in messages:
                if message.get("op") == "compute-task":
                    self._replace(message)
            return stock(*messages)

        return send

    def _replace(self, message: dict[str, Any]) -> None:
        run_spec = message.get("run_spec")
        # An actor is made once, and holds what it was made of.
        if type(run_spec) is not ToPickle or message.get("actor"):
            return
        # Modules that were registered to go by value concern what has a name as well.
        if cloudpickle.list_registry_pickle_by_value():
            return
        begin = perf_counter()
        try:
            pickled, nbytes = self.link.pickled(run_spec.data)
        except Exception:
            return  # stock code knows what to do, or how to fail
        message["run_spec"] = pickled
        if self._meter is not None:
            self._meter.add(run_spec.data, perf_counter() - begin, nbytes)
