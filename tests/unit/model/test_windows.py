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
from support.tables import table

HOUR_S = 3600.0


def at(text: str) -> float:
    """An instant with its offset: what a clock on the wall shows, and which of two hours it is."""
    return datetime.fromisoformat(text).timestamp()


def window(schedule: str, hours: float, zone: str = "Europe/Berlin") -> tuple[Window, ...]:
    return (Window(schedule, hours * HOUR_S, zone),)


NIGHT = window("30 2 * * *", 1)


@table(
    "windows, instant, expected",
    no_window_is_always_open=((), "2026-01-10T12:00+01:00", True),
    before=(NIGHT, "2026-01-10T02:29:59+01:00", False),
    from_the_minute_on=(NIGHT, "2026-01-10T02:30+01:00", True),
    to_the_end=(NIGHT, "2026-01-10T03:29:59.5+01:00", True),
    the_end_is_outside=(NIGHT, "2026-01-10T03:30+01:00", False),
    an_instant_is_one_in_any_zone=(NIGHT, "2026-01-10T01:30+00:00", True),
    summer=(NIGHT, "2026-07-10T02:30+02:00", True),
    not_at_winter_s_time_in_summer=(NIGHT, "2026-07-10T01:30+02:00", False),
    # On 29 March 2026 clocks in Berlin went from 02:00 +01:00 to 03:00 +02:00.
    spring_before_the_skip=(NIGHT, "2026-03-29T01:59:59+01:00", False),
    spring_a_skipped_time_opens_after=(NIGHT, "2026-03-29T03:00+02:00", True),
    spring_for_an_hour_of_real_time=(NIGHT, "2026-03-29T03:59+02:00", True),
    spring_and_not_longer=(NIGHT, "2026-03-29T04:00+02:00", False),
    # On 25 October 2026 they went from 03:00 +02:00 to 02:00 +01:00: 02:30 came twice.
    autumn_before=(NIGHT, "2026-10-25T02:29+02:00", False),
    autumn_opens_the_first_time=(NIGHT, "2026-10-25T02:30+02:00", True),
    autumn_59_minutes_later=(NIGHT, "2026-10-25T02:29+01:00", True),
    autumn_closed_the_second_time=(NIGHT, "2026-10-25T02:30+01:00", False),
    autumn_the_next_day=(NIGHT, "2026-10-26T02:30+01:00", True),
    # Across midnight, and across a change.
    hour_4_of_5=(window("0 23 * * *", 5), "2026-10-25T02:59+02:00", True),
    hour_5_of_5=(window("0 23 * * *", 5), "2026-10-25T02:59+01:00", True),
    after_5_hours=(window("0 23 * * *", 5), "2026-10-25T03:00+01:00", False),
    spring_hour_5=(window("0 23 * * *", 5), "2026-03-29T04:59+02:00", True),
    spring_after_5=(window("0 23 * * *", 5), "2026-03-29T05:00+02:00", False),
    past_midnight=(window("0 23 * * *", 5), "2026-01-11T00:30+01:00", True),
    # Of every hour there is.
    first_of_two=(window("0 * * * *", 0.25), "2026-10-25T02:10+02:00", True),
    second_of_two=(window("0 * * * *", 0.25), "2026-10-25T02:10+01:00", True),
    between=(window("0 * * * *", 0.25), "2026-10-25T02:20+01:00", False),
    # Longer than their period; seldom; names of days; a zone.
    never_closed=(window("0 2 * * *", 30), "2026-01-10T01:00+01:00", True),
    leap_day=(window("0 0 29 2 *", 2), "2028-02-29T01:00+01:00", True),
    weekend=(window("0 22 * * FRI", 60), "2026-01-12T09:59+01:00", True),
    monday=(window("0 22 * * FRI", 60), "2026-01-12T10:00+01:00", False),
    a_zone_of_quarters=(window("0 2 * * *", 1, "Asia/Kathmandu"), "2026-07-10T02:30+05:45", True),
    any_of_several=((*NIGHT, *window("0 12 * * *", 1)), "2026-01-10T12:30+01:00", True),
)
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
        ("0 0 * 2 MON#5", "every four years"),  # in 2016, then in 2044
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
