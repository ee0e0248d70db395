"""Hosts of workers cost little, and are what upstream says."""

from __future__ import annotations

from types import SimpleNamespace

import distributed.scheduler
import pytest
from distributed.scheduler import WorkerState
from distributed.utils_test import gen_cluster

from dask_adaptive_agent.agent import install
from dask_adaptive_agent.relief.before_2025_4 import host_of
from dask_adaptive_agent.relief.registry import is_needed
from support.agent_cluster import clear_shared, with_agent

pytestmark = pytest.mark.skipif(not is_needed("host"), reason="this release parses addresses once")

STOCK_HOST = WorkerState.__dict__["host"]  # at import no test has run yet
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
    host_of.cache_clear()
    monkeypatch.setattr(WorkerState, "host", STOCK_HOST)


@gen_cluster(nthreads=[])
async def test_hosts_are_equal_to_upstreams(s) -> None:
    workers = [SimpleNamespace(address=address) for address in ADDRESSES]
    expected = [STOCK_HOST.fget(worker) for worker in workers]
    install(s)
    ours = WorkerState.__dict__["host"]

    for _ in range(2):
        assert expected == [ours.fget(worker) for worker in workers]
    assert (STOCK_HOST.__doc__, None) == (ours.__doc__, ours.fset)


@with_agent(3, client=False)
async def test_an_address_is_parsed_once(s, *_, agent, monkeypatch) -> None:
    s.identity()
    monkeypatch.setattr(distributed.scheduler, "get_address_host", None)

    for _ in range(10):
        assert {"127.0.0.1"} == {info["host"] for info in s.identity()["workers"].values()}
