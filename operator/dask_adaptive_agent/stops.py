"""
Workers that are stopped: they have come to a limit, and get no more tasks.

What they have they run to the end, and they keep their data: whether one is replaced is for the
operator to decide. A stop only keeps a worker from going far beyond its limit until then.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from distributed.core import Status

from dask_adaptive_agent import wire
from dask_adaptive_agent.assigned import Assigned
from dask_adaptive_agent.failures import Failures, Record
from dask_adaptive_agent.gate import LONGEST_LOOK_S, SHORTEST_LOOK_S, Gate, cancel_other
from dask_adaptive_agent.limits import NEVER, Limits
from dask_adaptive_agent.words import duration, plural

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, WorkerState

    from dask_adaptive_agent.roster import Entry

logger = logging.getLogger(__name__)

#: The most pressing first: who comes first when not all may be stopped.
ORDER = (wire.S_PATTERN, wire.S_FAILURES, wire.S_TASKS)

#: A worker with another status is on its way out, or not there yet.
IN_SERVICE = (Status.running, Status.paused)


class Why(NamedTuple):
    """At which limit a worker is: one of `wire.S_*`, and a sentence."""

    kind: str
    message: str


class Stop(NamedTuple):
    """One worker that is stopped."""

    gate: Gate
    why: Why
    since: float


class Stops:
    """
    Every worker that is stopped, by address.

    Args:
        scheduler: Whose workers they are.
        entries: The roster's, by address.
        limits: As the operator said last.
        is_pinned: Whether a worker must not be stopped. Answers yes when that can't be known.
        is_leaving: Whether an address is on its way out by our own doing, or with our help.
        lease_s: So long after the last question nobody is stopped any more.
        tell: Makes a note: kind, message, names of workers.
        clock: Seconds that never go backwards.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        entries: dict[str, Entry],
        limits: Limits,
        *,
        is_pinned: Callable[[WorkerState], bool],
        is_leaving: Callable[[str], bool],
        lease_s: Callable[[], float],
        tell: Callable[[str, str, Sequence[str]], None],
        clock: Callable[[], float],
    ) -> None:
        self.limits = limits
        self.failures = Failures(clock, lambda: len(scheduler.workers))
        self.assigned = Assigned(scheduler, entries, self.reached)
        self.ongoing: dict[str, Stop] = {}
        self._scheduler = scheduler
        self._entries = entries
        self._is_pinned = is_pinned
        self._is_leaving = is_leaving
        self._lease_s = lease_s
        self._tell = tell
        self._clock = clock
        self._asked_at = -math.inf
        #: Stopped since the last request, out of service ever since, and no longer in our hands:
        #: they still count, or more workers would be missing than the operator has allowed.
        self._taken: set[str] = set()
        self._told: set[tuple[int, str]] = set()  # (slot, kind) that there was a note of
        self._applied = (-1, -1)  # which limits, up to which slot
        self._is_closed = False
        self._task: asyncio.Future[None] | None = None

    def told(self) -> list[str]:
        """The limits are new; returns the names of those that are stopped now."""
        self._taken.clear()
        self.review()
        return [str(stop.gate.ws.name) for stop in self.ongoing.values()]

    def review(self) -> None:
        """Somebody is still interested: renew the lease, and be up to date."""
        self._asked_at = self._clock()
        self._apply()
        if not self.limits.is_empty or self.ongoing:
            self._look()
            self._begin(self._candidates())

    def reached(self, entry: Entry) -> None:
        """A worker may have come to a limit. Never raises: this is called in transitions."""
        try:
            self._stop(entry)
        except Exception:
            # Fail open: it goes on with its tasks, as it would without us.
            logger.exception("Cannot stop worker %s", entry.ws.address)

    def failed(self, entry: Entry, report: dict[str, Any]) -> None:
        """A run has raised; the scheduler has not heard of it yet. Never raises."""
        try:
            self._count_failure(entry, report)
            if self._why_failed(entry) is not None:
                self._stop(entry)
        except Exception:
            logger.exception("Cannot count a failure of worker %s", entry.ws.address)

    def n_failures(self, entry: Entry) -> int:
        """Within the window of the worker, less those that are not its fault."""
        if entry.record is None:
            return 0
        window_s = self.limits.of_worker(entry.ws).profile.window_s
        return entry.record.within(window_s, self._clock())

    def hand_over(self, address: str) -> Gate | None:
        """End the stop of a worker, if any, and leave it out of service: somebody else goes on."""
        stop = self.ongoing.pop(address, None)
        if stop is None:
            return None
        self._taken.add(address)
        return stop.gate

    def take_back(self, gate: Gate) -> None:
        """Open a gate that was somebody else's, unless its worker is at a limit: then stop it."""
        try:
            entry = self._entries.get(gate.ws.address)
            if entry is not None and entry.ws is gate.ws and self._stop(entry, gate):
                return
        except Exception:
            logger.exception("Cannot stop worker %s", gate.ws.address)
        gate.open()

    def gate_of(self, address: str) -> Gate | None:
        stop = self.ongoing.get(address)
        return None if stop is None else stop.gate

    def message_of(self, address: str) -> str:
        stop = self.ongoing.get(address)
        return "" if stop is None else stop.why.message

    def worker_joined(self, address: str) -> None:
        entry = self._entries.get(address)
        if entry is not None:
            self._apply_to(entry)

    def worker_left(self, address: str) -> None:
        entry = self._entries.get(address)
        if entry is not None:
            self._told -= {(entry.slot, kind) for kind in ORDER}
            if entry.record is not None:
                self.failures.forget(entry.record)
        if self.ongoing.pop(address, None) is not None:
            self._taken.add(address)

    def close(self, *, is_closing: bool = False) -> None:
        """Stop nobody any more; all back to service unless the scheduler itself closes."""
        self._is_closed = True
        self.assigned.uninstall()
        cancel_other(self._task)
        stops, self.ongoing = self.ongoing, {}
        for stop in stops.values():
            if not is_closing:
                stop.gate.open()

    def _apply(self) -> None:
        """Write the limits to the workers, if either has changed."""
        # Slots ascend, and none is used twice: the last one changes with every worker that joins.
        latest = next((entry.slot for entry in reversed(self._entries.values())), -1)
        applied = (self.limits.generation, latest)
        if applied != self._applied:
            self._applied = applied
            self.failures.keep_for([profile.window_s for profile in self.limits.profiles])
            for entry in self._entries.values():
                self._apply_to(entry)
        if self.limits.are_exact:
            self.assigned.install()
        else:
            self.assigned.uninstall()

    def _apply_to(self, entry: Entry) -> None:
        limit = self.limits.of_worker(entry.ws)
        entry.stop_at = limit.runs
        entry.exact_at = limit.runs if limit.profile.exact else NEVER

    def _candidates(self) -> list[Entry]:
        """Workers at a limit that are not stopped, the most pressing first."""
        near = [e for e in self._entries.values() if e.runs >= e.stop_at or e.record is not None]
        if self.limits.are_exact:
            near += self.assigned.near()
        at_limit = []
        for entry in near:
            why = self._why(entry)
            if why is not None and entry.ws.address not in self.ongoing:
                at_limit.append((ORDER.index(why.kind), -entry.runs, entry.slot, entry))
        return [entry for *_, entry in sorted(at_limit, key=lambda row: row[:3])]

    def _begin(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if not self._has_room():
                return
            self.reached(entry)

    def _has_room(self, address: str = "") -> bool:
        out = self.ongoing.keys() | self._taken
        return address in out or len(out) < self.limits.stops

    def _is_silent(self) -> bool:
        return self._clock() - self._asked_at > self._lease_s()

    def _stop(self, entry: Entry, gate: Gate | None = None) -> bool:
        """
        Stop a worker if it is at a limit and may be stopped; whether it is stopped now.

        Args:
            entry: Of the worker.
            gate: Through which somebody else has taken it out of service, and is done.
        """
        ws = entry.ws
        if ws.address in self.ongoing:
            return True
        if self._is_closed or not self._has_room(ws.address) or self._is_silent():
            return False
        why = self._why(entry)
        if why is None or self._is_pinned(ws):
            return False
        if gate is None:
            if ws.status not in IN_SERVICE or self._is_leaving(ws.address):
                return False
            gate = Gate(self._scheduler, ws, self._clock)
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._watch())
        self.ongoing[ws.address] = Stop(gate, why, self._clock())
        gate.thaw()
        gate.shut()
        self._say(entry, why)
        return True

    def _say(self, entry: Entry, why: Why) -> None:
        logger.info("Worker %s gets no more tasks: %s", entry.ws.name, why.message)
        # Coming to the end of its runs is ordinary, and would flood.
        if why.kind != wire.S_TASKS and (entry.slot, why.kind) not in self._told:
            self._told.add((entry.slot, why.kind))
            message = f"{entry.ws.name} gets no more tasks: {why.message}"
            self._tell(wire.N_QUOTA_REACHED, message, [str(entry.ws.name)])

    def _why(self, entry: Entry) -> Why | None:
        return self._why_failed(entry) or self._why_ran(entry)

    def _why_failed(self, entry: Entry) -> Why | None:
        record = entry.record
        if record is None:
            return None
        profile = self.limits.of_worker(entry.ws).profile
        patterns = {one.pattern for one in profile.patterns}
        for match in record.matched:
            if match.pattern in patterns:
                return Why(wire.S_PATTERN, f"a failure matches {match.pattern!r}: {match.text}")
        if profile.failures:
            count = record.within(profile.window_s, self._clock())
            if count >= profile.failures:
                within = f"within {duration(profile.window_s)}"
                return Why(wire.S_FAILURES, f"{plural(count, 'failure')} {within}")
        return None

    def _why_ran(self, entry: Entry) -> Why | None:
        if entry.exact_at != NEVER:
            given = self.assigned.given(entry)
            if given >= entry.exact_at:
                return Why(wire.S_TASKS, f"was given {given} of {entry.exact_at} runs")
        elif entry.runs >= entry.stop_at:
            return Why(wire.S_TASKS, f"has made {entry.runs} of {entry.stop_at} runs")
        return None

    def _count_failure(self, entry: Entry, report: dict[str, Any]) -> None:
        text = str(report.get("exception_text") or "")
        key = report.get("key")
        ts: Any = self._scheduler.tasks.get(key)  # type: ignore[arg-type]
        if entry.record is None:
            entry.record = Record()
        self.failures.add(
            entry.record,
            key=key,
            prefix=str(ts.prefix.name) if ts is not None and ts.prefix is not None else str(key),
            text=text,
            pattern=self.limits.of_worker(entry.ws).profile.match(text),
        )

    def _look(self) -> None:
        """Bring back who is not to be stopped any more; give the others what is bound to them."""
        is_over = self._is_silent()
        if is_over and self.ongoing:
            logger.info("Nobody asked for %.0f s: no worker is stopped any more", self._lease_s())
        for address, stop in list(self.ongoing.items()):
            ws, entry = stop.gate.ws, self._entries.get(address)
            if self._scheduler.workers.get(address) is not ws or entry is None:
                self.worker_left(address)
            elif is_over or self._is_pinned(ws) or self._why(entry) is None:
                self._release(address)
            else:
                stop.gate.admit()
        self._release_surplus()
        for address in list(self._taken):
            taken = self._scheduler.workers.get(address)
            if taken in self._scheduler.running and not self._is_leaving(address):
                self._taken.discard(address)

    def _release_surplus(self) -> None:
        surplus = len(self.ongoing) - self.limits.stops
        if surplus <= 0:
            return
        order = sorted(
            self.ongoing,
            key=lambda a: (ORDER.index(self.ongoing[a].why.kind), self.ongoing[a].since, a),
        )
        for address in order[-surplus:]:
            self._release(address)

    def _release(self, address: str) -> None:
        # First out of the books: the scheduler gives it tasks at once, and it may be stopped again.
        stop = self.ongoing.pop(address)
        stop.gate.open()

    async def _watch(self) -> None:
        while self.ongoing:
            work = (1 + len(self._scheduler.unrunnable)) * len(self.ongoing)
            await asyncio.sleep(min(LONGEST_LOOK_S, max(SHORTEST_LOOK_S, work / 10_000)))
            try:
                self._look()
            except Exception:
                # Fail open: nobody stays out of service because of an error of ours.
                logger.exception("Cannot see to the workers that are stopped; back to service")
                for address in list(self.ongoing):
                    self._release(address)
