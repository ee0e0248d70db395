"""What annotations say of a worker's quotas, its end and its replacement."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dask_adaptive.kube.quotas import (
    NAMES,
    Asked,
    QuotaNote,
    asked,
    in_order,
    read_quota_notes,
)
from dask_adaptive.model.pins import read_instant
from dask_adaptive.model.recycle import QuotaNotes
from support import kube_objects as ko

BEGAN = ko.CREATED_AT
NOW = BEGAN + 3600


def note(name: str, value: str, holder: str = "pod w", **more: Any) -> QuotaNote:
    return QuotaNote(holder, name, value, **{"set_at": BEGAN + 60, **more})


def ask(*notes: QuotaNote, began_at: float = BEGAN) -> Asked:
    return asked(notes, began_at=began_at, now=NOW, since=lambda n: n.set_at)


def at(seconds: float) -> str:
    return f"2026-02-01T{int(seconds) // 3600:02}:{int(seconds) % 3600 // 60:02}:00Z"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("recycle-tasks", "50", QuotaNotes(tasks=50)),
        ("recycle-tasks", "off", QuotaNotes(tasks=0)),
        ("recycle-lifetime", "2h", QuotaNotes(lifetime_s=7200)),
        ("recycle-lifetime", "Off", QuotaNotes(lifetime_s=math.inf)),
        ("recycle-memory-soft", "70%", QuotaNotes(memory_soft=0.7)),
        ("recycle-memory-soft", "2.5%", QuotaNotes(memory_soft=0.025)),
        ("recycle-memory-soft", "off", QuotaNotes(memory_soft=math.inf)),
        ("recycle-memory-hard", "100%", QuotaNotes(memory_hard=1.0)),
        ("recycle-failures", "5", QuotaNotes(failures=5)),
        ("recycle-failures", "off", QuotaNotes(failures=0)),
    ],
)
def test_a_quota_of_one_worker(name: str, value: str, expected: QuotaNotes) -> None:
    assert expected == ask(note(name, value)).notes


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("recycle-tasks", "many", '"50"'),
        ("recycle-tasks", "0", '"50"'),
        ("recycle-tasks", "-1", '"off"'),
        ("recycle-lifetime", "2 days", '"2h"'),
        ("recycle-lifetime", "0s", '"2h"'),
        ("recycle-memory-soft", "0.7", '"70%"'),
        ("recycle-memory-soft", "0%", '"70%"'),
        ("recycle-memory-hard", "101%", '"90%"'),
        ("recycle-failures", "", '"5"'),
        ("expires-at", "tonight", "2026-01-31T18:00:00Z"),
        ("expires-at", "2026-01-31T18:00:00", "2026-01-31T18:00:00Z"),
        ("recycle", "yes", '"now"'),
    ],
)
def test_what_can_not_be_read_says_how_to_mend_it(name: str, value: str, hint: str) -> None:
    found = ask(note(name, value), note(name, "7%", holder="DaskCluster etl"))
    notes = found.notes

    assert notes is not None
    assert notes == QuotaNotes(problem=notes.problem), "the policy's value counts"
    assert all(word in notes.problem for word in (f'{name}: "{value}" on pod w', hint))
    assert ("", math.inf) == (found.recycle, found.expires_at)


def test_the_nearest_counts() -> None:
    notes = [note("recycle-tasks", "5"), note("recycle-tasks", "9", holder="DaskCluster etl")]

    assert QuotaNotes(tasks=5) == ask(*notes).notes
    assert ask().notes is None


@pytest.mark.parametrize(
    ("notes", "is_asked"),
    [
        pytest.param([], False, id="nobody-asks"),
        pytest.param([note("recycle", "now")], True, id="now-is-when-it-was-set"),
        pytest.param([note("recycle", "NOW")], True, id="case-does-not-matter"),
        pytest.param([note("recycle", "now", set_at=BEGAN)], False, id="set-as-the-pod-began"),
        pytest.param([note("recycle", "now", set_at=BEGAN - 9)], False, id="a-younger-pod"),
        pytest.param([note("recycle", at(60))], True, id="an-instant"),
        pytest.param([note("recycle", at(7200))], False, id="an-instant-to-come"),
        pytest.param([note("recycle", "2026-01-31T23:00:00Z")], False, id="before-the-pod"),
        pytest.param([note("recycle", "false")], False, id="false"),
        pytest.param(
            [note("recycle", "false"), note("recycle", "now", "DaskCluster etl")],
            False,
            id="a-near-false-lifts-a-far-wish",
        ),
        pytest.param(
            [note("recycle", "2026-01-31T23:00:00Z"), note("recycle", "now", "DaskCluster etl")],
            True,
            id="an-old-wish-gives-way-to-the-next",
        ),
    ],
)
def test_who_is_to_be_replaced(notes: list[QuotaNote], is_asked: bool) -> None:
    found = ask(*notes)

    assert is_asked == bool(found.recycle)
    assert found.notes is None
    assert not ask(*notes, began_at=0.0).recycle, "no pod, nothing to replace"


def test_who_asks_is_named() -> None:
    said = ask(note("recycle", "now", "Deployment w1")).recycle

    assert 'annotation dask-adaptive.dev/recycle: "now" on Deployment w1' == said


def test_now_without_a_time_replaces_nothing() -> None:
    """Else each restart of the operator would replace all workers."""
    found = ask(note("recycle", "now", set_at=None))

    assert not found.recycle
    assert found.notes is not None
    assert "2026-01-31T18:00:00Z" in found.notes.problem


@pytest.mark.parametrize(
    ("notes", "expires_in"),
    [
        pytest.param([], math.inf, id="never"),
        pytest.param([note("expires-at", at(7200))], 7200, id="an-instant"),
        pytest.param([note("expires-at", "2026-01-31T23:00:00Z")], math.inf, id="of-a-former-pod"),
        pytest.param(
            [note("expires-at", "2026-01-31T23:00:00Z"), note("expires-at", at(60), "group")],
            60,
            id="of-a-former-pod-then-the-next",
        ),
        pytest.param(
            [note("expires-at", "off"), note("expires-at", at(60), "group")],
            math.inf,
            id="a-near-off-lifts-a-far-end",
        ),
    ],
)
def test_when_a_worker_ends(notes: list[QuotaNote], expires_in: float) -> None:
    assert expires_in == ask(*notes).expires_at - BEGAN


def written(names: dict[str, str], *, by: str, time: str = ko.CREATED) -> dict[str, Any]:
    """Metadata with annotations; `by="upstream"`: made with the object."""
    notes = {f"dask-adaptive.dev/{k}": v for k, v in names.items()}
    fields: dict[str, Any] = {"f:annotations": {f"f:{k}": {} for k in notes}}
    if by == "upstream":
        fields |= ko.UPSTREAM
    entry = {"manager": by, "time": time, "fieldsV1": {"f:metadata": fields}}
    return {"annotations": notes, "managedFields": [entry]}


def test_annotations_are_read_with_who_set_them() -> None:
    names = dict.fromkeys(NAMES, "x")
    own = read_quota_notes(written(names, by="kubectl"), "pod w", made_by_upstream=True)
    copy = read_quota_notes(written(names, by="upstream"), "pod w", made_by_upstream=True)

    assert list(NAMES) == [n.name for n in own]
    assert {(ko.CREATED_AT, False)} == {(n.set_at, n.is_copy) for n in own}
    assert {True} == {n.is_copy for n in copy}
    assert () == read_quota_notes({"annotations": {"dask-adaptive.dev/pin": "1"}}, "x",
                                  made_by_upstream=True)  # fmt: skip


def test_copies_do_not_count_but_what_a_pod_alone_was_made_with_does() -> None:
    tasks = note("recycle-tasks", "5", is_copy=True)
    ends = note("expires-at", at(60), is_copy=True)
    alone = note("recycle-failures", "3", is_copy=True)
    above = [note("recycle-tasks", "9", "DaskCluster etl")]
    on_deployment = [note(n.name, n.value, "Deployment w", is_copy=True) for n in (tasks, ends)]
    found = in_order([tasks, ends, alone], on_deployment, above)

    names = [(n.name, n.holder) for n in found]
    assert ("recycle-failures", "pod w") == names[0], "a webhook has set it"
    assert ("recycle-tasks", "DaskCluster etl") == names[1]
    assert [("expires-at", "pod w"), ("expires-at", "Deployment w")] == names[2:]


def test_a_copied_end_gives_way_to_its_original() -> None:
    copy = note("expires-at", at(60), "Deployment w", is_copy=True)
    found = in_order([], [copy], [note("expires-at", at(7200), "DaskCluster etl")])

    assert read_instant(at(7200)) == asked(
        found, began_at=BEGAN, now=NOW, since=lambda n: n.set_at
    ).expires_at  # fmt: skip
