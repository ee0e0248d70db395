"""Whatever workers, tasks and requests hold, the agent answers, can be read, and is bounded."""

from __future__ import annotations

import inspect
import math
import tracemalloc
from functools import reduce
from typing import Any

import pytest
from distributed import Scheduler
from distributed.core import Status
from distributed.protocol import dumps, loads
from distributed.utils import key_split_group
from distributed.utils_test import captured_logger
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dask_adaptive_agent import wire
from dask_adaptive_agent.agent import install
from support.agent_cluster import with_agent
from support.agent_fakes import clear_workers, fake_worker, give_result, give_task
from support.agent_work import ask

try:  # the operator's own reader: not in images of users, nor on their Python 3.9
    import msgspec

    from dask_adaptive.scheduler.snapshot import ANSWER, NoteReader, SnapshotReader
except (ImportError, TypeError):
    SnapshotReader = None  # type: ignore[assignment, misc]


NAN = math.nan


class NoNumber:
    """Raises what nobody expects."""

    def __int__(self) -> int:
        raise RuntimeError("no number")

    __str__ = __float__ = __int__  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "NoNumber()"


#: What a metric, a size or a duration may be, in place of a number.
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**53, 2**64, -(2**63), 10**400]),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.floats(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.floats(), max_size=2),
    st.builds(NoNumber),
)
NUMBERS = st.one_of(st.floats(), st.integers(), st.none(), st.text(max_size=3))
TEXTS = st.text(st.characters(exclude_categories=()), max_size=8)  # lone surrogates, too
METRICS = st.fixed_dictionaries(
    {},
    optional={
        "memory": ODD,
        "spilled_bytes": st.one_of(ODD, st.fixed_dictionaries({"memory": ODD, "disk": ODD})),
        "dask-adaptive": st.one_of(ODD, st.fixed_dictionaries({"left_s": ODD})),
    },
)
WORKER = st.fixed_dictionaries(
    {
        "metrics": METRICS,
        "name": st.one_of(TEXTS, st.integers(), st.tuples(TEXTS), st.none()),
        "memory_limit": st.one_of(st.just(2**33), NUMBERS),
        "nthreads": st.one_of(st.just(1), NUMBERS),
        "status": st.sampled_from(list(Status)),
        "executing": NUMBERS,
        "nbytes": st.one_of(st.just(10), NUMBERS),
        "tasks": st.integers(0, 2),
    }
)


def is_key(text: str) -> bool:
    """Whether upstream takes it for one."""
    try:
        return bool(text and key_split_group(text))
    except IndexError:
        return False


TASK = st.fixed_dictionaries(
    {
        "key": TEXTS.filter(is_key),
        "resources": st.dictionaries(TEXTS, NUMBERS, max_size=2),
        "workers": st.sets(TEXTS, max_size=2),
        "hosts": st.sets(TEXTS, max_size=2),
        "duration": st.floats(),
        "state": st.sampled_from(["waiting", "no-worker", "processing"]),
    }
)


def put(s: Any, i: int, odd: dict[str, Any]) -> None:
    ws = fake_worker(s, i)
    for what in ("metrics", "memory_limit", "nthreads"):
        setattr(ws, what, odd[what])
    s.aliases.pop(ws.name, None)
    ws.name = ws.address if odd["name"] is None else odd["name"]
    s.aliases[ws.name] = ws.address
    ws.status = odd["status"]
    if odd["tasks"]:
        give_result(s, ws, 10).nbytes = odd["nbytes"]
        ws.nbytes = odd["nbytes"]
    for _ in range(odd["tasks"]):
        ws.executing[give_task(s, ws)] = odd["executing"]


def put_task(s: Any, odd: dict[str, Any]) -> None:
    if odd["key"] in s.tasks:
        return
    ts = s.new_task(odd["key"], None, "released")
    ts.run_spec = object()
    ts.resource_restrictions = odd["resources"] or None
    ts.worker_restrictions = odd["workers"] or None
    ts.host_restrictions = odd["hosts"] or None
    ts.prefix.duration_average = odd["duration"]
    if odd["state"] == "processing" and s.workers:
        next(iter(s.workers.values())).add_to_processing(ts)
    elif odd["state"] == "no-worker":
        ts.state = "no-worker"
        s.unrunnable.add(ts) if hasattr(s.unrunnable, "add") else s.unrunnable.update({ts: 0})
    else:
        ts.state = "waiting"


def sent(answer: Any) -> Any:
    """As it arrives at whoever asked."""
    return loads(dumps(answer))


def check_numbers(part: str, value: Any) -> None:
    """Nobody can reckon with NaN, nor with what is larger than any amount."""
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, (list, tuple)):
        for one in value:
            check_numbers(part, one)
    elif isinstance(value, (int, float)):
        assert abs(value) <= 2**53, part


def read_by_the_operator(hello: Any, seen: Any) -> None:
    if SnapshotReader is not None:
        reader = SnapshotReader(NoteReader())
        reader.read(msgspec.msgpack.decode(dumps(seen)[0], type=ANSWER), at=0.0)
        reader.observed(agent=hello["agent"], version=hello["distributed"], at=0.0)


async def test_every_answer_can_be_read_whatever_is_there() -> None:
    async with Scheduler(port=0, dashboard=False, host="127.0.0.1", validate=False) as s:
        check_answers(s)


def check_answers(s: Any) -> None:
    agent = install(s)

    @given(workers=st.lists(WORKER, max_size=3), tasks=st.lists(TASK, max_size=2))
    @settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
    def check(workers: list[Any], tasks: list[Any]) -> None:
        try:
            for i, odd in enumerate(workers):
                put(s, i, odd)
            for odd in tasks:
                put_task(s, odd)
            hello = sent(s.handlers[wire.HELLO]())
            seen = sent(s.handlers[wire.OBSERVE](meters=True, demand=True))
        finally:
            clear_workers(s)
            s.unrunnable.clear()
            agent.demand._look_at = 0.0  # the next look is not to wait for its turn

        for answer in (hello, seen):
            assert "error" not in answer, answer
            for part, value in answer.items():
                check_numbers(part, value)
        assert len(workers) == len(seen["workers"]["slot"])
        assert None not in (seen["meters"], seen["demand"])
        read_by_the_operator(hello, seen)

    check()


@with_agent(client=False)
async def test_a_metric_that_is_no_number_costs_its_own_row_only(s, a, b) -> None:
    first, second = s.workers[a.address], s.workers[b.address]
    first.metrics.update(memory=NAN)
    second.metrics.update(memory=1000)

    seen = await ask(s, wire.OBSERVE, meters=True, demand=True)

    slot = {name: slot for slot, name in enumerate(seen["introduced"]["name"])}
    assert 0 == seen["workers"]["memory"][slot[str(a.name)]]
    assert 1000 == seen["workers"]["memory"][slot[str(b.name)]]


@pytest.mark.parametrize("part", ["pins.rows", "floors.rows", "service.terminating"])
@with_agent(client=False)
async def test_nobody_may_go_while_it_is_not_known_who_must_stay(s, a, b, agent, part) -> None:
    assert (await ask(s, wire.OBSERVE))["closable"]
    *path, name = part.split(".")
    setattr(reduce(getattr, path, agent), name, None)

    seen = await ask(s, wire.OBSERVE)

    assert not seen["closable"]
    assert 2 == len(seen["workers"]["slot"])


@with_agent(client=False)
async def test_what_fails_is_logged_once(s, a, b) -> None:
    s.workers[a.address].metrics["memory"] = NAN
    with captured_logger("dask_adaptive_agent.guard") as log:
        for _ in range(3):
            await ask(s, wire.OBSERVE)

    assert 1 == log.getvalue().count("Answers are incomplete: memory")


#: What a request may hold, by message; `hello` takes nothing.
REQUESTS: dict[str, Any] = {
    wire.CONFIGURE: wire.ConfigureRequest,
    wire.OBSERVE: wire.ObserveRequest,
    wire.RETIRE: wire.RetireRequest,
    wire.CANCEL: wire.CancelRequest,
    wire.PIN: wire.PinRequest,
    wire.UNPIN: wire.UnpinRequest,
    wire.LEAVE: wire.LeaveRequest,
    wire.LIMIT: wire.LimitRequest,
    wire.ANNOUNCE: wire.AnnounceRequest,
    wire.WANT: wire.WantRequest,
}
#: What each needs to be accepted.
BASE: dict[str, Any] = {
    wire.RETIRE: {"names": []},
    wire.CANCEL: {"names": []},
    wire.PIN: {"names": ["a"], "source": wire.MANUAL, "owner": "o", "ttl_ms": 1000},
    wire.UNPIN: {"source": wire.MANUAL, "owner": "o"},
    wire.WANT: {"workers": 1, "owner": "o", "ttl_ms": 1000},
}
HUGE = 2 * wire.MOST_ENTRIES


class Odd:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


def deep() -> Any:
    nest: Any = []
    for _ in range(2_000):
        nest = [nest]
    return nest


@pytest.fixture(scope="module")
def odd_values() -> list[Any]:
    return [
        None, True, -1, 0, 2**53, 2**80, 1.5, float("nan"), "", "x", b"x", Odd(), object,
        "x" * 200_000, "\udcff", ["x" * 200_000], [["a", 1]], [None], {"a": Odd()}, {1: 2},
        [str(i) for i in range(HUGE)], list(range(HUGE)), {str(i): i for i in range(HUGE)},
        [{"patterns": ["*"] * HUGE}], [{"patterns": ["x" * 200_000]}], [{"failures": -1}],
        [(1, 1)] * HUGE, deep(), {"distributed.scheduler": deep()},
    ]  # fmt: skip


def test_every_message_is_tried() -> None:
    messages = {text for text in vars(wire).values() if str(text).startswith("adaptive_")}
    assert messages - {wire.HELLO} == REQUESTS.keys()


@pytest.mark.parametrize("message", sorted(REQUESTS))
async def test_odd_and_huge_requests_are_refused_or_bounded(
    message: str, odd_values: list[Any]
) -> None:
    async with Scheduler(port=0, dashboard=False, host="127.0.0.1") as s:
        agent = install(s)
        handler, base = s.handlers[message], BASE.get(message, {})
        if message == wire.LIMIT:
            base = {"session": agent.session}

        async def answered(**request: Any) -> Any:
            answer = handler(**request)
            return await answer if inspect.iscoroutine(answer) else answer

        assert "error" not in await answered(**base)
        tracemalloc.start()
        try:
            for field in REQUESTS[message].__annotations__.keys() - {"protocol"}:
                for odd in odd_values:
                    answer = await answered(**{**base, field: odd})
                    code = answer.get("error", wire.E_INVALID)
                    assert code in (wire.E_INVALID, wire.E_REFUSED), (field, answer)
                    assert len(str(answer.get("message", ""))) < 1000
            kept = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        assert kept < 20e6


@with_agent(0, client=False)
async def test_names_that_nobody_has_cannot_fill_the_table(s, agent) -> None:
    pin = s.handlers[wire.PIN]
    request = {"source": wire.MANUAL, "ttl_ms": 60_000}

    for owner in range(10):
        for part in range(3):
            names = [f"{part} {i}" for i in range(wire.MOST_ENTRIES // 2)]
            answer = pin(names=names, owner=str(owner), **request)

    assert wire.E_REFUSED == answer["error"]
    assert str(wire.MOST_PINS) in answer["message"]
    assert wire.MOST_PINS == len(agent.pins.leases.every())
    assert "error" not in s.handlers[wire.UNPIN](source=wire.MANUAL, owner="0")
    assert wire.MOST_PINS - wire.MOST_PINS_OF_OWNER == len(agent.pins.leases.every())
