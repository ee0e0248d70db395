"""Annotations on workers' pods: what is written is what is read, and nobody else's is touched."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_adaptive.kube.marks import HINTS, KEEP, NAMES, PINNED_BY, changes, read_mark
from dask_adaptive.model.observed import Mark

EVICT, DISRUPT = KEEP
BOTH = f"{EVICT},{DISRUPT}"
OURS = {HINTS: BOTH, **KEEP}

Notes = dict[str, str]


def written(notes: Notes, mark: Mark) -> Notes:
    """The pod's annotations after the merge patch."""
    merged = {**notes, **changes(notes, mark)}
    return {name: value for name, value in merged.items() if value is not None}


@pytest.mark.parametrize(
    ("before", "mark", "after"),
    [
        pytest.param({}, Mark(), {}, id="nothing"),
        pytest.param({}, Mark(keep=True), OURS, id="kept"),
        pytest.param(OURS, Mark(), {}, id="free-again"),
        pytest.param({}, Mark("shuffle ab"), {PINNED_BY: "shuffle ab"}, id="pinned"),
        pytest.param({PINNED_BY: "a"}, Mark("b"), {PINNED_BY: "b"}, id="by-somebody-else"),
        pytest.param({PINNED_BY: "a", **OURS}, Mark(keep=True), OURS, id="busy-but-not-pinned"),
        pytest.param({PINNED_BY: ""}, Mark(), {}, id="an-empty-one-goes"),
        pytest.param(
            {EVICT: "true"},
            Mark(keep=True),
            {EVICT: "true", DISRUPT: "true", HINTS: DISRUPT},
            id="the-users-wish-stays",
        ),
        pytest.param(
            {EVICT: "true", DISRUPT: "true", HINTS: DISRUPT},
            Mark(),
            {EVICT: "true"},
            id="and-is-not-removed",
        ),
        pytest.param(
            dict(KEEP), Mark(keep=True), {**KEEP, HINTS: ""}, id="both-were-there-the-same"
        ),
        pytest.param({**KEEP, HINTS: ""}, Mark(), dict(KEEP), id="and-stay"),
        pytest.param(
            {**OURS, EVICT: "true"}, Mark(), {EVICT: "true"}, id="changed-by-the-user-since"
        ),
        pytest.param(
            {HINTS: BOTH, DISRUPT: "true"},
            Mark(keep=True),
            {HINTS: BOTH, DISRUPT: "true"},
            id="removed-by-the-user-since",
        ),
        pytest.param({HINTS: "nonsense"}, Mark(), {}, id="a-note-of-nothing"),
    ],
)
def test_annotations(before: Notes, mark: Mark, after: Notes) -> None:
    assert after == written(before, mark)


marks = st.builds(Mark, pinned_by=st.sampled_from(["", "a", "b"]), keep=st.booleans())
theirs = st.dictionaries(st.sampled_from([*KEEP]), st.sampled_from(["true", "false", "x"]))


@given(theirs, st.lists(marks, max_size=6))
def test_what_is_written_is_read_and_all_of_it_goes(users: Notes, wanted: list[Mark]) -> None:
    notes = {"other": "1", **users}
    for mark in wanted:
        notes = written(notes, mark)

        assert mark == read_mark(notes)
        assert {} == changes(notes, mark), "nothing is written twice"
        assert users.items() <= notes.items()

    assert {"other": "1", **users} == written(notes, Mark())


def test_others_need_not_be_known() -> None:
    assert set(changes({}, Mark("a", keep=True))) <= NAMES
