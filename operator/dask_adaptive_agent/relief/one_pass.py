"""
Tasks in one pass of the standard pickler.

distributed pickles a task whenever it sends one. If workers cannot import the task's function (a
lambda, a closure, anything from `__main__`), it runs pickle twice in vain, and then cloudpickle
over the whole task. Here one pass of the standard pickler puts in what is kept (`kept`) of such
functions, of classes, and of large partials. What would come out otherwise than by stock code, in
values or in what is one object, is left to cloudpickle, or to stock code as a whole.
"""

from __future__ import annotations

import copyreg
import io
import logging
import pickle
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from types import BuiltinFunctionType, FunctionType
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
from distributed import worker as distributed_worker
from distributed.protocol.serialize import dask_serialize

from dask_adaptive_agent.relief.kept import (
    CLOUDPICKLES,
    PROTOCOL,
    Cache,
    Kept,
    Unfit,
    is_importable,
    require,
)

logger = logging.getLogger(__name__)

try:
    from dask._task_spec import Task
except ImportError:
    Task = None  # type: ignore[assignment,misc]

#: None before distributed 2024.11.0, the first to send objects: tuples of function, args, kwargs.
TASK: Any = None if hasattr(distributed_worker, "execute_task") else Task
#: Pickles that have clashed so often in a task are not tried together any more.
MOST_CLASHES = 2


class ByValue(Unfit):
    """It has what only cloudpickle can pickle, so that is where stock code ends up."""


def is_task(x: Any) -> bool:
    """Whether it is a task as a scheduler sends it: `distributed.worker._normalize_task` before."""
    if TASK is not None:
        return type(x) is TASK
    return type(x) is tuple and len(x) == 3 and callable(x[0]) and type(x[2]) is dict


def callable_of(task: Any) -> Any:
    return task[0] if TASK is None else task.func


def _quick_state() -> Callable[[Any], Any] | None:
    """What pickle asks `Task.__getstate__` for, in C; None where this release does it otherwise."""
    if TASK is None or not hasattr(TASK, "get_all_slots"):
        return None
    state = attrgetter(*TASK.get_all_slots())
    sample = TASK("sample", len, (1,), _data_producer=True)
    stock = sample.__reduce_ex__(PROTOCOL)[:3]
    return state if stock == (copyreg.__newobj__, (TASK,), state(sample)) else None  # type: ignore[attr-defined]


_state = _quick_state()
_new: Any = copyreg.__newobj__  # type: ignore[attr-defined]


class Pickler(pickle.Pickler):
    """The standard pickler, which puts in pickles that are kept."""

    def __init__(self, cache: Cache, task: Any, buffers: list[Any]) -> None:
        self.file = io.BytesIO()
        super().__init__(self.file, PROTOCOL, buffer_callback=buffers.append)
        self.uses: dict[int, Kept] = {}
        self._cache = cache
        #: Stock code does not ask for serializers where the callable alone is too much for pickle.
        self._is_plain = _is_by_value(callable_of(task))
        self._is_mixed = False

    def put_in(self, kept: Kept) -> tuple[Any, ...]:
        return pickle.loads, (kept.data,)

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is TASK and _state is not None:
            return _new, (TASK,), _state(obj)
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
        if kept.n_clashes > MOST_CLASHES and self.uses:
            raise ByValue if kept.is_by_value else Unfit
        self.uses[id(obj)] = kept
        return self.put_in(kept)

    def pickled(self, task: Any) -> bytes:
        """Raises `Unfit`, and whatever pickling raises."""
        self.dump(task)
        data = self.file.getvalue()
        kepts = list(self.uses.values())
        is_by_value = any(kept.is_by_value for kept in kepts)
        if kepts and (self._is_mixed or self._clash(kepts)):
            raise ByValue if is_by_value else Unfit
        # Stock code looks for this word in what pickle makes of a task.
        require(is_by_value or b"__main__" not in data)
        return data

    def _clash(self, kepts: list[Kept]) -> bool:
        """Whether stock code would keep something one that is two in this pickle."""
        if len(kepts) == 1 and not kepts[0].shareable:
            return False
        met = set(self.memo.copy())
        scopes: dict[int, set[str]] = {}
        for kept in kepts:
            # By stock code, functions of one module see each other's global variables: also those
            # that they don't name, by `get_type_hints` or `DataFrame.query`.
            see_others = any(
                scopes.setdefault(scope, names) != names for scope, names in kept.scopes.items()
            )
            if see_others or not met.isdisjoint(kept.shareable):
                for each in kepts:
                    each.n_clashes += 1
                return True
            if len(kepts) > 1:
                met |= kept.shareable
        return False


def _is_by_value(function: Any) -> bool:
    while type(function) is partial:
        function = function.func
    return type(function) is FunctionType and not is_importable(function)


def _has_serializer(kind: type) -> bool:
    try:
        return bool(dask_serialize.dispatch(kind))  # type: ignore[no-untyped-call]
    except TypeError:
        return False


class Tasks:
    """Pickles tasks, for all schedulers of the process: what comes out means the same to all."""

    def __init__(self) -> None:
        self.cache = Cache()
        self.n_left = 0

    def pickled(
        self, task: Any, buffers: list[Any], pickler: Callable[..., Pickler] = Pickler
    ) -> bytes:
        """Raises whatever pickling raises: stock code knows what to do, or what to say."""
        function = callable_of(task)
        is_ours = _is_by_value(function) or (
            type(function) is partial and self.cache.was_met(function)
        )
        if not is_ours:
            # Where pickle does it alone, that is the stock code's way, too.
            try:
                data = pickle.dumps(task, PROTOCOL, buffer_callback=buffers.append)
                if b"__main__" not in data:
                    return data
            except Exception:
                logger.debug("pickle alone can't do %.80r", function, exc_info=True)
            buffers.clear()
        try:
            return pickler(self.cache, task, buffers).pickled(task)
        except ByValue:
            self.n_left += 1
            buffers.clear()
            data = cloudpickle.dumps(task, PROTOCOL, buffer_callback=buffers.append)
            return bytes(data)

    def counts(self) -> dict[str, int]:
        return {
            "reused": self.cache.n_used,
            "left_to_stock": self.n_left,
            "pickled": self.cache.n_made,
            "kept": len(self.cache),
            "kept_bytes": self.cache.nbytes,
        }
