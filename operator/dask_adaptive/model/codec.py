"""
One codec for everything declared: specs, statuses, decisions. The field types of a dataclass
declare how it is read from and written to JSON; the CRDs' schemas are made from the same
declarations (scripts/crds.py).

A type is text, a number, a flag, an enum, another dataclass, a tuple or a mapping of these; or it
is `Annotated` with a `Kind`, and with what else must hold. `kinds.py` has those of specs.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from types import NoneType
from typing import Annotated, Any, NamedTuple, TypeVar, cast, get_args, get_origin, get_type_hints

from dask_adaptive.text import plain

#: So many problems are shown: the message of a condition stays readable.
MAX_SHOWN = 10

#: Characters of a text as it is written; Kubernetes allows 32,768 in a condition.
LONGEST = 1024

T = TypeVar("T")


class Problem(NamedTuple):
    """A wrong field, and what it must be."""

    path: str
    words: str

    def __str__(self) -> str:
        return f"{self.path}: {self.words}" if self.path else self.words

    def below(self, path: str) -> Problem:
        return Problem(path + self.path, self.words)


class InvalidPolicy(ValueError):
    """
    An invalid spec that the user can fix. The text has a line per problem, at most `MAX_SHOWN`.
    """

    def __init__(self, *problems: Problem | str) -> None:
        every = (p if isinstance(p, Problem) else Problem("", p) for p in problems)
        self.problems = tuple(dict.fromkeys(every))
        left = len(self.problems) - MAX_SHOWN
        more = [f"and {left} more"] if left > 0 else []
        super().__init__("\n".join([*map(str, self.problems[:MAX_SHOWN]), *more]))


class Check(NamedTuple):
    """A contradiction between fields of one object: where, and which fields show it."""

    path: str
    words: str
    needs: tuple[str, ...]


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, eq=False)  # no eq: types are compared, and schemas have no hash
class Kind:
    """
    A field that is one JSON value.

    Attributes:
        parse: Raises ValueError, with words if there are none here.
        longest: Characters of a text.
        write: The inverse of `parse`; None: it is left out.
        cel: The same rule for the API server, about `self`; `words` are its message.
        schema: The rest of its schema.
    """

    parse: Callable[[Any], Any]
    words: str = ""
    longest: int = 0
    write: Callable[[Any], Any] = _same
    cel: str = ""
    schema: Mapping[str, Any] = field(default_factory=dict)

    def read(self, value: Any) -> Any:
        if self.longest and isinstance(value, str) and len(value) > self.longest:
            raise InvalidPolicy(f"must have at most {self.longest} characters")
        try:
            return self.parse(value)
        except InvalidPolicy:
            raise
        except ValueError as exc:
            raise InvalidPolicy(f"{self.words or exc}; got {value!r:.60}") from None


@dataclass(frozen=True, eq=False)
class Must:
    """A rule for a parsed value; `cel` and `schema` as in `Kind`."""

    holds: Callable[[Any], bool]
    words: str
    cel: str = ""
    schema: Mapping[str, Any] = field(default_factory=dict)


class Listed(NamedTuple):
    """A list of at most so many entries (0: any), all with different `key`."""

    most: int = 0
    key: str = ""  # a field of the entries; `ITSELF`: the list is a set

    def keys(self, entries: list[Any]) -> list[Any]:
        if self.key in ("", ITSELF):
            return entries if self.key else []
        return [one.get(self.key) if isinstance(one, Mapping) else None for one in entries]


ITSELF = "."


class Key(NamedTuple):
    """Another name in JSON."""

    name: str


#: Of a field that is not in JSON.
LOCAL = "local"


def one_of(values: Mapping[str, Any]) -> Kind:
    """One of several words, each with its value."""
    words = {value: word for word, value in values.items()}

    def parse(value: Any) -> Any:
        if not isinstance(value, str) or value not in values:
            raise ValueError
        return values[value]

    return Kind(
        parse, f"must be one of {', '.join(values)}", 0, words.__getitem__,
        schema={"type": "string", "enum": list(values)},
    )  # fmt: skip


def number(*, least: float = -math.inf) -> Callable[[Any], float]:
    """Take a number; not a bool, nor NaN, which YAML has."""

    def parse(value: Any) -> float:
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not value >= least:
            raise ValueError
        return value

    return parse


def whole(*, least: float = -math.inf) -> Callable[[Any], int]:
    """Take a whole number; JSON's 2.0 is one, too."""
    parse = number(least=least)

    def parse_whole(value: Any) -> int:
        if parse(value) % 1:
            raise ValueError
        return int(value)

    return parse_whole


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidPolicy("must be true or false")
    return value


def _figure(value: float) -> float | None:
    return round(value, 3) if math.isfinite(value) else None


def cut(text: str) -> str:
    """Shorten text to what is written."""
    text = plain(text)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


_SCALARS: Mapping[Any, Kind] = {
    str: Kind(_text, "must be a string", 0, cut, schema={"type": "string"}),
    bool: Kind(_flag, schema={"type": "boolean"}),
    int: Kind(
        whole(), "must be a whole number", 0, round, schema={"type": "integer", "format": "int32"}
    ),
    float: Kind(number(), "must be a number", 0, _figure, schema={"type": "number"}),
}


class Shape(NamedTuple):
    """A declared type."""

    base: Any
    marks: list[Any]
    kind: Kind | None  # of one value; None: it is an object, a list or a mapping
    inner: Shape | None  # of the entries of a list or mapping
    can_lack: bool  # None is not allowed


def shape_of(hint: Any) -> Shape:
    can_lack = get_origin(hint) is not Annotated and NoneType in get_args(hint)
    if can_lack:
        (hint,) = (arg for arg in get_args(hint) if arg is not NoneType)
    base, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    kind = next((m for m in marks if isinstance(m, Kind)), None) or _SCALARS.get(base)
    if isinstance(base, type) and issubclass(base, enum.Enum):
        kind = kind or one_of({member.value: member for member in base})
    inner = None
    if kind is None and not is_dataclass(base):
        inner = shape_of(get_args(base)[issubclass(get_origin(base), Mapping)])
    return Shape(base, marks, kind, inner, can_lack)


class Declared(NamedTuple):
    """A field of a dataclass, as JSON has it."""

    own: str
    key: str
    shape: Shape
    default: Any  # MISSING: it is required


@cache
def declared(cls: Any) -> tuple[Declared, ...]:
    """Return the fields of a dataclass that appear in JSON."""
    hints = get_type_hints(cls, include_extras=True)
    found = []
    for f in fields(cls):
        shape = shape_of(hints[f.name])
        if LOCAL not in shape.marks:
            key = next((m.name for m in shape.marks if isinstance(m, Key)), json_name(f.name))
            default = f.default if f.default_factory is MISSING else f.default_factory()
            found.append(Declared(f.name, key, shape, default))
    return tuple(found)


def json_name(own: str) -> str:
    """Return a field's name in JSON."""
    head, *rest = own.removesuffix("_s").split("_")
    return head + "".join(part.capitalize() for part in rest)


def decode(kind: type[T], node: Any, path: str) -> T:
    """
    Read JSON as a dataclass. Nothing is converted, and null is the same as no field.

    After its fields, an object's `checks()` are asked, but for those that need a field that is
    wrong.

    Args:
        path: The field that holds the node, for messages.

    Raises:
        InvalidPolicy: The user can fix it; each problem has its path.
    """
    reading = _Reading()
    value: T = reading.read(shape_of(kind), node, path)
    if reading.problems:
        raise InvalidPolicy(*reading.problems)
    return value


def recover(kind: type[T], node: Any, *, whole: bool = False) -> T | None:
    """
    Read foreign JSON: wrong parts and unknown fields are left out.

    Args:
        whole: Take it only if nothing is wrong in it; but unknown fields.

    Returns:
        The value, with defaults for all that could not be read; None if something required cannot.
    """
    reading = _Reading()
    value = reading.read(shape_of(kind), node, "")
    is_wrong = whole and len(reading.problems) > reading.unknown
    return None if value is _NOTHING or is_wrong else value


#: What could not be read.
_NOTHING: Any = object()


class _Reading:
    """Reads one value, and continues after errors."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.unknown = 0  # of these

    def read(self, shape: Shape, node: Any, path: str) -> Any:
        """A value; `_NOTHING`, and why, if there is none."""
        try:
            value = shape.kind.read(node) if shape.kind else self._whole(shape, node, path)
            for mark in shape.marks:
                if isinstance(mark, Must) and not mark.holds(value):
                    raise InvalidPolicy(mark.words)
        except InvalidPolicy as exc:
            self.problems += (problem.below(path) for problem in exc.problems)
            return _NOTHING
        return value

    def _whole(self, shape: Shape, node: Any, path: str) -> Any:
        if shape.inner is None:
            return self._object(shape.base, node, path)
        kind = get_origin(shape.base)
        if issubclass(kind, Mapping):
            return self._mapping(shape.inner, node, path)
        listed = next((m for m in shape.marks if isinstance(m, Listed)), Listed())
        return kind(self._entries(shape.inner, listed, node, path))

    def _object(self, cls: Any, node: Any, path: str) -> Any:
        if not isinstance(node, Mapping):
            raise InvalidPolicy("must be an object")
        values, wrong = dict[str, Any](), set[str]()
        for own, key, shape, default in (known := declared(cls)):
            before = len(self.problems)
            if node.get(key) is not None:
                values[own] = self.read(shape, node[key], f"{path}.{key}")
            elif default is MISSING:
                values[own] = _NOTHING
                self.problems.append(Problem(f"{path}.{key}", "is required"))
            if len(self.problems) > before:
                wrong.add(key)
        self._find_unknown(node, known, path)
        there = {own: value for own, value in values.items() if value is not _NOTHING}
        if any(one.default is MISSING and one.own not in there for one in known):
            return _NOTHING  # nothing else can be checked
        self._check(value := cls(**there), wrong, path)
        return value

    def _check(self, value: Any, wrong: set[str], path: str) -> None:
        for check in value.checks() if hasattr(value, "checks") else ():
            if not wrong.intersection(check.needs):
                self.problems.append(Problem(path + check.path, check.words))

    def _find_unknown(
        self, node: Mapping[Any, Any], known: tuple[Declared, ...], path: str
    ) -> None:
        keys = sorted(one.key for one in known)
        found = [key for key, value in node.items() if key not in keys and value is not None]
        words = f"is not a known field; known here: {', '.join(keys)}"
        self.problems += (Problem(f"{path}.{key}", words) for key in found)
        self.unknown += len(found)

    def _entries(self, shape: Shape, listed: Listed, node: Any, path: str) -> Iterator[Any]:
        if not isinstance(node, list):
            raise InvalidPolicy("must be a list")
        if listed.most and len(node) > listed.most:
            raise InvalidPolicy(f"has {len(node)} entries; {listed.most} are allowed")
        keys = listed.keys(node)
        for i, key in enumerate(keys):
            if key is not None and key in keys[:i]:
                self.problems.append(Problem(f"{path}[{i}]", f"{key} is given twice"))
        for i, one in enumerate(node):
            if (value := self.read(shape, one, f"{path}[{i}]")) is not _NOTHING:
                yield value

    def _mapping(self, shape: Shape, node: Any, path: str) -> dict[str, Any]:
        if not isinstance(node, Mapping):
            raise InvalidPolicy("must be an object")
        found = {
            str(key): self.read(shape, value, f"{path}.{key}")
            for key, value in node.items()
            if value is not None
        }
        return {key: value for key, value in found.items() if value is not _NOTHING}


def encode(value: Any) -> Any:
    """
    Write a dataclass as JSON, with every field that has a value.

    Text of schedulers and of annotations may hold anything: it is cut, and without control
    characters. JSON has no word for numbers that are not finite: they are left out.
    """
    known = declared(cast(Any, type(value)))
    return _there({one.key: encode_as(one.shape, getattr(value, one.own)) for one in known})


def encode_as(shape: Shape, value: Any) -> Any:
    """Write a value as it is declared."""
    if value is None and shape.can_lack:
        return None
    if shape.kind:
        return shape.kind.write(value)
    if shape.inner is None:
        return encode(value)
    if isinstance(value, Mapping):
        found = {cut(str(key)): encode_as(shape.inner, one) for key, one in value.items()}
        return _there(found)
    return [encode_as(shape.inner, one) for one in value]


def _there(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
