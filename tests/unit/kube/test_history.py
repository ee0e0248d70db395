"""Decisions as a ConfigMap keeps them: what is written is read, and it never grows too large."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_adaptive.kube.objects import parse_policy_object
from dask_adaptive.kube.status_json import KEY, MOST_BYTES, history_body, history_name, history_of
from dask_adaptive.model.codec import encode
from dask_adaptive.model.plan import KEPT, Decision, Step
from dask_adaptive.model.reason import Reason
from dask_adaptive.text import plain
from support import kube_objects as ko

POLICY = parse_policy_object(ko.policy())

texts = st.text(st.characters(codec="utf-8"), max_size=40).map(plain)
counts = st.integers(0, 10_000)
steps = st.builds(Step, texts, counts, st.sampled_from(Reason), texts)
decisions = st.builds(
    Decision,
    at=st.integers(0, 4_000_000_000_000).map(lambda ms: ms / 1000),
    group=texts,
    before=counts,
    wanted=counts,
    desired=counts,
    reason=st.sampled_from(Reason),
    message=texts,
    outcome=texts,
    asked_by=texts,
    inputs=st.dictionaries(texts, st.integers(-(10**6), 10**6).map(float), max_size=3),
    steps=st.lists(steps, max_size=3).map(tuple),
)


def decision(at: float = 1.0, **more: Any) -> Decision:
    base = {"group": "g", "before": 1, "wanted": 2, "desired": 2, "reason": Reason.RECONCILED}
    return Decision(at=at, **{**base, "message": "m", **more})


@given(st.lists(decisions, max_size=5))
def test_what_is_written_is_read(several: list[Decision]) -> None:
    body = json.loads(json.dumps(history_body(POLICY, several)))

    assert tuple(several) == history_of(body)


def test_the_youngest_are_kept() -> None:
    body = history_body(POLICY, [decision(float(i)) for i in range(KEPT + 50)])

    assert [float(i) for i in range(50, KEPT + 50)] == [d.at for d in history_of(body)]


@pytest.mark.parametrize("letter", ["x", "\N{LINE SEPARATOR}", '"', "\N{PILE OF POO}", "\x00"])
def test_it_is_never_too_large(letter: str) -> None:
    text = letter * 5000
    step = Step("load", 1, Reason.RECONCILED, text)
    several = [decision(float(i), message=text, steps=(step,) * 9) for i in range(KEPT)]
    body = history_body(POLICY, several)

    assert len(json.dumps(body["data"]).encode()) <= MOST_BYTES
    found = history_of(body)
    assert 1 < len(found) <= KEPT
    assert KEPT - 1 == found[-1].at


def test_numbers_that_are_none_are_left_out() -> None:
    seen = encode(decision(inputs={"a": math.inf, "b": math.nan, "c": 1 / 3}))

    assert {"c": 0.333} == seen["inputs"]
    assert "1970-01-01T00:00:01.000Z" == seen["at"]


def test_names_of_long_policies_differ_and_fit() -> None:
    a, b = history_name("p" * 252 + "a"), history_name("p" * 252 + "b")

    assert a != b
    assert (253, 253) == (len(a), len(b))


GOOD = json.dumps(encode(decision()))


@pytest.mark.parametrize(
    "line",
    [
        GOOD,
        "",
        "{}",
        '{"at": "1970-01-01T00:00:01Z"}',
        "[" * 100_000,
        GOOD.replace("Reconciled", "OfALaterRelease"),
        GOOD.replace("1970-01-01T00:00:01.000Z", "yesterday"),
        GOOD.replace('"before": 1', '"before": "many"'),
        GOOD.replace('"steps": []', '"steps": [3]'),
    ],
)
def test_rubbish_is_told_apart(line: str) -> None:
    body = {"data": {KEY: f"{GOOD}\n{line}\n{GOOD}\n"}}

    assert 2 + (line == GOOD) == len(history_of(body))


@pytest.mark.parametrize("body", [{}, {"data": None}, {"data": {}}, {"data": {"other": "x"}}])
def test_nothing_is_no_rubbish(body: dict[str, Any]) -> None:
    assert () == history_of(body)
