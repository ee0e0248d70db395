"""Read what quotas are measured by: one `Use` for each worker, and what few of them have to say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dask_adaptive.model.recycle import UNUSED, Use


@dataclass(frozen=True, slots=True)
class Metered:
    """`wire.Meters` by slot; empty where the agent was not asked, or is too old to answer."""

    uses: Mapping[int, Use] = field(default_factory=dict)
    lifetimes: Mapping[int, float] = field(default_factory=dict)  # seconds left
    too_short: frozenset[int] = frozenset()
    held: int = 0
    expected_s: float = 0.0

    def use(self, slot: int) -> Use:
        return self.uses.get(slot, UNUSED)


def read_meters(snapshot: Mapping[str, Any], memory_limit: Callable[[int], int]) -> Metered:
    """
    Read the meters of a snapshot.

    Args:
        memory_limit: In bytes, by slot; 0: none, and then nothing is a part of it.
    """
    meters = snapshot.get("meters")
    if meters is None:
        return Metered()
    columns = snapshot["workers"]
    matched = dict(meters["matched"])
    gpu = {slot: used / total for slot, used, total in meters["gpu"] if total > 0}
    rows = zip(
        columns["slot"], columns["memory"], meters["runs"], meters["failures"], meters["managed"],
        meters["mean_ms"], strict=True,
    )  # fmt: skip
    uses = {}
    for slot, memory, runs, failures, managed, mean_ms in rows:
        limit, unmanaged = memory_limit(slot), max(0, memory - managed)
        uses[slot] = Use(
            runs,
            failures,
            matched.get(slot, ""),
            memory / limit if limit else 0.0,
            unmanaged / limit if limit else 0.0,
            unmanaged,
            gpu.get(slot, 0.0),
            mean_ms / 1000,
        )
    return Metered(
        uses=uses,
        lifetimes={slot: left_ms / 1000 for slot, left_ms in meters["lifetimes"]},
        too_short=frozenset(meters["too_short"]),
        held=meters["held"],
        expected_s=meters["expected_ms"] / 1000,
    )
