"""A P2P shuffle gives its outputs to the workers that are there when it begins: it waits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from distributed import futures_of, wait

from support.e2e_cluster import LiveCluster

Start = Callable[..., Awaitable[LiveCluster]]


async def test_outputs_go_to_workers_that_were_still_on_their_way(start: Start) -> None:
    c = await start(policy={"minReplicas": 1, "maxReplicas": 3, "idleTimeout": "30s"})
    await c.until_settled(1)
    outputs: Any = c.client.persist(_to_shuffle())
    await wait(outputs)

    held = await c.client.has_what()
    of_outputs = {f.key for f in futures_of(outputs)}
    holders = {w for w, keys in held.items() if of_outputs & set(keys)}
    assert 3 == len(holders), f"outputs are on {len(holders)} of 3 workers"
    tally = (await c.observe()).tally
    assert tally is not None
    assert (1, 1, 0) == (tally.shuffles, tally.max_shuffle_run, tally.redone)
    assert "ShuffleWaited" in {e["reason"] for e in await c.events()}


async def test_a_shuffle_does_not_wait_where_the_policy_says_so(start: Start) -> None:
    shuffle = {"waitForWorkers": "Disabled"}
    c = await start(policy={"minReplicas": 1, "maxReplicas": 3, "shuffle": shuffle})
    await c.until_settled(1)
    outputs: Any = c.client.persist(_to_shuffle())
    await wait(outputs)

    assert "ShuffleWaited" not in {e["reason"] for e in await c.events()}
    tally = (await c.observe()).tally
    assert tally is not None
    assert (1, 0) == (tally.max_shuffle_run, tally.redone)


def _to_shuffle() -> Any:
    """12 parts into 300: much to do once it has begun, so that it pays to wait."""
    import dask
    import dask.dataframe as dd
    import pandas as pd

    def part(i: int) -> pd.DataFrame:
        import time

        time.sleep(0.2)
        return pd.DataFrame({"x": range(i * 100, (i + 1) * 100), "k": range(100)})

    columns = pd.DataFrame({"x": pd.Series(dtype="int64"), "k": pd.Series(dtype="int64")})
    with dask.config.set({"dataframe.shuffle.method": "p2p"}):
        return dd.from_map(part, range(12), meta=columns).shuffle("k", npartitions=300)
