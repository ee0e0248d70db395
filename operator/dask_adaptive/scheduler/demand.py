"""Read what asks for workers from the agent's snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dask_adaptive.model.demand import Demand, Need, PrefixWork, Quiet, UpcomingShuffle, Want
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.scaling import Source
from dask_adaptive_agent import wire


def asks_demand(policy: Policy) -> bool:
    """Whether the scheduler's own target does not say enough."""
    return policy.scaling.source is Source.STARTUP_AWARE or bool(policy.scaling.groups)


def read_demand(snapshot: Mapping[str, Any]) -> Demand | None:
    """None: the agent was not asked, or is too old to say."""
    row = snapshot.get("demand")
    if row is None:
        return None
    return Demand(
        prefixes=tuple(_prefixes(row["prefixes"])),
        needs=tuple(_need(need) for need in row["needs"]),
        shuffles=tuple(
            UpcomingShuffle(s["id"], s["inputs"], s["outputs"], s["waiting"], s["for_ms"] / 1000)
            for s in row["shuffles"]
        ),
        unknown_s=row["unknown_ms"] / 1000,
        incoming=row.get("incoming_ms", 0) / 1000,
        every_s=row.get("every_ms", 0) / 1000,
    )


def read_wants(snapshot: Mapping[str, Any]) -> tuple[Want, ...]:
    return tuple(
        Want(w["workers"], w["left_ms"] / 1000, w["owner"], w["group"])
        for w in snapshot.get("wants", ())
    )


def read_quiet(snapshot: Mapping[str, Any]) -> Quiet:
    """Of an agent that does not say: in use, so nothing is taken from anybody."""
    row = snapshot.get("quiet")
    if row is None:
        return Quiet()
    return Quiet(row["no_task_ms"] / 1000, row["no_client_ms"] / 1000)


def _prefixes(columns: Mapping[str, Any]) -> list[PrefixWork]:
    rows = zip(*(columns[name] for name in wire.PrefixWork.__annotations__), strict=True)
    return [
        PrefixWork(
            name=name, mean_s=mean_ms / 1000 if mean_ms >= 0 else None, running=running,
            ready=ready, waiting=waiting, longest_s=longest_ms / 1000, done=done, width=width,
            level=level, fan_in=fan_in, bound=bound,
        )
        for (
            name, mean_ms, running, ready, waiting, longest_ms, done, width, level, fan_in, bound,
        ) in rows
    ]  # fmt: skip


def _need(row: Mapping[str, Any]) -> Need:
    return Need(
        tasks=row["tasks"],
        stuck=row["stuck"],
        seconds=row["ms"] / 1000,
        resources=dict(row["resources"]),
        workers=tuple(row["workers"]),
        hosts=tuple(row["hosts"]),
        loose=row["loose"],
        waiting=row["waiting"],
        able=tuple(row["able"]),
    )
