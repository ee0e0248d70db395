"""
Drains under fire: workers that leave in every way there is, while random graphs are computed, P2P
shuffles among them.

A `Fire` lets things happen to the workers of a scheduler until it is put out. Then every result
must be there and right, every worker in service, in the scheduler and in its own process, and
nothing of the agent's left. What only a killed worker had is computed again; nothing is ever wrong
or hangs.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import inspect
import logging
import random
import re
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import dask
from distributed import Worker, secede, wait
from distributed.comm import CommClosedError
from distributed.comm.tcp import BaseTCPListener
from distributed.core import Status
from distributed.scheduler import decide_worker

from dask_adaptive_agent import wire
from dask_adaptive_lab.run_counter import COUNTED
from support.agent_quota import limit
from support.agent_work import ask, leave, until

#: A worker that can be named to anything that happens.
FEWEST, MOST = 3, 6
#: So long after the fire is out, everything must be done: distributed tries to reach a worker that
#: is gone for as long as its settings say.
PATIENCE_S = 120.0

#: Older releases give tasks with loose restrictions to workers that are not running
#: (`decide_worker`): such a task is never started, with stock Dask as well.
IS_LOOSE_SAFE = "candidates &= all_workers" in inspect.getsource(decide_worker)

#: Older releases do not begin a P2P shuffle again that has lost a worker: its tasks fail.
RESTARTS_SHUFFLES = importlib.util.find_spec("distributed.shuffle._scheduler_plugin") is not None

#: What upstream says of a shuffle that it has given up, now and before 2024.9: see `Score`.
GIVEN_UP = re.compile(
    "failed during barrier phase|shuffle_barrier failed during shuffle|No active shuffle with id"
)

#: What distributed and the agent must not log: their own states disagree.
BROKEN = (AssertionError, KeyError, AttributeError, TypeError, ValueError, IndexError)


def mixed(salt: int, delay_s: float, leaves_the_pool: bool, *parts: bytes) -> bytes:
    """A result that tells whether it was made of the right inputs."""
    if leaves_the_pool:
        secede()
    time.sleep(delay_s)
    return made_of(salt, *parts)


def made_of(salt: int, *parts: bytes) -> bytes:
    digest = hashlib.sha256(repr(salt).encode() + b"".join(parts)).digest()
    return digest * (1 + salt % 50)


def slowly(part: Any, delay_s: float) -> Any:
    time.sleep(delay_s)
    return part


def sums(frame: Any) -> Any:
    """A row a key: it is twice in the result if a shuffle has left rows of it apart."""
    return frame.groupby("key").value.agg(["sum", "count"])


def rows_of(frame: Any) -> bytes:
    return repr(sorted(frame.reset_index().astype(int).to_numpy().tolist())).encode()


def shuffled(c: Any, dice: random.Random) -> tuple[Any, bytes]:
    """A future of a frame that P2P shuffles, as bytes, and what pandas makes of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some releases warn of what the next will do
        import dask.dataframe as dd
        import pandas as pd

        rows, delay_s = range(dice.choice([300, 2000])), dice.choice([0.01, 0.05])
        key = [dice.randrange(97) for _ in rows]
        frame = pd.DataFrame({"key": key, "value": [dice.randrange(10**9) for _ in rows]})
        settings = {"dataframe.shuffle.method": "p2p", "optimization.fuse.active": False}
        with dask.config.set(settings):
            parts = dd.from_pandas(frame, npartitions=dice.choice([4, 8]), sort=False)
            parts = parts.map_partitions(slowly, delay_s, meta=frame.iloc[:0])
            parts = parts.shuffle("key").map_partitions(slowly, delay_s, meta=frame.iloc[:0])
            result = c.compute(parts.map_partitions(sums, meta=sums(frame).iloc[:0]))
    return c.submit(rows_of, result, pure=False), rows_of(sums(frame))


@dataclass
class Score:
    """What came of the results of all graphs so far."""

    rounds: int = 0
    checked: int = 0
    lost: int = 0
    wrong: int = 0
    hangs: int = 0
    #: Upstream gives up a shuffle whose barrier meets a participant that somebody else has begun to
    #: close, and which the scheduler has not heard of; or has, and has just forgotten the shuffle.
    given_up: int = 0

    @property
    def is_perfect(self) -> bool:
        return not (self.lost or self.wrong or self.hangs)


class Graph:
    """Random tasks, and what each of them must give."""

    def __init__(self, dice: random.Random, size: int, shuffles: int = 0) -> None:
        self._dice = dice
        self._size = size
        self._shuffles = set(dice.sample(range(size), shuffles))
        self.futures: list[Any] = []
        self.expected: list[bytes] = []

    async def submit(self, c: Any, addresses: Sequence[str]) -> None:
        dice = self._dice
        for salt in range(self._size):
            if salt in self._shuffles:
                future, expected = shuffled(c, dice)
                self.futures.append(future)
                self.expected.append(expected)
                continue
            of = dice.sample(range(salt), min(salt, dice.choice([0, 0, 1, 2, 4])))
            options: dict[str, Any] = {}
            if IS_LOOSE_SAFE and dice.random() < 0.15:
                options = {"workers": [dice.choice(addresses)], "allow_other_workers": True}
            delay_s = dice.choice([0, 0.01, 0.02, 0.05])
            secedes = dice.random() < 0.05
            inputs = [self.futures[i] for i in of]
            self.futures.append(
                c.submit(mixed, salt, delay_s, secedes, *inputs, pure=False, **options)
            )
            self.expected.append(made_of(salt, *(self.expected[i] for i in of)))
            if salt % 10 == 0:
                await asyncio.sleep(0)

    async def check(self, score: Score) -> None:
        """Raises unless every result is there, and right."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(wait(self.futures), PATIENCE_S)
        score.rounds += 1
        for future, expected in zip(self.futures, self.expected):
            if future.status == "lost":
                # On a busy machine `Scheduler.gather` gives up a worker that answers too late:
                # what only that one had is computed again.
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(wait(future), PATIENCE_S)
            if future.status in ("pending", "lost"):
                score.hangs += 1
            elif future.status == "error" and GIVEN_UP.search(str(await future.exception())):
                score.given_up += 1
            elif future.status != "finished":
                score.lost += 1
            else:
                score.checked += 1
                score.wrong += expected != await asyncio.wait_for(future, PATIENCE_S)
        assert score.is_perfect, score


class Process(Worker):
    """
    A worker that ends as a process does.

    `Worker.close` waits for its threads, half a minute now and then where a task has seceded.
    """

    async def close(self, *args: Any, **kwargs: Any) -> Any:
        return await super().close(*args, **{**kwargs, "executor_wait": False})


async def closes_if_stopped(listener: Any, stream: Any, address: Any) -> None:
    """
    As newer releases have it: older ones leave open what a worker has accepted as it closed.

    Who connects waits for ever then (`connect` reads without a limit), unless the process ends, as
    that of a real worker does, or its garbage is collected.
    """
    if listener.tcp_server is None:
        stream.close()
        return
    await HANDLE_STREAM(listener, stream, address)


HANDLE_STREAM = BaseTCPListener._handle_stream


def erred_or(waits: Callable[..., Any]) -> Callable[..., Any]:
    """
    A task waits (`waits`), unless what it depends on has failed.

    That can be the outcome of one and the same removal of a worker, if upstream gives up a shuffle
    (see `Score`). With stock Dask the task would wait for ever, and under validation the scheduler
    stops in the middle of the removal.
    """

    def transition(state: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
        ts = state.tasks[key]
        failed = next((d for d in ts.dependencies if d.state == "erred"), None)
        if failed is None:
            return waits(state, key, *args, **kwargs)
        ts.exception_blame = failed.exception_blame
        return {key: "erred"}, {}, {}

    return transition


class Fire:
    """What happens to the workers of a scheduler, at random and at once."""

    def __init__(self, c: Any, s: Any, agent: Any, dice: random.Random) -> None:
        self.c, self.s, self.agent, self.dice = c, s, agent, dice
        self.workers: dict[str, Any] = {}
        self.happened: dict[str, int] = {}
        self.score = Score()
        self._every: list[Any] = []
        self._ending: list[asyncio.Future[Any]] = []
        self._joined = 0
        self._is_out = False
        self._busy: dict[str, str] = {}  # what happens to which workers, by name

    async def joins(self, name: str = "") -> None:
        if not name:
            self._joined += 1
            name = f"w{self._joined}"
        worker = Process(
            self.s.address, name=name, nthreads=2, validate=True, heartbeat_interval="100ms"
        )
        self._every.append(worker)
        self.workers[name] = await worker

    async def burn(self, ways: Sequence[str], seconds: float, until_done: Sequence[Any]) -> None:
        """Let `ways` happen, three at a time, for so long or until these futures are done."""
        self._is_out = False
        while len(self.workers) < FEWEST + 1:
            await self.joins()
        arsonists = [asyncio.ensure_future(self._arson(ways)) for _ in range(3)]
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not all(f.done() for f in until_done):
            while len(self.workers) < FEWEST:
                await self.joins()
            await asyncio.sleep(0.01)
        self._is_out = True
        done, late = await asyncio.wait(arsonists, timeout=PATIENCE_S)
        self.score.hangs += len(late)
        assert not late, f"hangs: {self._busy}"
        for one in done:
            one.result()

    async def put_out(self) -> None:
        """Take all back that was asked for; whoever is still there serves."""
        self._forget_closed()
        while len(self.workers) < FEWEST:
            await self.joins()
        await limit(self.s, [])
        for source in (wire.MANUAL, wire.CLIENT):
            await ask(self.s, wire.UNPIN, source=source, owner="fire")
        await ask(self.s, wire.CANCEL, names=list(self.workers))
        await until(self._all_serve)
        await until(lambda: not self.agent.service.out_of_service())
        self.s.validate_state()
        # Under test distributed allows so many transitions; here that is a round's, not the fire's.
        self.s.transition_counter = 0
        for worker in self.workers.values():
            worker.state.transition_counter = 0
        self._mend_upstream()
        self._every = [one for one in self._every if one.status != Status.closed]
        self._ending = [one for one in self._ending if not one.done()]

    def _forget_closed(self) -> None:
        for name, worker in list(self.workers.items()):
            if worker.status in (Status.closing, Status.closed):  # its stream broke, see `known`
                del self.workers[name]

    def _call_back(self) -> None:
        """
        Whom upstream could not retire serves again, as after another call of whoever retired him.

        Upstream gives back the status that a worker had when it was asked to retire. Asked again
        while the end of the first try is on its way, it stays `closing_gracefully` for good, with
        stock Dask as well.
        """
        for worker in self.workers.values():
            events = [event["action"] for _, event in self.s.get_events(worker.address)]
            if worker.status == Status.closing_gracefully and "could-not-retire" in events:
                worker.status = Status.running

    def _all_serve(self) -> bool:
        """In the scheduler and in their own processes; a stream may break until then."""
        self._forget_closed()
        self._call_back()
        mine, known = self.workers.values(), self.s.workers
        return (
            {w.address for w in mine} == known.keys()
            and all(w.status == Status.running for w in mine)
            and all(ws in self.s.running for ws in known.values())
        )

    def summary(self) -> str:
        """One line."""
        score, counted = self.score, self.s.handlers.get(COUNTED)
        ran = counted() if counted else {}
        return (
            f"fire: {score.rounds} rounds, {sum(self.happened.values())} events, "
            f"{score.checked} results checked, {score.lost} lost, {score.wrong} wrong, "
            f"{score.hangs} hangs, {score.given_up} given up by upstream's barrier; "
            f"{ran.get('shuffles', 0)} P2P shuffles, at most "
            f"{ran.get('max_shuffle_run', 0)} runs of one; {self.happened}"
        )

    def _mend_upstream(self) -> None:
        """
        A task that would rather run on a worker that is gone, and that came when nobody served.

        `bulk_schedule_unrunnable_after_adding_worker` asks `valid_workers`, which does not know of
        loose restrictions: with stock Dask it would wait for ever.
        """
        stuck = [ts for ts in self.s.unrunnable if ts.loose_restrictions]
        self.s.transitions({ts.key: "released" for ts in stuck}, "fire")

    async def __aenter__(self) -> Fire:
        table, way = self.s._TRANSITIONS_TABLE, ("released", "waiting")
        self.s._TRANSITIONS_TABLE = {**table, way: erred_or(table[way])}
        BaseTCPListener._handle_stream = closes_if_stopped
        self.s.stimulus_queue_slots_maybe_opened = self._feed_queue
        return self

    def _feed_queue(self, *, stimulus_id: str) -> None:
        """
        Upstream asserts that each task that it offers begins. With an exact quota a worker leaves
        service in the middle, and takes its slots with it: schedulers of users do not validate.
        """
        self.s.validate = False
        try:
            type(self.s).stimulus_queue_slots_maybe_opened(self.s, stimulus_id=stimulus_id)
        finally:
            self.s.validate = True

    async def __aexit__(self, failed: Any, *_: Any) -> None:
        if failed:
            self._report()
        closing = [asyncio.ensure_future(w.close()) for w in self._every]
        await asyncio.wait([*closing, *self._ending], timeout=PATIENCE_S)
        BaseTCPListener._handle_stream = HANDLE_STREAM
        if not failed:
            await until(lambda: not self.s.workers)
            assert not self.s.aliases
            assert not self.agent.drains.ongoing

    def _report(self) -> None:
        print(f"happened: {self.happened}; busy: {self._busy}")
        print({name: (w.address, w.status.name) for name, w in self.workers.items()})
        for ws in self.s.workers.values():
            going = self.agent.drains.ongoing.get(ws.address)
            here = [w.status.name for w in self._every if w.address == ws.address]
            print(ws, ws.status.name, here, going and (going.terms, going.message))
            print("   ", {ts.key: ts.state for ts in ws.processing})
            if ws not in self.s.running:
                gate = self.agent.service.gate_of(ws.address)
                print("   ", gate and vars(gate), *self.s.get_events(ws.address), sep="\n    ")
        print("unfinished:")
        for ts in self.s.tasks.values():
            if ts.state not in ("memory", "released"):
                print("   ", ts, [d for d in ts.dependencies if d.state != "memory"])

    async def _arson(self, ways: Sequence[str]) -> None:
        while not self._is_out:
            await asyncio.sleep(self.dice.choice([0, 0.01, 0.05]))
            free = sorted(self.workers.keys() - self._busy)
            if not free:
                continue
            name, way = self.dice.choice(free), self.dice.choice(ways)
            self.happened[way] = self.happened.get(way, 0) + 1
            self._busy[name] = way
            try:
                act: Callable[[str], Awaitable[None]] = getattr(self, f"_{way}")
                await act(name)
            finally:
                self._busy.pop(name, None)

    async def _gone(self, name: str, worker: Any) -> None:
        """The process ends, with what it still has."""
        if self.workers.get(name) is worker:
            del self.workers[name]
        await worker.close()
        if len(self.workers) < MOST and name not in self.workers and self.dice.random() < 0.3:
            # Until the scheduler has seen its last bearer go, it refuses the name.
            await until(lambda: name in self.workers or name not in self.s.aliases)
            if name not in self.workers:
                await self.joins(name)

    # What may happen to a worker. Nothing is lost by the first ones.

    async def _retires(self, name: str) -> None:
        """
        By the operator: drained, removed from the scheduler and deleted, or called back.

        Before the pod ends, its hook asks: the operator may be gone by then, or a task have come
        that is bound to this worker.
        """
        worker = self.workers[name]
        request = {
            "busy_ok": self.dice.random() < 0.8,
            "deadline_ms": 10_000,
            "on_timeout": self.dice.choice(["Abort", "Force"]),
        }
        for _ in range(self.dice.choice([1, 3, 300])):
            answer = await ask(self.s, wire.RETIRE, names=[worker.address], **request)
            state = answer["outcomes"][0]["state"]
            if state == wire.DRAINED and len(self.workers) > 1 and not self._is_out:
                # The answer has taken its time, and a shuffle may have begun: what is so now?
                now = await self.s.handlers[wire.RETIRE](names=[worker.address], **request)
                is_pinned = worker.address in self.agent.shuffles.pinned()
                assert not (is_pinned and now["outcomes"][0]["state"] == wire.DRAINED)
                request["ends"] = self.dice.choice(["", wire.PROCESSES, wire.NAMES])
                await ask(self.s, wire.RETIRE, names=[worker.address, name], **request)
                while wire.DRAINING in await leave(self.s, worker.address):
                    await asyncio.sleep(0.02)
                await self._gone(name, worker)
                return
            if state != wire.DRAINING or self._is_out:
                break
            await asyncio.sleep(0.02)
        await ask(self.s, wire.CANCEL, names=[worker.address])

    async def _pod_ends(self, name: str) -> None:
        """Its hook asks until it is drained; the next pod has its name before that."""
        worker = self.workers.pop(name)
        left_ms = 60_000
        states = await leave(self.s, name, left_ms=left_ms)
        await self.joins(name)
        while wire.DRAINING in states:
            await asyncio.sleep(0.02)
            states = await leave(self.s, worker.address, left_ms=left_ms)
        await worker.close()

    async def _is_pinned(self, name: str) -> None:
        source = self.dice.choice([wire.MANUAL, wire.CLIENT])
        pin: dict[str, Any] = {"source": source, "owner": "fire", "ttl_ms": 500}
        await ask(self.s, wire.PIN, names=[name], **pin)

    async def _comes_to_its_quota(self, name: str) -> None:
        runs = self.dice.randint(1, 30)
        await limit(self.s, [name], runs, stops=1, exact=self.dice.random() < 0.5)

    async def _nears_its_end(self, name: str) -> None:
        await limit(self.s, [name], left_ms=self.dice.choice([1, 50, 5_000]), stops=1)

    async def _pauses(self, name: str) -> None:
        """As its memory monitor does it."""
        worker = self.workers[name]
        if worker.status == Status.running:
            worker.status = Status.paused
            await asyncio.sleep(0.1)
        if worker.status == Status.paused:
            worker.status = Status.running

    # Here upstream itself runs tasks again.

    async def _user_retires(self, name: str) -> None:
        others = sorted(self.workers.keys() - self._busy)
        named = [name, *self.dice.sample(others, min(len(others), self.dice.randint(0, 2)))]
        own = [self.workers[n] for n in named]
        self._busy.update((n, "user_retires") for n in named)
        options = {"close_workers": self.dice.random() < 0.5, "remove": self.dice.random() < 0.5}
        try:
            retired = await self._retired([w.address for w in own], **options)
            for one in own:
                if one.address in retired:
                    await self._gone(str(one.name), one)
        finally:
            for name in named:
                self._busy.pop(name, None)

    async def _retired(self, addresses: list[str], **options: bool) -> Any:
        try:
            return await self.c.retire_workers(addresses, **options)
        except CommClosedError:  # upstream's own (2024.2.1): a recipient has just been killed
            return addresses

    async def _lives_out(self, name: str) -> None:
        worker = self.workers[name]
        lifetime_ms = self.dice.choice([1, 300, 2_000])
        settings = {"on_lifetime": wire.LIFETIME_DRAIN, "lifetime_ms": lifetime_ms}
        await ask(self.s, wire.CONFIGURE, **settings)
        if worker.status != Status.running:
            return  # its own end waits for ever where somebody else has frozen it
        del self.workers[name]
        self._ending.append(asyncio.ensure_future(worker.close_gracefully()))
        await until(lambda: worker.address not in self.s.workers, PATIENCE_S)

    async def _pod_ends_soon(self, name: str) -> None:
        worker = self.workers.pop(name)
        left_ms = self.dice.choice([50, 300, 1_000])
        await leave(self.s, worker.address, left_ms=left_ms)
        await asyncio.sleep(left_ms / 1000 * self.dice.choice([0.1, 0.5, 1, 1.2]))
        await worker.close()

    async def _closes(self, name: str) -> None:
        await self._gone(name, self.workers[name])

    async def _is_killed(self, name: str) -> None:
        """Its connection breaks, and it comes again, or another one."""
        worker = self.workers[name]
        worker.batched_stream.comm.abort()
        await self._gone(name, worker)

    async def _is_restarted(self, name: str) -> None:
        worker = self.workers[name]
        with suppress(Exception):  # without a nanny it is only closed
            await self.c.restart_workers([worker.address], timeout=1)
        await self._gone(name, worker)

    async def _is_forgotten(self, name: str) -> None:
        """The operator is gone: all that it has asked for ends by itself."""
        await ask(self.s, wire.CONFIGURE, lease_ms=self.dice.choice([1, 200]))
        await asyncio.sleep(0.1)
        await ask(self.s, wire.CONFIGURE, lease_ms=300_000)


#: Nothing is run twice for these.
HARMLESS = (
    "retires", "retires", "pod_ends", "is_pinned", "comes_to_its_quota",
    "nears_its_end", "pauses", "is_forgotten",
)  # fmt: skip
EVERYTHING = (
    *HARMLESS, "user_retires", "user_retires", "lives_out", "pod_ends_soon", "closes", "is_killed",
    "is_restarted",
)  # fmt: skip


@contextmanager
def nothing_breaks(known: Callable[[logging.LogRecord], bool]) -> Iterator[None]:
    """Fails if the agent logs an error, or distributed that its own states disagree."""
    seen: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            error = record.exc_info[1] if record.exc_info else None
            is_ours = record.name.startswith("dask_adaptive")
            if (is_ours or isinstance(error, BROKEN)) and not known(record):
                seen.append(f"{record.name}: {record.getMessage()}: {error!r}")

    listener = Listener(logging.ERROR)
    loggers = [logging.getLogger(name) for name in ("distributed", "dask_adaptive_agent")]
    for logger in loggers:
        logger.addHandler(listener)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(listener)
    assert not seen, "\n".join(seen[:5])
