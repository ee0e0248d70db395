"""
Pickles of functions, classes and large partials that are kept, and proof that they still hold.

A pickle is kept of what consists of nothing but values that never change, names that others can
import, and plain functions, classes, instances and containers. Of each of the latter its parts are
noted, and at each use compared with what they are now, by identity. All else is not kept at all:
whoever asks for it pickles it as ever.
"""

from __future__ import annotations

import contextlib
import copyreg
import dataclasses
import datetime
import decimal
import enum
import fractions
import hashlib
import logging
import opcode
import pathlib
import pickle
import re
import sys
import threading
import types
import typing
import uuid
import weakref
import zoneinfo
from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter, is_
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

PROTOCOL = 5
MOST_OBJECTS = 1000
MOST_BYTES = 64 * 2**20
#: A larger pickle is not kept.
LARGEST = 16 * 2**20
#: A partial that pickles to less is not worth a pickle of its own.
LEAST_PARTIAL = 2000
#: What an entry weighs beside its bytes, each object in it, and each part of one: what is noted.
WEIGHT, WEIGHT_OF_EACH, WEIGHT_OF_PART = 2000, 200, 8

#: Instances of exactly these never change, though what they hold may: the pickler meets that, too.
IMMUTABLE: frozenset[type] = frozenset(
    {
        *(complex, range, slice, type(...), type(NotImplemented), type(typing.Union), re.Pattern),
        *(datetime.date, datetime.time, datetime.datetime, datetime.timedelta, datetime.timezone),
        *(decimal.Decimal, fractions.Fraction, uuid.UUID, zoneinfo.ZoneInfo),
        *(pathlib.PosixPath, pathlib.WindowsPath, pathlib.PurePosixPath, pathlib.PureWindowsPath),
        *(CodeType, BuiltinFunctionType, CellType, classmethod, staticmethod),
        getattr(dataclasses, "_FIELD_BASE", CellType),
    }
)
#: Nobody can tell these from their copies, or their copies are themselves; text see `_values`.
ALIKE = frozenset(
    {
        *(str, bytes, int, float, CodeType, BuiltinFunctionType, ModuleType, type),
        *(logging.Logger, re.Pattern, getattr(dataclasses, "_FIELD_BASE", CellType)),
        *(type(None), bool, type(...), type(NotImplemented)),
    }
)
#: Code that may change global variables, which functions of one task have in common.
WRITES = (opcode.opmap["STORE_GLOBAL"], opcode.opmap["DELETE_GLOBAL"])
REFLECTION = frozenset({"globals", "vars", "exec", "eval", "__globals__", "f_globals"})
#: What cloudpickle gives a function of its module, beside the global variables that it uses.
MODULE_NAMES = ("__package__", "__name__", "__path__", "__file__")

#: Modules that nobody loads anew.
_FIXED = ("builtins", "cloudpickle.")

#: Of `type.__flags__`: what is made by a class statement.
HEAP_TYPE = 1 << 9
_MISSING = object()
#: Among the parts of something: its values follow, after its names and keys.
_VALUES = object()
#: What all data classes, or all programs, have in common.
_COMMON = frozenset(map(id, (*vars(dataclasses).values(), (), frozenset(), _MISSING, _VALUES)))
_fields = attrgetter("__code__", "__closure__", "__defaults__", "__kwdefaults__", "__annotations__")
_labels = attrgetter("__name__", "__qualname__", "__module__", "__doc__")
Read = Callable[[Any], tuple[Any, ...]]


class Unfit(Exception):
    """It can't be pickled in one pass with what is kept."""


def require(is_fit: bool) -> None:
    if not is_fit:
        raise Unfit


def is_importable(obj: Any) -> bool:
    """Whether pickle finds a function or class by its name, other than in `__main__`."""
    module, name = obj.__module__, obj.__qualname__
    if module == "__main__" or "<" in name:
        return False
    try:
        found = sys.modules[module]
        for part in name.split(".") if "." in name else (name,):
            found = getattr(found, part)
        return found is obj
    except (AttributeError, KeyError):
        return False


def _items(mapping: Any) -> tuple[Any, ...]:
    return (*mapping, _VALUES, *mapping.values())


def _instance(obj: Any) -> tuple[Any, ...]:
    """What `object.__reduce_ex__` takes of it."""
    slots = copyreg._slotnames(type(obj))  # type: ignore[attr-defined]
    own = getattr(obj, "__dict__", {})
    return (obj.__class__, *_items(own), *[getattr(obj, name, _MISSING) for name in slots])


def _values(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """
    Of the parts those that are neither names nor keys.

    `x is UNKNOWN` tells a text from its copy. Names of attributes and arguments, and keys, which
    tasks have in common all the time, nobody compares so.
    """
    first = next((n for n, part in enumerate(parts, 1) if part is _VALUES), 0)
    return parts[first:]


def _nested(parts: Any) -> Iterator[Any]:
    """All that is in tuples, and them."""
    for part in parts:
        yield part
        if type(part) in (tuple, frozenset):
            yield from _nested(part)


def _class(cls: type) -> tuple[Any, ...]:
    own = vars(cls).copy()
    labels = own.pop("__module__", None), own.pop("__doc__", None)
    return (cls.__name__, cls.__qualname__, *labels, cls.__bases__, *own, _VALUES, *own.values())


def _function(names: list[str], function: FunctionType) -> tuple[Any, ...]:
    scope, cells = function.__globals__, function.__closure__
    values = [cell.cell_contents for cell in cells] if cells else ()
    attributes = function.__dict__
    own = _items(attributes) if attributes else (_VALUES,)
    given = [scope.get(name, _MISSING) for name in MODULE_NAMES]
    used = [scope.get(name, _MISSING) for name in names]
    return (*_labels(function), *given, *own, *_fields(function), *values, *used)


def _partial(obj: Any) -> tuple[Any, ...]:
    return (*_items(obj.__dict__), obj.func, obj.args, obj.keywords)


#: The parts of what may change.
READ: dict[type, Read] = {
    list: tuple,
    set: tuple,
    dict: _items,
    types.MappingProxyType: _items,
    partial: _partial,
    property: lambda obj: (obj.__doc__, _VALUES, obj.fget, obj.fset, obj.fdel),
    logging.Logger: lambda obj: (obj.name, _VALUES),
}


#: What cloudpickle has its own way with; whoever registers more has them put here as well.
CLOUDPICKLES: dict[type, Any] = cloudpickle.Pickler.dispatch_table.maps[0]

#: By these a class, and by some an instance, gives pickle something else than its attributes.
_DIVERTING = (
    *("__reduce_ex__", "__reduce__", "__getattribute__", "__getstate__"),
    *("__getattr__", "__getnewargs__", "__getnewargs_ex__"),
)


def _diverting(kind: Any) -> tuple[Any, ...]:
    registered = copyreg.dispatch_table.get(kind), CLOUDPICKLES.get(kind)
    return (*[getattr(kind, name, None) for name in _DIVERTING], *registered)


_NOT_DIVERTING = _diverting(object)


def _is_plain(obj: Any, kind: Any) -> bool:
    """Whether it is no more than its attributes, which pickle takes from it."""
    # No built-in type is among the bases: it may keep state of its own.
    return (
        all(base is object or base.__flags__ & HEAP_TYPE for base in kind.__mro__)
        and _diverting(kind) == _NOT_DIVERTING
        and not any(name in getattr(obj, "__dict__", ()) for name in _DIVERTING)
    )


def _is_enumerated(kind: type) -> bool:
    """Whether its instances are told by their class, and a name or value."""
    return issubclass(kind, enum.Enum) and kind.__reduce_ex__.__module__ == "enum"


def _is_generic(obj: Any, kind: type) -> bool:
    return kind.__module__ in ("typing", "types") and typing.get_origin(obj) is not None


class _Bounded:
    """A file that takes so much and no more, so that nothing huge is pickled in vain."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0

    def write(self, data: Any) -> None:
        self.parts.append(bytes(data))
        self.size += len(data)
        require(self.size <= LARGEST)


class _Maker(cloudpickle.Pickler):  # type: ignore[misc]
    """Makes a pickle to be kept, and notes what could change in it. Raises `Unfit`."""

    def __init__(self, file: Any) -> None:
        super().__init__(file, PROTOCOL)
        self.checks: list[tuple[Any, Read, tuple[Any, ...]]] = []
        self.names: list[Any] = []  # functions and classes that others can import
        self.modules: list[str] = []
        #: What functions use of their global variables, by whose these are.
        self.scopes: dict[int, set[str]] = {}
        self.kinds: set[type] = set()  # of instances
        self.made: list[Any] = []  # by cloudpickle, of functions and classes
        self.is_by_value = self.has_classes = False

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        reduced = super().reducer_override(obj)
        if kind is FunctionType or isinstance(obj, type):
            self._named_or(obj, reduced)
        elif kind is ModuleType:
            require(sys.modules.get(obj.__name__) is obj)
            self.modules.append(obj.__name__)
        elif kind in READ:
            self.note(obj, READ[kind])
        elif kind not in IMMUTABLE and not _is_enumerated(kind) and not _is_generic(obj, kind):
            require(_is_plain(obj, kind))
            self.note(obj, _instance)
            self.kinds.add(kind)
        return reduced

    def _named_or(self, obj: Any, reduced: Any) -> None:
        if is_importable(obj):
            self.names.append(obj)
        elif type(obj) is FunctionType:
            slots = reduced[2][1]
            self.made += (*_nested(reduced), slots["__globals__"], slots["_cloudpickle_submodules"])
            self.made += obj.__closure__ or ()
            self.scopes.setdefault(id(obj.__globals__), set()).update(slots["__globals__"])
            names = list(dict.fromkeys(_global_names(obj.__code__)))
            self.note(obj, partial(_function, names))
            self.is_by_value = True
        elif obj.__flags__ & HEAP_TYPE:  # else a built-in one that has no name, as that of code
            require(type(obj) is type)
            self.made += _nested(reduced)
            self.note(obj, _class)
            self.is_by_value = self.has_classes = True

    def note(self, obj: Any, read: Read) -> None:
        self.checks.append((obj, read, read(obj)))


class Kept:
    """The pickle of a function, class or partial, and what all of it consisted of at that time."""

    def __init__(self, root: Any) -> None:
        maker = _Maker(file := _Bounded())
        maker.dump(root)
        self.data = b"".join(file.parts)
        require(type(root) is not partial or len(self.data) >= LEAST_PARTIAL)
        self.is_by_value, self.has_classes = maker.is_by_value, maker.has_classes
        self.n_main = self.data.count(b"__main__")
        met = [obj for _, obj in maker.memo.copy().values()]
        require(not any(type(obj) in (bytearray, pickle.PickleBuffer) for obj in met))
        made = set(map(id, maker.made))
        for obj in met:
            if type(obj) in (list, dict, set) and id(obj) not in made:
                maker.note(obj, READ[type(obj)])
            # What is in a function's cells is noted with it; of a cell by itself nobody looks.
            require(type(obj) is not CellType or id(obj) in made)
        #: The root itself is not held, so that it may go: who uses the pickle has it.
        self._checks = [(None if o is root else o, read, then) for o, read, then in maker.checks]
        self._names = maker.names
        self._modules = maker.modules
        self._kinds = maker.kinds
        self.scopes = maker.scopes
        self._n_modules = len(sys.modules)  # cloudpickle adds submodules that have been imported
        #: Objects that stock code would keep one where the rest of a task has them, too.
        self.shareable = frozenset(
            id(part)
            for obj, _, then in maker.checks
            for part in _nested((obj, *then))
            if type(part) not in ALIKE and part is not root
        ).difference(_COMMON, map(id, maker.names)) | frozenset(
            id(part)
            for _, _, then in maker.checks
            for part in _nested(_values(then))
            if type(part) in (str, bytes)
            and (len(part) > 1 or not part.isascii())  # of others there is one in a process
        )
        n_parts = sum(len(then) for _, _, then in maker.checks)
        noted = WEIGHT_OF_EACH * len(met) + WEIGHT_OF_PART * n_parts
        self.weight = WEIGHT + len(self.data) + noted
        require(self.weight <= MOST_BYTES - WEIGHT)  # else it would go at once, and all others
        self.n_clashes = self.n_uses = 0
        self._digest = b""

    @property
    def digest(self) -> bytes:
        self._digest = self._digest or hashlib.blake2b(self.data, digest_size=16).digest()
        return self._digest

    @property
    def by_name(self) -> list[tuple[str, str]]:
        """What whoever loads it looks up: module and qualified name; a module has none."""
        named = [(one.__module__, one.__qualname__) for one in self._names]
        modules = [(name, "") for name in self._modules]
        return [one for one in dict.fromkeys(named + modules) if not one[0].startswith(_FIXED)]

    def is_current(self, root: Any) -> bool:
        """Whether the pickle is what would be made now."""
        try:
            for obj, read, then in self._checks:
                now = read(root if obj is None else obj)
                if len(now) != len(then) or not all(map(is_, now, then)):
                    return False
            return (
                len(sys.modules) == self._n_modules
                and all(map(sys.modules.__contains__, self._modules))
                and all(map(is_importable, self._names))
                and all(_diverting(kind) == _NOT_DIVERTING for kind in self._kinds)
            )
        except Exception:  # a cell that has become empty, say
            return False


class _Entry:
    """An object that was met, without keeping it alive."""

    __slots__ = ("is_unfit", "is_used", "kept", "ref")

    def __init__(self, ref: weakref.ref[Any]) -> None:
        self.ref = ref
        self.kept: Kept | None = None
        self.is_unfit = False
        self.is_used = True

    @property
    def weight(self) -> int:
        return WEIGHT + (self.kept.weight if self.kept else 0)


class Cache:
    """
    Kept pickles by the identity of what they are of, bounded by number, by weight, and by age.

    Threads may share it: messages over 10 MB are serialized on distributed's offload thread.
    """

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        self._lock = threading.RLock()
        self.nbytes = self.n_made = self.n_used = 0

    def __len__(self) -> int:
        return sum(entry.kept is not None for entry in list(self._entries.values()))

    def find(self, obj: Any) -> Kept | None:
        """
        What is kept of it, if that is current; made when it is asked for the second time.

        `submit` in a loop brings a function of its own with each task, that never comes again.
        """
        key = id(obj)
        entry = self._entries.get(key)
        if entry is None or entry.ref() is not obj:
            self._put(key, _Entry(weakref.ref(obj, partial(self._gone, key))))
            return None
        entry.is_used = True
        if entry.is_unfit:
            return None
        kept = entry.kept
        if kept is None:
            return self._made(key, entry, obj)
        if not kept.is_current(obj):
            with self._lock:
                self._drop(key)
                entry.kept = None
                entry.is_unfit = kept.n_uses < 2  # it changes all the time
                self._put(key, entry)
            return None
        kept.n_uses += 1
        self.n_used += 1
        return kept

    def was_met(self, obj: Any) -> bool:
        """Whether it comes again, and `find` may give something."""
        entry = self._entries.get(id(obj))
        if entry is None or entry.ref() is not obj:
            return self.find(obj) is not None
        return not entry.is_unfit

    def age(self) -> None:
        """Drop what was not asked for since the last call: it may be what keeps itself alive."""
        with self._lock:
            for key, entry in list(self._entries.items()):
                if entry.is_used:
                    entry.is_used = False
                else:
                    self._drop(key)

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self.nbytes = 0

    def _made(self, key: int, entry: _Entry, obj: Any) -> Kept | None:
        kept = None
        with contextlib.suppress(Exception):  # whatever pickling raises: stock code will say so
            kept = Kept(obj)
        with self._lock:
            self._drop(key)
            entry.kept, entry.is_unfit = kept, kept is None
            self.n_made += kept is not None
            self._put(key, entry)
        return kept

    def _put(self, key: int, entry: _Entry) -> None:
        with self._lock:
            self._drop(key)
            self._entries[key] = entry
            self.nbytes += entry.weight
            while len(self._entries) > MOST_OBJECTS or self.nbytes > MOST_BYTES:
                self._drop(next(iter(self._entries)))

    def _gone(self, key: int, ref: weakref.ref[Any]) -> None:
        with self._lock:
            if key in self._entries and self._entries[key].ref is ref:
                self._drop(key)

    def _drop(self, key: int) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.nbytes -= entry.weight


def _global_names(code: CodeType) -> Iterator[str]:
    """All names that may be global variables. Raises `Unfit` for code that may set some."""
    opcodes = code.co_code[::2]
    require(not any(write in opcodes for write in WRITES))
    require(REFLECTION.isdisjoint((*code.co_names, *code.co_consts)))
    yield from code.co_names
    for inner in code.co_consts:
        if type(inner) is CodeType:
            yield from _global_names(inner)
