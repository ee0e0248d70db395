"""Windows open and close on the clocks of their zone, also on the days when those are changed."""

from __future__ import annotations

import contextlib
import zoneinfo
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_adaptive.model.policy import InvalidPolicy, parse_policy
from dask_adaptive.model.recycle import Window
from dask_adaptive.model.windows import is_open
from support.policies import LEAST

HOUR_S = 3600.0


def at(text: str) -> float:
    """An instant with its offset: what a clock on the wall shows, and which of two hours it is."""
    return datetime.fromisoformat(text).timestamp()


def window(schedule: str, hours: float, zone: str = "Europe/Berlin") -> tuple[Window, ...]:
    return (Window(schedule, hours * HOUR_S, zone),)


NIGHT = window("30 2 * * *", 1)


@pytest.mark.parametrize(
    ("windows", "instant", "expected"),
    [
        pytest.param((), "2026-01-10T12:00+01:00", True, id="no-window-is-always-open"),
        pytest.param(NIGHT, "2026-01-10T02:29:59+01:00", False, id="before"),
        pytest.param(NIGHT, "2026-01-10T02:30+01:00", True, id="from-the-minute-on"),
        pytest.param(NIGHT, "2026-01-10T03:29:59.5+01:00", True, id="to-the-end"),
        pytest.param(NIGHT, "2026-01-10T03:30+01:00", False, id="the-end-is-outside"),
        pytest.param(NIGHT, "2026-01-10T01:30+00:00", True, id="an-instant-is-one-in-any-zone"),
        pytest.param(NIGHT, "2026-07-10T02:30+02:00", True, id="summer"),
        pytest.param(NIGHT, "2026-07-10T01:30+02:00", False, id="not-at-winter's-time-in-summer"),
        # On 29 March 2026 clocks in Berlin went from 02:00 +01:00 to 03:00 +02:00.
        pytest.param(NIGHT, "2026-03-29T01:59:59+01:00", False, id="spring-before-the-skip"),
        pytest.param(NIGHT, "2026-03-29T03:00+02:00", True, id="spring-a-skipped-time-opens-after"),
        pytest.param(NIGHT, "2026-03-29T03:59+02:00", True, id="spring-for-an-hour-of-real-time"),
        pytest.param(NIGHT, "2026-03-29T04:00+02:00", False, id="spring-and-not-longer"),
        # On 25 October 2026 they went from 03:00 +02:00 to 02:00 +01:00: 02:30 came twice.
        pytest.param(NIGHT, "2026-10-25T02:29+02:00", False, id="autumn-before"),
        pytest.param(NIGHT, "2026-10-25T02:30+02:00", True, id="autumn-opens-the-first-time"),
        pytest.param(NIGHT, "2026-10-25T02:29+01:00", True, id="autumn-59-minutes-later"),
        pytest.param(NIGHT, "2026-10-25T02:30+01:00", False, id="autumn-closed-the-second-time"),
        pytest.param(NIGHT, "2026-10-26T02:30+01:00", True, id="autumn-the-next-day"),
        # Across midnight, and across a change.
        pytest.param(window("0 23 * * *", 5), "2026-10-25T02:59+02:00", True, id="hour-4-of-5"),
        pytest.param(window("0 23 * * *", 5), "2026-10-25T02:59+01:00", True, id="hour-5-of-5"),
        pytest.param(window("0 23 * * *", 5), "2026-10-25T03:00+01:00", False, id="after-5-hours"),
        pytest.param(window("0 23 * * *", 5), "2026-03-29T04:59+02:00", True, id="spring-hour-5"),
        pytest.param(window("0 23 * * *", 5), "2026-03-29T05:00+02:00", False, id="spring-after-5"),
        pytest.param(window("0 23 * * *", 5), "2026-01-11T00:30+01:00", True, id="past-midnight"),
        # Of every hour there is.
        pytest.param(window("0 * * * *", 0.25), "2026-10-25T02:10+02:00", True, id="first-of-two"),
        pytest.param(window("0 * * * *", 0.25), "2026-10-25T02:10+01:00", True, id="second-of-two"),
        pytest.param(window("0 * * * *", 0.25), "2026-10-25T02:20+01:00", False, id="between"),
        # Longer than their period; seldom; names of days; a zone.
        pytest.param(window("0 2 * * *", 30), "2026-01-10T01:00+01:00", True, id="never-closed"),
        pytest.param(window("0 0 29 2 *", 2), "2028-02-29T01:00+01:00", True, id="leap-day"),
        pytest.param(window("0 22 * * FRI", 60), "2026-01-12T09:59+01:00", True, id="weekend"),
        pytest.param(window("0 22 * * FRI", 60), "2026-01-12T10:00+01:00", False, id="monday"),
        pytest.param(window("0 2 * * *", 1, "Asia/Kathmandu"), "2026-07-10T02:30+05:45", True,
                     id="a-zone-of-quarters"),
        pytest.param((*NIGHT, *window("0 12 * * *", 1)), "2026-01-10T12:30+01:00", True,
                     id="any-of-several"),
    ],
)  # fmt: skip
def test_is_open(windows: tuple[Window, ...], instant: str, expected: bool) -> None:
    assert expected is is_open(windows, at(instant))


@pytest.mark.parametrize(
    ("zone", "begin", "is_skip"),
    [
        ("Europe/Berlin", "2026-03-27T12:00+01:00", True),
        ("Europe/Berlin", "2026-10-23T12:00+02:00", False),
        ("America/New_York", "2026-03-06T12:00-05:00", True),
        ("America/New_York", "2026-10-30T12:00-04:00", False),
        ("Australia/Lord_Howe", "2026-10-02T12:00+10:30", True),  # by half an hour
        ("Australia/Lord_Howe", "2026-04-03T12:00+11:00", False),
    ],
)
@pytest.mark.parametrize("schedule", ["30 2 * * *", "0 1 * * *", "15,45 1,2 * * *"])
def test_a_window_opens_as_often_as_it_is_scheduled(
    zone: str, begin: str, is_skip: bool, schedule: str
) -> None:
    """Four days, in the middle of which the clocks are changed."""
    windows = (Window(schedule, 600.0, zone),)
    states = [is_open(windows, at(begin) + 300 * i) for i in range(4 * 288)]
    openings = sum(now and not was for was, now in zip([False, *states], states, strict=False))
    scheduled = 4 * (4 if "," in schedule else 1)

    # Two that are skipped open together when the skip is over.
    assert scheduled - openings in ((0, 1) if is_skip else (0,))
    assert openings * 2 == sum(states)  # for ten minutes each


@given(
    st.integers(0, 59), st.integers(0, 23), st.integers(60, 200_000),
    st.floats(1.7e9, 1.9e9), st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns"]),
)  # fmt: skip
def test_a_longer_window_is_open_whenever_a_shorter_one_is(
    minute: int, hour: int, duration_s: int, instant: float, zone: str
) -> None:
    schedule = f"{minute} {hour} * * *"
    shorter = (Window(schedule, float(duration_s), zone),)
    longer = (Window(schedule, duration_s * 1.5, zone),)

    assert is_open(longer, instant) or not is_open(shorter, instant)


def parsed(schedule: object, zone: object = "Europe/Berlin") -> tuple[Window, ...]:
    """What an API server cannot know of a window, and of a schedule of the number of workers."""
    common = {"timeZone": zone, "duration": "1m"}
    spec = {
        **LEAST,
        "disruption": {"windows": [{**common, "schedule": schedule}]},
        "schedules": [{**common, "cron": schedule, "minReplicas": 2}],
    }
    return parse_policy(spec).disruption.windows


def refused(schedule: object, zone: object = "Europe/Berlin") -> dict[str, str]:
    with pytest.raises(InvalidPolicy) as caught:
        parsed(schedule, zone)
    return {problem.path: problem.words for problem in caught.value.problems}


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ("2 am", "five fields"),
        ("61 2 * * *", "bad minute"),
        ("0 25 * * *", "bad hour"),
        ("0 2 * * FUNDAY", "bad day-of-week"),
        ("0 2 30 2 *", "bad day-of-month"),
        ("0 0 */15 2 FRI#5", "never comes"),
        ("0 0 * 2 MON#5", "never comes, or not in any four years"),  # in 2016, then in 2044
    ],
)
def test_what_is_no_schedule_is_refused(schedule: str, said: str) -> None:
    found = refused(schedule)

    assert {"spec.disruption.windows[0].schedule", "spec.schedules[0].cron"} == found.keys()
    assert all(said in words for words in found.values())


@given(st.text(st.sampled_from("0123456789*/,-#LWMON "), max_size=30))
def test_any_text_is_refused_or_can_be_used(text: str) -> None:
    with contextlib.suppress(InvalidPolicy):
        is_open(parsed(text), 1.8e9)


@pytest.mark.parametrize("zone", ["Europe/Bonn", "", "Europe", "../etc/passwd", "CEST+", 5, "\0"])
def test_what_is_no_zone_is_refused(zone: object) -> None:
    found = refused("0 2 * * *", zone)

    assert {"spec.disruption.windows[0].timeZone", "spec.schedules[0].timeZone"} == found.keys()
    example = "must be a time zone, such as Europe/Berlin"
    assert all(words.startswith(example) for words in found.values())


def test_zones_are_known_without_a_database_of_the_system() -> None:
    paths = zoneinfo.TZPATH
    zoneinfo.reset_tzpath(to=())
    zoneinfo.ZoneInfo.clear_cache()
    try:
        assert "Europe/Berlin" == parsed("0 2 * * *")[0].time_zone
    finally:
        zoneinfo.reset_tzpath(to=paths)
