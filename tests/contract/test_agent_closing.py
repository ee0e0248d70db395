"""Our fast `workers_to_close` says what the installed release's says, and spares pinned workers."""

from __future__ import annotations

import pickle
import random
from collections.abc import AsyncIterator
from functools import wraps
from operator import attrgetter
from typing import Any

import dask
import pytest
from distributed import Scheduler
from distributed.core import Status, rpc
from distributed.diagnostics.plugin import SchedulerPlugin

from dask_adaptive_agent import wire
from dask_adaptive_agent.agent import install, uninstall
from dask_adaptive_agent.patching import Delegate
from dask_adaptive_agent.quotas import roster
from dask_adaptive_agent.service.vetoes import HAS_HOOK
from support.agent_fakes import clear_workers, fake_worker, give_result, give_task

#: One of each kind of question; `key` is `attrgetter("host")`, plain or as it comes over the wire.
HOST = attrgetter("host")
REQUESTS: tuple[dict[str, Any], ...] = (
    {},
    *({"n": n} for n in (0, 1, 2.5, 3, 100, -1)),
    *({"target": n} for n in (0, 3, 3.5, 100)),
    *({"n": 5, "minimum": 2}, {"n": 100, "minimum": 4}, {"target": 3, "minimum": 5}),
    *({"minimum": 4}, {"minimum": 4, "memory_ratio": 0.2}),
    *({"memory_ratio": 0.1}, {"memory_ratio": 5}, {"memory_ratio": 0.5, "n": 2}),
    *({"memory_ratio": 0.5, "target": 2}, {"attribute": "name"}, {"n": 2, "attribute": "name"}),
    *({"key": HOST}, {"key": HOST, "n": 4}, {"key": HOST, "target": 2}),
    {"key": HOST, "n": 4, "minimum": 3, "memory_ratio": 1},
    {"key": pickle.dumps(HOST), "n": 2},
)


@pytest.fixture
async def s() -> AsyncIterator[Any]:
    """A scheduler with the agent, whose workers exist in its books only."""
    async with Scheduler(port=0, dashboard=False, host="127.0.0.1") as scheduler:
        install(scheduler).expect("workers_to_close")
        yield scheduler
        clear_workers(scheduler)


def fill(s: Any, dice: random.Random) -> list[Any]:
    """Some workers, some of them busy; those that upstream's hook would let go."""
    clear_workers(s)
    share_busy = dice.choice([0, 0.3, 1.0])
    for i in range(dice.choice([0, 1, 2, 5, 17, 60])):
        ws = fake_worker(s, i * dice.choice([1, 256]), memory_limit=dice.choice([0, 100, 200]))
        ws.nbytes = dice.choice([0, 0, 10, 50, dice.randrange(400)])
        if dice.random() < share_busy:
            ts = give_task(s, ws)
            if dice.random() < 0.1:
                ws.long_running.add(ts)
    return [ws for ws in s.workers.values() if not ws.long_running]


def offered(agent: Any) -> list[Any]:
    """Whoever may go, as the operator is told."""
    agent.roster.sync()
    return agent.closing.offered()  # type: ignore[no-any-return]


def stock_answer(s: Any, valid: list[Any], gone: set[str], request: dict[str, Any]) -> list[Any]:
    """
    What the stock method says when its plugins leave `valid`, and those in `gone` are no more.

    Before it had plugins' hook it is given only the valid ones, with numbers that mean the same.
    """
    there = {ws.address: ws for ws in s.workers.values() if ws.address not in gone}
    valid = [ws for ws in valid if ws.address in there]
    if HAS_HOOK:
        hook = Delegate(s, valid_workers_downscaling=lambda scheduler, workers: valid)
        stand_in = Delegate(s, workers=there, plugins={"": hook})
        return list(type(s).workers_to_close(stand_in, **request))
    request = dict(request)
    if "target" in request:
        request["n"] = max(0, len(there) - request.pop("target"))
    if "minimum" in request:
        request["minimum"] = max(0, request["minimum"] - (len(there) - len(valid)))
    stand_in = Delegate(s, workers={ws.address: ws for ws in valid})
    return list(type(s).workers_to_close(stand_in, **request))


async def test_the_answer_is_that_of_the_stock_method(s) -> None:
    dice = random.Random(1)
    offered = 0
    for _ in range(250):
        valid = fill(s, dice)
        for request in REQUESTS:
            expected = stock_answer(s, valid, set(), request)
            assert expected == s.workers_to_close(**request), request
            assert expected == s.handlers["workers_to_close"](**request)
            offered += len(expected)
    assert 10_000 < offered


async def test_the_answer_is_that_of_the_stock_method_without_pinned_and_leaving_workers(
    s, agent
) -> None:
    """Pinned ones are there and stay; for the rules, those on their way out are gone already."""
    dice = random.Random(2)
    offered = 0
    for _ in range(250):
        valid = fill(s, dice)
        gone = {ws.address for ws in s.workers.values() if dice.random() < 0.1}
        for address in gone:
            s.workers[address].status = dice.choice([Status.closing_gracefully, Status.closing])
            s.running.discard(s.workers[address])
        names = [dice.choice([ws.name, ws.address]) for ws in valid if dice.random() < 0.2]
        agent.pins.leases.pin(names, source=wire.MANUAL, owner="dice", reason="", ttl_s=60)
        free = [ws for ws in valid if not {ws.name, ws.address} & set(names)]
        for request in REQUESTS:
            if request.get("n") == 0 or (not HAS_HOOK and "memory_ratio" in request):
                continue  # there upstream looks at held workers, too, or at none
            assert stock_answer(s, free, gone, request) == s.workers_to_close(**request), request
        told = s.workers_to_close(n=100)
        assert set(told) <= {ws.address for ws in free} - gone
        offered += len(told)
        agent.pins.leases.unpin(source=wire.MANUAL, owner="dice")
    assert 1_000 < offered


async def test_it_answers_over_the_network(s) -> None:
    """As upstream's operator and `Adaptive` ask; a key comes pickled."""
    workers = [fake_worker(s, i) for i in range(3)]
    async with rpc(s.address) as link:
        everybody = await link.workers_to_close(n=3, key=pickle.dumps(HOST))
        assert {ws.address for ws in workers} == set(everybody)
        (name,) = await link.workers_to_close(target=2, attribute="name")
        assert name in {ws.name for ws in workers}


class Picky(SchedulerPlugin):
    """Somebody else's plugin, with a hook."""

    def __init__(self, spared: str) -> None:
        self.spared = spared

    def valid_workers_downscaling(self, scheduler: Any, workers: list[Any]) -> list[Any]:
        return [ws for ws in workers if ws.address != self.spared]


@pytest.mark.skipif(not HAS_HOOK, reason="this release asks no plugins")
async def test_other_plugins_are_asked_too(s) -> None:
    workers = [fake_worker(s, i).address for i in range(3)]
    s.add_plugin(Picky(workers[0]), name="picky")

    assert set(workers[1:]) == set(s.workers_to_close(n=3))


class Broken(SchedulerPlugin):
    def valid_workers_downscaling(self, scheduler: Any, workers: list[Any]) -> list[Any]:
        raise RuntimeError("by intent")


@pytest.mark.skipif(not HAS_HOOK, reason="this release asks no plugins")
async def test_nobody_may_go_when_another_plugin_raises(s, agent) -> None:
    fake_worker(s, 0)
    s.add_plugin(Broken(), name="broken")

    assert [] == s.workers_to_close(n=2)
    assert [] == offered(agent)


async def test_nobody_may_go_when_nothing_can_be_known(s) -> None:
    for i in range(2):
        fake_worker(s, i).nbytes = None

    assert [] == s.workers_to_close(n=2)
    assert [] == s.workers_to_close(n=1, key="no function")


async def test_nobody_may_go_when_shuffles_cannot_be_read(s, agent) -> None:
    ws = fake_worker(s, 0)
    agent.shuffles._states()["x"] = object()

    assert [] == s.workers_to_close(n=1)
    assert [] == offered(agent)
    del agent.shuffles._states()["x"]
    assert [ws] == offered(agent)


async def test_a_pickled_key_is_not_read_where_pickle_is_forbidden(s) -> None:
    for i in range(2):
        fake_worker(s, i)
    key = pickle.dumps(HOST)
    with dask.config.set({"distributed.scheduler.pickle": False}):
        try:
            expected = type(s).workers_to_close(s, n=1, key=key)
        except TypeError:  # in old releases; newer ones start no scheduler without pickle
            expected = []
        assert expected == s.workers_to_close(n=1, key=key)


async def test_the_memory_of_a_pinned_worker_counts(s, agent) -> None:
    """Upstream would keep the free worker for data that the pinned one has room for."""
    pinned, free = (fake_worker(s, i, memory_limit=1000) for i in range(2))
    free.nbytes = 10
    agent.pins.leases.pin([str(pinned.name)], source=wire.MANUAL, owner="x", reason="", ttl_s=60)

    assert [] == s.workers_to_close()
    assert [free] == offered(agent)


class Future(Scheduler):
    """A release of distributed whose methods call those of a base class."""

    def adaptive_target(self, *args: Any, **kwargs: Any) -> int:
        return super().adaptive_target(*args, **kwargs)


async def test_a_stand_in_serves_methods_that_use_super() -> None:
    async with Future(port=0, dashboard=False, host="127.0.0.1") as scheduler:
        stand_in: Any = Delegate(scheduler)

        assert 0 == Future.adaptive_target(stand_in)


async def test_what_is_offered_is_what_the_method_says(s, agent) -> None:
    """With nobody pinned, up to the choice between workers that hold as much."""
    dice = random.Random(4)
    for _ in range(250):
        fill(s, dice)
        if any(ws.long_running for ws in s.workers.values()):
            continue  # their memory counts for us
        named = [s.workers[address] for address in s.workers_to_close()]
        free = offered(agent)
        if len({ws.memory_limit for ws in s.workers.values()}) < 2:
            assert [ws.nbytes for ws in named] == [ws.nbytes for ws in free]
        assert not [ws for ws in free if ws.processing]


class Choosy(Scheduler):
    """Somebody's own rule: the first worker never goes."""

    def workers_to_close(self, **request: Any) -> list[Any]:  # type: ignore[override]
        first = next(iter(self.workers), "")
        return [a for a in super().workers_to_close(**request) if a != first]


def choose(s: Any, how: str) -> None:
    """The same by other means."""
    stock = s.workers_to_close

    def rule(**request: Any) -> list[Any]:
        first = next(iter(s.workers), "")
        return [a for a in stock(**request) if a != first]

    if how == "handler":
        s.handlers["workers_to_close"] = rule
    else:
        s.workers_to_close = wraps(stock)(rule) if how == "like upstream's" else rule


@pytest.mark.parametrize("how", ["method", "handler", "subclass", "like upstream's", "since"])
async def test_somebodys_own_rule_decides(how: str) -> None:
    """Less what is pinned; and what the operator is told is no more than the rule says."""
    kind = Choosy if how == "subclass" else Scheduler
    async with kind(port=0, dashboard=False, host="127.0.0.1") as scheduler:
        s: Any = scheduler
        if how == "since":
            install(s)
        if how != "subclass":
            choose(s, how)
        _, pinned, free = (fake_worker(s, i) for i in range(3))
        theirs = s.workers_to_close
        agent = install(s)
        s.handlers[wire.PIN](source=wire.MANUAL, owner="o", names=[pinned.address], ttl_ms=60_000)

        asked = s.handlers["workers_to_close"] if how == "handler" else s.workers_to_close
        offered = s.handlers[wire.OBSERVE]()["closable"]

        assert [free.address] == asked(n=3)
        if how != "handler":
            assert [agent.roster.entries[free.address].slot] == offered
        uninstall(s)
        assert theirs == s.workers_to_close
        clear_workers(s)


def copy_to(s: Any, ts: Any, ws: Any) -> None:
    s.add_replica(ts, ws) if hasattr(s, "add_replica") else ws.add_replica(ts)


async def test_results_count_while_nobody_else_has_them(s) -> None:
    a, b = fake_worker(s, 0), fake_worker(s, 1)
    shared, own = give_result(s, a, 100), give_result(s, a, 10)

    def sole() -> list[int]:
        return list(s.handlers[wire.OBSERVE]()["workers"]["sole_bytes"])

    assert [110, 0] == sole()
    copy_to(s, shared, b)
    assert [10, 0] == sole()
    s.remove_replica(own, a) if hasattr(s, "remove_replica") else a.remove_replica(own)
    assert [0, 0] == sole()


async def test_with_many_copies_no_worker_seems_too_cheap(s, agent, monkeypatch) -> None:
    workers = [fake_worker(s, i) for i in range(6)]
    shared = [give_result(s, ws, 100) for ws in workers]
    for ws in workers:
        give_result(s, ws, 1)
    agent.roster.sync()
    for i, ts in enumerate(shared):  # each result on its neighbour, too
        copy_to(s, ts, workers[(i + 1) % 6])

    assert [1] * 6 == agent.roster.sole_bytes()
    monkeypatch.setattr(roster, "BUDGET", 4)
    figures = agent.roster.sole_bytes()

    assert all(figure in (1, 101, 201) for figure in figures)
    assert 6 * 201 - 4 * 100 == sum(figures)
