"""What stands against a replacement, and how many may be missing at once: as `plan` tells it."""

from __future__ import annotations

import dataclasses
from typing import Any

from dask_adaptive.model.observed import ManualPin, ObservedWorker, Pin
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Amount, Budget, MemoryQuota, RecyclePast, Strategy
from support.recycles import DRAINING, FULL, IN_PLACE, SPENT, actions, decide, states, turn
from support.tables import table
from support.worlds import NOW, PAST, SHUFFLE, busy, cluster, pending, worker

CLIENT = Pin("client", "me", "", 60.0)
ASKED = {"recycle_request": "ann"}
OTHERS = (NOW + 99, "that of b did not come")
OVER_PINS = {"memory": MemoryQuota(hard=0.9, override_pins=True)}
HOUR_OLD = {"min_age_s": 3600.0}


def aborted(**names: tuple[float, str]) -> dict[str, Any]:
    return {"past": dataclasses.replace(PAST, recycle=RecyclePast(aborted=names))}


@table(
    "changes, settings, expected",
    over_pins=({**FULL, "pins": (CLIENT,)}, OVER_PINS, None),
    never_over_those_of_shuffles=({**FULL, "pins": (CLIENT, SHUFFLE)}, OVER_PINS,
        (Reason.PINNED, "client me, shuffle 5f3a")),
    nor_for_anything_else=({**SPENT, "pins": (CLIENT,)}, OVER_PINS, (Reason.PINNED, "client me")),
    old_enough=({**SPENT, "pod_age_s": 3600.0}, HOUR_OLD, None),
    over_pins_of_people=({**FULL, "manual_pin": ManualPin(60.0, "")}, OVER_PINS, None),
    but_where_none_is_asked_for_first=(SPENT, {**aborted(b=OTHERS), **IN_PLACE}, None),
    by_hand_it_is_tried=(ASKED, aborted(b=OTHERS), None),
)  # fmt: skip
def test_what_stands_against_a_replacement(
    changes: dict[str, Any], settings: dict[str, Any], expected: tuple[Reason, str] | None
) -> None:
    world = cluster([busy("a", **changes), busy("b"), busy("c"), busy("d")], target=3)
    decided = decide(world, policy={"min_replicas": 3, "max_replicas": 3}, **settings)

    assert ("Due" if expected else "Draining") == states(decided)["a"]
    blocked = [b for b in decided.blockers if b.worker == "a"]
    assert bool(expected) == bool(blocked)
    if expected:
        (found,) = blocked
        assert (expected[0], True) == (found.reason, found.message.endswith(expected[1]))


# --- how many should be in service ----------------------------------------------------------------


def missing(*workers: ObservedWorker, **past: Any) -> int:
    """Workers that budgets miss, by how many more may go: all are due at once, in place."""
    full = [busy(f"f{i}", **FULL) for i in range(9)]
    decided = turn([*workers, *full], budgets=(Budget(Amount(9)),), past=past, **IN_PLACE)

    return 9 - sum(action.startswith("retire f") for action in actions(decided))


@table(
    "changes, seen, is_missed",
    there_before=({}, ("x",), True),
    its_first_pod_a_little_late=({"pod_age_s": 470.0}, (), False),
    its_first_pod=({"pod_age_s": 500.0}, (), False),
)
def test_who_was_connected_is_missed(
    changes: dict[str, Any], seen: tuple[str, ...], is_missed: bool
) -> None:
    assert is_missed == missing(pending("x", **changes), seen=frozenset(seen))


@table(
    "floors, expected",
    without_a_past_it_is=({}, 1),
    as_many_serve_as_did=({"r": 9}, 0),
)
def test_who_left_before_its_replacement_came_is_missed(
    floors: dict[str, int], expected: int
) -> None:
    goes = worker("r", **DRAINING)
    full = [busy(f"f{i}", **FULL) for i in range(9)]
    nine = {"budgets": (Budget(Amount(9)),), "strategy": Strategy(max_surge=Amount(9))}
    decided = turn([goes, *full], past={"floors": floors}, **nine)

    assert 9 - expected == sum(action.startswith("retire f") for action in actions(decided))
