"""
The place where a scheduler pickles a task: `distributed.protocol.pickle.dumps`, replaced.

`protocol/core.py` calls it through its module for each `ToPickle` in a message, with a function of
its own that takes buffers; that is how such calls are told from all others, which are none of our
business. The schedulers of a process share what is here, and so do those without an agent: what
comes out means the same to whoever reads it.
"""

from __future__ import annotations

import functools
import logging
import pickle
from collections.abc import Callable
from time import perf_counter
from types import CodeType
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
from distributed.protocol import core
from distributed.protocol import pickle as distributed_pickle
from distributed.protocol.serialize import ToPickle

from dask_adaptive_agent.relief import quick_reduce
from dask_adaptive_agent.relief.base import Mismatch
from dask_adaptive_agent.relief.callables import SPEC, callable_of, is_spec
from dask_adaptive_agent.relief.light import Light
from dask_adaptive_agent.relief.memo import PROTOCOL, Memo
from dask_adaptive_agent.relief.serialization import SerializationMeter

logger = logging.getLogger(__name__)

Take = Callable[[pickle.PickleBuffer], object]


class Hook:
    """Serves from the first `add` to the last `remove`."""

    def __init__(self) -> None:
        self.memo = Memo()
        self.light = Light(self.memo)
        self.stock_served = 0  # tasks that were left to the stock code
        self._meters: tuple[SerializationMeter, ...] = ()
        self._stock: Callable[..., bytes] = distributed_pickle.dumps
        self._ours: Callable[..., bytes] | None = None

    def add(self, meter: SerializationMeter) -> None:
        """Begin, and tell the meter of each task. Raises `Mismatch`."""
        if self._ours is None:  # one that lies under somebody else's still passes on
            self._stock = distributed_pickle.dumps
            self._ours = self._wrapped(self._stock, _code_of_taker())
            distributed_pickle.dumps = self._ours
            quick_reduce.begin()
        self._meters += (meter,)

    def remove(self, meter: SerializationMeter) -> None:
        """Stop telling it; the last one to go puts the stock code back. Harmless if not added."""
        self._meters = tuple(one for one in self._meters if one is not meter)
        if not self._meters:
            if self._ours is not None and distributed_pickle.dumps is self._ours:
                distributed_pickle.dumps = self._stock
            self._ours = None
            quick_reduce.end()
            self.memo.clear()

    def counts(self) -> dict[str, int]:
        return {
            "reused": self.light.hits,
            "left_to_stock": self.stock_served,
            "pickled": self.memo.pickled,
            "kept": len(self.memo),
            "kept_bytes": self.memo.nbytes,
        }

    def _wrapped(self, stock: Callable[..., bytes], code: CodeType) -> Callable[..., bytes]:
        @functools.wraps(stock)
        def dumps(
            x: Any, *, buffer_callback: Take | None = None, protocol: int | None = PROTOCOL
        ) -> bytes:
            if (
                type(x) is SPEC
                and protocol == PROTOCOL
                and self._ours is dumps
                and getattr(buffer_callback, "__code__", None) is code
                and is_spec(x)
            ):
                return self._task(x, buffer_callback, stock)  # type: ignore[arg-type]
            return stock(x, buffer_callback=buffer_callback, protocol=protocol)

        return dumps

    def _task(self, spec: Any, take: Take, stock: Callable[..., bytes]) -> bytes:
        started = perf_counter()
        buffers: list[pickle.PickleBuffer] = []
        data = None
        # Modules that were registered to go by value concern what has a name as well.
        if not cloudpickle.list_registry_pickle_by_value():
            try:
                data = self.light.dumps(spec, buffers)
            except Exception:
                logger.debug("Stock code pickles %.80r", type(spec), exc_info=True)
        if data is None:
            data = self._left(spec, buffers, stock)
        spent, size = perf_counter() - started, len(data)
        for buffer in buffers:
            take(buffer)
            size += buffer.raw().nbytes
        for meter in self._meters:
            meter.add(callable_of(spec), spent, size)
        return data

    def _left(
        self, spec: Any, buffers: list[pickle.PickleBuffer], stock: Callable[..., bytes]
    ) -> bytes:
        self.stock_served += 1
        buffers.clear()
        data = stock(spec, buffer_callback=buffers.append)
        self.memo.was_sent(data)
        return data


def _code_of_taker() -> CodeType:
    """The code of what `protocol/core.py` hands over to take buffers."""
    probe, takers = object(), []
    stock = distributed_pickle.dumps

    def look(x: Any, **kwargs: Any) -> Any:
        if x is not probe:
            return stock(x, **kwargs)  # type: ignore[no-untyped-call]
        takers.append(kwargs.get("buffer_callback"))
        return b""

    distributed_pickle.dumps = look
    try:
        core.dumps([ToPickle(probe)])
    finally:
        distributed_pickle.dumps = stock
    code = getattr(takers[0], "__code__", None) if takers else None
    if not isinstance(code, CodeType):
        raise Mismatch("distributed does not pickle tasks with distributed.protocol.pickle.dumps")
    return code


HOOK = Hook()
