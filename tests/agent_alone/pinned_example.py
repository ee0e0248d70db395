"""
A user's script: scripts/test-pythons.sh runs it where nothing is installed but the agent and Dask.

Not a pytest test: pytest is not there either.
"""

from __future__ import annotations

import dask
from distributed import Client, LocalCluster

from dask_adaptive_agent import PinUnavailable, pinned, want


def held(x: int) -> int:
    from dask_adaptive_agent import pinned

    with pinned(reason="in a task") as pin:
        assert 1 == len(pin.workers)
        return x + 1


def without_an_agent() -> None:
    with LocalCluster(n_workers=1, dashboard_address=None) as cluster, Client(cluster):
        problem = None
        try:
            with pinned(reason="of no use"):
                pass
        except PinUnavailable as exc:
            problem = exc
        assert "no dask-adaptive agent" in str(problem)
        with pinned(required=False):
            pass


def with_an_agent() -> None:
    with (
        dask.config.set({"distributed.scheduler.preload": ["dask_adaptive_agent.preload"]}),
        LocalCluster(n_workers=2, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(2)
        with pinned(reason="example") as pin:
            assert 2 == len(pin.workers)
            assert not client.sync(client.scheduler.workers_to_close, n=2)
        assert 2 == len(client.sync(client.scheduler.workers_to_close, n=2))
        assert [2, 3, 4] == client.gather(client.map(held, [1, 2, 3]))
        with want(3):
            pass


if __name__ == "__main__":
    without_an_agent()
    with_an_agent()
    print("pinned, and let go")
