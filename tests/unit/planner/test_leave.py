"""Why a worker stays, in whose name, and how that is counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dask_adaptive.model.observed import ManualPin, ObservedCluster, Pin
from dask_adaptive.model.past import Refusal
from dask_adaptive.model.plan import Blocker, Retire, SetPin, Unpin
from dask_adaptive.model.reason import Reason
from dask_adaptive.planner.leave import OWNER, PIN_SLACK_S
from dask_adaptive.planner.plan import count_blockers
from support.tables import table
from support.worlds import NOW, SHUFFLE, busy, cluster, decide, facts, past_of, worker

CLIENT, NOTED = Pin("client", "me", "", 60.0), Pin("client", "me", "a long loop", 60.0)
BY_HAND, BY_HAND_WHY = Pin("manual", "x", "", 60.0), Pin("manual", "x", "debugging", 60.0)
ASKED_WHY = ManualPin(60.0, "debugging")


# --- who holds a worker ---------------------------------------------------------------------------


@table(
    "changes, expected",
    nobody=({}, ""),
    a_shuffle_says_why_by_itself=({"pins": (Pin("shuffle", "5f3a", "takes part in it", 60.0),)},
        "shuffle 5f3a"),
    a_client_says_why=({"pins": (NOTED,)}, "client me (a long loop)"),
    a_person=({"pins": (BY_HAND,)}, "annotation"),
    a_person_says_why=({"pins": (BY_HAND_WHY,)}, "annotation (debugging)"),
    nor_why=({"manual_pin": ASKED_WHY}, "annotation (debugging)"),
    both=({"manual_pin": ASKED_WHY, "pins": (CLIENT,)}, "annotation (debugging), client me"),
    as_the_agent_was_told_if_it_was=({"manual_pin": ASKED_WHY, "pins": (SHUFFLE, BY_HAND)},
        "annotation, shuffle 5f3a"),
)  # fmt: skip
def test_who_holds_a_worker(changes: dict[str, Any], expected: str) -> None:
    found = decide(cluster([worker("a", **changes), busy("b")], target=1)).blockers

    held = Blocker("a", Reason.PINNED, f"pinned by {expected}")
    assert ([held] if expected else []) == [one for one in found if one.worker == "a"]


def pins_set(world: ObservedCluster) -> tuple[SetPin | Unpin, ...]:
    """Of their messages the figures."""
    found = (a for a in decide(world).actions if isinstance(a, SetPin | Unpin))
    return tuple(replace(a, message=facts(a.message)) for a in found)


HELD = Pin("manual", OWNER, "why", 60.0)


@table(
    "changes, expected",
    asked_for=({"manual_pin": ManualPin(60.0, "why")},
        SetPin("a", ("a",), Reason.PIN_CHANGED, "1m", 60.0, "why")),
    unreadable=({"manual_pin": ManualPin(60.0, "why", "cannot be read")},
        SetPin("a", ("a",), Reason.INVALID_ANNOTATION, "", 60.0, "why")),
    gone=({"pins": (HELD,)}, Unpin("a", ("a",), Reason.PIN_CHANGED, "")),
    not_ours=({"pins": (replace(HELD, owner="me"),)}, None),
    nor_a_persons=({"pins": (replace(HELD, source="client"),)}, None),
    in_step=({"pins": (HELD,), "manual_pin": ManualPin(60.0 + PIN_SLACK_S, "why")}, None),
    another_reason=({"pins": (HELD,), "manual_pin": ManualPin(60.0, "other")},
        SetPin("a", ("a",), Reason.PIN_CHANGED, "1m", 60.0, "other")),
    to_be_renewed=({"pins": (HELD,), "manual_pin": ManualPin(61.0 + PIN_SLACK_S, "why")},
        SetPin("a", ("a",), Reason.PIN_CHANGED, "1m31s", 91.0, "why")),
)  # fmt: skip
def test_pins_follow_annotations(changes: dict[str, Any], expected: object) -> None:
    told = pins_set(cluster([worker("a", **changes)]))

    assert (() if expected is None else (expected,)) == told


# --- what keeps an idle worker --------------------------------------------------------------------


@table(
    "changes, reason, message",
    nothing=({}, None, ""),
    pinned=({"pins": (SHUFFLE, CLIENT)}, Reason.PINNED, "client me, shuffle 5f3a"),
    busy=({"processing": 1}, Reason.BUSY, "has tasks"),
    actors=({"actors": True}, Reason.HOLDS_ACTORS, "actors"),
    idle_for_long_enough=({"idle_s": 90.0}, None, ""),
    idle_for_less=({"idle_s": 89.9}, Reason.IDLE_GRACE, "1m30s (idleTimeout)"),
    not_offered=({"closable": False}, Reason.NO_RECIPIENT, "workers_to_close"),
    refused_lately=({"name": "refused"}, Reason.BUSY, "has 1 task"),
    refused_before=({"name": "free-again"}, None, ""),
)  # fmt: skip
def test_a_veto(changes: dict[str, Any], reason: Reason | None, message: str) -> None:
    refusals = {
        "refused": Refusal(NOW + 1, Reason.BUSY, "has 1 task"),
        "free-again": Refusal(NOW, Reason.BUSY, "has 1 task"),
    }
    one = worker(**{"name": "a", **changes})
    world = cluster([one, busy("z")], target=1)
    decided = decide(world, past_of(refusals=refusals), idle_timeout_s=90.0)

    left = [a.worker for a in decided.actions if isinstance(a, Retire)]
    held = [b for b in decided.blockers if b.worker == one.name]
    assert (reason is None) == (left == [one.name]) == (not held)
    assert all(b.reason is reason and message in b.message for b in held)


def test_blockers_are_counted_by_reason_most_first() -> None:
    reasons = [Reason.PINNED, Reason.IDLE_GRACE, Reason.BUSY, Reason.PINNED, Reason.HOLDS_ACTORS]
    counted = count_blockers([Blocker(f"w{i}", r, "") for i, r in enumerate(reasons)])

    once = [(Reason.BUSY, 1), (Reason.HOLDS_ACTORS, 1), (Reason.IDLE_GRACE, 1)]  # as words
    assert ((Reason.PINNED, 2), *once) == counted
    assert () == count_blockers([])
