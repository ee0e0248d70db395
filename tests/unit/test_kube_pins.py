"""Which annotation holds a worker, and until when."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dask_adaptive.kube.pins import PinNote, manual_pin, read_pin
from dask_adaptive.model.observed import ManualPin
from dask_adaptive.model.pins import read_instant
from support import kube_objects as ko

NOW = ko.CREATED_AT + 100
DAY = 24 * 3600.0


def note(value: str, set_at: float | None = ko.CREATED_AT, holder: str = "pod w") -> PinNote:
    return PinNote(holder, value, "", set_at)


@pytest.mark.parametrize(
    ("notes", "left_s"),
    [
        pytest.param([None, None], None, id="no-annotation"),
        pytest.param([note("true")], DAY - 100, id="true-lasts-as-long-as-the-policy-allows"),
        pytest.param([note("TRUE")], DAY - 100, id="case-does-not-matter"),
        pytest.param([note("4h")], 4 * 3600 - 100, id="a-duration-counts-from-when-it-was-set"),
        pytest.param([note("90s")], None, id="an-ended-pin-is-none"),
        pytest.param([note("90s"), note("1h")], 3500, id="an-ended-pin-gives-way-to-the-next"),
        pytest.param([note("2026-02-01T01:00:00Z")], 3500, id="an-instant"),
        pytest.param([note("2026-02-01T02:00:00+01:00")], 3500, id="an-instant-with-an-offset"),
        pytest.param([note("2027-02-01T01:00:00Z")], DAY - 100, id="capped-by-the-policy"),
        pytest.param([note("false"), note("true")], None, id="a-near-false-lifts-a-far-pin"),
        pytest.param([note(""), note("true")], None, id="empty-is-false"),
        pytest.param([note("5m"), note("true")], 200, id="the-nearest-wins"),
        pytest.param([None, note("true")], DAY - 100, id="inherited"),
        pytest.param([note("4h", None)], 4 * 3600 - 30, id="unknown-when-set-so-first-seen"),
    ],
)
def test_how_long_a_worker_is_held(notes: list[PinNote | None], left_s: float | None) -> None:
    pin = manual_pin(notes, now=NOW, first_seen=NOW - 30, max_s=DAY)

    assert left_s == (pin and pin.left_s)


@pytest.mark.parametrize("value", ["yes please", "4 hours", "-4h", "2026-02-01", "tomorrow"])
def test_a_malformed_pin_pins_and_says_how_to_mend_it(value: str) -> None:
    pin = manual_pin([note(value)], now=NOW, first_seen=NOW, max_s=DAY)

    assert isinstance(pin, ManualPin)
    assert pin.left_s > 0
    assert value in pin.problem
    assert "4h" in pin.problem


def test_the_reason_names_who_holds_it() -> None:
    pin = manual_pin(
        [PinNote("pod w", "true", "debugging", 0.0)], now=1, first_seen=0, max_s=math.inf
    )

    assert pin is not None
    assert "debugging (pod w)" == pin.reason


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        pytest.param({}, None, id="none"),
        pytest.param(ko.pinned("4h"), "4h", id="a-persons-own"),
        pytest.param(ko.pinned("4h", by="upstream"), None, id="a-copy-made-at-creation"),
        pytest.param({"annotations": {"dask-adaptive.dev/pin": "1h"}}, "1h", id="nobody-knows"),
        pytest.param(
            {
                **ko.pinned("1h"),
                "managedFields": [
                    {"time": ko.CREATED, "fieldsV1": {"f:metadata": ko.UPSTREAM}},
                    *ko.pinned("1h")["managedFields"],
                ],
            },
            "1h",
            id="a-copy-that-a-person-changed-is-their-own",
        ),
    ],
)
def test_copies_do_not_outlive_their_original(
    metadata: dict[str, Any], expected: str | None
) -> None:
    found = read_pin(ko.meta("w1", **metadata), "pod w1", made_by_upstream=True)

    assert expected == (found and found.value)


def test_when_a_pin_was_set_is_when_its_manager_wrote() -> None:
    found = read_pin(ko.meta("w1", **ko.pinned("4h")), "pod w1", made_by_upstream=True)

    assert found is not None
    assert ko.CREATED_AT == found.set_at


def test_an_instant_without_a_zone_is_none() -> None:
    assert read_instant("2026-02-01T00:00:00") is None
