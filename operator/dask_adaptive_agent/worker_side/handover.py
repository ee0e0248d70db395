"""
A worker's own process hands over when SIGTERM comes: a handler over that of `dask worker` has the
scheduler's agent drain the worker, and then goes on with what was there.

The text of this very module is sent to workers and nannies (see `worker_plugin`), so it imports
what they have anyway, and nothing of the package. It wraps nothing of distributed. Fails open:
without it, SIGTERM ends the process as in stock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from distributed.core import Status

logger = logging.getLogger("distributed.dask_adaptive")

#: Seconds from SIGTERM until SIGKILL, where somebody knows. Else the operator says so to the agent,
#: or the agent assumes what Kubernetes gives.
GRACE = "DASK_ADAPTIVE_GRACE_S"
#: Of these, kept for the end of the process itself: at most this time and this part.
RESERVE_S, RESERVE_PART = 5.0, 0.1

#: Asks to hand over as SIGTERM does, and is ignored by processes without a handler. The `preStop`
#: hook sends it where process 1 passes no SIGTERM on; it waits until no process handles it.
BELL: Any = getattr(signal, "SIGURG", None)
#: How long a process that has handed over waits for SIGTERM, or for its nanny to end it.
LINGER_S = 5.0

#: Between two questions, until an answer, and until a silent scheduler counts as gone.
ASK_S, ANSWER_S, PATIENCE_S = 0.5, 2.0, 8.0
#: Until a nanny has a worker, which gets no task then.
STARTING_S = 30.0

#: Where the handlers are defined that `dask worker` and `dask cuda worker` (before 2025) install.
STOCK = ("distributed._signals", "distributed.cli.utils")

OVER = (Status.closing, Status.closed, Status.failed)


class Handover:
    """
    The handler of SIGTERM: one a process, for all workers or nannies in it.

    `loop`, `began_at`, `add` and `remove` are what another version of this relies on.
    """

    def __init__(self, stock: Any) -> None:
        self.loop = asyncio.get_running_loop()
        self.began_at: float | None = None
        self._pid = os.getpid()
        self._stock: Any = stock  # a function, or SIG_DFL in a nanny's child
        self._servers: list[Any] = []
        self._must_end = self._is_done = self._is_over = False

    def add(self, server: Any) -> None:
        if server not in self._servers:  # Nanny.plugin_add replaces without a teardown
            self._servers.append(server)
        signal.signal(signal.SIGTERM, self)
        if callable(self._stock):
            signal.signal(BELL, self)

    def remove(self, server: Any) -> None:
        if server in self._servers:
            self._servers.remove(server)
        if not self._servers and self.began_at is None:
            signal.signal(BELL, signal.SIG_DFL)
            there: Any = signal.getsignal(signal.SIGTERM)
            if there is self:
                signal.signal(signal.SIGTERM, self._stock)

    def __call__(self, signum: int, frame: Any) -> None:
        # Between any two instructions: neither locks nor logs.
        is_term, is_again = signum == signal.SIGTERM, self._must_end
        self._must_end = is_again or is_term
        if self._is_for_nobody() or (is_term and (is_again or self._is_done)):
            self._go_on()
        elif self.began_at is None:
            self.began_at = time.monotonic()
            self.loop.call_soon_threadsafe(self._start)

    def _is_for_nobody(self) -> bool:
        """
        In a process that a task has forked, or whose loop is closed. And in a nanny's child, unless
        that hands over: `tini -g` sends SIGTERM to both, and the child must not die first.
        """
        if self.loop.is_closed() or os.getpid() != self._pid:
            return True
        return not callable(self._stock) and not _parent_catches(BELL)

    def _start(self) -> None:
        self._task = self.loop.create_task(self._run())

    async def _run(self) -> None:
        is_child = not callable(self._stock)
        try:
            if is_child:  # its nanny asks for both, or kills it soon for its memory, as a failure
                await asyncio.sleep(LINGER_S)
            logger.info("Asked to end: handing over tasks and results first")
            ends_at = self._ends_at()
            asked = [hand_over(server, ends_at) for server in self._servers]
            for why in await asyncio.gather(*asked, return_exceptions=True):
                logger.info("Closing: %s", why)
        except Exception:
            logger.exception("Failed to hand over")
        signal.signal(BELL, signal.SIG_DFL)
        self._is_done = True
        if is_child or not self._must_end:
            await asyncio.sleep(LINGER_S)
        self._go_on()

    def _ends_at(self) -> float:
        grace_s = float(os.environ.get(GRACE) or math.inf)
        return (self.began_at or 0.0) + grace_s - min(RESERVE_S, RESERVE_PART * grace_s)

    def _go_on(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        if callable(self._stock):
            self._stock(signal.SIGTERM, None)
        else:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)


def begin(server: Any) -> Callable[[], None] | None:
    """Have a worker or nanny hand over, where it is a process's own; returns what undoes it."""
    if BELL is None or threading.current_thread() is not threading.main_thread():
        return None  # Windows; or a cluster inside of somebody's program
    there: Any = signal.getsignal(signal.SIGTERM)
    if getattr(there, "loop", None) is asyncio.get_running_loop() and there.began_at is None:
        handover = there  # of another nanny in this process
    elif getattr(there, "__module__", "") in STOCK or _is_nannys(server, there):
        handover = Handover(there)
    else:
        return None
    handover.add(server)
    return lambda: handover.remove(server)


def _is_nannys(server: Any, there: Any) -> bool:
    """
    Tells whether this is the child of a nanny of `dask worker`.

    One of a LocalCluster is left alone: Python waits for it when the user's program ends.
    """
    is_stock = there == signal.SIG_DFL and not _is_nanny(server)
    return is_stock and _parent_catches(signal.SIGTERM)


def _parent_catches(signum: int) -> bool:
    parent = multiprocessing.parent_process()
    with contextlib.suppress(OSError, StopIteration):
        if parent is not None:
            with open(f"/proc/{parent.pid}/status") as status:
                caught = next(line.split()[1] for line in status if line.startswith("SigCgt:"))
            return bool(int(caught, 16) >> (signum - 1) & 1)
    return False


async def hand_over(server: Any, ends_at: float) -> str:
    """Ask until nothing would be lost, or nobody can help; returns why it ends."""
    began_at = heard_at = time.monotonic()
    while (now := time.monotonic()) < ends_at:
        if server.status in OVER:
            return "it is closing already"
        if address := _address_of(server):
            try:
                if why := await _ask(server.scheduler, address, ends_at - now):
                    return why
                heard_at = time.monotonic()
            except (OSError, asyncio.TimeoutError) as error:
                if time.monotonic() - heard_at > PATIENCE_S:
                    return f"the scheduler does not answer ({error!r})"
        elif now - began_at > STARTING_S:
            return "there is no worker"
        await asyncio.sleep(ASK_S)
    return "the time is up"


async def _ask(scheduler: Any, address: str, left_s: float) -> str:
    """Return why there is nothing to wait for; empty: wait on."""
    left = {"left_ms": max(1, int(left_s * 1000))} if left_s < math.inf else {}
    reason = "its process ends"
    ask = scheduler.adaptive_leave(protocol=1, names=[address], reason=reason, **left)
    answer = await asyncio.wait_for(ask, ANSWER_S)
    if not isinstance(answer, dict) or "outcomes" not in answer:
        return "this scheduler has no agent"
    (outcome,) = answer["outcomes"]
    is_left = outcome["state"] in ("drained", "gone")
    return f"{outcome['state']}: {outcome['message']}" if is_left else ""


def _is_nanny(server: Any) -> bool:
    return hasattr(server, "process")


def _address_of(server: Any) -> str:
    """Of the worker; empty while its process starts."""
    if not _is_nanny(server):
        return str(server.address)
    process: Any = server.process
    is_up = process is not None and process.status == Status.running
    return str(process.worker_address) if is_up else ""
