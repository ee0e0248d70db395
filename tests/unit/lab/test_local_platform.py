"""Processes as a platform, as far as no process has to run: this machine has room for none."""

from __future__ import annotations

from pathlib import Path

import pytest

from dask_adaptive.loop.ports import PlatformError
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive_lab.local import LocalPlatform, Machine


async def test_a_cluster_is_deleted_only_if_it_is_still_that_one(tmp_path: Path) -> None:
    key = ClusterKey("local", "c")
    machine = Machine(capacity=0, groups=("c-gpu",), resources={"c-gpu": "MEM=2e9, GPU=1"})
    platform = LocalPlatform(key, tmp_path, "tcp://nobody", machine)
    await platform.set_replicas("c-default", 2)
    await platform.delete_cluster("another-uid")
    seen = await platform.look()
    assert (True, 2) == (seen.found, len(seen.workers))
    assert [(), (("GPU", 1.0), ("MEM", 2e9))] == [g.resources for g in seen.groups]

    for _ in range(2):
        await platform.delete_cluster(seen.uid)
        after = await platform.look()
        assert (False, 0) == (after.found, len(after.workers))
    with pytest.raises(PlatformError):
        await platform.set_replicas("c-default", 1)
    await platform.close()
