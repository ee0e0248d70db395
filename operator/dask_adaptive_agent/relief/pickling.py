"""
The relief `pickling`: callables that tasks share are pickled once, not for each task.

distributed pickles a task whenever it sends one. If workers cannot import the task's function (a
lambda, a closure, anything from `__main__`), it runs pickle twice in vain, and then cloudpickle
over the whole task. Here one pass of the standard pickler puts in what is kept (`pickle_cache`) of
such functions, of classes, and of large partials. What would come out otherwise than by stock code,
in values or in what is one object, is left to cloudpickle, or to stock code as a whole.

The schedulers of a process share what is kept, and so do those without an agent: what comes out
means the same to whoever reads it.
"""

from __future__ import annotations

import io
import logging
import operator
import pickle
from collections.abc import Callable
from functools import partial
from operator import attrgetter, itemgetter
from time import perf_counter
from types import BuiltinFunctionType, FunctionType
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
from distributed import worker as distributed_worker
from distributed.protocol import core
from distributed.protocol.serialize import ToPickle, dask_serialize

from dask_adaptive_agent import patching, wire
from dask_adaptive_agent.relief.pickle_cache import (
    CLOUDPICKLES,
    LEAST_PARTIAL,
    PROTOCOL,
    KeptPickle,
    PickleCache,
    Unfit,
    is_importable,
    require,
)
from dask_adaptive_agent.relief.registry import Mismatch, Relief, Reliefs
from dask_adaptive_agent.relief.serialization import SerializationMeter

logger = logging.getLogger(__name__)

try:
    from dask._task_spec import Task
except ImportError:
    Task = None  # type: ignore[assignment,misc]

#: None before distributed 2024.11.0, the first to send objects: tuples of function, args, kwargs.
TASK: Any = None if hasattr(distributed_worker, "execute_task") else Task
#: A pickle that was not used for this time is dropped after at most the same time again.
AGE_S = 60.0
#: What stock code pickles as well counts if it takes longer: counting is to cost less than 2 %.
UNCOUNTED_S = 100e-6

Dumps = Callable[..., bytes]
#: Gives what represents a kept pickle in a task's: a function and its arguments.
PutIn = Callable[[KeptPickle], "tuple[Any, ...]"]


class ByValue(Unfit):
    """It has what only cloudpickle can pickle, so that is where stock code ends up."""


def is_task(x: Any) -> bool:
    """Tells whether it is a task as a scheduler sends it (`distributed.worker._normalize_task`)."""
    if TASK is not None:
        return type(x) is TASK
    return type(x) is tuple and len(x) == 3 and callable(x[0]) and type(x[2]) is dict


callable_of: Callable[[Any], Any] = itemgetter(0) if TASK is None else attrgetter("func")


def _is_by_value(function: Any) -> bool:
    while type(function) is partial:
        function = function.func
    return type(function) is FunctionType and not is_importable(function)


def _has_serializer(kind: type) -> bool:
    try:
        return bool(dask_serialize.dispatch(kind))  # type: ignore[no-untyped-call]
    except TypeError:
        return False


def whole(kept: KeptPickle) -> tuple[Any, ...]:
    return pickle.loads, (kept.data,)


class TaskPickler(pickle.Pickler):
    """One pass of the standard pickler over a task, which puts in pickles that are kept."""

    def __init__(self, cache: PickleCache, task: Any, buffers: list[Any], put_in: PutIn) -> None:
        self._file = io.BytesIO()
        super().__init__(self._file, PROTOCOL, buffer_callback=buffers.append)
        self._cache, self._task, self._put_in = cache, task, put_in
        self._uses: dict[int, KeptPickle] = {}
        #: Stock code does not ask for serializers where the callable alone is too much for pickle.
        self._is_plain = _is_by_value(callable_of(task))
        self._is_mixed = False

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is BuiltinFunctionType:
            return NotImplemented
        if kind is FunctionType or issubclass(kind, type):
            if obj is TASK or is_importable(obj):
                return NotImplemented
            kept = self._cache.find(obj)
            if kept is None:
                raise ByValue
        elif kind is not partial or (kept := self._cache.find(obj)) is None:
            # Its own ways must not be mixed with pickle's.
            self._is_mixed = self._is_mixed or kind in CLOUDPICKLES
            require(self._is_plain or not _has_serializer(kind))
            return NotImplemented
        self._uses[id(obj)] = kept
        return self._put_in(kept)

    def pickled(self) -> bytes:
        """Raises `Unfit`, and whatever pickling raises."""
        self.dump(self._task)
        data = self._file.getvalue()
        kepts = list(self._uses.values())
        is_by_value = any(kept.is_by_value for kept in kepts)
        if kepts and (self._is_mixed or self._clash(kepts)):
            raise ByValue if is_by_value else Unfit
        # Stock code looks for this word in what pickle makes of a task.
        require(is_by_value or b"__main__" not in data)
        return data

    def _clash(self, kepts: list[KeptPickle]) -> bool:
        """Tells whether an object is two in this pickle that is one in stock code's."""
        met = set(self.memo.copy())
        scopes: dict[int, set[str]] = {}
        for kept in kepts:
            # By stock code, functions of one module see each other's global variables: also those
            # that they don't name, by `get_type_hints` or `DataFrame.query`.
            see_others = any(
                scopes.setdefault(scope, names) != names for scope, names in kept.scopes.items()
            )
            if see_others or not met.isdisjoint(kept.shareable):
                return True
            if len(kepts) > 1:  # a large partial shares thousands
                met |= kept.shareable
        return False


class TaskPickles:
    """
    Pickles tasks, over `distributed.protocol.pickle.dumps`, while it has meters to tell.

    One serves all schedulers of the process.
    """

    def __init__(self) -> None:
        self.cache = PickleCache()
        self.n_left = 0
        self._meters: tuple[SerializationMeter, ...] = ()

    def add(self, meter: SerializationMeter) -> None:
        self._meters += (meter,)

    def remove(self, meter: SerializationMeter) -> None:
        """Harmless if it was not added."""
        self._meters = tuple(one for one in self._meters if one is not meter)
        if not self._meters:
            self.cache.clear()

    def counts(self) -> dict[str, int]:
        return {
            "reused": self.cache.n_used,
            "left_to_stock": self.n_left,
            "pickled": self.cache.n_made,
            "kept": len(self.cache.kept()),
            "kept_bytes": self.cache.nbytes(),
        }

    def pickled(self, task: Any, buffers: list[Any], put_in: PutIn = whole) -> tuple[bytes, bool]:
        """
        The pickle, and whether `put_in` has a part in it.

        Raises whatever pickling raises: stock code knows what to do, or what to say.
        """
        data = self._by_name(task, buffers)
        return self._in_one_pass(task, buffers, put_in) if data is None else (data, False)

    def _by_name(self, task: Any, buffers: list[Any]) -> bytes | None:
        """Pickle a task without what is kept, as stock code would; None: not for pickle."""
        called = function = callable_of(task)
        while type(called) is partial:
            called = called.func
        # It is faster to let pickle look whether the name means this function.
        if type(called) is FunctionType and (
            "<" in called.__qualname__ or called.__module__ == "__main__"
        ):
            return None
        is_partial = called is not function
        if is_partial and self.cache.may_find(function):
            return None
        try:
            data = pickle.dumps(task, PROTOCOL, buffer_callback=buffers.append)
        except Exception:
            logger.debug("pickle alone can't do %.80r", function, exc_info=True)
            return None
        if is_partial and len(data) >= LEAST_PARTIAL:
            self.cache.was_met(function)
        return None if b"__main__" in data else data

    def _in_one_pass(self, task: Any, buffers: list[Any], put_in: PutIn) -> tuple[bytes, bool]:
        buffers.clear()
        try:
            return TaskPickler(self.cache, task, buffers, put_in).pickled(), True
        except ByValue:
            self.n_left += 1
            buffers.clear()
            return cloudpickle.dumps(task, PROTOCOL, buffer_callback=buffers.append), False

    def over(self, stock: Dumps) -> Dumps:
        def dumps(x: Any, *, buffer_callback: Any = None, protocol: int | None = PROTOCOL) -> bytes:
            if (
                buffer_callback is None
                or not is_task(x)
                or not self._meters
                or protocol != PROTOCOL
                # Modules that were registered to go by value concern what has a name as well.
                or cloudpickle.list_registry_pickle_by_value()
            ):
                return stock(x, buffer_callback=buffer_callback, protocol=protocol)
            started = perf_counter()
            buffers: list[Any] = []
            data = self._by_name(x, buffers)
            if data is None or perf_counter() - started > UNCOUNTED_S:
                data = self._measured(x, data, buffers, started, stock)
            for buffer in buffers:
                buffer_callback(buffer)
            return data

        return dumps

    def _measured(
        self, task: Any, data: bytes | None, buffers: list[Any], started: float, stock: Dumps
    ) -> bytes:
        if data is None:
            try:
                data, _ = self._in_one_pass(task, buffers, whole)
            except Exception:
                self.n_left += 1
                buffers.clear()
                data = stock(task, buffer_callback=buffers.append)
        spent = perf_counter() - started
        size = len(data) + sum([buffer.raw().nbytes for buffer in buffers])
        for meter in self._meters:
            meter.add(callable_of(task), spent, size)
        return data


PICKLES = TaskPickles()


class PicklingRelief(Relief):
    """Callables are pickled once, not for each task, from 2023.8.1 on."""

    name = "pickling"

    def __init__(self, reliefs: Reliefs, choice: str = wire.AUTO) -> None:
        super().__init__(reliefs, choice)
        #: The cost of serializing, by function, for whoever observes.
        self.meter = SerializationMeter(
            self.clock, self.context.notes.add, is_shared=choice == wire.SHARED
        )
        self._timer: object | None = None

    def install(self) -> None:
        self.patches.put(patching.PICKLE_DUMPS, PICKLES.over)
        unheard = SerializationMeter(self.clock, lambda *_: None)  # of what is tried only
        PICKLES.add(unheard)
        try:
            before = PICKLES.cache.n_used
            prove(ToPickle)
            if PICKLES.cache.n_used == before:
                raise Mismatch("distributed does not pickle tasks where it was expected to")
        finally:
            PICKLES.remove(unheard)
        PICKLES.add(self.meter)
        self._age()

    def uninstall(self) -> None:
        if self._timer is not None:
            self.scheduler.loop.remove_timeout(self._timer)
            self._timer = None
        super().uninstall()
        PICKLES.remove(self.meter)

    def counts(self) -> dict[str, int]:
        """Of the process: schedulers in it share what they keep."""
        return PICKLES.counts()

    def _age(self) -> None:
        PICKLES.cache.age()
        self._timer = self.scheduler.loop.call_later(AGE_S, self._age)


def prove(packed: Callable[[Any], Any]) -> Any:
    """
    Send samples of tasks three times: as they are pickled at first, when they come again, and then.

    `packed` makes of a task what goes into a message. Returns the last sample, which is of some
    size; raises `Mismatch` where the other end makes something else of one.
    """
    protocol: Any = core
    task = None
    for expected, function, *args in _samples():
        task = (function, tuple(args), {}) if TASK is None else TASK("sample", function, *args)
        for _ in range(3):
            frames = protocol.dumps([{"run_spec": packed(task)}])
            task_there = protocol.loads(frames)[0]["run_spec"]
            value = task_there[0](*task_there[1]) if TASK is None else task_there({})
            if value != expected:
                raise Mismatch(f"a sample gives {value!r:.80} instead of {expected!r:.80}")
    return task


def _samples() -> list[tuple[Any, ...]]:
    """Values, and the calls that give them."""
    factor, both = 3, [1]

    def scaled(x: int) -> int:
        return x * factor

    return [
        (3, operator.add, 1, 2),
        (2, lambda x: x + 1, 1),
        (6, scaled, 2),
        (15, partial(scaled, 5)),
        (1999, partial(max, *range(2000)), 7),
        (True, partial(lambda one, other: one is other, both), both),
        (1, both.count, 1),
        (9, partial(lambda _, x: scaled(x), list(range(1000))), 3),
    ]
