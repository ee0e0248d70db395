"""
Libraries that people run on Dask, on a cluster whose policy scales up and down as they work.

Each works again and again until the cluster has grown to three workers and shrunk to one at least
twice. Each time its result must be that of a stock cluster of two fixed workers: exactly, or
closely where the library itself adds floats in the order in which workers answer. Libraries whose
training cannot lose a worker (XGBoost, LightGBM) need no pin: who has data was told to them.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

from support.stage import Watched

ROWS = 2_000
SWINGS = 2

#: Between the data and the training: idle workers would leave.
PAUSE_S = 15.0

Work = Callable[[Client, Path], Any]


def table() -> tuple[np.ndarray, np.ndarray]:
    """Features of few values, so that histograms have the same bins wherever rows are."""
    random = np.random.default_rng(7)
    x = random.integers(0, 20, size=(ROWS, 5)).astype("float64")
    return x, (x[:, 0] * 2 + x[:, 1] * x[:, 2] > 110).astype("float64")


def in_chunks() -> tuple[da.Array, da.Array]:
    x, y = table()
    return da.from_array(x, chunks=(ROWS // 8, -1)), da.from_array(y, chunks=ROWS // 8)


def xgboost(client: Client, folder: Path) -> Any:
    from xgboost import dask as dxgb

    x, y = dask.persist(*in_chunks())
    data = dxgb.DaskDMatrix(client, x, y)
    time.sleep(PAUSE_S)
    options = {"tree_method": "hist", "objective": "binary:logistic", "nthread": 1}
    model = dxgb.train(client, options, data, num_boost_round=8)
    return dxgb.predict(client, model, x).compute()


def lightgbm(client: Client, folder: Path) -> Any:
    from lightgbm import DaskLGBMClassifier

    x, y = dask.persist(*in_chunks())
    # Few leaves of many rows: deeper trees differ with the number of workers, on stock, too.
    options = {"n_estimators": 4, "num_leaves": 4, "min_child_samples": 50, "min_data_in_bin": 1}
    model = DaskLGBMClassifier(client=client, verbose=-1, n_jobs=1, **options)
    return model.fit(x, y).predict_proba(x).compute()


def scikit_learn(client: Client, folder: Path) -> Any:
    """A search, and a forest, which adds the votes of its trees in the order in which they come."""
    import joblib
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import GridSearchCV
    from sklearn.tree import DecisionTreeClassifier

    x, y = table()
    search = GridSearchCV(DecisionTreeClassifier(random_state=3), {"max_depth": [2, 4, 6]}, cv=3)
    forest = RandomForestClassifier(n_estimators=10, random_state=3, n_jobs=-1)
    with joblib.parallel_config(backend="dask"):
        search.fit(x, y)
        forest.fit(x, y)
        return np.r_[search.cv_results_["mean_test_score"], forest.predict_proba(x)[:, 1]]


def xarray(client: Client, folder: Path) -> Any:
    """By zarr, with flox for the groups, a rolling mean, and a function by value."""
    import pandas as pd
    import xarray as xr

    days = pd.date_range("2024-01-01", periods=400)
    values = np.random.default_rng(1).normal(size=(400, 30, 30))
    written = xr.Dataset({"t": (("time", "y", "x"), values)}, coords={"time": days})
    where = folder / "weather.zarr"
    written.chunk(time=50, y=15).to_zarr(where, mode="w")
    t = xr.open_zarr(where).t
    by_month = t.groupby("time.month").mean()
    smooth = t.rolling(time=5).mean().std("time")
    mapped = xr.apply_ufunc(lambda v: v * scale, t, dask="parallelized", output_dtypes=[float])
    scale = 3.0
    parts = dask.compute(by_month, smooth, mapped.sum("time"))
    return np.concatenate([part.values.ravel() for part in parts])


def dask_ml(client: Client, folder: Path) -> Any:
    from dask_ml.cluster import KMeans
    from dask_ml.model_selection import train_test_split
    from dask_ml.preprocessing import StandardScaler

    x, y = in_chunks()
    train, test, _, expected = train_test_split(x, y, random_state=2, shuffle=True)
    scaler = StandardScaler().fit(train)
    scaled = scaler.transform(test)
    kmeans = KMeans(n_clusters=3, random_state=5, init_max_iter=2, max_iter=3).fit(scaled)
    computed = dask.compute(kmeans.labels_, scaled.sum(axis=1), expected)
    return np.concatenate([np.asarray(part, dtype="float64") for part in computed])


def dataframe(client: Client, folder: Path) -> Any:
    """A shuffle, a join, and functions by value within fused tasks."""
    import dask.dataframe as dd
    import pandas as pd

    x, y = table()
    frame = dd.from_pandas(pd.DataFrame({"k": x[:, 0], "v": x[:, 1], "y": y}), npartitions=12)
    frame["w"] = frame["v"].apply(lambda v: v * 3, meta=("v", "float64"))
    frame = frame.persist()
    means = frame.groupby("k").agg({"w": "mean", "y": "sum"}).reset_index()
    joined = frame.merge(means, on="k", suffixes=("", "_mean")).shuffle("v")
    whole = joined.map_partitions(lambda part: part.assign(z=part["w"] - part["w_mean"]))
    return whole.compute().sort_values(["k", "v", "y"]).to_numpy()


def fixed(work: Work, folder: Path) -> Any:
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        return work(client, folder)  # stock: nobody leaves


class Turns:
    """The work of a thread, and changes of the policy that each begin while it works."""

    def __init__(self) -> None:
        self.works, self.followed = threading.Event(), threading.Semaphore(0)
        self.is_over = False

    def work(self, address: str, work: Work, folder: Path) -> list[Any]:
        """The results, one a turn. Between turns nothing is wanted, so that workers may leave."""
        results = []
        with Client(address) as client:
            client.wait_for_workers(1)
            while not self.is_over:
                self.works.set()
                results.append(work(client, folder))
                gc.collect()  # futures in cycles: their workers' addresses are still leased
                self.followed.acquire()
        return results

    async def swing(self, cluster: Watched, is_done: Callable[[], bool]) -> None:
        try:
            for workers in (3, 1) * SWINGS:
                await cluster.until(lambda: is_done() or self.works.is_set(), "it works")
                self.works.clear()
                cluster.edit(minReplicas=workers, maxReplicas=workers)
                there = (workers, workers)
                await cluster.until(
                    lambda there=there: (  # type: ignore[misc]
                        is_done() or there == (cluster.status.connected, len(cluster.names()))
                    ),
                    f"{workers} workers",
                )
                self.followed.release()
        finally:
            self.is_over = True
            self.followed.release()


@pytest.mark.parametrize(
    ("work", "tolerance"),
    [
        (xgboost, 1e-5), (lightgbm, 1e-5), (scikit_learn, 1e-12), (xarray, 0), (dask_ml, 1e-9),
        (dataframe, 1e-12),
    ],
)  # fmt: skip
async def test_results_are_those_of_a_fixed_cluster(
    work: Work, tolerance: float, tmp_path: Path
) -> None:
    expected = await asyncio.to_thread(fixed, work, tmp_path)
    options = {"minReplicas": 1, "idleTimeout": "1s"}
    async with Watched(tmp_path, spec=options, memory_limit="2GiB") as cluster:
        turns = Turns()
        address = cluster.rehearsal.address
        working = asyncio.create_task(asyncio.to_thread(turns.work, address, work, tmp_path))
        await turns.swing(cluster, working.done)
        results = await working
        tally = await cluster.final_tally()

    assert 2 * SWINGS <= len(results)
    assert 3 == cluster.peak
    for result in results:
        np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance)
    assert 0 == tally.redone
    print(f"{work.__name__}: {len(results)} times, {tally.runs} runs, peak {cluster.peak}")
