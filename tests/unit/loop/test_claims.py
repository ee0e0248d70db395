"""What a loop tells of its groups' needs, for what they share with others."""

import dataclasses

import pytest

from dask_adaptive.loop.one_pass import ClusterLoop
from dask_adaptive.model.plan import Claimed
from dask_adaptive.model.policy import Mode
from dask_adaptive.model.reason import Reason
from support.fake_cluster import GROUP, KEY, POLICY, FakeCluster


class Heard:
    """All that was told."""

    def __init__(self):
        self.claims = []

    def want(self, claims):
        self.claims.append(claims)


def told(policy=POLICY, **changes):
    """By a pass over two workers that have work for five."""
    fake, heard = FakeCluster(workers=2, target=5), Heard()
    for name, value in changes.items():
        setattr(fake, name, value)
    fake.loop = ClusterLoop(KEY, dataclasses.replace(fake.ports(), budgets=heard))
    fake.step(policy)
    (claims,) = heard.claims
    return claims


def test_it_tells_what_it_needs():
    assert {GROUP: Claimed(5, 5)} == told()


@pytest.mark.parametrize("mode", [Mode.ADVISE, Mode.PAUSED])
def test_whoever_does_nothing_asks_for_nothing(mode):
    assert {} == told(dataclasses.replace(POLICY, mode=mode))


def test_nor_does_one_whose_scheduler_does_not_answer():
    assert {} == told(problem=Reason.SCHEDULER_UNREACHABLE)
