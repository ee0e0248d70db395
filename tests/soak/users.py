"""People who compute graph after graph, keep some results, and know what is right."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import time
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from distributed import Client

from soak.graphs import BY_VALUE, PLAIN, SHUFFLE, Graph, draw
from soak.journal import Journal, Spoiled

#: No graph takes longer, whatever happens to the cluster meanwhile.
PATIENCE_S = 420.0

#: Upstream's barrier may fail on a participant that is killed at that moment.
GIVEN_UP = re.compile("failed during barrier phase|P2PIllegalState|left during shuffle")
SCHEDULER_KILLED = "the scheduler was killed: its graphs were submitted again"
BARRIER = "a worker was killed while a P2P shuffle's barrier spoke to it: upstream gives it up"


@dataclass
class Life:
    """One scheduler, from its start until it is killed."""

    client: Any
    scheduler: str  # its id
    since: float = field(default_factory=time.time)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def within(self, call: Awaitable[Any]) -> Any:
        """The call's result. Raises `ConnectionError` when the scheduler is killed meanwhile."""
        asking = asyncio.ensure_future(call)
        ending = asyncio.ensure_future(self.over.wait())
        try:
            await asyncio.wait(
                [asking, ending], timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED
            )
            if self.over.is_set():
                raise ConnectionError("the scheduler has been killed")
            if not asking.done():
                raise TimeoutError(f"no answer within {PATIENCE_S:.0f} s")
            return asking.result()
        finally:
            for one in (asking, ending):
                one.cancel()
            await asyncio.gather(asking, ending, return_exceptions=True)


class Lives:
    """The scheduler at one address, and those that come after it."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._life: Life | None = None
        self._is_there = asyncio.Event()

    async def now(self) -> Life:
        await asyncio.wait_for(self._is_there.wait(), PATIENCE_S)
        assert self._life is not None
        return self._life

    @property
    def current(self) -> Life | None:
        return self._life if self._is_there.is_set() else None

    async def end(self) -> None:
        """Say that the scheduler is about to be killed."""
        self._is_there.clear()
        if self._life is not None:
            self._life.over.set()
            with suppress(Exception):
                await asyncio.wait_for(self._life.client.close(), 10)

    async def begin(self, *, another: bool = True) -> None:
        """Wait until a scheduler answers, that is not the one before."""
        before = self._life.scheduler if self._life and another else ""
        while True:
            with suppress(OSError, asyncio.TimeoutError):
                make: Any = Client
                client = await make(self._address, asynchronous=True, timeout="5s")
                found = (await client.scheduler.identity())["id"]
                if found != before:
                    break
                await client.close()
            await asyncio.sleep(0.5)
        self._life = Life(client, found)
        self._is_there.set()


class Users:
    """Compute rounds of graphs until `end`; some futures are kept, and looked at again later."""

    def __init__(self, journal: Journal, lives: Lives, dice: random.Random, *, end: float) -> None:
        self._journal, self._lives, self._dice, self._end = journal, lives, dice, end
        self._numbers = itertools.count(1)
        self._keeping: list[asyncio.Task[None]] = []

    async def run(self, seats: int) -> None:
        """Raises `Spoiled` when a result is lost or wrong."""
        await asyncio.gather(*(self._sit() for _ in range(seats)))
        await asyncio.gather(*self._keeping)

    async def _sit(self) -> None:
        dice = self._dice
        while time.time() < self._end and not self._journal.problems:
            kind = dice.choice([PLAIN, PLAIN, BY_VALUE, SHUFFLE])
            submitted = _Submitted(draw(dice, next(self._numbers), kind), self._journal)
            await submitted.verify(self._lives)
            self._journal.rounds += 1
            if dice.random() < 0.4:
                rest_s = dice.choice([10, 30, 60])
                self._keeping.append(asyncio.ensure_future(self._keep(submitted, rest_s)))
            await asyncio.sleep(dice.choice([0, 0, 2, 15]))

    async def _keep(self, submitted: _Submitted, rest_s: float) -> None:
        """Hold the results for a while: they have to move along when workers leave."""
        await asyncio.sleep(rest_s)
        await submitted.verify(self._lives)
        self._journal.kept += 1


class _Submitted:
    """A graph, submitted as often as schedulers are killed that have it."""

    def __init__(self, graph: Graph, journal: Journal) -> None:
        self._graph, self._journal = graph, journal
        self._attempt = 0
        self._life: Life | None = None
        self._futures: list[Any] = []
        journal.shapes[graph.round] = graph.shape

    async def verify(self, lives: Lives) -> None:
        """Get all results and compare them. Raises `Spoiled` if one is lost or wrong."""
        while True:
            life = await lives.now()
            try:
                if life is not self._life:
                    self._submit(life)
                results = await life.within(life.client.gather(self._futures))
            except Exception as exc:
                self._submit_again_or_raise(life, exc)
                continue
            self._compare(results)
            return

    def _submit(self, life: Life) -> None:
        if self._attempt:
            self._journal.again.setdefault((self._graph.round, self._attempt + 1), SCHEDULER_KILLED)
        self._attempt += 1
        self._life = life
        self._futures = self._graph.start(life.client, self._attempt)

    def _submit_again_or_raise(self, life: Life, error: Exception) -> None:
        """The next attempt's cause, if this one ended by a fault."""
        self._life = None  # what is submitted again gets a new attempt
        if life.over.is_set():
            return
        killed = any(fault.cause and fault.began > life.since for fault in self._journal.faults)
        if self._graph.shape.needs is None and killed and GIVEN_UP.search(str(error)):
            self._journal.again[self._graph.round, self._attempt + 1] = BARRIER
            return
        self._journal.lost += 1
        what = f"round {self._graph.round} ({self._graph.shape.kind}), attempt {self._attempt}"
        self._journal.problem(f"{what} is lost: {error!r}")
        raise Spoiled(what)

    def _compare(self, results: list[Any]) -> None:
        expected = self._graph.expected
        self._journal.results += len(expected)
        wrong = sum(a != b for a, b in zip(expected, results, strict=True))
        if wrong:
            self._journal.wrong += wrong
            self._journal.problem(f"round {self._graph.round}: {wrong} results are wrong")
            raise Spoiled
