"""Limits as the operator sends them, what they are measured by, and work that wears workers out."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

from distributed import Reschedule, get_worker

from dask_adaptive_agent import wire
from support.agent_work import RUNS, ask, by_slot

#: Which tasks have failed or were rescheduled once, by their argument.
BEFORE: set[Any] = set()


def told(delay_s: float, i: Any) -> str:
    """Run for a while, and say where."""
    address: str = get_worker().address
    RUNS.append((address, i))
    time.sleep(delay_s)
    return address


def runs(i: Any, delay_s: float = 0.02, *_: Any) -> str:
    return told(delay_s, i)


def fails_once(i: Any, delay_s: float = 0.02) -> str:
    address = told(delay_s, i)
    if i not in BEFORE:
        BEFORE.add(i)
        raise ValueError(f"the first run of {i}")
    return address


def is_rescheduled_once(i: Any, delay_s: float = 0.02) -> str:
    address = told(delay_s, i)
    if i not in BEFORE:
        BEFORE.add(i)
        raise Reschedule
    return address


def fails(i: Any, message: str = "no", *, on: Any = None, delay_s: float = 0.0) -> str:
    """Fail, or only on one worker."""
    address = told(delay_s, i)
    if on is None or address in on:
        raise RuntimeError(message)
    return address


def made() -> Counter[str]:
    """Executions by address."""
    return Counter(address for address, _ in RUNS)


async def limit(
    scheduler: Any,
    workers: Iterable[Any],
    runs: int = 0,
    *,
    stops: int = 99,
    left_ms: int | list[int] = -1,
    others: dict[str, Any] | None = None,
    groups: dict[str, int] = {},  # noqa: B006  # read only
    **profile: Any,
) -> None:
    """
    Say that these workers have such a limit, and no others (or `others`: this profile). With
    `groups` (and their stops) the workers are of these, by turns.
    """
    names = [str(getattr(w, "name", w)) for w in workers]
    session = (await ask(scheduler, wire.HELLO))["session"]
    answer = await ask(
        scheduler,
        wire.LIMIT,
        session=session,
        names=names,
        runs=[runs] * len(names),
        left_ms=[left_ms] * len(names) if isinstance(left_ms, int) else left_ms,
        profile=[i % max(1, len(groups)) for i in range(len(names))],
        profiles=[{**profile, "group": one} for one in groups or [""]] + [others] * bool(others),
        group_stops=groups,
        others=-1 if others is None else 1,
        stops=stops,
    )
    assert "error" not in answer, answer


async def metered(scheduler: Any, key: str = "runs") -> dict[str, int]:
    """One of the meters, by address."""
    seen = await ask(scheduler, wire.OBSERVE, meters=True)
    addresses = _addresses(seen)
    rows = zip(seen["workers"]["slot"], seen["meters"][key])
    return {addresses[slot]: value for slot, value in rows}


async def cordoned(scheduler: Any) -> dict[str, str]:
    """Why each worker is cordoned that is, by address."""
    seen = await ask(scheduler, wire.OBSERVE)
    return {_addresses(seen)[row["slot"]]: row["kind"] for row in seen["stops"]}


def _addresses(seen: dict[str, Any]) -> dict[int, str]:
    addresses = by_slot(seen, "address")
    return {slot: addresses[slot] or name for slot, name in by_slot(seen).items()}


async def limit_ends(s: Any, left_s: dict[Any, float], **profile: Any) -> None:
    """Say how long workers live, by name; `profile` is that of all of them."""
    left_ms = [int(left * 1000) for left in left_s.values()]
    await limit(s, left_s, left_ms=left_ms, stops=0, **profile)


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
