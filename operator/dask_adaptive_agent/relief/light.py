"""
A task's bytes, with what was pickled before put in front of it.

A pickle is a program for a stack machine. Ours begins with a head that loads the callable from its
kept bytes, notes it in the machine's memo, and drops it; the rest is what a plain C pickler writes
whose own memo says that it has written the callable already. Any unpickler reads it.
"""

from __future__ import annotations

import io
import pickle
from operator import getitem as _getitem
from types import FunctionType
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from dask_adaptive_agent.relief.callables import (
    REFERENCES,
    TASK,
    callable_of,
    is_nest,
    nested_in,
)
from dask_adaptive_agent.relief.memo import (
    PROTOCOL,
    WORTH_IT,
    Entry,
    Memo,
    is_by_reference,
    is_by_value,
)
from dask_adaptive_agent.relief.values import VALUES

#: Arguments of these types have nothing in them that could be in a callable as well.
LEAVES = (VALUES - {tuple, frozenset, FunctionType}) | frozenset(REFERENCES)
#: Beyond it the stock code does better: it leaves buffers out of the pickle, and copies nothing.
MOST_BUFFER_BYTES = 2**16
#: By-value classes and functions in the arguments of one callable's tasks that are looked after.
MOST_ALSO = 16

Known = dict[int, tuple[int, object]]


class _Stock(Exception):
    """As when the callable and an argument have an object in common that can change."""


class Light:
    """Pickles tasks for one process. Answers None where the stock code should."""

    def __init__(self, memo: Memo) -> None:
        self.memo = memo
        self.hits = 0  # tasks whose callable was not pickled again

    def dumps(self, spec: Any, buffers: list[pickle.PickleBuffer]) -> bytes | None:
        """The bytes of a task; what belongs out of band goes to `buffers`, unless it's None."""
        fn = callable_of(spec)
        entry = self.memo.peek(fn)
        if entry is None:
            if is_nest(fn):
                return self._nest(spec, buffers)
            if not is_by_value(fn):
                data = _plain(spec, buffers)
                if data is not None:
                    if len(data) >= WORTH_IT:
                        self.memo.entry(fn)  # from the next task on
                    return data
            elif self.memo.is_first(fn):
                return self._by_value(spec, buffers)
            entry = self.memo.entry(fn)
        return self._with(entry, spec, buffers)

    def _by_value(self, spec: Any, buffers: list[pickle.PickleBuffer]) -> bytes:
        """As the stock code in the end, after two attempts that are bound to fail."""
        data: bytes = cloudpickle.dumps(spec, PROTOCOL, buffer_callback=buffers.append)
        self.memo.was_sent(data)
        return data

    def _nest(self, spec: Any, buffers: list[pickle.PickleBuffer]) -> bytes | None:
        fns = nested_in(spec)
        kept = tuple(fn for fn in fns if self._is_kept(fn))
        if not kept:
            data = _plain(spec, buffers)
            if data is not None:
                if len(data) >= WORTH_IT:
                    for fn in fns:
                        self.memo.entry(fn)
                return data
        if not fns:
            return None
        return self._with(self.memo.entry_of(kept or fns), spec, buffers)

    def _is_kept(self, fn: object) -> bool:
        entry = self.memo.peek(fn)
        if entry is None and is_by_value(fn):
            entry = self.memo.entry(fn)
        return entry is not None and entry.data is not None

    def _with(self, first: Entry, spec: Any, buffers: list[pickle.PickleBuffer]) -> bytes | None:
        """With what the memo has of its callables, and of what came with them before."""
        try:
            data = self._known(first, spec, buffers)
            if data is None and self._look_around(first, spec):
                data = self._known(first, spec, buffers)
            return data
        except _Stock:
            buffers.clear()
            return None

    def _known(self, first: Entry, spec: Any, buffers: list[pickle.PickleBuffer]) -> bytes | None:
        if first.also:
            entry = self.memo.entry_of(_members(first) + first.also)
        elif first.also is None:
            return None
        else:
            entry = first
        if entry.data is None:
            return None if first.also else _plain(spec, buffers)
        if entry.n_buffer_bytes > MOST_BUFFER_BYTES:
            return None
        return self._primed(entry, spec, buffers)

    def _primed(self, entry: Entry, spec: Any, buffers: list[pickle.PickleBuffer]) -> bytes | None:
        if not entry.head:
            _give_head(entry)
        may_share = (entry.changeable or entry.is_crowded) and not _has_only_leaves(spec)
        seen: list[object] | None = [] if may_share else None
        try:
            body = _body(entry, spec, buffers, seen)
        except Exception:
            buffers.clear()
            return None
        if b"__main__" in body:
            buffers.clear()
            return None
        entry = self.memo.fresh(entry)
        if seen is not None and (
            entry.is_crowded or not entry.changeable.keys().isdisjoint(map(id, seen))
        ):
            raise _Stock
        if not entry.head:
            _give_head(entry)
        self.hits += 1
        return entry.head + body

    def _look_around(self, first: Entry, spec: Any) -> bool:
        """Note what else of the task goes by value; answers whether there is something new."""
        if first.also is None:
            return False
        known = {id(one) for one in _members(first) + first.also}
        finder = _Finder(io.BytesIO(), PROTOCOL, buffer_callback=lambda _: False)
        finder.known = known
        finder.found = {}
        try:
            finder.dump(spec)
        except Exception:
            return False
        if not finder.found:
            return False
        also = first.also + tuple(finder.found.values())
        first.also = also if len(also) <= MOST_ALSO else None
        return first.also is not None


class _Finder(pickle.Pickler):
    """Goes through a task as a pickler does, and notes classes and functions without a name."""

    known: set[int]
    found: dict[int, object]

    def reducer_override(self, obj: Any) -> Any:
        if id(obj) in self.known or id(obj) in self.found:
            return int, ()
        if isinstance(obj, (FunctionType, type)) and not is_by_reference(obj):
            self.found[id(obj)] = obj
            return int, ()
        return NotImplemented


def _body(
    entry: Entry, spec: Any, buffers: list[pickle.PickleBuffer], seen: list[object] | None
) -> bytes:
    file = io.BytesIO()
    pickler: Any = pickle.Pickler(file, PROTOCOL, buffer_callback=buffers.append)
    pickler.memo = entry.known
    if seen is not None:
        pickler.persistent_id = seen.append  # is told of each object, and answers None
    pickler.dump(spec)
    return file.getvalue()


def _plain(spec: Any, buffers: list[pickle.PickleBuffer]) -> bytes | None:
    """As the first thing that `distributed.protocol.pickle.dumps` tries; None: it would go on."""
    try:
        data = pickle.dumps(spec, PROTOCOL, buffer_callback=buffers.append)
    except Exception:
        buffers.clear()
        return None
    if b"__main__" in data:
        buffers.clear()
        return None
    return data


def _has_only_leaves(spec: Any) -> bool:
    if type(spec) is tuple:
        args, kwargs = spec[1], spec[2]
    else:
        args, kwargs = spec.args, spec.kwargs
    return not kwargs and LEAVES.issuperset(map(type, args))


def _members(entry: Entry) -> tuple[object, ...]:
    return entry.of if type(entry.of) is tuple else (entry.of,)


def _give_head(entry: Entry) -> None:
    """Opcodes that load the entry's objects into the memo, and what is where in it."""
    if entry.data is None:
        raise _Stock  # it could be pickled, and can't be any more
    head = [pickle.PROTO, bytes([PROTOCOL]), _global("pickle", "loads")]
    head += [_bytes(entry.data), pickle.TUPLE1, pickle.REDUCE, pickle.MEMOIZE, pickle.POP]
    known: Known = {id(entry.of): (0, entry.of)}
    if type(entry.of) is tuple:
        head += [_global("operator", "getitem"), pickle.MEMOIZE, pickle.POP]
        known[id(_getitem)] = (1, _getitem)
        for at, one in enumerate(entry.of):
            head += [pickle.BINGET, b"\1", pickle.BINGET, b"\0", pickle.BININT1, bytes([at])]
            head += [pickle.TUPLE2, pickle.REDUCE, pickle.MEMOIZE, pickle.POP]
            known[id(one)] = (2 + at, one)
    if TASK is not None:
        head += [_global(TASK.__module__, TASK.__qualname__), pickle.MEMOIZE, pickle.POP]
        known[id(TASK)] = (len(known), TASK)
    entry.known, entry.head = known, b"".join(head)


def _global(module: str, name: str) -> bytes:
    return _text(module) + _text(name) + pickle.STACK_GLOBAL


def _text(word: str) -> bytes:
    data = word.encode()
    return pickle.SHORT_BINUNICODE + bytes([len(data)]) + data


def _bytes(data: bytes) -> bytes:
    return pickle.BINBYTES + len(data).to_bytes(4, "little") + data
