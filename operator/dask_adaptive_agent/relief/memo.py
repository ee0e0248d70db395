"""
Bytes of callables that were pickled before, found again by identity.

A scheduler holds the callable of a graph as one object, and sends it with each task of that graph.
It never calls it, so the same object gives the same bytes, but for one thing: a class that crosses
by value is one object for each process (cloudpickle's `_lookup_class_or_track`), and a later graph
that brings it again sets its attributes anew (`_class_setstate`). So bytes with such a class in
them serve only until something else with such a class was sent: workers never see a class go back.
"""

from __future__ import annotations

import io
import pickle
import threading
import weakref
from collections.abc import Hashable
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from dask_adaptive_agent.relief.values import VALUES

PROTOCOL = 5
MOST_ENTRIES = 2000
MOST_BYTES = 64 * 2**20
#: More than this of one callable is left to the stock code, and not kept.
LARGEST = 16 * 2**20
#: What is pickled by reference throughout and is smaller costs less than looking after it.
WORTH_IT = 2048
#: More than so many objects that can change: they are not told apart.
MOST_CHANGEABLE = 256
#: What each entry weighs beside its bytes, its head, and the object: each about as much.
OVERHEAD = 1000

_BY_VALUE_CLASS = b"_make_skeleton"  # cloudpickle's `_make_skeleton_class` and `_enum`


class Entry:
    """One callable, or several that go together as a tuple, and its bytes."""

    __slots__ = (
        "also",
        "changeable",
        "data",
        "has_classes",
        "head",
        "is_crowded",
        "is_used",
        "known",
        "n_buffer_bytes",
        "of",
        "since",
    )

    def __init__(self, of: object, data: bytes | None = None) -> None:
        self.of = of  # held, so that nothing else gets its id
        self.data = data  # None: pickle does as well without us
        self.n_buffer_bytes = 0  # of them, what pickle would have left out of band
        #: Objects in it that can change, by id: where an argument is one of them, they are one.
        self.changeable: dict[int, object] = {}
        self.is_crowded = False  # there are too many of those to look after
        self.has_classes = data is not None and _BY_VALUE_CLASS in data
        self.since = 0  # the `Memo.epoch` in which it was pickled
        self.is_used = True
        #: By-value classes and functions met in arguments of its tasks; None: too many.
        self.also: tuple[object, ...] | None = ()
        #: What `light` makes of it, and the pickler's memo after it.
        self.head = b""
        self.known: dict[int, tuple[int, object]] = {}

    @property
    def weight(self) -> int:
        return OVERHEAD + 3 * len(self.data or b"") + 100 * len(self.changeable)


class Memo:
    """
    What was pickled before. Bounded by entries, by bytes and, through `age`, by time.

    Threads may share it: messages over 10 MB are serialized on distributed's offload thread.
    """

    def __init__(self, entries: int = MOST_ENTRIES, nbytes: int = MOST_BYTES) -> None:
        self._most_entries, self._most_bytes = entries, nbytes
        self._entries: dict[Hashable, Entry] = {}
        self._once: dict[int, weakref.ref[Any]] = {}
        self._lock = threading.RLock()
        self.nbytes = 0  # that it weighs
        self.pickled = 0  # entries made, ever
        self.epoch = 0  # counts what was sent with a class by value in it

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, fn: object) -> bytes | None:
        """
        What `pickle.loads` turns into a copy of `fn`, anywhere; the same object while it is kept.

        None where pickle does as well without us: what goes by reference, what can't be pickled,
        what is huge.
        """
        return self.fresh(self.entry(fn)).data

    def peek(self, fn: object) -> Entry | None:
        """The entry of one callable, if there is one; it may be stale."""
        entry = self._entries.get(id(fn))
        if entry is not None:
            entry.is_used = True
        return entry

    def entry(self, fn: object) -> Entry:
        """The entry of one callable, made if need be; it may be stale. Never raises."""
        return self.peek(fn) or self._made(id(fn), fn)

    def is_first(self, fn: object) -> bool:
        """
        Whether it is seen for the first time; nothing is kept of it then, nor is it held.

        `submit` in a loop brings a function of its own with each task, that never comes again.
        """
        ref = self._once.get(id(fn))
        if ref is not None and ref() is fn:
            return False
        with self._lock:
            if len(self._once) >= self._most_entries:
                self._once.clear()
            self._once[id(fn)] = weakref.ref(fn)
        return True

    def entry_of(self, fns: tuple[object, ...]) -> Entry:
        """The entry of several, pickled as one tuple: so they share what they share."""
        key = tuple(map(id, fns))
        entry = self._entries.get(key)
        if entry is None:
            return self._made(key, fns)
        entry.is_used = True
        return entry

    def fresh(self, entry: Entry) -> Entry:
        """It, or what it would be by now."""
        if not entry.has_classes or entry.since == self.epoch:
            return entry
        key = tuple(map(id, entry.of)) if type(entry.of) is tuple else id(entry.of)
        return self._made(key, entry.of, entry)

    def was_sent(self, data: bytes) -> None:
        """Somebody else has pickled a task: classes in it are newer than the ones kept."""
        if self._entries and _BY_VALUE_CLASS in data:
            with self._lock:
                self.epoch += 1

    def age(self) -> None:
        """Drop what was not asked for since the last call."""
        with self._lock:
            for key, entry in list(self._entries.items()):
                if entry.is_used:
                    entry.is_used = False
                else:
                    self._drop(key)

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._once.clear()
            self.nbytes = 0

    def _made(self, key: Hashable, of: object, stale: Entry | None = None) -> Entry:
        before = self.epoch
        entry = _pickled(of)
        with self._lock:
            is_alone = self.epoch == before  # no other thread has sent a class meanwhile
            if entry.has_classes and stale is None:
                self.epoch += 1
            entry.since = self.epoch if is_alone else -1
            if stale is not None:
                entry.also = stale.also
            self._drop(key)
            self._entries[key] = entry
            self.nbytes += entry.weight
            self.pickled += 1
            self._shrink()
        return entry

    def _drop(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.nbytes -= entry.weight

    def _shrink(self) -> None:
        """Drop the oldest, unless somebody has asked for it lately, until the rest fits."""
        while len(self._entries) > self._most_entries or self.nbytes > self._most_bytes:
            key, entry = next(iter(self._entries.items()))
            if entry.is_used and len(self._entries) > 1:
                entry.is_used = False
                self._entries[key] = self._entries.pop(key)  # to the end: a second chance
            else:
                self._drop(key)


def is_by_value(fn: Any) -> bool:
    """Whether a callable surely has a function in it that has no name that others know. Cheap."""
    while type(fn) is partial:
        fn = fn.func
    if type(fn) is not FunctionType:
        return False
    return fn.__module__ == "__main__" or "<" in fn.__qualname__


def is_by_reference(fn: object) -> bool:
    """Whether stock code sends a function or class as a name: `distributed.protocol.pickle`."""
    try:
        return b"__main__" not in pickle.dumps(fn, PROTOCOL)
    except Exception:
        return False


def _pickled(of: object) -> Entry:
    try:
        if isinstance(of, (FunctionType, BuiltinFunctionType, type)) and is_by_reference(of):
            return Entry(of)
        return _dumped(of)
    except Exception:
        return Entry(of)  # the stock code says what is wrong with it


def _dumped(of: object) -> Entry:
    """As the stock code: by pickle if nothing of `__main__` is in it, else by cloudpickle."""
    seen: list[object] = []
    n_buffer_bytes = 0

    def in_band(buffer: pickle.PickleBuffer) -> bool:
        nonlocal n_buffer_bytes
        n_buffer_bytes += buffer.raw().nbytes
        return True

    data = None
    if not is_by_value(of):
        data = _try(pickle.Pickler, of, seen, in_band)
        if data is not None and len(data) < WORTH_IT:
            return Entry(of)
    if data is None:
        seen.clear()
        n_buffer_bytes = 0
        data = _dump(cloudpickle.Pickler, of, seen, in_band)
    if len(data) > LARGEST:
        return Entry(of)
    entry = Entry(of, data)
    entry.n_buffer_bytes = n_buffer_bytes
    _note_changeable(entry, seen)
    return entry


def _try(pickler: Any, of: object, seen: list[object], in_band: Any) -> bytes | None:
    try:
        data = _dump(pickler, of, seen, in_band)
    except Exception:
        return None
    return None if b"__main__" in data else data


def _dump(pickler: Any, of: object, seen: list[object], in_band: Any) -> bytes:
    file = io.BytesIO()
    p = pickler(file, PROTOCOL, buffer_callback=in_band)
    p.persistent_id = seen.append  # is told of each object, and answers None: nothing special
    p.dump(of)
    return file.getvalue()


def _note_changeable(entry: Entry, seen: list[object]) -> None:
    own = entry.of if type(entry.of) is tuple else (entry.of,)
    ids = set(map(id, own))
    for one in seen:
        kind = type(one)
        if kind not in VALUES and id(one) not in ids and not issubclass(kind, (type, Enum)):
            entry.changeable[id(one)] = one
            if len(entry.changeable) > MOST_CHANGEABLE:
                entry.changeable.clear()
                entry.is_crowded = True
                return
