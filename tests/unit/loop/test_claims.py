"""What a loop tells of its groups' needs, for what they share with others."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from dask_adaptive.loop.one_pass import ClusterLoop
from dask_adaptive.model.plan import Claimed
from dask_adaptive.model.policy import Mode, Policy
from dask_adaptive.model.reason import Reason
from support.fake_cluster import GROUP, KEY, POLICY, FakeCluster


def told(policy: Policy = POLICY, **changes: Any) -> Mapping[str, Claimed]:
    """By a pass over two workers that have work for five."""
    fake, heard = FakeCluster(workers=2, target=5), list[Mapping[str, Claimed]]()
    for name, value in changes.items():
        setattr(fake, name, value)
    fake.loop = ClusterLoop(KEY, dataclasses.replace(fake.ports(), claim=heard.append))
    fake.step(policy)
    (claims,) = heard
    return claims


def test_it_tells_what_it_needs() -> None:
    assert {GROUP: Claimed(5, 5)} == told()


@pytest.mark.parametrize("mode", [Mode.ADVISE, Mode.PAUSED])
def test_whoever_does_nothing_asks_for_nothing(mode: Mode) -> None:
    assert {} == told(dataclasses.replace(POLICY, mode=mode))


def test_nor_does_one_whose_scheduler_does_not_answer() -> None:
    assert {} == told(problem=Reason.SCHEDULER_UNREACHABLE)
