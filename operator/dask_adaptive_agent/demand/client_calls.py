"""Clients that need workers and have no task: they send data, or wait for workers."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from functools import wraps
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from distributed.core import Status

from dask_adaptive_agent import patching, wire
from dask_adaptive_agent.component import Component, Context
from dask_adaptive_agent.patching import Call, Patches

#: A client that was told of workers sends them data for at most so many seconds: it reports the end
#: of it, unless it dies.
DIRECT_S = 120.0

#: Who waits asks ten times a second on one connection. Clients look every 2 s by themselves, and
#: loops of people every half a second or less often. A wait for workers counts after `WAITS_S`: a
#: client that connects asks a few times in a row.
POLL_S, WAITS_S = 0.5, 2.0

#: Nobody is believed to wait when no worker has come, or was on its way, for `FRUITLESS_S`: it may
#: be somebody who looks as often. It is another wait when there was none for `QUIET_S`.
FRUITLESS_S, QUIET_S = 300.0, 10.0

#: Nobody is believed to send data for longer.
LONGEST_S = 3600.0

#: A message of more bytes than this is data, or a graph with data in it.
LARGE = 1_000_000


class _Wait(NamedTuple):
    since: float
    last: float  # infinite: the call goes on
    is_upload: bool  # or `Client.wait_for_workers`


class ClientCalls(Component):
    """Notes requests of clients in the scheduler's handlers. Changes no answer."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        #: By the task that serves a connection, and ends with it.
        self._waits: WeakKeyDictionary[Any, _Wait] = WeakKeyDictionary()
        #: Until when clients send data to workers themselves, at most.
        self._direct: deque[float] = deque(maxlen=100)
        self.is_sending = False  # a client sends data to workers, or to the scheduler for them
        self._since = math.inf
        #: When somebody waited for workers last, when a worker had come or was on its way, and how
        #: many ran at a time.
        self._waited_at, self._grew_at, self._most = -math.inf, 0.0, 0

    def install(self, patches: Patches) -> None:
        patches.put(patching.SCATTER_RPC, self._scattering)
        patches.listen(patching.NCORES_RUNNING_RPC, self._polled)
        patches.listen(patching.UPDATE_DATA_RPC, self._sent)
        patches.listen(patching.IDENTITY_POLLS, self._looked)

    def look(self) -> None:
        """While data are sent to workers, and when they have come, no worker is idle."""
        now = self.clock()
        was_sending = self.is_sending
        self._since = min(self._since, now) if self._sends(now) else math.inf
        # A client that was suspended in the middle of a message may never send the rest.
        self.is_sending = self._since <= now < self._since + LONGEST_S
        if self.is_sending or was_sending:
            for entry in self.context.roster.entries.values():
                entry.active_at = now

    def _sends(self, now: float) -> bool:
        if self.context.lease.silent_s == math.inf:
            return False
        connections = list(self.scheduler._comms.items())
        return (
            any([until > now for until in self._direct])
            or any([wait.last == math.inf for wait in self._waits.values()])
            # Connections of workers are many, and bring no data.
            or any([_expects(c) > LARGE for c, op in connections if op != "register-worker"])
        )

    def rows(self) -> list[wire.WantRow]:
        """
        The workers that are waited for.

        For an upload it is one. Who waits for more does not say how many: it is twice as many as
        run until the polls end, so `n` of them take log2(n) starts.
        """
        if not self._waits:
            return []
        now, running, scheduler = self.clock(), len(self.scheduler.running), self.scheduler
        # Whoever polls while there are tasks may watch these, and they say how many are needed.
        has_tasks = scheduler.queued or scheduler.unrunnable
        has_tasks = has_tasks or any([ws.processing for ws in scheduler.workers.values()])
        waits_s = math.inf if has_tasks else WAITS_S
        ends = [
            wait.since + LONGEST_S if wait.is_upload else self._fruitless_at(now)
            for wait in self._waits.values()
            if now - wait.last < POLL_S
            and (not running if wait.is_upload else wait.last - wait.since > waits_s)
        ]
        if not ends or max(ends) <= now:
            return []
        paused = sum([ws.status == Status.paused for ws in scheduler.workers.values()])
        return [
            {
                "workers": max(1, 2 * running) + paused,
                "left_ms": int((max(ends) - now) * 1000) + 1,
                "owner": "in scatter or wait_for_workers",
                "group": "",
            }
        ]

    def _fruitless_at(self, now: float) -> float:
        """
        When the wait for workers is not believed any longer.

        A client polls over several connections, so it is one wait, whoever waits.
        """
        running = len(self.scheduler.running)
        if now - self._waited_at > QUIET_S:
            self._grew_at, self._most = now, 0
        self._waited_at = now
        if now - self._grew_at < FRUITLESS_S and (
            running > self._most or self.context.plans.arriving
        ):
            self._grew_at, self._most = now, max(running, self._most)
        return self._grew_at + FRUITLESS_S

    def _scattering(self, stock: Call) -> Call:
        @wraps(stock)
        async def scatter(*args: Any, **kwargs: Any) -> Any:
            connection = asyncio.current_task()
            self._waits[connection] = _Wait(self.clock(), math.inf, is_upload=True)
            try:
                return await stock(*args, **kwargs)
            finally:
                self._waits.pop(connection, None)

        return scatter

    def _polled(self, _: dict[str, Any]) -> None:
        """`Client.scatter(direct=True)` asks until there is a worker, and sends data then."""
        if self.scheduler.running:
            self._direct.append(self.clock() + DIRECT_S)
        else:
            self._note(is_upload=True)

    def _looked(self, request: dict[str, Any]) -> None:
        # Since 2025.4.1 only who waits asks for all workers; `Client.scheduler_info` for five.
        if request.get("n_workers", -1) == -1:
            self._note(is_upload=False)

    def _sent(self, _: dict[str, Any]) -> None:
        """A client has sent its data. Nothing tells whose they are, so of several one is done."""
        if self._direct:
            self._direct.popleft()

    def _note(self, *, is_upload: bool) -> None:
        now, connection = self.clock(), asyncio.current_task()
        known = self._waits.get(connection)
        if known is None or known.is_upload is not is_upload or now - known.last > POLL_S:
            known = _Wait(now, now, is_upload)
        self._waits[connection] = known._replace(last=now)


def _expects(comm: Any) -> int:
    """Bytes of the message that is on its way in, as tornado knows them; 0 where it does not."""
    return getattr(getattr(comm, "stream", None), "_read_bytes", None) or 0
