"""Annotations: which count, until when, what is said of those that can't be read; and our own."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from dask_adaptive.kube.notes import (
    ENDS,
    PREFIX,
    Note,
    Wishes,
    in_order,
    manual_pin,
    read_notes,
    wishes_of,
)
from dask_adaptive.kube.platform import KubePlatform
from dask_adaptive.model.amounts import instant
from dask_adaptive.model.observed import ManualPin
from dask_adaptive.model.scaling import NO_PAUSE, Pause
from support import kube_objects as ko
from support.tables import table

BEGAN = ko.CREATED_AT
NOW = BEGAN + 600
DAY = 24 * 3600.0


# --- pins -------------------------------------------------------------------------------------


def pin(value: str, set_at: float | None = BEGAN, **more: str) -> Note:
    return Note("pod w", "pin", value, set_at, **more)


@table(
    "notes, left_s",
    no_annotation=([], None),
    true_lasts_as_long_as_the_policy_allows=([pin("true")], DAY - 100),
    case_does_not_matter=([pin("TRUE")], DAY - 100),
    a_duration_counts_from_when_it_was_set=([pin("4h")], 4 * 3600 - 100),
    an_ended_pin_is_none=([pin("90s")], None),
    an_ended_pin_gives_way_to_the_next=([pin("90s"), pin("1h")], 3500),
    an_instant=([pin("2026-02-01T01:00:00Z")], 3500),
    an_instant_with_an_offset=([pin("2026-02-01T02:00:00+01:00")], 3500),
    capped_by_the_policy=([pin("2027-02-01T01:00:00Z")], DAY - 100),
    a_near_false_lifts_a_far_pin=([pin("false"), pin("true")], None),
    empty_is_false=([pin(""), pin("true")], None),
    the_nearest_wins=([pin("5m"), pin("true")], 200),
    unknown_when_set_so_first_seen=([pin("4h", None)], 4 * 3600 - 30),
)
def test_how_long_a_worker_is_held(notes: list[Note], left_s: float | None) -> None:
    now = BEGAN + 100
    held = manual_pin(notes, now=now, since=lambda _: now - 30, max_s=DAY)

    assert left_s == (held and held.until - now)


@pytest.mark.parametrize("value", ["yes please", "4 hours", "-4h", "2026-02-01", "tomorrow"])
def test_a_malformed_pin_pins_and_says_how_to_mend_it(value: str) -> None:
    held = manual_pin([pin(value)], now=NOW, since=lambda _: NOW, max_s=DAY)

    assert isinstance(held, ManualPin)
    assert (True, True, True) == (held.until > NOW, value in held.problem, "4h" in held.problem)


def test_the_reason_names_who_holds_it() -> None:
    note = pin("true", 0.0, reason="debugging")
    held = manual_pin([note], now=1, since=lambda _: 0, max_s=math.inf)

    assert held is not None
    assert "debugging (pod w)" == held.reason


# --- pauses -----------------------------------------------------------------------------------

SOON, PAST = instant(NOW + 60), instant(NOW - 60)


def pause(policy: Any = None, cluster: Any = None, **going: str) -> Pause:
    made = ko.policy(**ko.noted(**policy or {}), **going)
    return ko.look(ko.cluster(**ko.noted(**cluster or {})), made, now=NOW).pause


def said(name: str, value: str, on: str = "AdaptivePolicy etl", until: float = 0) -> str:
    note = f'{PREFIX}{name}: "{value}" on {on}'
    return f"{note} until {instant(NOW + until)}" if until else note


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        ({}, NO_PAUSE),
        ({"paused": "true"}, Pause(all=True, message=said("paused", "true"))),
        ({"paused": "false"}, NO_PAUSE),
        ({"paused": ""}, NO_PAUSE),
        ({"paused": SOON}, Pause(all=True, left_s=60.0, message=said("paused", SOON, until=60))),
        ({"paused": PAST}, NO_PAUSE),
        ({"paused": "15m"},  # since it was set
         Pause(all=True, left_s=300.0, message=said("paused", "15m", until=300))),
        ({"paused": "10m"}, NO_PAUSE),
        ({"paused_scale_in": "TRUE"},
         Pause(scale_in=True, message=said("paused-scale-in", "TRUE"))),
        ({"paused_scale_out": SOON},
         Pause(scale_out=True, left_s=60.0, message=said("paused-scale-out", SOON, until=60))),
        ({"paused_scale_in": "true", "paused": SOON},
         Pause(all=True, scale_in=True, message=said("paused", SOON, until=60) + "; "
               + said("paused-scale-in", "true"))),
    ],
)  # fmt: skip
def test_what_is_held(notes: dict[str, str], expected: Pause) -> None:
    assert expected == pause(notes)
    assert expected.left_s == pause(cluster=notes).left_s


@pytest.mark.parametrize(
    ("name", "value", "held"),
    [
        ("paused", "yes", {"all": True}),
        ("paused", "tomorrow", {"all": True}),
        ("paused", "2026-02-01T18:00:00", {"all": True}),  # without its time zone
        ("paused", "99999999h", {"all": True}),  # after the year 9999
        ("paused", "9999-12-31T23:59:59-01:00", {"all": True}),
        ("paused_scale_in", "1", {"scale_in": True}),
        ("paused_scale_out", "-5m", {"scale_out": True}),
    ],
)
def test_what_cannot_be_read_pauses_and_says_how_to_mend_it(
    name: str, value: str, held: dict[str, Any]
) -> None:
    found = pause({name: value})

    note = said(name.replace("_", "-"), value)
    assert Pause(message=note, problem=found.problem, **held) == found
    assert found.problem.startswith(f"{note} is not ")
    assert "such as" in found.problem
    assert "it pauses until" in found.problem


def test_the_policys_annotation_wins_over_the_clusters_of_the_same_name() -> None:
    assert NO_PAUSE == pause({"paused": "false"}, {"paused": "true"})
    both = pause({"paused": "false"}, {"paused": "true", "paused_scale_in": "true"})
    assert Pause(scale_in=True, message=said("paused-scale-in", "true", "DaskCluster etl")) == both
    assert NO_PAUSE == pause({"paused": "true"}, deletionTimestamp=ko.CREATED), "it is going"


@table(
    "noted, again, left_s",
    since_it_was_set=(ko.noted(paused="15m"), ko.noted(paused="15m", at=instant(NOW)),
        [300.0, 300.0, None]),
    unknown_when_set_so_first_seen=(
        {"annotations": {f"{PREFIX}paused": "15m"}}, {}, [900.0, 900.0, 600.0]),
)  # fmt: skip
async def test_a_duration_begins_once(noted: Any, again: Any, left_s: Any) -> None:
    """The API server moves a manager's time with each of its writes to the object."""
    now = NOW
    pinned = ko.deployment(metadata={"annotations": {f"{PREFIX}pin": "20m"}})
    world = ko.world_of(ko.cluster(), ko.policy(**noted), pinned)
    api: Any = None  # all that is asked is in the cache
    platform = KubePlatform(
        ko.KEY, api=api, world=world, wall_clock=lambda: now, manual_max_s=lambda: 3600.0
    )

    async def left() -> tuple[float | None, float | None]:
        seen = await platform.look()
        held = seen.workers[0].manual_pin
        return seen.pause.left_s, held and held.until - now

    found = [await left()]
    ko.take(world, "MODIFIED", ko.policy(**{**noted, **again}, resourceVersion="2"))
    found.append(await left())
    now += 300
    found.append(await left())

    assert list(zip(left_s, [1200.0, 1200.0, 900.0], strict=True)) == found


# --- a worker's end and its replacement --------------------------------------------------------


def note(name: str, value: str, holder: str = "pod w", **more: Any) -> Note:
    return Note(holder, name, value, **{"set_at": BEGAN + 60, **more})


def ask(*notes: Note, began_at: float = BEGAN) -> Wishes:
    return wishes_of(notes, began_at=began_at, now=BEGAN + 3600, since=lambda n: n.set_at or NOW)


def far(name: str, value: str) -> Note:
    return note(name, value, "DaskCluster etl")


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("expires-at", "tonight", "2026-01-31T18:00:00Z"),
        ("expires-at", "2026-01-31T18:00:00", "2026-01-31T18:00:00Z"),
        ("recycle", "yes", '"now"'),
    ],
)
def test_what_cannot_be_read_says_how_to_mend_it(name: str, value: str, hint: str) -> None:
    found = ask(note(name, value), far(name, "7%"))

    assert all(word in found.problem for word in (f'{name}: "{value}" on pod w', hint))
    assert ("", math.inf) == (found.recycle, found.expires_at)


BEFORE = "2026-01-31T23:00:00Z"


@table(
    "notes, is_asked",
    nobody_asks=([], False),
    now_is_when_it_was_set=([note("recycle", "now")], True),
    case_does_not_matter=([note("recycle", "NOW")], True),
    set_as_the_pod_began=([note("recycle", "now", set_at=BEGAN)], False),
    a_younger_pod=([note("recycle", "now", set_at=BEGAN - 9)], False),
    an_instant=([note("recycle", instant(BEGAN + 60))], True),
    an_instant_to_come=([note("recycle", instant(BEGAN + 7200))], False),
    before_the_pod=([note("recycle", BEFORE)], False),
    false=([note("recycle", "false")], False),
    a_near_false=([note("recycle", "false"), far("recycle", "now")], False),
    an_old_wish_goes=([note("recycle", BEFORE), far("recycle", "now")], True),
)
def test_who_is_to_be_replaced(notes: list[Note], is_asked: bool) -> None:
    found = ask(*notes)

    assert (is_asked, "") == (bool(found.recycle), found.problem)
    assert not ask(*notes, began_at=0.0).recycle, "no pod, nothing to replace"


def test_who_asks_is_named() -> None:
    said = ask(note("recycle", "now", "Deployment w1")).recycle

    assert said.endswith('dask-adaptive.dev/recycle: "now" on Deployment w1')


def test_now_without_a_time_replaces_nothing() -> None:
    """Else each restart of the operator would replace all workers."""
    found = ask(note("recycle", "now", set_at=None))

    assert not found.recycle
    assert "2026-01-31T18:00:00Z" in found.problem


def ends(value: str, holder: str = "pod w", **more: Any) -> Note:
    return note("expires-at", value, holder, **more)


@table(
    "notes, expires_in",
    never=([], math.inf),
    an_instant=([ends(instant(BEGAN + 7200))], 7200),
    of_a_former_pod=([ends(BEFORE)], math.inf),
    then_the_next=([ends(BEFORE), ends(instant(BEGAN + 60), "group")], 60),
    a_near_off=([ends("off"), ends(instant(BEGAN + 60), "group")], math.inf),
    a_copied_end_gives_way_to_its_original=(
        in_order(
            [],
            [ends(instant(BEGAN + 60), "Deployment w", is_copy=True)],
            [ends(instant(BEGAN + 7200), "DaskCluster etl")],
        ),
        7200,
    ),
)
def test_when_a_worker_ends(notes: list[Note], expires_in: float) -> None:
    assert expires_in == ask(*notes).expires_at - BEGAN


def test_an_annotation_that_is_too_long_is_told_by_its_start() -> None:
    metadata = ko.noted(
        **{"pin": "4h" * 1_000, "paused": "true" + " " * 1_000, "expires-at": "x" * 201}
    )
    pin, paused, expires = read_notes(metadata, "pod w")
    held = manual_pin([pin], now=NOW, since=lambda _: NOW, max_s=DAY)

    assert held is not None, "what can't be read holds the worker"
    assert '4h4h…" on' in held.problem
    assert len(held.problem) < 500
    assert "true" == paused.value
    assert "xx…" in ask(expires).problem


def test_annotations_are_read_with_who_set_them() -> None:
    def read(by: str, **names: str) -> tuple[Note, ...]:
        return read_notes(ko.noted(by, **names), "pod w", made_by_upstream=True)

    names = dict.fromkeys(ENDS, "x")

    assert [Note("pod w", name, "x", BEGAN) for name in ENDS] == list(read("kubectl", **names))
    assert {True} == {n.is_copy for n in read("upstream", **names)}
    assert () == read("kubectl", drained="1")


def test_copies_do_not_count_but_what_a_pod_alone_was_made_with_does() -> None:
    wish, end = note("recycle", "now", is_copy=True), ends(instant(BEGAN + 60), is_copy=True)
    copied = [note(n.name, n.value, "Deployment w", is_copy=True) for n in (wish, end)]
    found = in_order([wish, end], copied, [far("recycle", "now")])

    assert [
        ("recycle", "DaskCluster etl"),
        ("expires-at", "pod w"),
        ("expires-at", "Deployment w"),
    ] == [(n.name, n.holder) for n in found]
    # A webhook has set it on the pod alone.
    assert replace(wish, is_copy=False) == in_order([wish], copied[1:], [])[0]
