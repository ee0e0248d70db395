"""Amounts as people write them: `80%`, `25%` of the workers or `2` of them, `500Mi`."""

from __future__ import annotations

import math
import re

from dask_adaptive.model.recycle import Amount

#: The same patterns stand in the CRD's schema.
PERCENT = r"^[0-9]+(\.[0-9]+)?%$"
QUANTITY = r"^[0-9]+(\.[0-9]+)?([eE][0-9]+|Ki|Mi|Gi|Ti|Pi|Ei|k|M|G|T|P|E)?$"

_UNITS = {
    "": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18,
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60,
}  # fmt: skip
_NUMBER = re.compile(r"([0-9.]+(?:[eE][0-9]+)?)(.*)")


def parse_percent(text: object) -> float:
    """
    Read a percentage as a part of one, 0..1.

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
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return Amount(value)
    if isinstance(value, str) and re.fullmatch(PERCENT, value):
        parse_percent(value)
        return Amount(percent=float(value[:-1]))
    raise ValueError(f"{value!r} is neither a whole number such as 2 nor a percentage such as 10%")


def parse_quantity(value: object) -> float:
    """
    Read bytes as Kubernetes writes them.

    Raises:
        ValueError: Not a quantity; the message says what one looks like.
    """
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not re.fullmatch(QUANTITY, text):
        raise ValueError(f"{value!r} is not a quantity; write one like 500Mi or 2G")
    match = _NUMBER.fullmatch(text)
    assert match is not None  # narrower than QUANTITY in nothing
    size = float(match[1]) * _UNITS[match[2]]
    if not math.isfinite(size):
        raise ValueError(f"{text} is too much")
    return size


def format_bytes(size: float) -> str:
    """Write bytes with two significant digits or more: `480 MiB`, `2.1 GiB`."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(size) >= 1000 and len(units) > 1:
        size /= 1024
        units.pop(0)
    is_exact = abs(size) >= 10 or units[0] == "B"
    return f"{size:.0f} {units[0]}" if is_exact else f"{size:.1f} {units[0]}"
