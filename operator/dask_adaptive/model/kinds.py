"""
The kinds of fields that specs have: durations, percentages, numbers of workers, schedules, globs.

A dataclass of the model declares its fields with these (`jitter: Part = 0.0`), and `codec.decode`
reads it. Each kind says what a value must be once in Python and once in CEL for the API server, in
the same words. What the API server cannot know is only here: whether a cron schedule ever comes,
whether a time zone exists, and Dask's configuration (`spec.scheduler`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from dask_adaptive.model.amounts import (
    PATTERN,
    PERCENT,
    Amount,
    format_duration,
    parse_amount,
    parse_duration,
    parse_percent,
)
from dask_adaptive.model.codec import Kind, Must, number, whole


def _cron(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(_CRON, value):
        raise ValueError(_CRON_WORDS)
    try:
        often = _comes_often(value)
    except CronSimError as exc:
        raise ValueError(f"is not a cron schedule: {str(exc).lower()}") from None
    if not often:
        raise ValueError(
            "never comes, or not in every four years: day of the month and day of the week must fit"
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
        raise ValueError("must be a non-empty string")
    if _REGULAR.search(value):
        raise ValueError(_NO_GLOB)
    if "*" not in value:
        raise ValueError(_ANY_TEXT)
    return value


_NO_GLOB = 'must be a glob, not a regular expression: write "*Error: *", not ".*Error: .*"'
_ANY_TEXT = (
    "must have a *, which stands for any text, because the whole of repr(exception) is compared:"
    ' write "*CUDA error*", not "CUDA error"'
)


#: What nobody writes but in a regular expression. As a glob almost none of them would ever match,
#: and nobody would notice.
_REGULAR = re.compile(r"\\[AZbBdDsSwW.(){}|^$\[\]]|\.[*+]|\(\?|^\^|\$$")

#: Each part of a field is checked by us only.
_CRON = r" *[0-9A-Za-z*/,#-]+( +[0-9A-Za-z*/,#-]+){4} *"
_CRON_WORDS = (
    "must have the five fields of cron, such as 0 2 * * 1-5:"
    " minute, hour, day of the month, month, day of the week"
)

#: RFC 1123, as Kubernetes has it.
_SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"


def _matches(pattern: str) -> str:
    return "self.matches('" + pattern.replace("\\", "\\\\") + "')"


def _rules(*rules: tuple[str, str]) -> Mapping[str, Any]:
    """A schema with rules of CEL, each with its message."""
    return {"x-kubernetes-validations": [{"rule": cel, "message": text} for cel, text in rules]}


def _integer(words: str, **least: int) -> Kind:
    """A whole number of 32 bits, as the CRD's are; of at least `minimum`."""
    parse = whole(least=least.get("minimum", -(2**31)))

    def parse_int32(value: Any) -> int:
        if parse(value) >= 2**31:
            raise ValueError
        return int(value)

    schema = {"type": "integer", "format": "int32", "maximum": 2**31 - 1, **least}
    return Kind(parse_int32, words, schema=schema)


Count = Annotated[int, _integer("must be a whole number from 0 to 2147483647", minimum=0)]
Positive = Annotated[int, _integer("must be a whole number from 1 to 2147483647", minimum=1)]
Whole = Annotated[int, _integer("must be a whole number")]
_NUMBER = {"type": "number", "minimum": 0}
Number = Annotated[float, Kind(number(least=0), "must be a number of at least 0", schema=_NUMBER)]
ObjectName = Annotated[
    str,
    Must(
        lambda t: 1 <= len(t) <= 253,
        "must have 1 to 253 characters",
        schema={"minLength": 1, "maxLength": 253},
    ),
]
_CONTROLLER_WORDS = (
    "must be a Kubernetes name, such as team-a: lower case letters, digits, - and ., at most 63"
)
ControllerName = Annotated[
    str,
    Must(
        lambda t: len(t) <= 63 and bool(re.fullmatch(_SUBDOMAIN, t)),
        _CONTROLLER_WORDS,
        _matches(f"^{_SUBDOMAIN}$"),
        {"maxLength": 63},
    ),
]


def _spelt(seconds: float) -> str | None:
    if math.isinf(seconds):
        return None
    return format_duration(seconds) if seconds > 60 else f"{seconds:g}s"


_DURATION_WORDS = (
    "must be a duration such as 90s, 15m or 1h30m: a number with a unit (ms, s, m, h), not"
    " negative, at most 87600h"
)
IS_DURATION = f"{_matches(PATTERN)} && duration(self) <= duration('87600h')"
Seconds = Annotated[float, Kind(parse_duration, _DURATION_WORDS, 32, _spelt, IS_DURATION)]


def lasting(holds: Callable[[float], bool], words: str, cel: str) -> Must:
    """A bound of a duration; one that is no duration is refused for that only."""
    return Must(holds, words, f"!{_matches(PATTERN)} || {cel}")


def at_most(text: str, fix: str = "") -> Must:
    """The longest that a duration may be, such as 1h."""
    most_s, words = parse_duration(text), f"must not be longer than {text}{fix}"
    return lasting(lambda s: s <= most_s, words, f"duration(self) <= duration('{text}')")


PositiveSeconds = Annotated[
    Seconds, lasting(lambda s: s > 0, "must be longer than 0s", "duration(self) > duration('0s')")
]

_PERCENT = "double(self.replace('%', ''))"
_IS_PART = f"{_matches(PERCENT)} && {_PERCENT} <= 100.0"
_PART_WORDS = "must be a percentage from 0% to 100%, such as 10%"


def _percent(part: float) -> str | None:
    return f"{part * 100:g}%" if math.isfinite(part) else None


#: Parts of one, 0..1.
Part = Annotated[float, Kind(parse_percent, _PART_WORDS, 8, _percent, _IS_PART)]
_LINE_WORDS = "must be a percentage of more than 0% and at most 100%, such as 80%"
_IS_LINE = f"{_IS_PART} && {_PERCENT} > 0.0"
Line = Annotated[
    float,
    Kind(parse_percent, _LINE_WORDS, 8, _percent, _IS_LINE),
    Must(lambda p: p > 0, _LINE_WORDS),
]
_TOLERANCE_WORDS = (
    'must be a percentage from 0% to 100%, such as 10%, or a fraction in quotes, such as "0.1"'
)
_IS_TOLERANCE = (
    _matches(r"^(0(\.[0-9]+)?|1(\.0+)?|[0-9]+(\.[0-9]+)?%)$")
    + f" && (!self.endsWith('%') || {_PERCENT} <= 100.0)"
)
Tolerance = Annotated[float, Kind(_tolerance, _TOLERANCE_WORDS, 16, _percent, _IS_TOLERANCE)]


def _amount(amount: Amount) -> int | str:
    return amount.number if amount.percent is None else f"{amount.percent:g}%"


def _of_workers(words: str, cel: str = "", **schema: Any) -> Kind:
    """A number or a percentage."""
    schema["x-kubernetes-int-or-string"] = True
    return Kind(parse_amount, words, 8, _amount, cel, schema)


_WORKERS_WORDS = "must be a whole number from 0 to 2147483647, or a percentage, such as 10%"
_IS_AMOUNT = f"type(self) == int ? self >= 0 && self <= 2147483647 : {_IS_PART}"
Workers = Annotated[Amount, _of_workers(_WORKERS_WORDS, _IS_AMOUNT)]
#: Without CEL: to older API servers (1.30) any such value is a string of 3 MB, whatever maxLength
#: says, and a rule in a list costs too much.
ListedWorkers = Annotated[
    Amount,
    _of_workers(
        _WORKERS_WORDS,
        pattern=r"^0*(100(\.0+)?|[0-9]{1,2}(\.[0-9]+)?)%$",
        minimum=0,
        maximum=2**31 - 1,
    ),
]
_SURGE_WORDS = (
    "must be a whole number from 1 to 2147483647, or a percentage of more than 0%, such as 10%"
)
Surge = Annotated[
    Amount,
    _of_workers(
        _SURGE_WORDS,
        pattern=r"^(0*(100(\.0+)?|[1-9][0-9]?(\.[0-9]+)?)|0+\.[0-9]*[1-9][0-9]*)%$",
        minimum=1,
        maximum=2**31 - 1,
    ),
    Must(lambda a: a.of(100) > 0, _SURGE_WORDS),
]

Cron = Annotated[
    str, Kind(_cron, longest=128, schema=_rules((_matches(f"^{_CRON}$"), _CRON_WORDS)))
]
_ZONE_WORDS = "must be a time zone, such as Europe/Berlin or UTC"
Zone = Annotated[str, Kind(_zone, _ZONE_WORDS, 64, schema={"minLength": 1})]
_GLOB_RULES = _rules(
    ("self.contains('*')", _ANY_TEXT), (f"!self.matches(r'{_REGULAR.pattern}')", _NO_GLOB)
)
Glob = Annotated[str, Kind(_glob, longest=200, schema={"minLength": 1, **_GLOB_RULES})]
