"""Whatever a request holds, the agent answers, and keeps no more than it has said."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from distributed import Scheduler
from distributed.utils_test import gen_cluster

from dask_adaptive_agent import wire
from dask_adaptive_agent.loading.attach import install

#: What a request may hold, by message; `hello` takes nothing.
REQUESTS: dict[str, Any] = {
    wire.CONFIGURE: wire.ConfigureRequest,
    wire.OBSERVE: wire.ObserveRequest,
    wire.EXPLAIN: wire.ExplainRequest,
    wire.RETIRE: wire.RetireRequest,
    wire.CANCEL: wire.CancelRequest,
    wire.PIN: wire.PinRequest,
    wire.UNPIN: wire.UnpinRequest,
    wire.LEAVE: wire.LeaveRequest,
    wire.LIMIT: wire.LimitRequest,
    wire.ANNOUNCE: wire.AnnounceRequest,
    wire.WANT: wire.WantRequest,
}

#: What each needs to be accepted.
BASE: dict[str, Any] = {
    wire.RETIRE: {"names": []},
    wire.CANCEL: {"names": []},
    wire.PIN: {"names": ["a"], "source": wire.MANUAL, "owner": "o", "ttl_ms": 1000},
    wire.UNPIN: {"source": wire.MANUAL, "owner": "o"},
    wire.WANT: {"workers": 1, "owner": "o", "ttl_ms": 1000},
}

HUGE = 2 * wire.MOST_ENTRIES


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


def deep() -> Any:
    nest: Any = []
    for _ in range(2_000):
        nest = [nest]
    return nest


@pytest.fixture(scope="module")
def odd_values() -> list[Any]:
    return [
        None, True, -1, 0, 2**53, 2**80, 1.5, float("nan"), "", "x", b"x", Odd(), object,
        "x" * 200_000, "\udcff", ["x" * 200_000], [["a", 1]], [None], {"a": Odd()}, {1: 2},
        [str(i) for i in range(HUGE)], list(range(HUGE)), {str(i): i for i in range(HUGE)},
        [{"patterns": ["*"] * HUGE}], [{"patterns": ["x" * 200_000]}], [{"failures": -1}],
        [(1, 1)] * HUGE, deep(), {"distributed.scheduler": deep()},
    ]  # fmt: skip


def test_every_message_is_tried() -> None:
    assert set(wire.HANDLERS) - {wire.HELLO} == REQUESTS.keys()


@pytest.mark.parametrize("message", sorted(REQUESTS))
async def test_odd_and_huge_requests_are_refused_or_bounded(
    message: str, odd_values: list[Any]
) -> None:
    async with Scheduler(port=0, dashboard=False, host="127.0.0.1") as s:
        agent = install(s)
        handler, base = s.handlers[message], BASE.get(message, {})
        if message == wire.LIMIT:
            base = {"session": agent.session}
        assert "error" not in handler(**base)
        tracemalloc.start()
        try:
            for field in REQUESTS[message].__annotations__.keys() - {"protocol"}:
                for odd in odd_values:
                    answer = handler(**{**base, field: odd})
                    code = answer.get("error", wire.E_INVALID)
                    assert code in (wire.E_INVALID, wire.E_REFUSED), (field, answer)
                    assert len(str(answer.get("message", ""))) < 1000
            kept = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert kept < 20e6


@gen_cluster(nthreads=[])
async def test_names_that_nobody_has_cannot_fill_the_table(s: Any) -> None:
    agent = install(s)
    pin = s.handlers[wire.PIN]
    request = {"source": wire.MANUAL, "ttl_ms": 60_000}

    for owner in range(10):
        for part in range(3):
            names = [f"{part} {i}" for i in range(wire.MOST_ENTRIES // 2)]
            answer = pin(names=names, owner=str(owner), **request)

    assert wire.E_REFUSED == answer["error"]
    assert str(wire.MOST_PINS) in answer["message"]
    assert wire.MOST_PINS == len(agent.pins.leases)
    assert "error" not in s.handlers[wire.UNPIN](source=wire.MANUAL, owner="0")
    assert wire.MOST_PINS - wire.MOST_PINS_OF_OWNER == len(agent.pins.leases)
