"""The agent answers when something has changed, with what has changed."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import pytest
from distributed import Scheduler, Worker, wait
from distributed.core import Status, rpc
from distributed.protocol import dumps
from distributed.utils_test import captured_logger
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dask_adaptive_agent import wire
from dask_adaptive_agent.agent import install, uninstall
from dask_adaptive_agent.demand import durations
from dask_adaptive_agent.protocol.changes import GAP_S
from support.agent_cluster import Clock, clear_shared, with_agent
from support.agent_fakes import clear_workers, fake_worker, give_result, give_task, shuffle_state
from support.agent_work import ask, retire, slow, until, within
from support.relief_driven import Silent

try:  # the operator's own reader: not in images of users, nor on their Python 3.9
    import msgspec

    from dask_adaptive.scheduler.snapshot import ANSWER, NoteReader, SnapshotReader
except (ImportError, TypeError):
    SnapshotReader = None  # type: ignore[assignment, misc]

#: A promise, and what holds on a machine with much else to do.
SOON_S, SOONER_THAN_NEVER_S = 0.6, 10.0


class Caller:
    """Somebody who keeps what he was answered, as the operator does."""

    def __init__(self, s: Any, **asked: Any) -> None:
        self.s, self.asked = s, asked
        self.session, self.version, self.known = "", 0, 0

    def request(self) -> dict[str, Any]:
        at = {"session": self.session, "version": self.version, "known": self.known}
        return {**at, **self.asked}

    async def wait(self, wait_s: float = 20.0) -> tuple[Any, float]:
        """The answer, and how long it took."""
        began = time.monotonic()
        answer = await ask(self.s, wire.OBSERVE, wait_ms=round(wait_s * 1000), **self.request())
        if answer is not None and "unchanged" not in answer:
            self.take(answer)
        return answer, time.monotonic() - began

    def take(self, answer: Any) -> None:
        self.session, self.version = answer["session"], answer["version"]
        self.known = answer["known"]

    async def settled(self) -> None:
        """Has waited until nothing was new any more."""
        while "unchanged" not in (await self.wait(GAP_S + 0.1))[0]:
            pass


async def added(s: Any, agent: Any, c: Any, worker: Any) -> None:
    s.joined = await Worker(s.address, name="late", nthreads=1)


async def pinned(s: Any, agent: Any, c: Any, worker: Any, name: str = "x") -> None:
    await ask(s, wire.PIN, names=[name], source=wire.MANUAL, owner="me", ttl_ms=60_000)


async def retired(s: Any, agent: Any, c: Any, worker: Any) -> None:
    await retire(s, worker.name)


async def paused(s: Any, agent: Any, c: Any, worker: Any) -> None:
    worker.status = Status.paused


async def submitted(s: Any, agent: Any, c: Any, worker: Any) -> None:
    s.futures = c.map(slow, range(20), delay_s=0.3)


async def wanted(s: Any, agent: Any, c: Any, worker: Any) -> None:
    await ask(s, wire.WANT, workers=3, ttl_ms=60_000, owner="me")


async def noted(s: Any, agent: Any, c: Any, worker: Any) -> None:
    agent.notes.add(wire.N_RELIEF_FAILED, "it is off")


async def shuffled(s: Any, agent: Any, c: Any, worker: Any) -> None:
    shuffle_state(s, "5f3a", 1, [worker.address])


@pytest.mark.parametrize(
    "change", [added, pinned, retired, paused, submitted, wanted, noted, shuffled]
)
@with_agent(config={"distributed.worker.memory.monitor-interval": "1h"})
async def test_a_change_is_answered_soon(c, s, a, b, agent, change: Callable[..., Any]) -> None:
    caller = Caller(s, demand=True)
    await caller.settled()
    waiting = asyncio.ensure_future(caller.wait())
    await asyncio.sleep(0.3)
    assert not waiting.done()

    await change(s, agent, c, a)
    with within(SOONER_THAN_NEVER_S):
        answer, _ = await waiting

    assert 0 < answer["since"] < answer["version"]
    shuffle_state(s, "5f3a", 1, ()).participating_workers.clear()
    uninstall(s)
    if hasattr(s, "joined"):
        await s.joined.close()
    for future in getattr(s, "futures", ()):
        future.release()


@with_agent(2)
async def test_an_answer_comes_within_the_promised_time(c, s, a, b) -> None:
    caller, took = Caller(s), []
    for n in range(5):
        await caller.settled()
        waiting = asyncio.ensure_future(caller.wait())
        await asyncio.sleep(0.1 * n)
        await pinned(s, None, c, a, f"x{n}")
        began = time.monotonic()
        await waiting
        took.append(time.monotonic() - began)

    assert min(took) < SOON_S, took


@with_agent(threads=2)
async def test_nothing_is_answered_in_few_words_when_the_time_is_up(c, s, a, b) -> None:
    await wait(c.map(slow, range(4), delay_s=0))
    caller = Caller(s)
    await caller.settled()
    for _ in range(10):  # on a busy machine a heartbeat may come late, and with news
        answer, took_s = await caller.wait(1.0)
        if "unchanged" in answer:
            break

    assert {"protocol": wire.PROTOCOL, "version": caller.version, "unchanged": True} == answer
    assert sum(map(len, dumps(answer))) < 200
    assert 1.0 <= took_s < 1.0 + SOONER_THAN_NEVER_S


@with_agent(4)
async def test_an_answer_has_only_those_workers_that_changed(c, s, a, *rest) -> None:
    caller = Caller(s, meters=True)
    await caller.settled()
    slot = agent_slot(s, a)
    task = c.submit(slow, 1, 2.0, workers=[a.address])
    answer, _ = await caller.wait()

    assert {slot} == set(answer["workers"]["slot"]) == {slot}
    assert [1] == list(answer["workers"]["processing"])
    assert 1 == len(answer["meters"]["runs"])
    assert not {"pins", "retirements", "stops", "relief"} & set(answer)
    await task


def agent_slot(s: Any, worker: Any) -> int:
    plugin = s.plugins["dask-adaptive"]
    return int(plugin.roster.entries[worker.address].slot)


@with_agent(2)
async def test_who_does_not_know_what_is_there_is_told_all_at_once(c, s, a, b, agent) -> None:
    caller = Caller(s)
    for session, version in (("", 0), ("another", 1), (agent.session, 99), (agent.session, 0)):
        caller.session, caller.version, caller.known = session, version, 0
        answer, took_s = await caller.wait()
        assert 0 == answer["since"]
        assert 2 == len(answer["workers"]["slot"]) == len(answer["introduced"]["slot"])
        assert took_s < SOONER_THAN_NEVER_S
        assert set(wire.Update.__annotations__) <= set(answer)


@with_agent(2)
async def test_two_who_wait_are_both_told(c, s, a, b) -> None:
    callers = [Caller(s), Caller(s, demand=True, caller="the other")]
    for caller in callers:
        await caller.settled()
    callers[0].version = callers[1].version
    waiting = [asyncio.ensure_future(caller.wait()) for caller in callers]
    await asyncio.sleep(0.3)
    await ask(s, wire.OBSERVE)  # by one who counts no versions
    await pinned(s, None, c, a)
    with within(SOONER_THAN_NEVER_S):
        answers = [answer for answer, _ in await asyncio.gather(*waiting)]

    assert [1, 1] == [len(answer["pins"]) for answer in answers]


@with_agent(2)
async def test_what_a_caller_was_answered_meanwhile_is_no_news(c, s, a, b) -> None:
    caller = Caller(s, caller="me")
    await caller.settled()
    waiting = asyncio.ensure_future(caller.wait(1.5))
    await asyncio.sleep(0.1)
    # In one turn of the loop, so that the answer to this comes before the one that waits.
    s.handlers[wire.PIN](names=["x"], source=wire.MANUAL, owner="me", ttl_ms=60_000)
    seen = s.handlers[wire.OBSERVE](**caller.request())
    answer, _ = await waiting

    assert 1 == len(seen["pins"])
    assert "unchanged" in answer


@with_agent(2)
async def test_an_agent_that_is_taken_out_ends_waits_as_if_there_were_none(c, s, a, b) -> None:
    caller = Caller(s)
    await caller.settled()
    waiting = asyncio.ensure_future(caller.wait())
    await asyncio.sleep(0.1)
    uninstall(s)
    answer, took_s = await waiting

    assert answer is None
    assert took_s < SOONER_THAN_NEVER_S
    assert await caller.wait() is not None
    install(s)
    answer, _ = await caller.wait()
    assert 0 == answer["since"]


def waits(s: Any) -> bool:
    return wire.OBSERVE in s._comms.values()


async def test_a_scheduler_that_closes_waits_for_nobody() -> None:
    with captured_logger("distributed.core") as upstream, captured_logger("dask_adaptive") as ours:
        async with Scheduler(port=0, dashboard=False, host="127.0.0.1") as s:
            install(s)
            caller = Caller(s)
            await caller.settled()
            waiting = asyncio.ensure_future(caller.wait())
            await until(lambda: waits(s))
            began = time.monotonic()
        (answer,) = await asyncio.gather(waiting, return_exceptions=True)

    assert time.monotonic() - began < 5.0
    assert isinstance(answer, OSError) or answer[0] is None
    assert "Traceback" not in upstream.getvalue() + ours.getvalue()


@with_agent(2)
async def test_a_caller_that_dies_leaves_nothing(c, s, a, b) -> None:
    caller = Caller(s, caller="me")
    await caller.settled()
    with captured_logger("distributed.core") as log:
        async with rpc(s.address) as link:
            asked = link.adaptive_observe(wait_ms=1000, **caller.request())
            waiting = asyncio.ensure_future(asked)
            await until(lambda: waits(s))
            for comm in link.comms:
                comm.abort()
            await asyncio.gather(waiting, return_exceptions=True)
        await pinned(s, None, c, a)
        await until(lambda: not waits(s), timeout_s=1.0 + SOONER_THAN_NEVER_S)
    answer, _ = await caller.wait()

    assert "Traceback" not in log.getvalue()
    assert 1 == len(answer["pins"]), "the answer that was lost was no news to anybody"


@with_agent(2)
async def test_a_wait_that_makes_no_sense_is_refused(c, s, a, b) -> None:
    for request in ({"wait_ms": -1}, {"version": -1}, {"version": "x"}, {"caller": 1}):
        answer = await ask(s, wire.OBSERVE, **{"version": 1, "wait_ms": 100, **request})
        assert wire.E_INVALID == answer["error"]


@with_agent(2)
async def test_what_goes_wrong_while_somebody_waits_is_an_answer(c, s, a, b, agent) -> None:
    caller = Caller(s)
    await caller.settled()
    waiting = asyncio.ensure_future(caller.wait())
    await asyncio.sleep(0.1)
    agent.roster.sync = None
    agent.notes.add(wire.N_RELIEF_FAILED, "it is off")
    with pytest.raises(KeyError, match="session"):
        await waiting


# What is told bit by bit is all that there is.

WHATS = (
    "join", "leave", "task", "end", "result", "pause", "pin", "unpin", "drain", "cancel", "meter",
    "age", "shuffle", "want", "run",
)  # fmt: skip
STEPS = st.lists(
    st.tuples(st.sampled_from(WHATS), st.integers(0, 3), st.integers(1, 40)), max_size=30
)


class Books:
    """A scheduler whose workers exist in its books only, and what may happen to them."""

    def __init__(self, s: Any) -> None:
        clear_shared()
        uninstall(s)
        clear_workers(s)
        s.stream_comms.clear()
        self.s, self.clock, self.number = s, Clock(), 0
        self.agent = install(s, self.clock)
        for _ in range(3):
            self.join(None, 0)

    def step(self, what: str, which: int, much: int) -> None:
        workers = list(self.s.workers.values())
        ws = workers[which % len(workers)] if workers else None
        if ws is not None or what in ("join", "age", "want"):
            getattr(self, what)(ws, much)

    def join(self, ws: Any, much: int) -> None:
        self.number += 1
        ws = fake_worker(self.s, self.number)
        self.s.stream_comms[ws.address] = Silent()
        self.s.plugins["dask-adaptive"].add_worker(self.s, ws.address)

    def leave(self, ws: Any, much: int) -> None:
        for there in (self.s.workers, self.s.aliases):
            there.pop(ws.address if there is self.s.workers else ws.name, None)
        self.s.running.discard(ws)
        del self.s.stream_comms[ws.address]
        self.s.plugins["dask-adaptive"].remove_worker(self.s, ws.address)

    def task(self, ws: Any, much: int) -> None:
        for _ in range(much):
            give_task(self.s, ws)

    def end(self, ws: Any, much: int) -> None:
        for ts in list(ws.processing):
            ws.remove_from_processing(ts)

    def result(self, ws: Any, much: int) -> None:
        give_result(self.s, ws, 1000 * much)

    def pause(self, ws: Any, much: int) -> None:
        is_running = ws.status is Status.running
        ws.status = Status.paused if is_running else Status.running
        (self.s.running.discard if is_running else self.s.running.add)(ws)

    def pin(self, ws: Any, much: int) -> None:
        self.agent.pins.leases.pin(
            [str(ws.name)], source=wire.MANUAL, owner=f"o{much % 2}", reason="", ttl_s=much
        )

    def unpin(self, ws: Any, much: int) -> None:
        self.agent.pins.leases.unpin(source=wire.MANUAL, owner=f"o{much % 2}")

    def drain(self, ws: Any, much: int) -> None:
        self._tell(wire.RETIRE, ws, reason="Underutilized", busy_ok=True)

    def cancel(self, ws: Any, much: int) -> None:
        self._tell(wire.CANCEL, ws)

    def _tell(self, message: str, ws: Any, **request: Any) -> None:
        """Of one worker: it is done in one go."""
        with pytest.raises(StopIteration):
            self.s.handlers[message](names=[str(ws.name)], **request).send(None)

    def meter(self, ws: Any, much: int) -> None:
        ws.metrics = {**ws.metrics, "memory": 10_000_000 * much}
        self.agent.roster.entries[ws.address].runs += much

    def run(self, ws: Any, much: int) -> None:
        """It had a task between two looks."""
        self.agent.roster.entries[ws.address].active_at = self.clock()

    def age(self, ws: Any, much: int) -> None:
        self.clock.ahead_s += much / 4

    def shuffle(self, ws: Any, much: int) -> None:
        shuffle_state(self.s, f"s{much % 2}", much, [ws.address])

    def want(self, ws: Any, much: int) -> None:
        self.s.handlers[wire.WANT](workers=much % 3, ttl_ms=1000 * much, owner="me")


class Reader:
    """The operator's side: what was told bit by bit, or at once."""

    def __init__(self, books: Books) -> None:
        self.books, self.reader = books, SnapshotReader(NoteReader())

    def ask(self) -> Any:
        reader = self.reader
        frame, *_ = dumps(
            self.books.s.handlers[wire.OBSERVE](
                meters=True, demand=True, renew=True, version=reader.version, **reader.request
            )
        )
        return msgspec.msgpack.decode(frame, type=ANSWER)

    def look(self) -> Any:
        reader, clock = self.reader, self.books.clock
        reader.read(self.ask(), at=clock())
        return reader.observed(agent="1", version="2", at=clock())


def rough(worker: Any) -> list[float]:
    use = worker.use
    return [
        worker.processing, worker.sole_bytes, worker.memory, use.runs, use.process, use.unmanaged,
    ]  # fmt: skip


def exact(worker: Any) -> Any:
    """What must not be off, in whole seconds; ends are known to some seconds."""
    use = dataclasses.replace(worker.use, runs=0, process=0, unmanaged=0)
    return dataclasses.replace(
        worker, processing=worker.processing > 0, sole_bytes=0, memory=0, use=use, pins=(),
        idle_since=0.0,
    )  # fmt: skip


def assert_same(told: Any, there: Any) -> None:
    assert len(told.workers) == len(there.workers)
    for one, other in zip(told.workers, there.workers):
        assert exact(one) == exact(other)
        assert rough(one) == pytest.approx(rough(other), rel=0.04, abs=1e-9)
        assert one.idle_since == pytest.approx(other.idle_since, abs=0.6)
        assert one.processing or one.sole_bytes == other.sole_bytes
        assert [(p.source, p.owner) for p in one.pins] == [(p.source, p.owner) for p in other.pins]
        for pin, same in zip(one.pins, other.pins):
            assert pin.until == pytest.approx(same.until, abs=1.6)
    for want, same in zip(told.wants, there.wants):
        assert want.left_s == pytest.approx(same.left_s, abs=1.6)
    told, there = (
        dataclasses.replace(one, demand=dataclasses.replace(one.demand, age_s=0.0))
        for one in (told, there)
    )
    apart = {"at", "workers", "wants", "quiet", "notes"}
    for name in {f.name for f in dataclasses.fields(told)} - apart:
        assert getattr(told, name) == getattr(there, name), name


@pytest.mark.skipif(SnapshotReader is None, reason="the operator is not installed")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_what_is_told_bit_by_bit_is_all_that_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(durations, "LOOK_PART", math.inf)  # both readers see what is there now
    async with Scheduler(port=0, dashboard=False, host="127.0.0.1", validate=False) as s:

        @given(steps=STEPS)
        @example(steps=[("age", 0, 40), ("run", 0, 1)])
        @example(steps=[("task", 1, 40), ("drain", 1, 1), ("task", 1, 1)])
        @settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
        def check(steps: list[Any]) -> None:
            books = Books(s)
            often, seldom = Reader(books), Reader(books)
            seldom.look()
            for n, step in enumerate(steps):
                books.step(*step)
                if step[1]:
                    often.look()
                if n % 5 == 4:
                    assert_same(seldom.look(), Reader(books).look())
            told = often.look()
            kept = {id(w) for w in told.workers if not w.pins}
            assert_same(told, Reader(books).look())
            again = often.look()
            assert kept == {id(w) for w in again.workers if not w.pins}, "the very same objects"

        check()
        uninstall(s)
        clear_workers(s)
        s.stream_comms.clear()
