"""Bytes that one worker alone holds: exact, and cheap."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from distributed import Scheduler

from dask_adaptive_agent.loading.attach import install
from dask_adaptive_agent.quotas.roster import Entry, SoleBytes
from support.agent_fakes import clear_workers, fake_worker, give_result


@pytest.fixture
async def s() -> AsyncIterator[Any]:
    async with Scheduler(port=0, dashboard=False, host="127.0.0.1") as scheduler:
        yield scheduler
        clear_workers(scheduler)


def copy_to(s: Any, ts: Any, ws: Any) -> None:
    s.add_replica(ts, ws) if hasattr(s, "add_replica") else ws.add_replica(ts)


def sole(entries: list[Entry]) -> list[int]:
    return [entry.sole_bytes for entry in entries]


async def test_a_copy_elsewhere_is_seen_at_once_in_a_small_cluster(s) -> None:
    agent = install(s)
    a, b = fake_worker(s, 0), fake_worker(s, 1)
    ts = give_result(s, a, 100)
    give_result(s, a, 10)
    entries = list(agent.roster.sync().values())

    agent.sole.refresh(entries)
    before = sole(entries)
    copy_to(s, ts, b)
    agent.sole.refresh(entries)

    assert [110, 0] == before
    assert [10, 0] == sole(entries)


async def test_in_a_large_cluster_each_has_its_turn_and_none_seems_too_cheap(s) -> None:
    agent = install(s)
    workers = [fake_worker(s, i) for i in range(6)]
    shared = [give_result(s, ws, 100) for ws in workers]
    for ws in workers:
        give_result(s, ws, 1)
    entries = list(agent.roster.sync().values())
    budgeted = SoleBytes(budget=4, again=2)
    for i, ts in enumerate(shared):  # each result on its neighbour, too
        copy_to(s, ts, workers[(i + 1) % 6])

    rounds = []
    for _ in range(12):
        budgeted.refresh(entries)
        rounds.append(sole(entries))

    assert all(figure in (1, 201) for figures in rounds for figure in figures)
    assert 201 in rounds[0]
    assert [1] * 6 == rounds[-1]


async def test_a_worker_without_results_has_none(s) -> None:
    agent = install(s)
    ws = fake_worker(s, 0)
    ts = give_result(s, ws, 100)
    entries = list(agent.roster.sync().values())
    agent.sole.refresh(entries)

    if hasattr(s, "remove_replica"):
        s.remove_replica(ts, ws)
    else:
        ws.remove_replica(ts)
    agent.sole.refresh(entries)

    assert [0] == sole(entries)
