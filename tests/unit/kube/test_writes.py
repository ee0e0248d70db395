"""How much is written to the API server, and that nothing which was to be told gets lost by it."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_adaptive.kube.api import GROUPS, KubeError
from dask_adaptive.kube.objects import PolicyObject
from dask_adaptive.kube.platform import KubePlatform
from dask_adaptive.kube.reporter import (
    BURST,
    EVERY_S,
    GATHER_S,
    EventPoster,
    EventQueue,
    KubeReporter,
)
from dask_adaptive.loop.one_pass import ClusterLoop
from dask_adaptive.loop.ports import Event, EventType, PlatformError
from dask_adaptive.loop.words import sentence
from dask_adaptive.model.reason import Reason
from support import kube_objects as ko
from support.fake_cluster import FakeCluster
from support.stored_api import StoredApi
from support.worlds import KEY, POLICY

IDLE = Event(EventType.NORMAL, Reason.UNDERUTILIZED, "idle for 1m", worker="a")
WARNING = Event(EventType.WARNING, Reason.INVALID_ANNOTATION, "mend it")


class Reported(FakeCluster):
    """The simulated cluster, told of by the reporter that is Kubernetes; pods have come by the
    webhook, so those of new workers bear their mark."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.api = api = StoredApi(ko.namespace(), ko.policy())
        world = ko.world_of(ko.policy())
        (policy,) = world.all(PolicyObject)
        wall_clock = lambda: self.cluster.now + 1.8e9  # noqa: E731
        events = EventPoster(api, wall_clock)
        reporter = KubeReporter(policy, api=api, world=world, events=events, wall_clock=wall_clock)
        self.loop = ClusterLoop(KEY, replace(self.ports(), reporter=reporter))

    @property
    def writes(self) -> int:
        return self.api.count("create") + self.api.count("patch")


@pytest.mark.parametrize(("few", "many"), [(0, 60), (45, 50)])
def test_a_decision_costs_four_writes_at_most(few: int, many: int) -> None:
    """Workers that come and go one after the other, and begin and end tasks, cost none each."""
    policy = replace(POLICY, max_replicas=100)
    fake = Reported(few, drain_s=1.0)
    fake.steps(60, policy, tasks=few, after_s=1.0)
    fake.api.asked.clear()
    fake.calls.clear()
    last, decisions = fake.last.status.last_decision, 0
    for tasks in (many, few) * 3:
        for _ in range(120):
            fake.step(policy, tasks=tasks, after_s=1.0)
            decisions += fake.last.status.last_decision != last
            last = fake.last.status.last_decision
    assert decisions >= 6
    writes = fake.writes + fake.calls.count("set_replicas")
    assert writes <= 4 * decisions, (decisions, Counter(fake.api.asked))


news = st.builds(
    Event, st.sampled_from(EventType), st.sampled_from([Reason.BUSY, Reason.UNDERUTILIZED]),
    st.sampled_from(["idle for 1m", "idle for 2m", "x" * 900]),
    worker=st.sampled_from(["", *(f"etl-default-worker-{i:04}" for i in range(60))]),
    would=st.booleans(),
)  # fmt: skip


@given(st.lists(st.tuples(st.floats(0.0, 100.0), st.lists(news, max_size=30)), max_size=6))
def test_events_come_sooner_or_later_each_named_and_not_too_many(
    passes: list[tuple[float, list[Event]]],
) -> None:
    now, told = 0.0, list[Event]()
    times = list[float]()
    queue = EventQueue(lambda: now)
    for rest_s, events in [*passes, *[(EVERY_S * BURST, list[Event]())] * 30]:
        now += rest_s
        queue.add(events)
        while some := queue.take():
            assert 1 == len({(e.type, e.reason, e.would) for e in some})
            text = sentence(some)
            assert len(text) <= 1000
            named = {e.worker for e in some if e.worker and e.worker in text}
            assert any(e.worker for e in some) <= len(named) <= 3
            assert all(e.message in text for e in some if not e.worker)
            told += some
            times.append(now)
    assert Counter(told).keys() == {e for _, events in passes for e in events}
    for i, at in enumerate(times):
        assert sum(at <= t < at + EVERY_S for t in times[i:]) <= BURST + 1


def test_warnings_come_first_and_of_what_was_decided_only_that() -> None:
    now = 0.0
    queue = EventQueue(lambda: now)
    drained = replace(IDLE, reason=Reason.DRAINED)
    queue.add([IDLE, drained, replace(IDLE, worker="b"), replace(IDLE, message="idle for 2m")])
    queue.add([WARNING, replace(drained, type=EventType.WARNING)])
    told = list(iter(queue.take, ()))
    now = GATHER_S
    queue.add([replace(IDLE, worker="c")])
    told += iter(queue.take, ())

    assert [Reason.INVALID_ANNOTATION, Reason.DRAINED, Reason.UNDERUTILIZED] == [
        e[0].reason for e in told
    ]
    assert "a, b, c: idle for 1m; and 1 more" == sentence(told[-1])


async def test_an_api_server_that_is_busy_gets_no_event_before_the_time_that_it_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, api, world = [100.0], StoredApi(), ko.world_of(ko.policy())
    clock = lambda: now[0]  # noqa: E731
    monkeypatch.setattr(time, "monotonic", clock)
    api.errors["create events"] = KubeError("too many requests", status=429, retry_after_s=3.0)
    events, (policy,) = EventPoster(api, clock), world.all(PolicyObject)
    reporter = KubeReporter(policy, api=api, world=world, events=events, wall_clock=clock)

    for now[0], expected in ((100.0, 1), (101.0, 1), (102.9, 1), (103.1, 2)):
        await reporter.tell([WARNING, replace(WARNING, reason=Reason.FALLBACK)])
        assert expected == api.count("create events")


async def test_a_conflict_is_looked_into_though_versions_went_back() -> None:
    """Once a replica without the lease kept the version from before, and could not scale."""
    api = StoredApi(ko.group())
    world = ko.world_of(ko.cluster(), ko.group(resourceVersion="9999"))
    platform = KubePlatform(
        KEY, api=api, world=world, wall_clock=lambda: ko.CREATED_AT, manual_max_s=lambda: 0.0
    )
    with pytest.raises(PlatformError, match="another client"):
        await platform.set_replicas("etl-default", 4)
    await platform.set_replicas("etl-default", 4)

    assert 4 == api.store.get(GROUPS, "ns", "etl-default")["spec"]["worker"]["replicas"]
