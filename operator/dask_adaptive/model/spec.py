"""
From JSON to the model's dataclasses, all problems at once, each with its path.

A dataclass of the model says with the kinds of fields here how it is read (`jitter: Part = 0.0`),
each with what it must be in the CRD's words; `decode` reads it. The CRD says the same but for what
the API server cannot know: whether a cron schedule ever comes, whether a time zone exists, and
Dask's configuration (`spec.scheduler`).

cattrs constructs the values, and collects what hooks refuse. The hooks are as strict as the API
server: nothing is converted, unknown fields are refused, and null is the same as no field.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any, NamedTuple, TypeVar, cast, get_args, get_origin, get_type_hints
from zoneinfo import ZoneInfo

from cattrs import ClassValidationError, Converter, IterableValidationError
from cattrs.gen import make_dict_structure_fn, override
from cronsim import CronSim, CronSimError

from dask_adaptive.model.amounts import Amount, parse_amount, parse_duration, parse_percent

#: So many problems are shown: the message of a condition stays readable.
MAX_SHOWN = 10


class Problem(NamedTuple):
    """A field that is wrong, and what it must be."""

    path: str
    words: str

    def __str__(self) -> str:
        return f"{self.path}: {self.words}" if self.path else self.words

    def below(self, path: str) -> Problem:
        return Problem(path + self.path, self.words)


class InvalidPolicy(ValueError):
    """The user can fix the spec. The text has a line for each problem, at most `MAX_SHOWN`."""

    def __init__(self, *problems: Problem | str) -> None:
        every = (p if isinstance(p, Problem) else Problem("", p) for p in problems)
        self.problems = tuple(dict.fromkeys(every))
        left = len(self.problems) - MAX_SHOWN
        more = [f"and {left} problems more"] if left > 0 else []
        super().__init__("\n".join([*map(str, self.problems[:MAX_SHOWN]), *more]))


class Check(NamedTuple):
    """What is wrong between fields of one object: at which, and which fields show it."""

    path: str
    words: str
    needs: tuple[str, ...]


class Kind(NamedTuple):
    """A field that is one JSON value. `parse` raises ValueError, with words if there are none."""

    parse: Callable[[Any], Any]
    words: str = ""
    longest: int = 0  # characters

    def read(self, value: Any) -> Any:
        if self.longest and isinstance(value, str) and len(value) > self.longest:
            raise InvalidPolicy(f"must have at most {self.longest} characters")
        try:
            return self.parse(value)
        except InvalidPolicy:
            raise
        except ValueError as exc:
            raise InvalidPolicy(f"{self.words or exc}; got {value!r:.60}") from None


class Must(NamedTuple):
    """What holds for a value that has been read."""

    holds: Callable[[Any], bool]
    words: str

    def check(self, value: Any) -> None:
        if not self.holds(value):
            raise InvalidPolicy(self.words)


class Listed(NamedTuple):
    """A list, of which no two entries have the same `key`."""

    most: int
    key: Callable[[Any], Any] | None = None

    def check(self, value: Any) -> None:
        if not isinstance(value, list):
            raise InvalidPolicy("must be a list")
        if len(value) > self.most:
            raise InvalidPolicy(f"has {len(value)} entries; {self.most} are allowed")
        keys = [self.key(one) for one in value] if self.key else []
        twice = [i for i, key in enumerate(keys) if key in keys[:i] and key is not None]
        if twice:
            raise InvalidPolicy(*(Problem(f"[{i}]", f"{keys[i]} is there twice") for i in twice))


def itself(value: Any) -> Any:
    """The key of a list that is a set."""
    return value


def _number(*, least: float = -math.inf) -> Callable[[Any], float]:
    """Take a number; a bool is none, nor is NaN, which YAML has."""

    def parse(value: Any) -> float:
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not value >= least:
            raise ValueError
        return value

    return parse


def _whole(*, least: float = -math.inf) -> Callable[[Any], int]:
    """Take a whole number; for JSON 2.0 is one, too. The CRD's are of 32 bits."""
    number = _number(least=least)

    def parse(value: Any) -> int:
        if number(value) % 1 or not -(2**31) <= value < 2**31:
            raise ValueError
        return int(value)

    return parse


def one_of(values: Mapping[str, Any]) -> Kind:
    """One of several words, each of which stands for a value."""

    def parse(value: Any) -> Any:
        if not isinstance(value, str) or value not in values:
            raise ValueError
        return values[value]

    return Kind(parse, f"must be one of {', '.join(values)}")


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _cron(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(_CRON, value):
        raise ValueError(_CRON_WORDS)
    try:
        often = _comes_often(value)
    except CronSimError as exc:
        raise ValueError(f"is no schedule of cron: {str(exc).lower()}") from None
    if not often:
        raise ValueError(
            "never comes, or not in any four years: day of the month and day of the week must fit"
            " together where one of them begins with *"
        )
    return value


_FOUR_YEARS = [date(2024, 1, 1) + timedelta(days) for days in range(4 * 365 + 1)]


@lru_cache(maxsize=1024)
def _comes_often(schedule: str) -> bool:
    """Tells whether it comes in four years, whichever: a search finds it soon, from any instant."""
    cron = CronSim(schedule, datetime(2024, 1, 1, tzinfo=UTC))
    return all(
        any(day.month in cron.months and cron.match_day(day) for day in four_years)
        for four_years in (_FOUR_YEARS, [day + timedelta(1461) for day in _FOUR_YEARS])
    )


def _zone(value: Any) -> str:
    try:
        ZoneInfo(value)
    except (KeyError, ValueError, OSError, TypeError):  # not there; no key; a folder; no text
        raise ValueError from None
    return str(value)


def _tolerance(value: Any) -> float:
    if isinstance(value, str) and re.fullmatch(r"0(\.[0-9]+)?|1(\.0+)?", value):
        return float(value)
    return parse_percent(value)


def _glob(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("must be a text that is not empty")
    if _REGULAR.search(value):
        raise ValueError(
            'must be a glob, not a regular expression: write "*Error: *", not ".*Error: .*"'
        )
    if "*" not in value:
        raise ValueError(
            "must have a *, which stands for any text, because the whole of repr(exception) is"
            ' compared: write "*CUDA error*", not "CUDA error"'
        )
    return value


#: What nobody writes but in a regular expression. As a glob almost none of them would ever match,
#: and nobody would notice. The CRD has the same.
_REGULAR = re.compile(r"\\[AZbBdDsSwW.(){}|^$\[\]]|\.[*+]|\(\?|^\^|\$$")

#: The CRD has the same; each part of a field is checked by us.
_CRON = r" *[0-9A-Za-z*/,#-]+( +[0-9A-Za-z*/,#-]+){4} *"
_CRON_WORDS = (
    "must be five fields of cron, such as 0 2 * * 1-5:"
    " minute, hour, day of the month, month, day of the week"
)

#: RFC 1123, as Kubernetes has it.
_SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"

Count = Annotated[int, Kind(_whole(least=0), "must be a whole number from 0 to 2147483647")]
Positive = Annotated[int, Kind(_whole(least=1), "must be a whole number from 1 to 2147483647")]
Whole = Annotated[int, Kind(_whole(), "must be a whole number")]
Number = Annotated[float, Kind(_number(least=0), "must be a number of at least 0")]
Text = Annotated[str, Kind(_text, "must be a text")]
ObjectName = Annotated[Text, Must(lambda t: 1 <= len(t) <= 253, "must have 1 to 253 characters")]
_CONTROLLER_WORDS = (
    "must be a name of Kubernetes, such as team-a: lower case letters, digits, - and ., at most 63"
)
ControllerName = Annotated[
    Text, Must(lambda t: len(t) <= 63 and bool(re.fullmatch(_SUBDOMAIN, t)), _CONTROLLER_WORDS)
]

_DURATION_WORDS = (
    "must be a duration such as 90s, 15m or 1h30m: a number with a unit (ms, s, m, h), not"
    " negative, at most 87600h"
)
Seconds = Annotated[float, Kind(parse_duration, _DURATION_WORDS, 32)]
PositiveSeconds = Annotated[Seconds, Must(lambda s: s > 0, "must be longer than 0s")]

#: Parts of one, 0..1.
Part = Annotated[float, Kind(parse_percent, "must be a percentage from 0% to 100%, such as 10%", 8)]
_LINE_WORDS = "must be a percentage of more than 0% and at most 100%, such as 80%"
Line = Annotated[float, Kind(parse_percent, _LINE_WORDS, 8), Must(lambda p: p > 0, _LINE_WORDS)]
_TOLERANCE_WORDS = (
    'must be a percentage from 0% to 100%, such as 10%, or a part of one in quotes, such as "0.1"'
)
Tolerance = Annotated[float, Kind(_tolerance, _TOLERANCE_WORDS, 16)]

_WORKERS_WORDS = "must be a whole number from 0 to 2147483647, or a percentage, such as 10%"
Workers = Annotated[Amount, Kind(parse_amount, _WORKERS_WORDS, 8)]
_SURGE_WORDS = (
    "must be a whole number from 1 to 2147483647, or a percentage of more than 0%, such as 10%"
)
Surge = Annotated[
    Amount, Kind(parse_amount, _SURGE_WORDS, 8), Must(lambda a: a.of(100) > 0, _SURGE_WORDS)
]

Cron = Annotated[str, Kind(_cron, longest=128)]
Zone = Annotated[str, Kind(_zone, "must be a time zone, such as Europe/Berlin or UTC", 64)]
Glob = Annotated[str, Kind(_glob, longest=200)]


T = TypeVar("T")
Hook = Callable[[Any, Any], Any]


def decode(kind: type[T], node: Any, path: str) -> T:
    """
    Read JSON as a dataclass.

    A field's name in JSON is its own in camel case, without `_s` for seconds. After its fields, an
    object's `checks()` are asked, but for those that need a field that is wrong.

    Args:
        path: The field that holds the node, for messages.

    Raises:
        InvalidPolicy: The user can fix it; each problem has its path.
    """
    try:
        return _CONVERTER.structure(node, kind)
    except InvalidPolicy as exc:
        raise InvalidPolicy(*(p.below(path) for p in exc.problems)) from None


def _object(cls: Any) -> Hook:
    """Structure one dataclass, and go on behind what is wrong."""
    hints = get_type_hints(cls, include_extras=True)
    construct = cast(Any, make_dict_structure_fn)(
        cls,
        _CONVERTER,
        _cattrs_forbid_extra_keys=True,
        **{
            f.name: override(rename=json_name(f.name), struct_hook=_hook(hints[f.name]))
            for f in fields(cls)
        },
    )

    def attempt(node: Mapping[str, Any]) -> Any:
        try:
            return construct({k: v for k, v in node.items() if v is not None}, cls)
        except ClassValidationError as exc:
            raise InvalidPolicy(*_in_fields(exc, cls)) from None

    def structure(node: Any, _: Any) -> Any:
        if not isinstance(node, Mapping):
            raise InvalidPolicy("must be an object")
        problems, wrong = tuple[Problem, ...](), set[str]()
        try:
            value = attempt(node)
        except InvalidPolicy as exc:
            problems, wrong = exc.problems, {re.split(r"[.\[]", p.path)[1] for p in exc.problems}
            try:
                value = attempt({k: v for k, v in node.items() if k not in wrong})
            except InvalidPolicy:  # without a field that is required nothing else can be checked
                raise exc from None
        problems += _checked(value, wrong)
        if problems:
            raise InvalidPolicy(*problems)
        return value

    return structure


def _hook(annotation: Any) -> Hook:
    """Structure a field as it is annotated: cattrs knows a dataclass's types without marks."""
    hook = _CONVERTER.get_structure_hook(annotation)
    return lambda value, _: hook(value, annotation)


def _checked(value: Any, wrong: set[str]) -> tuple[Problem, ...]:
    checks = value.checks() if hasattr(value, "checks") else ()
    return tuple(Problem(c.path, c.words) for c in checks if not wrong.intersection(c.needs))


def _annotated(annotation: Any) -> Hook:
    """Structure a field by its marks: its list, its kind or class, what it must be."""
    base, *marks = get_args(annotation)
    kind = next((m for m in marks if isinstance(m, Kind)), None)
    inner: Hook = (lambda value, _: kind.read(value)) if kind else _hook(base)

    def structure(value: Any, _: Any) -> Any:
        for mark in marks:
            if isinstance(mark, Listed):
                mark.check(value)
        try:
            value = inner(value, base)
        except IterableValidationError as exc:
            raise InvalidPolicy(*_in_list(exc)) from None
        for mark in marks:
            if isinstance(mark, Must):
                mark.check(value)
        return value

    return structure


def _word(value: Any, cls: type[enum.Enum]) -> Any:
    return one_of({member.value: member for member in cls}).read(value)


def _flag(value: Any, _: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidPolicy("must be true or false")
    return value


_CONVERTER = Converter(detailed_validation=True)
_CONVERTER.register_structure_hook(bool, _flag)
_CONVERTER.register_structure_hook(str, _word)  # cattrs dispatches our enums as what they are: str
_CONVERTER.register_structure_hook_factory(is_dataclass, _object)
_CONVERTER.register_structure_hook_factory(
    lambda t: cast(Any, get_origin(t)) is Annotated, _annotated
)


def json_name(own: str) -> str:
    """A field's name in JSON."""
    head, *rest = own.removesuffix("_s").split("_")
    return head + "".join(part.capitalize() for part in rest)


def _in_fields(group: ClassValidationError, cls: Any) -> Iterator[Problem]:
    of_fields, others = cast(Any, group.group_exceptions())
    for exc, note in of_fields:
        name = json_name(note.name)
        if isinstance(exc, InvalidPolicy):
            yield from (p.below(f".{name}") for p in exc.problems)
        elif isinstance(exc, KeyError) and exc.args == (name,):
            yield Problem(f".{name}", "is required")
        else:
            raise group
    for exc in others:
        known = ", ".join(sorted(json_name(f.name) for f in fields(cls)))
        for field in map(str, exc.extra_fields):  # ForbiddenExtraKeysError
            yield Problem(f".{field}", f"is not a known field; known here: {known}")


def _in_list(group: IterableValidationError) -> Iterator[Problem]:
    for exc, note in cast(Any, group.group_exceptions())[0]:
        yield from (p.below(f"[{note.index}]") for p in exc.problems)
