"""`WorkerState.host` is parsed once, and what it says is what upstream says."""

from __future__ import annotations

from typing import Any

import distributed.scheduler
import pytest
from distributed import Scheduler
from distributed.comm import get_address_host
from distributed.core import Status
from distributed.scheduler import WorkerState
from distributed.utils_test import gen_cluster

from dask_adaptive_agent import wire
from dask_adaptive_agent.attach import install, uninstall
from dask_adaptive_agent.relief import host
from dask_adaptive_agent.relief.host import Host
from support.patched import clear_shared

STOCK = WorkerState.__dict__["host"]  # at import no test has run yet
ONLY = pytest.mark.skipif(bool(Host.needless()), reason=Host.needless() or "needed")
ADDRESSES = (
    "tcp://10.1.2.3:4567",
    "tls://worker-0.workers.dask.svc:8788",
    "tcp://[2001:db8::1]:8080",
    "ws://10.0.0.1:1",
)


@pytest.fixture(autouse=True)
def _its_own_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedulers of other tests may have closed without taking it out."""
    clear_shared()
    host._hosts.clear()
    if not Host.needless():
        monkeypatch.setattr(WorkerState, "host", STOCK)


def worker(address: str) -> Any:
    return WorkerState(
        address=address,
        status=Status.running,
        pid=1,
        name="w",
        memory_limit=0,
        local_directory="",
        nanny="",
        server_id=address,
    )


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Addresses that were parsed to answer `WorkerState.host`."""
    calls: list[str] = []

    def counted(address: str) -> str:
        calls.append(address)
        return get_address_host(address)

    monkeypatch.setattr(distributed.scheduler, "get_address_host", counted)
    return calls


def state_of(agent: Any) -> str:
    return {row["name"]: row["state"] for row in agent.reliefs.rows()}["host"]


@gen_cluster(nthreads=[])
async def test_it_is_applied_where_a_release_needs_it(s: Any) -> None:
    agent = install(s)

    assert (wire.R_NOT_NEEDED if Host.needless() else wire.R_ACTIVE) == state_of(agent)
    assert bool(Host.needless()) == (WorkerState.__dict__["host"] is STOCK)

    uninstall(s)
    assert WorkerState.__dict__["host"] is STOCK


@ONLY
@gen_cluster(nthreads=[])
async def test_it_is_equal_to_upstream(s: Any) -> None:
    expected = [STOCK.fget(worker(address)) for address in ADDRESSES]
    install(s)

    for _ in range(2):
        assert expected == [worker(address).host for address in ADDRESSES]
    assert STOCK.__doc__ == WorkerState.__dict__["host"].__doc__
    with pytest.raises(AttributeError):
        worker(ADDRESSES[0]).host = "elsewhere"


@ONLY
@gen_cluster(nthreads=[("127.0.0.1", 1)] * 3)
async def test_an_address_is_parsed_once(s: Any, *_: Any, parsed: list[str]) -> None:
    agent = install(s)
    s.identity()
    parsed.clear()

    for _ in range(10):
        s.identity()

    assert [] == parsed
    assert {"addresses": 3} == agent.reliefs.get("host").counts()


@ONLY
@gen_cluster(nthreads=[])
async def test_memory_is_bounded(s: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "MOST", 100)
    agent = install(s)

    for i in range(1000):
        assert f"10.0.{i // 256}.{i % 256}" == worker(f"tcp://10.0.{i // 256}.{i % 256}:1").host

    assert agent.reliefs.get("host").counts()["addresses"] <= 100


@ONLY
@gen_cluster(nthreads=[("127.0.0.1", 1)])
async def test_two_schedulers_share_it_and_the_last_takes_it_out(s: Any, a: Any) -> None:
    install(s)
    async with Scheduler(port=0, dashboard=False) as other:
        install(other)
        uninstall(s)
        assert WorkerState.__dict__["host"] is not STOCK
        assert "127.0.0.1" == s.workers[a.address].host

        uninstall(other)
        assert WorkerState.__dict__["host"] is STOCK
        assert "127.0.0.1" == s.workers[a.address].host


@ONLY
@gen_cluster(nthreads=[("127.0.0.1", 1)])
async def test_somebody_elses_property_over_ours_stays(s: Any, a: Any) -> None:
    install(s)
    ours: Any = WorkerState.__dict__["host"]
    theirs = property(lambda ws: ours.fget(ws).upper())
    WorkerState.host = theirs

    uninstall(s)

    assert WorkerState.__dict__["host"] is theirs
    assert "127.0.0.1" == s.workers[a.address].host


@ONLY
@gen_cluster(nthreads=[])
async def test_another_property_than_upstreams_is_left_alone(s: Any) -> None:
    theirs = property(lambda ws: "somewhere")
    WorkerState.host = theirs

    agent = install(s)

    assert WorkerState.__dict__["host"] is theirs
    assert wire.R_FAILED == state_of(agent)
