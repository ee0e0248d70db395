"""What the agent says of demand, as the operator reads it."""

from __future__ import annotations

from dask_adaptive.model.observed import Demand, Need, PrefixWork, UpcomingShuffle
from dask_adaptive.scheduler.snapshot import read_demand
from dask_adaptive_agent import wire

PREFIXES: wire.PrefixColumns = {
    "name": ["a", "b"], "mean_ms": [1500, -1], "running": [1, 0], "ready": [2, 0],
    "waiting": [0, 3], "longest_ms": [250, 0], "done": [7, 0], "width": [3, 2], "level": [0, 1],
    "fan_in": [1.0, 2.5], "bound": [0, 1],
}  # fmt: skip
NEED: wire.NeedRow = {
    "tasks": 4, "ms": 2000, "resources": {"GPU": 1.0}, "workers": ["w"], "hosts": [],
    "loose": False, "waiting": 5, "able": ["w"],
}  # fmt: skip
SHUFFLE: wire.UpcomingShuffleRow = {"id": "s", "inputs": 2, "outputs": 9}
DEMAND: wire.DemandPart = {
    "prefixes": PREFIXES, "needs": [NEED], "shuffles": [SHUFFLE], "unknown_ms": 500,
    "incoming_ms": 750, "every_ms": 20_000, "trickle_ms": 5_000,
}  # fmt: skip


def test_all_of_it_is_read_in_seconds() -> None:
    assert Demand(
        prefixes=(
            PrefixWork("a", 1.5, 1, 2, 0, 0.25, 7, 3, 0, 1.0, 0),
            PrefixWork("b", None, 0, 0, 3, 0.0, 0, 2, 1, 2.5, 1),
        ),
        needs=(Need(4, 2.0, {"GPU": 1.0}, ("w",), (), False, 5, ("w",)),),
        shuffles=(UpcomingShuffle(2, 9),),
        unknown_s=0.5,
        incoming=0.75,
        every_s=20.0,
        trickle_s=5.0,
    ) == read_demand(DEMAND)
