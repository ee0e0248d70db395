"""Durations, percentages, quantities: what people write, read; and written for people."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_adaptive.model.amounts import (
    format_bytes,
    format_duration,
    parse_amount,
    parse_duration,
    parse_percent,
    parse_quantity,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90.0), ("1h30m", 5400.0), ("500ms", 0.5), ("1.5h", 5400.0), ("0s", 0.0)],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert seconds == parse_duration(text)


@pytest.mark.parametrize("text", ["", "5", "s", "-1s", "1d", "1 s", "1s ", "1h-2m", None, 5])
def test_what_is_no_duration_is_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


@given(st.integers(1, 359_999))
def test_a_written_duration_is_off_by_less_than_its_last_unit(seconds: int) -> None:
    written = parse_duration(format_duration(seconds))

    assert written <= seconds
    assert seconds - written < 60


@pytest.mark.parametrize(
    ("text", "part"), [("0%", 0.0), ("10%", 0.1), ("2.5%", 0.025), ("100%", 1.0)]
)
def test_percentages_are_read(text: str, part: float) -> None:
    assert part == parse_percent(text)


@pytest.mark.parametrize("text", ["", "10", "10 %", "%", "-1%", "100.1%", "1e1%", 10, None, "1%\n"])
def test_what_is_no_percentage_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="%"):
        parse_percent(text)


@given(st.integers(0, 100), st.integers(0, 10_000))
def test_a_part_of_the_workers_is_rounded_up(percent: int, workers: int) -> None:
    amount = parse_amount(f"{percent}%")

    assert -(-workers * percent // 100) == amount.of(workers)


@pytest.mark.parametrize(
    ("value", "size"),
    [("500Mi", 500 * 2**20), ("1.5Gi", 1.5 * 2**30), ("2G", 2e9), ("100k", 1e5), (1024, 1024),
     ("1e9", 1e9), ("12", 12), ("1E", 1e18), ("-5Mi", -5 * 2**20), ("1.Gi", 2**30), (1.5, 1.5),
     (".5", 0.5), ("250m", 0.25), ("1e-3", 0.001), ("+2k", 2000), ("100n", 1e-7)],
)  # fmt: skip
def test_quantities_are_read(value: object, size: float) -> None:
    assert size == float(parse_quantity(value))


@pytest.mark.parametrize(
    "value",
    ["", ".", "Mi", "5MB", "1.2.3", "5 ", "NaN", "Infinity", "1_0", "\u0663", True, None, [],
     "9e999", "1e999999999", "1e-999999999", "9" * 5000, 10**400],
)  # fmt: skip
def test_what_is_no_quantity_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="quantity"):
        parse_quantity(value)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (512, "512 B"), (1536, "1.5 KiB"), (500 * 2**20, "500 MiB"), (2**30, "1.0 GiB"),
     (2**60, "1048576 TiB")],
)  # fmt: skip
def test_bytes_are_written(size: float, text: str) -> None:
    assert text == format_bytes(size)
