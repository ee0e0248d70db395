"""
What a worker's pod runs before it ends (`preStop`): say so to the scheduler, and wait.

`python agent.zip leave --grace 300`. It runs inside the container of the worker, beside it, with
the same environment and the same Python. It ends, with 0, when nothing would be lost any more,
when nobody answers, or a moment before the grace period is over: a pod never waits for us longer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Iterator
from typing import Any, NamedTuple, TypeVar

from dask_adaptive_agent import wire
from dask_adaptive_agent.whoami import Identity, identify

T = TypeVar("T")

#: Of the grace period, kept for the end of the worker itself: at most so long, and this part.
RESERVE_S, RESERVE_PART = 5.0, 0.1

#: Between two questions: at first, and after this time.
ASK_S, ASK_LATER_S, LATER_S = 0.5, 1.0, 10.0
CONNECT_S = 3.0
#: Times that nobody listens at the scheduler's address until it counts as gone, and between two.
REFUSALS, REFUSED_S = 3, 2.0
#: A scheduler may be too busy to answer for a while: this part of the time, within these bounds.
SILENCE_PART, SHORTEST_SILENCE_S, LONGEST_SILENCE_S = 0.1, 8.0, 30.0

#: Interpreters wait for threads that look up names; this program does not, after so long.
EXIT_S = 2.0

REASON = "its pod ends"

POD_LOG = "/proc/1/fd/1"


class Unanswered(Exception):
    """The scheduler is not there, or there without an answer; says which."""


class Options(NamedTuple):
    grace_s: float
    shared_host: bool


def main(argv: list[str]) -> int:
    """Never raises. The process ends soon after it has returned, whatever still hangs."""
    started_at = time.monotonic()
    try:
        loop = asyncio.new_event_loop()
        options = _options(argv)
        # A program that is killed at the end of the grace period counts as a hook that failed.
        # With next to no grace it still says so before it ends.
        _ends_after(max(1.0, options.grace_s - _reserve_s(options.grace_s) / 2))
        who = identify(shared_host=options.shared_host)
        leaver = Leaver(who, options.grace_s, started_at)
        loop.run_until_complete(leaver.run())
        loop.run_until_complete(leaver.close())
    except (Exception, SystemExit) as error:
        # Fail open: the pod ends as it would without us.
        say(f"cannot hand over what this worker has: {error!r}")
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        _ends_after(EXIT_S)
    return 0


def _ends_after(seconds: float) -> None:
    """This process, with 0, whatever hangs."""
    watchdog = threading.Timer(seconds, os._exit, (0,))
    watchdog.daemon = True
    watchdog.start()


def _reserve_s(grace_s: float) -> float:
    """Kept for the end of the worker itself."""
    return min(RESERVE_S, RESERVE_PART * grace_s)


def _options(argv: list[str]) -> Options:
    parser = argparse.ArgumentParser("leave", description=__doc__, exit_on_error=False)
    parser.add_argument("command", choices=["leave"])
    parser.add_argument("--grace", type=float, default=30.0, help="seconds until the pod is killed")
    parser.add_argument(
        "--shared-host", action="store_true", help="other pods have the IPs of this one"
    )
    known, _ = parser.parse_known_args(argv)
    return Options(max(0.0, known.grace), known.shared_host)


def say(text: str) -> None:
    """To who ran this program, and to the log of the pod: what a hook prints is not kept."""
    line = f"dask-adaptive: {text}\n"
    with contextlib.suppress(OSError):
        sys.stdout.write(line)
        sys.stdout.flush()
    if not _is_in_pod():
        return  # process 1 is somebody else's
    with contextlib.suppress(OSError):
        ours, log = os.fstat(1), os.stat(POD_LOG)
        if (ours.st_dev, ours.st_ino) != (log.st_dev, log.st_ino):
            with os.fdopen(os.open(POD_LOG, os.O_WRONLY | os.O_NONBLOCK), "w") as out:
                out.write(line)


def _is_in_pod() -> bool:
    return "KUBERNETES_SERVICE_HOST" in os.environ


class Leaver:
    """Asks until it is told that nothing would be lost, or that nobody can help."""

    def __init__(self, who: Identity, grace_s: float, started_at: float) -> None:
        self._who = who
        self._started_at = started_at
        self._ends_at = started_at + grace_s - _reserve_s(grace_s)
        silence_s = min(LONGEST_SILENCE_S, SILENCE_PART * grace_s)
        self._patience_s = max(SHORTEST_SILENCE_S, silence_s)
        self._questions = list(_questions(who))
        self._said = ""
        self._is_known = False  # the scheduler has, or had, a worker of this pod
        self._link: Any = None

    async def run(self) -> None:
        if not self._who.scheduler:
            say("no scheduler's address is known here: nothing can be handed over")
            return
        refusals, heard_at = 0, time.monotonic()
        while self._left_s > 0:
            is_answered = False
            try:
                if await self._step():
                    return
                is_answered, refusals, heard_at = True, 0, time.monotonic()
            except ConnectionRefusedError:
                refusals += 1
            except Unanswered as error:
                self._say(str(error))
            if not is_answered and not self._who.is_connected():
                # Such a worker's own process soon ends, too, and this program with it: Kubernetes
                # would call that a hook that failed.
                say(f"no scheduler at {self._who.scheduler} has this worker: nothing to hand over")
                return
            if refusals >= REFUSALS or time.monotonic() - heard_at > self._patience_s:
                say(f"no scheduler at {self._who.scheduler}: there is nothing to hand over to")
                return
            is_early = time.monotonic() - self._started_at < LATER_S
            pause_s = REFUSED_S if refusals else ASK_S if is_early else ASK_LATER_S
            await asyncio.sleep(min(pause_s, max(0.0, self._left_s)))
        say("the time is up; what is still here is lost")

    async def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            with contextlib.suppress(Exception):
                await _within(link.close_rpc(), 1.0)

    @property
    def _left_s(self) -> float:
        return self._ends_at - time.monotonic()

    async def _step(self) -> bool:
        """Ask once; whether there is nothing more to wait for."""
        if not self._questions:
            say("the scheduler knows no worker of this pod")
            return True
        answer = await self._ask(
            wire.LEAVE,
            protocol=wire.PROTOCOL,
            left_ms=max(1, int(self._left_s * 1000)),
            reason=REASON,
            ending=True,
            **self._questions[0],
        )
        if not isinstance(answer, dict) or "outcomes" not in answer:
            await self._leave_stock()
            return True
        outcomes = answer["outcomes"]
        there = [one for one in outcomes if one["state"] != "gone"]
        if not there and not self._is_known:
            self._questions.pop(0)  # nobody by that description: there may be another one
            return False
        self._is_known = True
        self._say(_summary(there))
        if there and "hosts" not in self._questions[0]:
            # From now on by address: a new pod may come under the same name.
            self._questions = [{"names": [one["name"] for one in there]}]
        return all(one["state"] == wire.DRAINED for one in there)

    async def _leave_stock(self) -> None:
        """Without an agent: at least the data survives. Running tasks start again elsewhere."""
        identity = await self._ask("identity")
        workers = {
            address: str(row.get("name", ""))
            for address, row in identity.get("workers", {}).items()
        }
        mine = self._who.among(workers)
        self._say(
            f"this scheduler has no agent: it is asked to move the data of {len(mine)} workers"
        )
        if mine:
            await self._ask(
                "retire_workers",
                timeout_s=self._left_s,
                workers=mine,
                close_workers=False,
                remove=True,
            )
            self._say("the data has been moved")

    async def _ask(self, message: str, *, timeout_s: float = CONNECT_S * 2, **request: Any) -> Any:
        """One message; raises `Unanswered`, or `ConnectionRefusedError` when nobody listens."""
        from distributed.core import rpc

        if self._link is None:
            await self._knock()
            args = self._who.connection_args()
            connect: Any = rpc
            self._link = connect(self._who.scheduler, timeout=CONNECT_S, connection_args=args)
        try:
            return await _within(getattr(self._link, message)(**request), timeout_s)
        except (OSError, asyncio.TimeoutError) as error:
            await self.close()
            await self._knock()
            raise Unanswered(f"the scheduler does not answer ({error!r:.200})") from error

    async def _knock(self) -> None:
        """Whether anybody listens at all: `connect` of distributed retries and does not say."""
        from distributed.comm.addressing import parse_host_port

        host, port = parse_host_port(self._who.scheduler.split("://")[-1].rstrip("/"))
        try:
            _, writer = await _within(asyncio.open_connection(host, port), CONNECT_S)
        except asyncio.TimeoutError:
            return
        except OSError as error:
            if isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN:
                return  # while a node is drained, the name server may just be moving as well
            raise ConnectionRefusedError(str(error)) from error
        writer.close()

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            say(text)


def _questions(who: Identity) -> Iterator[dict[str, Any]]:
    """By whom to ask, the surest first: an IP is this pod's alone, a name is passed on."""
    if who.hosts:
        yield {"hosts": who.hosts}
    if who.names:
        yield {"names": who.names}


def _summary(outcomes: list[dict[str, Any]]) -> str:
    if not outcomes:
        return "the scheduler has let this worker go"
    return "; ".join(sorted({f"{one['state']}: {one['message']}" for one in outcomes}))


async def _within(work: Awaitable[T], timeout_s: float) -> T:
    return await asyncio.wait_for(work, timeout_s)
