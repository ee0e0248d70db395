"""What the operator says of workers' ends, and what the agent answers, for tests."""

from __future__ import annotations

from time import monotonic
from typing import Any

from dask_adaptive_agent import wire
from support.agent_quota import limit
from support.agent_work import ask, by_slot


class Clock:
    """Real time, and as much ahead as a test says."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def __call__(self) -> float:
        return monotonic() + self.ahead_s


async def limit_ends(s: Any, left_s: dict[Any, float], **profile: Any) -> None:
    """Say how long workers live, by name; `profile` is that of all of them."""
    left_ms = [int(left * 1000) for left in left_s.values()]
    assert not await limit(s, left_s, left_ms=left_ms, stops=0, **profile)


async def meters(s: Any) -> dict[str, Any]:
    snapshot = await ask(s, wire.OBSERVE, meters=True)
    answer: dict[str, Any] = snapshot["meters"]
    assert set(wire.Meters.__annotations__) == set(answer)
    names = by_slot(snapshot)
    answer["too_short"] = sorted(names[slot] for slot in answer["too_short"])
    answer["lifetimes"] = {names[slot]: ms / 1000 for slot, ms in answer["lifetimes"]}
    return answer


async def notes(s: Any, kind: str = wire.N_TASK_TOO_LONG) -> list[str]:
    rows = (await ask(s, wire.OBSERVE))["notes"]
    return [row["message"] for row in rows if row["kind"] == kind]
