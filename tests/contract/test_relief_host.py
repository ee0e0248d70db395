"""`WorkerState.host` is parsed once, and what it says is what upstream says."""

from __future__ import annotations

from typing import Any

import distributed.scheduler
import pytest
from distributed.comm import get_address_host
from distributed.core import Status
from distributed.scheduler import WorkerState
from distributed.utils_test import gen_cluster

from dask_adaptive_agent.loading.attach import install
from dask_adaptive_agent.relief import identity
from dask_adaptive_agent.relief.identity import HostRelief
from support.patched import clear_shared

STOCK = WorkerState.__dict__["host"]  # at import no test has run yet
ONLY = pytest.mark.skipif(bool(HostRelief.needless()), reason=HostRelief.needless() or "needed")
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
    identity.host_of.cache_clear()
    if not HostRelief.needless():
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
