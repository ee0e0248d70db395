"""
Reads and writes what people type: amounts (`80%`, `2` of the workers, `500Mi`), durations (`90s`,
`1h30m`), instants (RFC 3339), and the pin annotation (`true`, a duration, or an instant).
"""

from __future__ import annotations

import datetime
import functools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

#: The same pattern stands in the CRD's schema.
PERCENT = r"^[0-9]+(\.[0-9]+)?%$"

#: Kubernetes' numbers have at most 19 digits. Longer ones, or with a longer exponent, are refused:
#: computing with them would take seconds.
_QUANTITY = re.compile(
    r"([+-]?(?=\.?[0-9])[0-9]{0,40}(?:\.[0-9]{0,40})?(?:[eE][+-]?[0-9]{1,2})?)"
    r"([numkMGTPE]|[KMGTPE]i)?"
)
_UNITS: dict[str | None, Decimal] = {
    None: Decimal(1), "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"),
    **{unit: Decimal(1000) ** i for i, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Decimal(1024) ** i for i, unit in enumerate("KMGTPE", 1)},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Amount:
    """A number, or a fraction of a group's workers."""

    number: int = 0
    percent: float | None = None  # 0..100; then `number` does not count

    def of(self, total: int) -> int:
        """
        Return a number, rounded up as in Karpenter's budgets: 10 % of 4 workers is 1; 0 % is 0.
        """
        if self.percent is None:
            return self.number
        return math.ceil(total * self.percent / 100 - 1e-9)


def parse_percent(text: object) -> float:
    """
    Read a percentage as a fraction, 0..1.

    Raises:
        ValueError: Not a percentage; the message says what one looks like.
    """
    if not isinstance(text, str) or not re.fullmatch(PERCENT, text):
        raise ValueError(f"{text!r} is not a percentage; write one like 10% or 2.5%")
    part = float(text[:-1]) / 100
    if part > 1:
        raise ValueError(f"{text} is more than 100%")
    return part


def parse_amount(value: object) -> Amount:
    """
    Read a number, or a percentage of a group's workers.

    Raises:
        ValueError: Neither; the message says what they look like.
    """
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31:
        return Amount(value)
    if isinstance(value, str) and re.fullmatch(PERCENT, value):
        parse_percent(value)
        return Amount(percent=float(value[:-1]))
    raise ValueError(f"{value!r} is neither a whole number such as 2 nor a percentage such as 10%")


def parse_quantity(value: object) -> Decimal:
    """
    Read a quantity as Kubernetes does (its `resource.Quantity`).

    Not by `kubernetes.utils.quantity`: to import that takes a second and 34 MiB, and its answer to
    `1e999999` is a number that takes seconds to reckon with.

    Raises:
        ValueError: Not a quantity; the message says what one looks like.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("must be a quantity, as a string or a number")
    return _quantity(str(value))


@functools.lru_cache(maxsize=4096)
def _quantity(text: str) -> Decimal:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r:.60} is not a quantity; write one like 500Mi or 2G")
    return Decimal(match[1]) * _UNITS[match[2]]


def format_bytes(size: float) -> str:
    """Write bytes with two significant digits or more: `480 MiB`, `2.1 GiB`."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(size) >= 1000 and len(units) > 1:
        size /= 1024
        units.pop(0)
    is_exact = abs(size) >= 10 or units[0] == "B"
    return f"{size:.0f} {units[0]}" if is_exact else f"{size:.1f} {units[0]}"


#: The same pattern stands in the CRD's schema.
PATTERN = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"

#: Ten years. A longer duration is a mistake, and its end may be past the last year of calendars.
LONGEST_S = 87600 * 3600.0

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")


def parse_duration(text: str) -> float:
    """
    Read a duration as seconds.

    Raises:
        ValueError: Not a duration; the message says what one looks like.
    """
    if not isinstance(text, str) or not re.fullmatch(PATTERN, text):
        raise ValueError(f"{text!r} is not a duration; write one like 90s, 15m or 1h30m")
    seconds = sum(float(number) * _UNITS_S[unit] for number, unit in _PART.findall(text))
    if seconds > LONGEST_S:
        raise ValueError(f"{text} is too long; write at most 87600h")
    return seconds


def counted(n: int, one: str) -> str:
    """Count things: `1 worker`, `2,000 workers`."""
    return f"{n:,} {one}" if n == 1 else f"{n:,} {one}s"


def listed(names: Sequence[str], most: int = 3, count: int | None = None) -> str:
    """
    List the first names and count the others: `a, b and 2 more`.

    Args:
        count: Of all, where not all are in `names`.
    """
    shown = names[:most]
    more = (len(names) if count is None else count) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


def joined(*parts: str) -> str:
    """Join the parts of a message that are not empty."""
    return "; ".join(part for part in parts if part)


def format_duration(seconds: float) -> str:
    """Write seconds as people read them: at most two units, none that is zero."""
    if math.isinf(seconds):
        return "for ever"  # `idleTimeout: Auto` without its number
    if seconds < 1:
        return f"{round(seconds * 1000)}ms" if seconds > 0 else "0s"
    hours, rest = divmod(round(seconds), 3600)
    minutes, left = divmod(rest, 60)
    if hours:
        return f"{hours}h" + (f"{minutes}m" if minutes else f"{left}s" if left else "")
    if minutes:
        return f"{minutes}m{left}s" if left else f"{minutes}m"
    return f"{left}s"


def read_instant(text: str) -> float | None:
    """Read an RFC 3339 instant as seconds since 1970; None for any other text."""
    try:
        read = datetime.datetime.fromisoformat(text.strip().upper().replace("Z", "+00:00"))
        # Without a time zone it would be ambiguous.
        return read.astimezone(datetime.UTC).timestamp() if read.tzinfo is not None else None
    except (ValueError, OverflowError):  # in UTC it is past the year 9999
        return None


def end_of(text: str, since: float) -> float | None:
    """
    Return the end of an instant, or of a duration from `since` on, in seconds since 1970.

    Infinite for `true`. None: it is none of these, or ends after the year 9999, which nobody can
    write.
    """
    if text.strip().lower() == "true":
        return math.inf
    end = read_instant(text)
    if end is not None:
        return end
    try:
        end = since + parse_duration(text)
    except ValueError:
        return None
    return end if end <= LAST else None


#: The last instant that calendars have, in seconds since 1970.
LAST = datetime.datetime.max.replace(tzinfo=datetime.UTC).timestamp() - 1


def instant(seconds: float) -> str:
    """Write seconds since 1970 as Kubernetes does."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def lifts(value: str) -> bool:
    """True if a pin annotation says that there is no pin."""
    return value.strip().lower() in ("", "false")
