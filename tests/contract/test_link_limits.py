"""What the operator says of limits, and what it reads of meters, against a real scheduler."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from distributed import Worker, wait

from dask_adaptive.loop.ports import LinkError
from dask_adaptive.model.observed import SchedulerWorker
from dask_adaptive.model.policy import ClusterRef, Policy, parse_policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Limit, Limits, Profile
from dask_adaptive.scheduler.link import Link
from dask_adaptive.scheduler.sent import SentLimits, limit_request
from dask_adaptive.scheduler.snapshot import PROBE
from dask_adaptive_agent import wire
from dask_adaptive_agent.loading.attach import install, uninstall
from support.agent_work import heard, until

POLICY = Policy(ClusterRef("t"), 3)
EXACT = Limits({"a": Limit(runs=2)}, (Profile(exact=True),), stops=1)


@pytest.fixture
async def workers(s: Any) -> AsyncIterator[list[Any]]:
    one = Worker(s.address, name="a", nthreads=1, memory_limit="1GiB")
    other = Worker(s.address, name="b", nthreads=1, memory_limit=0)
    async with one as a, other as b:
        await until(lambda: 2 == len(s.running))
        yield [a, b]


async def named(link: Link, name: str, **options: Any) -> SchedulerWorker:
    seen = await link.observe(POLICY, **options)
    return next(w for w in seen.workers if w.name == name)


def inc(x: int) -> int:
    return x + 1


def fail(x: int) -> int:
    raise RuntimeError(f"CUDA error {x}")


@pytest.mark.parametrize(
    ("now_limits", "later_s", "expected"),
    [
        pytest.param(EXACT, 0, True, id="the-same"),
        pytest.param(EXACT, 1e6, True, id="without-an-end-time-changes-nothing"),
        pytest.param(dataclasses.replace(EXACT, stops=2), 0, False, id="stops"),
        pytest.param(dataclasses.replace(EXACT, profiles=(Profile(),)), 0, False, id="profiles"),
        pytest.param(dataclasses.replace(EXACT, workers={}), 0, False, id="lifted"),
        pytest.param(
            dataclasses.replace(EXACT, workers={"b": Limit(runs=2)}), 0, False, id="another-worker"
        ),
        pytest.param(
            dataclasses.replace(EXACT, workers={"a": Limit(runs=3)}), 0, False, id="another-number"
        ),
        pytest.param(
            dataclasses.replace(EXACT, workers={"a": Limit(2, 5.0)}), 0, False, id="an-end"
        ),
    ],
)  # fmt: skip
def test_what_was_told_is_told_again_only_if_it_has_changed(
    now_limits: Limits, later_s: float, expected: bool
) -> None:
    assert expected is SentLimits(EXACT, 100.0).holds(now_limits, 100.0 + later_s)


@pytest.mark.parametrize(
    ("told_s", "left_s", "later_s", "expected"),
    [
        pytest.param(60.0, 50.0, 10.0, True, id="it-counts-down-by-itself"),
        pytest.param(60.0, 50.9, 10.0, True, id="two-clocks"),
        pytest.param(60.0, 60.0, 10.0, False, id="it-has-moved"),
        pytest.param(60.0, 40.0, 10.0, False, id="sooner"),
        pytest.param(60.0, math.inf, 10.0, False, id="none-any-more"),
        pytest.param(5.0, -3.0, 10.0, True, id="over-stays-over"),
    ],
)
def test_an_end_counts_down_by_itself(
    told_s: float, left_s: float, later_s: float, expected: bool
) -> None:
    told, now = (Limits({"a": Limit(left_s=s)}, (Profile(),), 0) for s in (told_s, left_s))

    assert expected is SentLimits(told, 100.0).holds(now, 100.0 + later_s)


def test_limits_as_a_message() -> None:
    limits = Limits(
        {"a": Limit(7, 1.5, 1), "b": Limit(left_s=-2.0)},
        (Profile(), Profile(fresh_s=3600.0, failures=2, patterns=("CUDA",))),
        stops=3,
    )
    request = limit_request(limits)

    assert (["a", "b"], [7, 0], [1500, 0], [1, 0]) == (
        request["names"], request["runs"], request["left_ms"], request["profile"],
    )  # fmt: skip
    assert [(-1, 0, []), (3_600_000, 2, ["CUDA"])] == [
        (p["fresh_ms"], p["failures"], p["patterns"]) for p in request["profiles"]
    ]
    assert [-1] == limit_request(Limits({"a": Limit(runs=1)}))["left_ms"]
    assert set(wire.LimitRequest.__annotations__) - {"protocol", "session"} == set(request)
    assert set(wire.LimitProfile.__annotations__) == set(request["profiles"][0])


async def test_limits_are_sent_when_they_differ_and_again_to_another_agent(
    s: Any, workers: list[Any], link: Link
) -> None:
    await link.observe(POLICY)
    first = heard(s, wire.LIMIT)
    for limits in (EXACT, EXACT, dataclasses.replace(EXACT, stops=0)):
        await link.limit(limits)
    uninstall(s)
    install(s)
    await link.observe(POLICY)
    second = heard(s, wire.LIMIT)
    for _ in range(2):
        await link.limit(dataclasses.replace(EXACT, stops=0))

    assert [1, 0] == [request["stops"] for request in first]
    assert [0] == [request["stops"] for request in second]
    assert first[0]["session"] != second[0]["session"]


async def test_a_retired_worker_no_longer_counts_as_stopped_once_limits_are_told_again(
    s: Any, client: Any, workers: list[Any], link: Link
) -> None:
    """Though they are the same: the agent cannot know that the operator has counted it by now."""
    both = dataclasses.replace(EXACT, workers={"a": Limit(runs=2), "b": Limit(runs=6)})
    await link.observe(POLICY)
    await link.limit(both)
    await wait(client.map(inc, range(4), pure=False))
    assert (await named(link, "a")).cordon
    await link.retire(["a"], POLICY, Reason.TASK_QUOTA, busy_ok=True)
    requests = heard(s, wire.LIMIT)
    for _ in range(2):
        await link.observe(POLICY)
        await link.limit(both)
    await client.gather(client.map(inc, range(4), pure=False))

    assert 1 == len(requests)
    assert (await named(link, "b")).cordon


async def test_the_most_patterns_that_a_policy_may_have_are_understood(s: Any, link: Link) -> None:
    """The same number, length and meaning on both sides."""
    globs = [f"*{'x' * 196}{i:02}*" for i in range(31)]
    globs.append("*CUDA error: ?*")
    spec = {
        "clusterRef": {"name": "t"}, "maxReplicas": 3, "recycle": {"failures": {"patterns": globs}}
    }  # fmt: skip
    profile = Profile(patterns=parse_policy(spec).recycle.failures.patterns)
    agent = install(s)
    await link.observe(POLICY)
    await link.limit(Limits({}, (profile,), 1, 0))

    (heard,) = agent.limits.rules
    assert "*CUDA error: ?*" == heard.match("RuntimeError('CUDA error: 7')")
    assert "" == heard.match("RuntimeError('cuda error: 7')") == heard.match("CUDA error: ")
    assert globs[3] == heard.match(f"ValueError('{globs[3][1:-1]}')")


async def test_a_fresh_operator_lifts_what_another_one_said(s: Any, link: Link) -> None:
    await link.observe(POLICY)
    requests = heard(s, wire.LIMIT)
    await link.limit(Limits())

    assert [0] == [len(request["names"]) for request in requests]


async def test_limits_that_were_not_heard_are_told_again(s: Any, link: Link) -> None:
    await link.observe(POLICY)
    handler = s.handlers[wire.LIMIT]
    said = {"error": wire.E_INVALID, "message": "no such session", "protocol": wire.PROTOCOL}
    s.handlers[wire.LIMIT] = lambda **_: said
    with pytest.raises(LinkError, match="no such session"):
        await link.limit(EXACT)
    s.handlers[wire.LIMIT] = handler
    requests = heard(s, wire.LIMIT)
    await link.limit(EXACT)

    assert 1 == len(requests)


async def test_meters_are_asked_for_when_wanted_and_else_from_time_to_time(
    s: Any, link: Link
) -> None:
    install(s)
    requests = heard(s, wire.OBSERVE)
    for n in range(2 * PROBE):
        await link.observe(POLICY, meters=n == 3)

    assert [0, 3, 3 + PROBE + 1] == [n for n, r in enumerate(requests) if "meters" in r]


async def test_a_lifetime_of_dasks_own_is_read(s: Any, link: Link) -> None:
    await link.observe(POLICY)
    async with Worker(s.address, name="a", lifetime="1 hour"):
        began = time.monotonic()
        while (worker := await named(link, "a")).lifetime_left_s == math.inf:
            assert time.monotonic() - began < 20
            await asyncio.sleep(0.05)
        again = await named(link, "a")  # once known, it is asked for each time

    assert 3500 < again.lifetime_left_s <= worker.lifetime_left_s <= 3600


async def test_what_quotas_are_measured_by_is_read(
    s: Any, client: Any, workers: list[Any], link: Link
) -> None:
    await link.observe(POLICY)  # the agent counts from now on
    done = client.map(inc, range(3), workers=["a"], pure=False)
    failed = client.map(fail, range(2), workers=["a"], pure=False)
    await wait([*done, *failed])
    limited = await named(link, "a", meters=True)
    unlimited = await named(link, "b", meters=True)

    assert 5 == limited.use.runs
    assert 0 < limited.use.unmanaged <= limited.use.process < 1
    assert 0 < limited.use.unmanaged_bytes <= limited.memory
    assert (0, 0.0, 0.0) == (unlimited.use.runs, unlimited.use.process, unlimited.use.unmanaged)
    assert math.inf == limited.lifetime_left_s


async def test_a_cordoned_worker_and_why_one_leaves_are_read(
    s: Any, client: Any, workers: list[Any], link: Link
) -> None:
    await link.observe(POLICY)
    await link.limit(EXACT)
    done = client.map(inc, range(4), workers=["a", "b"], pure=False)
    await wait(done)
    await until(lambda: len(s.running) == 1)
    stopped = await named(link, "a")
    assert 2 == len(workers[0].data)  # which leave it as soon as it is retired
    await link.retire(["a"], POLICY, Reason.TASK_QUOTA, busy_ok=True)
    leaving = await named(link, "a")

    assert stopped.cordon
    assert None is stopped.leaving_reason
    assert Reason.TASK_QUOTA is leaving.leaving_reason
    assert leaving.cordon is None
    assert [1, 2, 3, 4] == sorted(await client.gather(done))


async def test_another_ones_words_are_no_reason(s: Any, workers: list[Any], link: Link) -> None:
    await link.observe(POLICY)
    answer = s.handlers[wire.RETIRE](protocol=wire.PROTOCOL, names=["a"], reason="somebody said so")

    assert ["draining"] == [o["state"] for o in answer["outcomes"]] or answer["outcomes"]
    assert None is (await named(link, "a")).leaving_reason


async def test_pins_of_people_are_beaten_only_if_that_is_said(
    s: Any, workers: list[Any], link: Link
) -> None:
    await link.observe(POLICY)
    await link.pin(["a"], ttl_s=60.0, note="")
    (held,) = await link.retire(["a"], POLICY, Reason.MEMORY_HARD, busy_ok=True)
    (gone,) = await link.retire(["a"], POLICY, Reason.MEMORY_HARD, busy_ok=True, over_pins=True)

    assert ("active", Reason.PINNED) == (held.state, held.veto)
    assert "active" != gone.state
