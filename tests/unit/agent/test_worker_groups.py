"""Workers of one group are told by their names and resources."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dask_adaptive_agent.text import group_of


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("c-gpu-worker-0123456789", "c-gpu"), ("c-gpu-worker-0123456789-1 (leaving)", "c-gpu"),
        ("c-worker-gpu-worker-abcdef0123", "c-worker-gpu"), ("SLURMCluster-3-0", "SLURMCluster"),
        ("gpu-1 2 (leaving)", "gpu"), (3, ""), ("tcp://10.0.0.1:4321", ""), ("alice", "alice"),
    ],
)  # fmt: skip
def test_workers_of_a_group_share_resources_and_the_stem_of_their_names(name: Any, stem: str):
    ws: Any = SimpleNamespace(name=name, address="tcp://10.0.0.1:4321", resources={"GPU": 1})
    assert (stem, frozenset({("GPU", 1)})) == group_of(ws)
