"""What the operator says and reads of workers: limits, ends and pins, against real schedulers."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from typing import Any

import pytest
from distributed import Worker, wait

from dask_adaptive.loop.ports import LinkError
from dask_adaptive.model.observed import SchedulerWorker
from dask_adaptive.model.policy import ClusterRef, Policy, parse_policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Limit, Limits, Profile
from dask_adaptive.scheduler.link import Link, NoAgent, connect
from dask_adaptive.scheduler.sent import SentLimits, limit_request
from dask_adaptive_agent import wire
from dask_adaptive_agent.agent import install, uninstall
from support.agent_work import MAY_END, heard, held, until
from support.tables import table

POLICY = Policy(ClusterRef("t"), 3)
POD_ENDING = Reason.POD_ENDING
EXACT = Limits({"a": Limit(runs=2)}, (Profile(exact=True),), cordons=1)


async def seen(link: Link, worker: str, **options: Any) -> SchedulerWorker:
    """A worker of this name or address."""
    observed = await link.observe(POLICY, **options)
    return next(w for w in observed.workers if worker in (w.name, w.address))


def inc(x: int) -> int:
    return x + 1


def fail(x: int) -> int:
    raise RuntimeError(f"CUDA error {x}")


def ending(left_s: float) -> Limits:
    return Limits({"a": Limit(left_s=left_s)}, (Profile(),), 0)


changed = functools.partial(dataclasses.replace, EXACT)


@table(
    "told, now, later_s, expected",
    the_same=(EXACT, EXACT, 0, True),
    without_an_end_time_changes_nothing=(EXACT, EXACT, 1e6, True),
    stops=(EXACT, changed(cordons=2), 0, False),
    profiles=(EXACT, changed(profiles=(Profile(),)), 0, False),
    lifted=(EXACT, changed(workers={}), 0, False),
    another_worker=(EXACT, changed(workers={"b": Limit(2)}), 0, False),
    another_number=(EXACT, changed(workers={"a": Limit(3)}), 0, False),
    an_end=(EXACT, changed(workers={"a": Limit(2, 5.0)}), 0, False),
    it_counts_down_by_itself=(ending(60.0), ending(50.0), 10.0, True),
    two_clocks=(ending(60.0), ending(50.9), 10.0, True),
    it_has_moved=(ending(60.0), ending(60.0), 10.0, False),
    sooner=(ending(60.0), ending(40.0), 10.0, False),
    none_any_more=(ending(60.0), ending(math.inf), 10.0, False),
    over_stays_over=(ending(5.0), ending(-3.0), 10.0, True),
)
def test_what_was_told_is_told_again_only_if_it_has_changed(
    told: Limits, now: Limits, later_s: float, expected: bool
) -> None:
    assert expected is SentLimits(told, 100.0).holds(now, 100.0 + later_s)


def test_limits_as_a_message() -> None:
    limits = Limits(
        {"a": Limit(7, 1.5, 1), "b": Limit(left_s=-2.0)},
        (Profile(), Profile(fresh_s=3600.0, failures=2, patterns=("CUDA",))),
        cordons=3,
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
    s, workers, link
) -> None:
    await link.observe(POLICY)
    first = heard(s, wire.LIMIT)
    for limits in (EXACT, EXACT, dataclasses.replace(EXACT, cordons=0)):
        await link.limit(limits)
    uninstall(s)
    install(s)
    await link.observe(POLICY)
    second = heard(s, wire.LIMIT)
    for _ in range(2):
        await link.limit(dataclasses.replace(EXACT, cordons=0))

    assert [1, 0] == [request["stops"] for request in first]
    assert [0] == [request["stops"] for request in second]
    assert first[0]["session"] != second[0]["session"]


async def test_a_retired_worker_no_longer_counts_as_stopped_once_limits_are_told_again(
    s, client, workers, link
) -> None:
    """Though they are the same: the agent cannot know that the operator has counted it by now."""
    both = dataclasses.replace(EXACT, workers={"a": Limit(runs=2), "b": Limit(runs=6)})
    await link.observe(POLICY)
    await link.limit(both)
    await wait(client.map(inc, range(4), pure=False))
    assert (await seen(link, "a")).cordon
    await link.retire(["a"], POLICY, Reason.TASK_QUOTA, busy_ok=True)
    requests = heard(s, wire.LIMIT)
    for _ in range(2):
        await link.observe(POLICY)
        await link.limit(both)
    await client.gather(client.map(inc, range(4), pure=False))

    assert 1 == len(requests)
    assert (await seen(link, "b")).cordon


async def test_the_most_patterns_that_a_policy_may_have_are_understood(s, link) -> None:
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


async def test_a_fresh_operator_lifts_what_another_one_said(s, link) -> None:
    await link.observe(POLICY)
    requests = heard(s, wire.LIMIT)
    await link.limit(Limits())

    assert [0] == [len(request["names"]) for request in requests]


async def test_meters_are_asked_for_only_when_wanted(s, link) -> None:
    install(s)
    requests = heard(s, wire.OBSERVE)
    for n in range(4):
        await link.observe(POLICY, meters=n == 2)

    assert [False, False, True, False] == [r["meters"] for r in requests]
    assert [0, 1, 0, 0] == [bool(r["version"]) for r in requests], "all, where it is asked for more"


async def test_a_lifetime_of_dasks_own_is_read(s, link) -> None:
    await link.observe(POLICY)
    async with Worker(s.address, name="a", lifetime="1 hour"):

        async def left_s() -> Any:
            ends_at = (await seen(link, "a")).lifetime_ends_at
            return ends_at < math.inf and ends_at - time.monotonic()

        assert 3500 < await until(left_s) <= 3600


async def test_what_quotas_are_measured_by_is_read(s, client, workers, link) -> None:
    await link.observe(POLICY)  # the agent counts from now on
    done = client.map(inc, range(3), workers=["a"], pure=False)
    failed = client.map(fail, range(2), workers=["a"], pure=False)
    await wait([*done, *failed])
    limited = await seen(link, "a", meters=True)
    unlimited = await seen(link, "b", meters=True)

    assert 5 == limited.use.runs
    assert 0 < limited.use.unmanaged <= limited.use.process < 1
    assert (0, 0.0, 0.0) == (unlimited.use.runs, unlimited.use.process, unlimited.use.unmanaged)
    assert math.inf == limited.lifetime_ends_at


async def test_a_cordoned_worker_and_why_one_leaves_are_read(s, client, workers, link) -> None:
    await link.observe(POLICY)
    await link.limit(EXACT)
    done = client.map(inc, range(4), workers=["a", "b"], allow_other_workers=True, pure=False)
    await wait(done)
    await until(lambda: len(s.running) == 1)
    stopped = await seen(link, "a")
    assert 2 == len(workers[0].data)  # which leave it as soon as it is retired
    await link.retire(["a"], POLICY, Reason.TASK_QUOTA, busy_ok=True)
    leaving = await seen(link, "a")

    assert stopped.cordon
    assert None is stopped.retiring
    assert Reason.TASK_QUOTA is leaving.retiring.reason
    assert leaving.cordon is None
    assert [1, 2, 3, 4] == sorted(await client.gather(done))


async def test_another_ones_words_are_no_reason(s, workers, link) -> None:
    await link.observe(POLICY)
    request = {"protocol": wire.PROTOCOL, "names": ["a"], "reason": "somebody said so"}
    answer = await s.handlers[wire.RETIRE](**request)

    assert answer["outcomes"]
    assert None is (await seen(link, "a")).retiring.reason


async def test_pins_of_people_are_beaten_only_if_that_is_said(s, workers, link) -> None:
    await link.observe(POLICY)
    await link.pin(["a"], ttl_s=60.0, note="")
    (held,) = await link.retire(["a"], POLICY, Reason.MEMORY_HARD, busy_ok=True)
    (gone,) = await link.retire(["a"], POLICY, Reason.MEMORY_HARD, busy_ok=True, over_pins=True)

    assert ("active", Reason.PINNED) == (held.state, held.veto)
    assert "active" != gone.state


@pytest.mark.long
async def test_a_worker_that_leaves_is_seen_as_departing_under_its_own_name(
    s, client, workers, link
) -> None:
    address = workers[0].address
    task = client.submit(held, 1, workers=["a"])
    await until(lambda: bool(s.workers[address].processing))
    before = await seen(link, address)

    answers = await link.leave([address], left_s=60.0, reason=POD_ENDING)
    after = await seen(link, address)
    async with Worker(s.address, name="a") as replacement:
        among_others = await seen(link, address)
        new = await seen(link, replacement.address)

    assert ["draining"] == [a.state for a in answers]
    assert "" == before.terminating
    assert ("a", True) == (after.name, bool(after.terminating))
    assert 50 < after.terminates_at - time.monotonic() <= 60
    assert ("a", True) == (among_others.name, bool(among_others.terminating))
    assert ("a", "") == (new.name, new.terminating)
    MAY_END.set()
    assert await task


async def test_workers_that_are_not_there_are_gone(s, link) -> None:
    answers = await link.leave(["tcp://127.0.0.1:9"], left_s=1.0, reason=POD_ENDING)

    assert ["gone"] == [a.state for a in answers]


async def test_a_refusal_is_an_error_in_the_agents_own_words(s, link) -> None:
    await link.observe(POLICY)
    said = {"error": wire.E_REFUSED, "message": "the policy allows 4h", "protocol": wire.PROTOCOL}
    s.handlers[wire.PIN] = lambda **_: said

    with pytest.raises(LinkError, match=r"^the policy allows 4h$"):
        await link.pin(["a"], ttl_s=1.0, note="")


@pytest.mark.long
async def test_a_busy_worker_is_retired_only_if_that_is_said(s, client, workers, link) -> None:
    task = client.submit(held, 1, workers=["a"], allow_other_workers=True)
    await until(lambda: bool(s.workers[workers[0].address].processing))

    refused = await link.retire(["a"], POLICY, Reason.UNDERUTILIZED)
    begun = await link.retire(["a"], POLICY, Reason.NODE_GOING, busy_ok=True)

    assert [("active", Reason.BUSY)] == [(r.state, r.veto) for r in refused]
    assert ["draining"] == [r.state for r in begun]
    MAY_END.set()
    assert await task


async def test_without_the_agent_nobody_leaves(s, workers) -> None:
    link = connect(s.address, timeout_s=5.0, attach=False)
    with pytest.raises(NoAgent):
        await link.retire(["a"], POLICY, Reason.NODE_GOING, busy_ok=True)
    assert Reason.INJECTION_REFUSED is (await link.observe(POLICY)).problem
    await link.close()

    assert {"running"} == {ws.status.name for ws in s.workers.values()}
