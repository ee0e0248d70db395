"""
Workers that are cordoned: they have come to a limit, or are short of time, and get no more tasks.

What they have begun they run to the end, and they keep their data: whether one is replaced is for
the operator to decide. A cordon only keeps a worker from going far beyond its limit until then.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from distributed.core import Status

from dask_adaptive_agent import wire
from dask_adaptive_agent.assigned import Assigned
from dask_adaptive_agent.deadlines import LOOK_S, SEARCH_S, Deadlines
from dask_adaptive_agent.durations import Durations
from dask_adaptive_agent.failures import Failures, Record
from dask_adaptive_agent.gate import LONGEST_LOOK_S, SHORTEST_LOOK_S, Gate
from dask_adaptive_agent.limits import NEVER, PASSED, Limits
from dask_adaptive_agent.moving import Mover
from dask_adaptive_agent.words import duration, plural

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, WorkerState

    from dask_adaptive_agent.operator_lease import OperatorLease
    from dask_adaptive_agent.roster import Entry

logger = logging.getLogger(__name__)

#: The most pressing first: who comes first when not all may be stopped.
ORDER = (wire.S_PATTERN, wire.S_FAILURES, wire.S_TASKS)

#: Of a worker that is short of time. Not on the wire: those are `Meters.too_short`.
SHORT = "short"

#: Of those that are cordoned so many are seen to in one look.
AT_ONCE = 100

#: One look cordons workers that are short of time for no longer than this, in seconds, and goes on
#: with the next ones so much later: they are given tasks meanwhile.
BEGIN_S, NEXT_S = 0.003, 0.01

#: One look begins to ask workers for their tasks for no longer than this, in seconds.
MOVE_S = 0.002

#: A worker with another status is on its way out.
IN_SERVICE = (Status.init, Status.running, Status.paused)


class Why(NamedTuple):
    """At which limit a worker is: `SHORT`, or one of `wire.S_*`; and a sentence."""

    kind: str
    message: str
    is_bounded: bool = True  # no more than `LimitRequest.stops` at once
    is_exact: bool = False  # whatever pins the worker, and whatever is bound to it


class Cordon(NamedTuple):
    """One worker that is cordoned."""

    gate: Gate
    why: Why
    since: float
    mover: Mover


class Cordons:
    """
    Every worker that is cordoned, by address.

    Args:
        scheduler: Whose workers they are.
        entries: The roster's, by address.
        limits: As the operator said last.
        lease: Of what it has said.
        is_pinned: Whether a worker must not be cordoned. Answers yes when that can't be known.
        is_leaving: Whether an address is on its way out by our own doing, or with our help.
        in_shuffle: Whether an address takes part in a P2P shuffle.
        are_arriving: Whether workers are on their way.
        expect_gates: Has what workers say of their own status heard, from the first cordon on.
        tell: Makes a note: kind, message, names of workers.
        clock: Seconds that never go backwards.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        entries: dict[str, Entry],
        limits: Limits,
        lease: OperatorLease,
        *,
        is_pinned: Callable[[WorkerState], bool],
        is_leaving: Callable[[str], bool],
        in_shuffle: Callable[[str], bool],
        are_arriving: Callable[[], bool],
        expect_gates: Callable[[], None],
        tell: Callable[[str, str, Sequence[str]], None],
        clock: Callable[[], float],
    ) -> None:
        self.limits = limits
        self.failures = Failures(clock, lambda: len(scheduler.workers))
        self.assigned = Assigned(scheduler, entries, self.reached)
        self.durations = Durations(scheduler, clock)
        self.deadlines = Deadlines(
            scheduler, entries, limits, self.durations,
            is_cordoned=self._is_short, are_arriving=are_arriving, tell=tell, clock=clock,
        )  # fmt: skip
        self.ongoing: OrderedDict[str, Cordon] = OrderedDict()
        self._scheduler = scheduler
        self._entries = entries
        self._lease = lease
        self._is_pinned = is_pinned
        self._is_leaving = is_leaving
        self._in_shuffle = in_shuffle
        self._expect_gates = expect_gates
        self._tell = tell
        self._clock = clock
        #: Cordoned since the last request, out of service ever since, and no longer in our hands:
        #: they still count, or more workers would be missing than the operator has allowed.
        self._taken: set[str] = set()
        self._told: set[tuple[int, str]] = set()  # (slot, kind) that there was a note of
        self._applied = -1  # which limits
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None  # None: not started, or closed
        #: Those that the last look has found to be short of time, and has not come to.
        self._still_short: Iterator[Entry] | None = None

    def start(self) -> None:
        """Look by itself from now on."""
        self._arm(LOOK_S)

    def told(self) -> list[str]:
        """The limits are new; returns the names of those that are cordoned at a limit now."""
        self._taken.clear()
        self.review(len(self.ongoing))
        return [str(c.gate.ws.name) for c in self.ongoing.values() if c.why.kind != SHORT]

    def review(self, most: int = AT_ONCE) -> None:
        """Be up to date, at least about the next so many of those that are cordoned."""
        self._apply()
        self.deadlines.refresh()
        if not self.limits.is_empty or self.ongoing or self.deadlines.have_ends:
            self._look(most)
            self._begin(self._candidates())
        self._hasten()

    def reached(self, entry: Entry) -> None:
        """A worker may have come to a limit. Never raises: this is called in transitions."""
        try:
            self._cordon(entry)
        except Exception:
            # Fail open: it goes on with its tasks, as it would without us.
            logger.exception("Cannot cordon worker %s", entry.ws.address)

    def failed(self, entry: Entry, report: dict[str, Any]) -> None:
        """A run has raised; the scheduler has not heard of it yet. Never raises."""
        try:
            self._count_failure(entry, report)
            if self._why_failed(entry) is not None:
                self._cordon(entry)
        except Exception:
            logger.exception("Cannot count a failure of worker %s", entry.ws.address)

    def graph_added(self) -> None:
        """A graph has come, and none of its tasks is assigned yet. Never raises."""
        try:
            if self.deadlines.graph_added():
                for entry in self.deadlines.short():
                    self._cordon(entry)
        except Exception:
            logger.exception("Cannot tell for which workers a graph's tasks are too long")

    def is_spent(self, ws: WorkerState) -> bool:
        """Whether a worker has been given all runs of an exact quota: not one more, even alone."""
        entry = self._entries.get(ws.address)
        return entry is not None and entry.ws is ws and self._why_exact(entry) is not None

    def gate(self, ws: WorkerState) -> Gate:
        """A new one, for whoever takes the worker out of service."""
        return Gate(self._scheduler, ws, self._clock, self._room)

    def n_failures(self, entry: Entry) -> int:
        """Within the window of the worker, less those that are not its fault."""
        if entry.record is None:
            return 0
        window_s = self.limits.of_worker(entry.ws).profile.window_s
        return entry.record.within(window_s, self._clock())

    def hand_over(self, address: str) -> Gate | None:
        """End a cordon, if there is one, and leave the worker out of service: somebody goes on."""
        cordon = self.ongoing.pop(address, None)
        if cordon is None:
            return None
        if cordon.why.is_bounded:
            self._taken.add(address)
        return cordon.gate

    def take_back(self, gate: Gate) -> None:
        """Open a gate that was somebody else's, unless its worker is to be cordoned."""
        try:
            entry = self._entries.get(gate.ws.address)
            if entry is not None and entry.ws is gate.ws and self._cordon(entry, gate):
                return
        except Exception:
            logger.exception("Cannot cordon worker %s", gate.ws.address)
        gate.open()

    def gate_of(self, address: str) -> Gate | None:
        cordon = self.ongoing.get(address)
        return None if cordon is None else cordon.gate

    # What a drain asks (`copying.Cordoned`).

    def is_cordoned(self, ws: WorkerState) -> bool:
        """Not when it has said that it closes."""
        cordon = self.ongoing.get(ws.address)
        is_same = cordon is not None and cordon.gate.ws is ws
        return is_same and ws.status == Status.closing_gracefully

    def recipients(self) -> Iterator[WorkerState]:
        """Those that run, and know it: a worker that has been frozen fetches nothing."""
        for cordon in self.ongoing.values():
            gate = cordon.gate
            if (
                gate.reported == Status.running
                and not gate.is_settling
                and self.is_cordoned(gate.ws)
            ):
                yield gate.ws

    def message_of(self, address: str) -> str:
        cordon = self.ongoing.get(address)
        return "" if cordon is None else cordon.why.message

    def worker_joined(self, entry: Entry) -> None:
        """It is given tasks as soon as it runs, so whether its end allows that is seen now."""
        self._apply_to(entry)
        if entry.ends_at < math.inf:
            self.deadlines.refresh(anew=not self.deadlines.have_ends)
            self.reached(entry)
            self._hasten()

    def worker_left(self, address: str) -> None:
        entry = self._entries.get(address)
        if entry is not None:
            self._told -= {(entry.slot, kind) for kind in ORDER}
            if entry.record is not None:
                self.failures.forget(entry.record)
        self.durations.forget(address)
        self.hand_over(address)

    def close(self, *, is_closing: bool = False) -> None:
        """Cordon nobody any more; all back to service unless the scheduler itself closes."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.limits.clear()
        self.durations.switch(False)
        self.assigned.uninstall()
        cordons, self.ongoing = self.ongoing, OrderedDict()
        for cordon in cordons.values():
            if not is_closing:
                cordon.gate.open()

    def _apply(self) -> None:
        """Write the limits to the workers, if they have changed; who joins gets them then."""
        if self.limits.generation != self._applied:
            self._applied = self.limits.generation
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
        # Of an end that has passed, what was known of it holds for a while: see `OVERDUE_S`.
        ends_at = entry.ends_at if limit.ends_at == PASSED else limit.ends_at
        entry.ends_at = min(ends_at, entry.own_end_at)

    def _candidates(self) -> list[Entry]:
        """Workers that are to be cordoned and are not, the most pressing first."""
        near = [e for e in self._entries.values() if e.runs >= e.stop_at or e.record is not None]
        if self.limits.are_exact:
            near += self.assigned.near()
        near += self._next_short()
        at_limit = []
        for entry in near:
            if entry.ws.address not in self.ongoing:
                why = self._why(entry)
                if why is not None:
                    order = ORDER.index(why.kind) if why.is_bounded else -1
                    at_limit.append((order, -entry.runs, entry.slot, entry))
        return [entry for *_, entry in sorted(at_limit, key=lambda row: row[:3])]

    def _begin(self, entries: Iterable[Entry], most_s: float = math.inf) -> bool:
        """Cordon them, for no longer than that; whether all of them have had their turn."""
        until = self._clock() + most_s
        for entry in entries:
            self.reached(entry)
            if self._clock() > until:
                return False
        return True

    def _has_room(self, address: str = "") -> bool:
        out = {a for a, c in self.ongoing.items() if c.why.is_bounded} | self._taken
        return address in out or len(out) < self.limits.stops

    def _may_be(self, why: Why, ws: WorkerState) -> bool:
        """Whether a worker may be cordoned for this, room left aside."""
        return why.is_exact or not self._is_pinned(ws)

    def _cordon(self, entry: Entry, gate: Gate | None = None) -> bool:
        """
        Cordon a worker if it is to be and may be; whether it is cordoned now.

        Args:
            entry: Of the worker.
            gate: Through which somebody else has taken it out of service, and is done.
        """
        ws = entry.ws
        if ws.address in self.ongoing:
            return True
        why = self._why(entry)
        if self._is_closed or why is None or not self._may_be(why, ws):
            return False
        if why.is_bounded and not self._has_room(ws.address):
            return False
        if gate is None:
            if ws.status not in IN_SERVICE or self._is_leaving(ws.address):
                return False
            gate = self.gate(ws)
        self._expect_gates()  # nobody need have said anything: a worker's lifetime is enough
        mover = Mover(self._scheduler, ws, self._clock)
        self.ongoing[ws.address] = Cordon(gate, why, self._clock(), mover)
        gate.thaw()
        gate.shut()
        self._say(entry, why)
        self._hasten()
        return True

    def _room(self, ws: WorkerState) -> int:
        """Tasks that an exact quota leaves of those that are bound to a worker."""
        entry = self._entries.get(ws.address)
        # What a shuffle has begun must end: its workers are pinned, so no other one would come.
        if entry is None or entry.exact_at == NEVER or self._in_shuffle(ws.address):
            return NEVER
        return max(0, entry.exact_at - self.assigned.given(entry))

    def _say(self, entry: Entry, why: Why) -> None:
        logger.info("Worker %s gets no more tasks: %s", entry.ws.name, why.message)
        # Coming to the end of its runs or of its time is ordinary, and would flood.
        if why.kind not in (wire.S_TASKS, SHORT) and (entry.slot, why.kind) not in self._told:
            self._told.add((entry.slot, why.kind))
            message = f"{entry.ws.name} gets no more tasks: {why.message}"
            self._tell(wire.N_QUOTA_REACHED, message, [str(entry.ws.name)])

    def _why(self, entry: Entry) -> Why | None:
        """First what bounds nobody, so that it does not take the place of another."""
        return self._why_exact(entry) or self._why_short(entry) or self._why_bounded(entry)

    def _why_exact(self, entry: Entry) -> Why | None:
        if entry.exact_at == NEVER:
            return None
        given = self.assigned.given(entry)
        if given < entry.exact_at:
            return None
        message = f"was given {given} of {entry.exact_at} runs"
        return Why(wire.S_TASKS, message, is_bounded=False, is_exact=True)

    def _why_short(self, entry: Entry) -> Why | None:
        if not self.deadlines.is_short(entry):
            return None
        return Why(SHORT, self.deadlines.message(entry), is_bounded=False)

    def _why_bounded(self, entry: Entry) -> Why | None:
        failed = self._why_failed(entry)
        if failed is None and entry.runs >= entry.stop_at:
            return Why(wire.S_TASKS, f"has made {entry.runs} of {entry.stop_at} runs")
        return failed

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

    def _is_short(self, address: str) -> bool:
        cordon = self.ongoing.get(address)
        return cordon is not None and cordon.why.kind == SHORT

    def _look(self, most: int) -> None:
        """Bring back who is not to be cordoned any more; see to the others. Takes turns."""
        move_until = self._clock() + MOVE_S
        for address, cordon in list(islice(self.ongoing.items(), most)):
            ws, entry = cordon.gate.ws, self._entries.get(address)
            if self._scheduler.workers.get(address) is not ws or entry is None:
                self.worker_left(address)
                continue
            self.ongoing.move_to_end(address)
            why = self._why(entry)
            if why is None or not self._may_be(why, ws):
                self._release(address)
                continue
            self.ongoing[address] = cordon._replace(why=why)
            is_alone = why.kind == SHORT and not self.deadlines.may_wait
            cordon.gate.admit(resources=is_alone)
            if why.kind == SHORT and self._clock() <= move_until and _has_unstarted(ws):
                cordon.mover.ask(back=self.deadlines.may_wait)
        self._release_surplus()
        for address in list(self._taken):
            taken = self._scheduler.workers.get(address)
            if taken in self._scheduler.running and not self._is_leaving(address):
                self._taken.discard(address)

    def _release_surplus(self) -> None:
        bounded = [address for address, c in self.ongoing.items() if c.why.is_bounded]
        surplus = len(bounded) - self.limits.stops
        if surplus <= 0:
            return
        order = sorted(
            bounded,
            key=lambda a: (ORDER.index(self.ongoing[a].why.kind), self.ongoing[a].since, a),
        )
        for address in order[-surplus:]:
            self._release(address)

    def _release(self, address: str) -> None:
        # First out of the books: the scheduler gives it tasks at once, and it may be stopped again.
        self.ongoing.pop(address).gate.open()

    def _look_alone(self) -> None:
        """What the timer calls."""
        try:
            if self._still_short is None:
                self._lease.check()
                self._apply()
                self.deadlines.refresh()
                self._look(AT_ONCE)
                self._still_short = iter(self._next_short())
            is_done = self._begin(self._still_short, BEGIN_S)
            self._still_short = None if is_done else self._still_short
        except Exception:
            # Fail open: nobody stays out of service because of an error of ours.
            logger.exception("Cannot see to the workers that are cordoned; back to service")
            self._still_short = None
            for address in list(self.ongoing):
                self._release(address)
        finally:
            self._arm(self._pause_s() if self._still_short is None else NEXT_S)

    def _next_short(self) -> list[Entry]:
        ongoing = self.ongoing
        return [
            e
            for e in self.deadlines.short()
            if e.ws.address not in ongoing and e.ws.status in IN_SERVICE
        ]

    def _pause_s(self) -> float:
        pause_s = LOOK_S if self.deadlines.have_ends else SEARCH_S
        if self.ongoing:
            n = len(self.ongoing)
            work_s = max(min(n, AT_ONCE) / 250, n * len(self._scheduler.unrunnable) / 10_000)
            pause_s = min(pause_s, LONGEST_LOOK_S, max(SHORTEST_LOOK_S, work_s))
        return max(0.0, min(pause_s, self._lease.left_s + SHORTEST_LOOK_S))

    def _hasten(self) -> None:
        if self._timer is not None:
            loop: Any = self._scheduler.loop
            pause_s = self._pause_s()
            if self._timer.when() > loop.asyncio_loop.time() + pause_s:
                self._arm(pause_s)

    def _arm(self, pause_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop: Any = self._scheduler.loop
        self._timer = loop.asyncio_loop.call_later(pause_s, self._look_alone)


def _has_unstarted(ws: WorkerState) -> bool:
    """Whether a worker has tasks that it has not begun, as far as it has said."""
    if len(ws.processing) <= len(ws.executing) + len(ws.long_running):
        return False
    return any(ts not in ws.executing and ts not in ws.long_running for ts in ws.processing)
