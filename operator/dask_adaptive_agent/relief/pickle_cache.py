"""
Pickles of functions, classes and large partials that are kept, and proof that they still hold.

A pickle is kept only of what consists of values that never change, names that others can import,
and plain functions, classes, instances and containers. The parts of all these are noted, and
compared by identity with what they are now at each use. All else is pickled as ever.
"""

from __future__ import annotations

import copyreg
import dataclasses
import datetime
import decimal
import enum
import fractions
import hashlib
import io
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
import zoneinfo
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from operator import attrgetter, is_
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import cloudpickle  # type: ignore[import-untyped]

PROTOCOL = 5
MOST_OBJECTS = 1000
MOST_BYTES = 64 * 2**20
#: A larger pickle is not kept.
LARGEST = 16 * 2**20
#: A partial that pickles to less gets no pickle of its own, nor does one of fewer bytes for
#: each part that is compared: numbers are pickled faster. Cloudpickle takes as long for a callable
#: by value as for so many bytes.
LEAST_PARTIAL, LEAST_OF_PART, BY_VALUE = 2000, 16, 8000
#: The weight of each object in a pickle, and of each noted part of one, in addition to its bytes.
WEIGHT_OF_EACH, WEIGHT_OF_PART = 200, 8

_FIELD_KIND = getattr(dataclasses, "_FIELD_BASE", CellType)
#: Instances of exactly these never change, though what they hold may: the pickler meets that, too.
IMMUTABLE: frozenset[type] = frozenset(
    {
        *(complex, range, slice, type(...), type(NotImplemented), type(typing.Union), re.Pattern),
        *(datetime.date, datetime.time, datetime.datetime, datetime.timedelta, datetime.timezone),
        *(decimal.Decimal, fractions.Fraction, uuid.UUID, zoneinfo.ZoneInfo, _FIELD_KIND),
        *(pathlib.PosixPath, pathlib.WindowsPath, pathlib.PurePosixPath, pathlib.PureWindowsPath),
        *(CodeType, BuiltinFunctionType, CellType, classmethod, staticmethod),
    }
)
#: Nobody can tell these from their copies, or their copies are themselves; text see `_values`.
ALIKE = frozenset(
    {
        *(str, bytes, int, float, bool, CodeType, BuiltinFunctionType, ModuleType, type),
        *(logging.Logger, re.Pattern, _FIELD_KIND, type(None), type(...), type(NotImplemented)),
    }
)
#: Code that may change global variables, which functions of one task have in common.
WRITES = (opcode.opmap["STORE_GLOBAL"], opcode.opmap["DELETE_GLOBAL"])
REFLECTION = frozenset({"globals", "vars", "exec", "eval", "__globals__", "f_globals"})
#: Variables of its module that cloudpickle gives a function, besides those that it uses.
MODULE_NAMES = ("__package__", "__name__", "__path__", "__file__")

#: Modules that nobody reloads.
_FIXED = ("builtins", "cloudpickle.")

#: Of `type.__flags__`: what is made by a class statement.
HEAP_TYPE = 1 << 9
_MISSING = object()
#: Among the parts of something: its values follow, after its names and keys.
_VALUES = object()
#: Objects that all data classes, or all programs, have in common.
_COMMON = frozenset(map(id, (*vars(dataclasses).values(), (), frozenset(), _MISSING, _VALUES)))
Read = Callable[[Any], "tuple[Any, ...]"]


class Unfit(Exception):
    """It can't be pickled in one pass with what is kept."""


def require(is_fit: bool) -> None:
    if not is_fit:
        raise Unfit


def is_importable(obj: Any) -> bool:
    """Tells whether pickle finds a function or class by its name, other than in `__main__`."""
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


# The parts of what may change, one function for each kind.


def _items(mapping: Any) -> tuple[Any, ...]:
    return (*mapping, _VALUES, *mapping.values())


def _instance(obj: Any) -> tuple[Any, ...]:
    """The parts that `object.__reduce_ex__` takes."""
    slots = copyreg._slotnames(type(obj))  # type: ignore[attr-defined]
    own = getattr(obj, "__dict__", {})
    return (obj.__class__, *_items(own), *[getattr(obj, name, _MISSING) for name in slots])


def _class(cls: type) -> tuple[Any, ...]:
    own = vars(cls).copy()
    labels = own.pop("__module__", None), own.pop("__doc__", None)
    return (cls.__name__, cls.__qualname__, *labels, cls.__bases__, *_items(own))


_labels = attrgetter("__name__", "__qualname__", "__module__", "__doc__")
_fields = attrgetter("__code__", "__closure__", "__defaults__", "__kwdefaults__", "__annotations__")


def _function(names: list[str], function: FunctionType) -> tuple[Any, ...]:
    """The parts of a function that may use global variables of these names."""
    scope, cells, own = function.__globals__, function.__closure__, function.__dict__
    values = [cell.cell_contents for cell in cells] if cells else ()
    given = [scope.get(name, _MISSING) for name in MODULE_NAMES]
    used = [scope.get(name, _MISSING) for name in names]
    items = _items(own) if own else (_VALUES,)
    return (*_labels(function), *given, *items, *_fields(function), *values, *used)


def _named(obj: Any) -> tuple[Any, ...]:
    return (is_importable(obj),)


def _loaded(module: ModuleType) -> tuple[Any, ...]:
    return (sys.modules.get(module.__name__),)


READ: dict[type, Read] = {
    list: tuple,
    set: tuple,
    dict: _items,
    types.MappingProxyType: _items,
    partial: lambda obj: (*_items(obj.__dict__), obj.func, obj.args, obj.keywords),
    property: lambda obj: (obj.__doc__, _VALUES, obj.fget, obj.fset, obj.fdel),
    logging.Logger: lambda obj: (obj.name, _VALUES),
}

#: Types that cloudpickle reduces in its own way; this is where others register theirs as well.
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
    """Tells whether pickle takes nothing but the attributes of an instance."""
    # No built-in type is among the bases: it may keep state of its own.
    return (
        all(base is object or base.__flags__ & HEAP_TYPE for base in kind.__mro__)
        and _diverting(kind) == _NOT_DIVERTING
        and not any(name in getattr(obj, "__dict__", ()) for name in _DIVERTING)
    )


def _is_known_by_name(obj: Any, kind: type) -> bool:
    """A member of an enumeration (its class and a name or value), or `list[int]` and the like."""
    is_enumerated = issubclass(kind, enum.Enum) and kind.__reduce_ex__.__module__ == "enum"
    is_generic = kind.__module__ in ("typing", "types") and typing.get_origin(obj) is not None
    return is_enumerated or is_generic


def _values(parts: tuple[Any, ...]) -> tuple[Any, ...]:
    """
    The parts that are neither names nor keys.

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


def _global_names(code: CodeType) -> Iterator[str]:
    """All names that may be global variables. Raises `Unfit` for code that may set some."""
    opcodes = code.co_code[::2]
    require(not any(write in opcodes for write in WRITES))
    require(REFLECTION.isdisjoint((*code.co_names, *code.co_consts)))
    yield from code.co_names
    for inner in code.co_consts:
        if type(inner) is CodeType:
            yield from _global_names(inner)


class _Maker(cloudpickle.Pickler):  # type: ignore[misc]
    """Makes a pickle to be kept, and notes what could change in it. Raises `Unfit`."""

    def __init__(self, kept: KeptPickle, root: Any) -> None:
        super().__init__(file := io.BytesIO(), PROTOCOL)
        self._kept = kept
        self._made: list[Any] = []  # by cloudpickle, of functions and classes
        self.dump(root)
        self.data = file.getvalue()
        require(len(self.data) <= LARGEST)
        require(type(root) is not partial or len(self.data) >= LEAST_PARTIAL)
        met = [obj for _, obj in self.memo.copy().values()]
        self.n_met = len(met)
        made = set(map(id, self._made))
        for obj in met:
            kind = type(obj)
            require(kind not in (bytearray, pickle.PickleBuffer))
            if kind in (list, dict, set) and id(obj) not in made:
                self._note(obj, READ[kind])
            # The contents of a function's cells are noted with it; those of a lone cell are not.
            require(kind is not CellType or id(obj) in made)

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        reduced = super().reducer_override(obj)
        if kind is FunctionType or isinstance(obj, type):
            self._named_or_made(obj, reduced)
        elif kind is ModuleType:
            require(sys.modules.get(obj.__name__) is obj)
            self._note(obj, _loaded)
        elif kind in READ:
            self._note(obj, READ[kind])
        elif kind not in IMMUTABLE and not _is_known_by_name(obj, kind):
            require(_is_plain(obj, kind))
            self._note(obj, _instance)
            self._note(kind, _diverting)
        return reduced

    def _named_or_made(self, obj: Any, reduced: Any) -> None:
        kept = self._kept
        if is_importable(obj):
            self._note(obj, _named)
        elif type(obj) is FunctionType:
            slots = reduced[2][1]
            self._made += (*_nested(reduced), slots["__globals__"])
            self._made += (slots["_cloudpickle_submodules"], *(obj.__closure__ or ()))
            kept.scopes.setdefault(id(obj.__globals__), set()).update(slots["__globals__"])
            names = list(dict.fromkeys(_global_names(obj.__code__)))
            self._note(obj, partial(_function, names))
            kept.is_by_value = True
        elif obj.__flags__ & HEAP_TYPE:  # else a built-in one that has no name, as that of code
            require(type(obj) is type)
            self._made += _nested(reduced)
            self._note(obj, _class)
            kept.is_by_value = kept.has_classes = True

    def _note(self, obj: Any, read: Read) -> None:
        self._kept.checks.append((obj, read, read(obj)))


class KeptPickle:
    """The pickle of a function, class or partial, and what all of it consisted of at that time."""

    def __init__(self, root: Any) -> None:
        """Raises `Unfit`, and whatever pickling raises."""
        #: Objects, and their parts at this time.
        self.checks: list[tuple[Any, Read, tuple[Any, ...]]] = []
        #: The names of global variables that functions use, by the id of their module's dict.
        self.scopes: dict[int, set[str]] = {}
        self.is_by_value = self.has_classes = False
        maker = _Maker(self, root)
        self.data = maker.data
        self.shareable = self._shareable(root)
        #: The root itself is not held, so that it may go: who uses the pickle has it.
        self.checks = [(None if o is root else o, read, then) for o, read, then in self.checks]
        self._n_modules = len(sys.modules)  # cloudpickle adds submodules that have been imported
        n_parts = sum(len(then) for _, _, then in self.checks)
        self.weight = len(self.data) + WEIGHT_OF_EACH * maker.n_met + WEIGHT_OF_PART * n_parts
        require(self.weight <= MOST_BYTES // 2)
        worth = len(self.data) + BY_VALUE * self.is_by_value
        require(type(root) is not partial or n_parts * LEAST_OF_PART <= worth)
        self.n_uses = 0

    def _shareable(self, root: Any) -> frozenset[int]:
        """
        Objects that stock code would keep one where the rest of a task has them, too.

        Only such as the checks hold: an object that is gone leaves its id to another one.
        """
        objects = {
            id(part)
            for obj, _, then in self.checks
            for part in _nested((obj, *then))
            if type(part) not in ALIKE and part is not root
        }
        texts = {
            id(part)
            for _, _, then in self.checks
            for part in _nested(_values(then))
            if type(part) in (str, bytes)
            and (len(part) > 1 or not part.isascii())  # of others there is one in a process
        }
        named = {id(obj) for obj, read, _ in self.checks if read is _named}
        return frozenset(objects - _COMMON - named | texts)

    @cached_property
    def digest(self) -> bytes:
        return hashlib.blake2b(self.data, digest_size=16).digest()

    @property
    def by_name(self) -> list[tuple[str, str]]:
        """The names that loading it looks up: module and qualified name; a module has none."""
        found: list[tuple[Any, Read]] = [(obj, read) for obj, read, _ in self.checks]
        names = [(obj.__module__, obj.__qualname__) for obj, read in found if read is _named]
        names += [(obj.__name__, "") for obj, read in found if read is _loaded]
        return [one for one in dict.fromkeys(names) if not one[0].startswith(_FIXED)]

    def is_current(self, root: Any) -> bool:
        """Tells whether the pickle is the one that would be made now."""
        try:
            for obj, read, then in self.checks:
                now = read(root if obj is None else obj)
                if len(now) != len(then) or not all(map(is_, now, then)):
                    return False
            return len(sys.modules) == self._n_modules
        except Exception:  # a cell that has become empty, say
            return False


#: What is known of an object that has no pickle: it has come once, or what is in it cannot be kept.
MET, UNFIT = "met", "unfit"


class PickleCache:
    """
    Kept pickles by the object that each is of, which they don't keep alive.

    Of two generations: what is not asked for in the younger one is dropped with the older one.
    Threads may share it: messages over 10 MB are serialized on distributed's offload thread.
    """

    def __init__(self) -> None:
        self.n_made = self.n_used = 0
        self._lock = threading.RLock()
        self._young: WeakKeyDictionary[Any, KeptPickle | str] = WeakKeyDictionary()
        self._old: WeakKeyDictionary[Any, KeptPickle | str] = WeakKeyDictionary()

    def kept(self) -> list[KeptPickle]:
        with self._lock:
            known = [*self._young.values(), *self._old.values()]
        return [one for one in known if isinstance(one, KeptPickle)]

    def nbytes(self) -> int:
        return sum([kept.weight for kept in self.kept()])

    def may_find(self, obj: Any) -> bool:
        """Tells whether it was met, and may have a pickle, since `age` was called last."""
        return self._young.get(obj, UNFIT) is not UNFIT

    def was_met(self, obj: Any) -> bool:
        """Tells whether it has come before, so that `find` may give something."""
        known = self._young.get(obj)
        if known is None:
            with self._lock:
                known = self._old.pop(obj, None)
                if len(self._young) >= MOST_OBJECTS // 2:
                    self.age()
            self._put(obj, known or MET)
        return known is not None and known is not UNFIT

    def find(self, obj: Any) -> KeptPickle | None:
        """
        The kept pickle, if it is current; made at the second request.

        `submit` in a loop brings a function of its own with each task, that never comes again.
        """
        # All of these are told apart by identity, unlike classes with a metaclass of their own.
        if type(obj) not in (FunctionType, partial, type) or not self.was_met(obj):
            return None
        kept = self._young.get(obj, UNFIT)
        if not isinstance(kept, KeptPickle):
            return self._make(obj) if kept is MET else None
        if kept.is_current(obj):
            kept.n_uses += 1
            self.n_used += 1
            return kept
        self._put(obj, MET if kept.n_uses > 1 else UNFIT)  # it changes all the time
        return None

    def age(self) -> None:
        """Drop what was not asked for since the last call: it may be what keeps itself alive."""
        with self._lock:
            self._old, self._young = self._young, WeakKeyDictionary()

    def clear(self) -> None:
        self.age()
        self.age()

    def _make(self, obj: Any) -> KeptPickle | None:
        try:
            kept = KeptPickle(obj)
        except Exception:  # whatever pickling raises: stock code will say so
            self._put(obj, UNFIT)
            return None
        with self._lock:
            self.n_made += 1
            if self.nbytes() + kept.weight > MOST_BYTES:
                self.clear()
            self._put(obj, kept)
        return kept

    def _put(self, obj: Any, known: KeptPickle | str) -> None:
        with self._lock:
            self._young[obj] = known
