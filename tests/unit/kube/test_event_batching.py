"""Events of one pass: workers of whom the same is told share one, and none goes unnamed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dask_adaptive.kube.reporter import MOST, batched, sentence
from dask_adaptive.loop.ports import Event, EventType
from dask_adaptive.model.reason import Reason

IDLE = Event(EventType.NORMAL, Reason.UNDERUTILIZED, "idle for 1m", worker="a")


def test_workers_of_whom_the_same_is_told_share_an_event() -> None:
    policy = replace(IDLE, worker="")
    events = (IDLE, policy, replace(IDLE, worker="b"))
    assert [(IDLE, replace(IDLE, worker="b")), (policy,)] == list(batched(events))


@pytest.mark.parametrize(
    "other",
    [
        replace(IDLE, type=EventType.WARNING),
        replace(IDLE, reason=Reason.DRAINED),
        replace(IDLE, message="idle for 2m"),
        replace(IDLE, would=True),
    ],
)
def test_what_differs_is_told_apart(other: Event) -> None:
    assert [(IDLE,), (other,)] == list(batched((IDLE, other)))


def test_however_many_there_are_each_is_named_once() -> None:
    events = [replace(IDLE, worker=f"w{i}") for i in range(2 * MOST + 1)]
    groups = list(batched(events))
    assert [MOST, MOST, 1] == [len(group) for group in groups]
    named = [n for group in groups for n in sentence(group).partition(":")[0].split(", ")]
    assert [e.worker for e in events] == named


def test_an_event_on_the_policy_is_only_its_message() -> None:
    assert "idle for 1m" == sentence((replace(IDLE, worker=""),))
    assert "a, b: idle for 1m" == sentence((IDLE, replace(IDLE, worker="b")))
