"""
Cordoned workers get no more tasks: they have come to a limit, or are short of time.

They finish what they have begun, and keep their data. The operator decides whether one is replaced;
a cordon only keeps the worker from going far beyond its limit until then.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

from distributed.core import Status

from dask_adaptive_agent import patching, wire
from dask_adaptive_agent.component import Component, Context
from dask_adaptive_agent.demand.durations import Durations, has_begun
from dask_adaptive_agent.guard import logged
from dask_adaptive_agent.patching import Call, Patch, Patches
from dask_adaptive_agent.pins.pinned_workers import PinnedWorkers
from dask_adaptive_agent.quotas.deadlines import LOOK_S, SEARCH_S, Deadlines
from dask_adaptive_agent.quotas.failures import Failures, Record
from dask_adaptive_agent.quotas.roster import Entry
from dask_adaptive_agent.quotas.worker_limits import NEVER, PASSED
from dask_adaptive_agent.service.service import SHORT, SHORTEST_LOOK_S, Cordon, Gate, Service, Why
from dask_adaptive_agent.service.task_mover import Mover, stealing
from dask_adaptive_agent.text import duration, plural
from dask_adaptive_agent.worker_side import lifetime

if TYPE_CHECKING:
    from distributed.scheduler import TaskState, WorkerState

logger = logging.getLogger(__name__)

#: The most pressing first: that order counts where not all may be cordoned.
ORDER = (wire.S_PATTERN, wire.S_FAILURES, wire.S_TASKS)

#: Cordoned workers that one look checks.
AT_ONCE = 100

#: Seconds for which one look cordons workers that are short of time, and until it goes on with the
#: next ones: they are given tasks meanwhile.
BEGIN_S, NEXT_S = 0.003, 0.01

#: Seconds for which one look asks workers to give up tasks.
MOVE_S = 0.002

#: A worker with another status is on its way out.
STAYING = (Status.init, Status.running, Status.paused)


#: What `move_task_request` answers for a steal that we refuse; nobody upstream reads its answers.
REFUSED = "dask-adaptive-refused"


class Cordons(Component):
    """Every worker that is cordoned, by address."""

    def __init__(
        self, context: Context, service: Service, pins: PinnedWorkers, durations: Durations
    ) -> None:
        super().__init__(context)
        self.entries, self.limits = context.roster.entries, context.limits
        self.durations, self.service, self.pins = durations, service, pins
        self.failures = Failures(self.clock, lambda: len(self.scheduler.workers))
        self.assigned = AssignedRuns(context, self.reached)
        self.deadlines = Deadlines(context, service, durations)
        self.ongoing = self.service.cordoned
        self._is_closed = False
        self._timer: asyncio.TimerHandle | None = None  # None: not started, or closed

    def install(self, patches: Patches) -> None:
        """
        Count the runs that workers report from now on, whether or not the scheduler accepts the
        results. A run that raised `Reschedule` is reported by the third
        (`worker_state_machine.RescheduleMsg`). A run whose task was cancelled meanwhile is reported
        by none.
        """
        patches.listen(patching.TASK_FINISHED, self._count)
        patches.listen(patching.TASK_ERRED, self._count_failure)
        patches.listen(patching.RESCHEDULE, self._count)

    def start(self) -> None:
        """Begin to look by timer."""
        self._arm(LOOK_S)

    def limits_changed(self) -> None:
        self.service.taken_over.clear()
        self.failures.keep_for([rules.window_s for rules in self.limits.rules])
        for entry in self.entries.values():  # `worker_joined` does it for a new one
            self._apply_to(entry)
        self.deadlines.refresh(anew=True)
        self.review(len(self.ongoing))

    def review(self, most: int = AT_ONCE) -> None:
        """Check all limits, and at most `most` of the cordoned workers."""
        self._refresh()
        if not self.limits.is_empty or self.ongoing or self.deadlines.have_ends:
            self._look(most)
            self._begin(self._at_limit())
        self._hasten()

    def reached(self, entry: Entry) -> None:
        """A worker may have come to a limit. Never raises: this is called in transitions."""
        # Fail open: the worker gets tasks as without the agent.
        with logged(logger, "Failed to cordon worker %s", entry.ws.address):
            self._cordon(entry)

    def _count(self, msg: dict[str, Any]) -> None:
        """A worker reports a run. Once a task: every line is paid 1,000 times a second."""
        entry = self.entries.get(msg["worker"])
        if entry is not None:  # else a late report of a worker that has left
            entry.active_at = now = self.clock()
            if now >= self.durations.next_at:
                self.durations.report(msg, now)
            entry.runs = runs = entry.runs + 1
            if runs >= entry.cordon_at:
                self.reached(entry)

    def _count_failure(self, msg: dict[str, Any]) -> None:
        """
        A run has raised; the scheduler does not know it yet.

        A worker that has failed to copy a result reports that as a failure of the result's task.
        """
        entry = self.entries.get(msg["worker"])
        ts: Any = self.scheduler.tasks.get(msg["key"])
        if entry is None or ts is None or ts.processing_on is not entry.ws:
            return
        entry.active_at = self.clock()
        entry.runs += 1
        # Fail open: its runs are counted all the same.
        with logged(logger, "Failed to count a failure of worker %s", entry.ws.address):
            text = str(msg.get("exception_text") or "")
            entry.record = entry.record or Record()
            self.failures.add(
                entry.record,
                key=ts.key,
                prefix=str(ts.key if ts.prefix is None else ts.prefix.name),
                text=text,
                pattern=self.limits.of_worker(entry.ws).rules.match(text),
            )
            if ts.retries:
                self.tasks_return([ts])
        self.reached(entry)

    def graph_added(self) -> None:
        """A graph has come, and none of its tasks is assigned yet. Never raises."""
        self._tasks_come(self.deadlines.graph_added)

    def tasks_return(self, tasks: Collection[TaskState]) -> None:
        """Tasks are about to begin again, elsewhere. Never raises."""
        self._tasks_come(lambda: self.deadlines.came({ts.prefix for ts in tasks}))

    def _tasks_come(self, is_more_needed: Callable[[], bool]) -> None:
        with logged(logger, "Failed to find the workers for which a graph's tasks are too long"):
            if is_more_needed():
                for entry in self.deadlines.short():
                    self._cordon(entry)

    def is_spent(self, ws: WorkerState) -> bool:
        """Tells whether an exact quota is used up: not one run more, even if it is the only one."""
        entry = self.context.roster.of(ws)
        return entry is not None and self.assigned.given(entry) >= entry.exact_at

    def has_ended(self, ws: WorkerState) -> bool:
        """Tells whether the end has passed that a worker itself, or the operator, has announced."""
        entry = self.context.roster.of(ws)
        is_past = entry is not None and entry.ends_at <= self.clock()
        return is_past or lifetime.left_s(ws) <= 0

    def n_failures(self, entry: Entry) -> int:
        """Within the window of the worker, less those that are not its fault."""
        if entry.record is None:
            return 0
        window_s = self.limits.of_worker(entry.ws).rules.window_s
        return entry.record.within(window_s, self.clock())

    def take_back(self, gate: Gate) -> None:
        """Open a gate that was somebody else's, unless its worker is to be cordoned."""
        with logged(logger, "Failed to cordon worker %s", gate.ws.address):
            entry = self.context.roster.of(gate.ws)
            if entry is not None and self._cordon(entry, gate):
                return
        self.service.hand(gate)

    def room(self, ws: WorkerState) -> int:
        """The number of tasks bound to a worker that its exact quota still allows."""
        entry = self.entries.get(ws.address)
        # A shuffle that has begun must end: its workers are pinned, so no other one would come.
        if entry is None or entry.exact_at == NEVER or ws.address in self.pins.in_shuffles():
            return NEVER
        return max(0, entry.exact_at - self.assigned.given(entry))

    def worker_joined(self, entry: Entry) -> None:
        """It gets tasks as soon as it runs, so check now whether its end allows that."""
        self._apply_to(entry)
        if entry.ends_at < math.inf:
            self.deadlines.refresh(anew=not self.deadlines.have_ends)
            self.reached(entry)
            self._hasten()

    def worker_left(self, address: str) -> None:
        entry = self.entries.get(address)
        if entry is not None and entry.record is not None:
            self.failures.forget(entry.record)
        self.service.forget(address)

    def close(self, *, is_closing: bool = False) -> None:
        """Cordon no more workers; open all gates unless the scheduler itself closes."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.limits.clear()
        self.durations.switch(False)
        self.assigned.uninstall()
        for cordon in [] if is_closing else list(self.ongoing.values()):
            self.service.hand(cordon.gate)
        self.ongoing.clear()

    def _refresh(self) -> None:
        if self.limits.are_exact:
            self.assigned.install()
        else:
            self.assigned.uninstall()
        self.deadlines.refresh()

    def _apply_to(self, entry: Entry) -> None:
        limit = self.limits.of_worker(entry.ws)
        entry.cordon_at = limit.runs
        entry.exact_at = limit.runs if limit.rules.exact else NEVER
        # The operator no longer knows an end that has passed; keep it for a while: `LATE_S`.
        entry.ends_at = entry.ends_at if limit.ends_at == PASSED else limit.ends_at

    def _at_limit(self) -> list[Entry]:
        """Workers that are to be cordoned and are not, the most pressing first."""
        near = [e for e in self.entries.values() if e.runs >= e.cordon_at or e.record is not None]
        if self.limits.are_exact:
            near += self.assigned.near()
        at_limit = []
        for entry in (*near, *self._short()):
            why = None if entry.ws.address in self.ongoing else self._limit_of(entry)
            if why is not None:
                order = ORDER.index(why.kind) if why.is_bounded else -1
                at_limit.append((order, -entry.runs, entry.slot, entry))
        return [entry for *_, entry in sorted(at_limit, key=lambda row: row[:3])]

    def _begin(self, entries: Iterable[Entry], most_s: float = math.inf) -> bool:
        """Cordon them, for no longer than that; returns whether all of them have had their turn."""
        until = self.clock() + most_s
        for entry in entries:
            self.reached(entry)
            if self.clock() > until:
                return False
        return True

    def _why(self, entry: Entry) -> Why | None:
        """The reason for which a worker may be cordoned, the number of others left aside."""
        why = self._limit_of(entry)
        is_certain = why is None or why.is_exact
        return why if is_certain or not self.pins.is_pinned(entry.ws) else None

    def _cordon(self, entry: Entry, gate: Gate | None = None) -> bool:
        """
        Cordon a worker if it is to be and may be; returns whether it is cordoned now.

        Somebody else may have taken it out of service through `gate`, and be done.
        """
        ws, out, taken = entry.ws, self.ongoing, self.service.taken_over
        if ws.address in out:
            return True
        why = None if self._is_closed else self._why(entry)
        if why is None:
            return False
        group = self.limits.of_worker(ws).rules.group
        if why.is_bounded and ws.address not in taken:
            bounded = {address: one.group for address, one in out.items() if one.why.is_bounded}
            if not self.limits.may_cordon(group, Counter({**taken, **bounded}.values())):
                return False
        gate = gate or self._own_gate(ws, why)
        if gate is None:
            return False
        self.context.expect_leaving()
        cordon = Cordon(gate, why, self.clock(), Mover(self.context, ws), group)
        self.service.hand(gate, cordon)
        self._report(entry, why)
        self._hasten()
        return True

    def _own_gate(self, ws: WorkerState, why: Why) -> Gate | None:
        """None: the worker is on its way out; even so, it gets no run beyond an exact quota."""
        if ws.status not in STAYING:
            return None
        gate = self.service.hold(ws)
        if not self.service.is_draining(ws.address):
            return gate
        if why.is_exact:
            gate.shut()  # it stays for a while, or somebody else's call waits for its turn
        return None

    def _report(self, entry: Entry, why: Why) -> None:
        logger.info("Worker %s gets no more tasks: %s", entry.ws.name, why.message)
        # Coming to the end of its runs or of its time is ordinary, and would flood.
        if why.kind not in (wire.S_TASKS, SHORT, *entry.noted):
            entry.noted.add(why.kind)
            message = f"{entry.ws.name} gets no more tasks: {why.message}"
            self.context.notes.add(wire.N_QUOTA_REACHED, message, [str(entry.ws.name)])

    def _limit_of(self, entry: Entry) -> Why | None:
        """The limit it has come to; unbounded ones first, not to take another worker's place."""
        if entry.exact_at != NEVER:
            given = self.assigned.given(entry)
            if given >= entry.exact_at:
                message = f"was given {given} of {plural(entry.exact_at, 'task')}"
                return Why(wire.S_TASKS, message, is_bounded=False, is_exact=True)
        if self.deadlines.is_short(entry):
            return Why(SHORT, self.deadlines.message(entry), is_bounded=False)
        failed = self._why_failed(entry)
        if failed is None and entry.runs >= entry.cordon_at:
            return Why(wire.S_TASKS, f"has run {entry.runs} of {plural(entry.cordon_at, 'task')}")
        return failed

    def _why_failed(self, entry: Entry) -> Why | None:
        record = entry.record
        if record is None:
            return None
        rules = self.limits.of_worker(entry.ws).rules
        for match in record.matched:
            if match.pattern in rules.patterns:
                return Why(wire.S_PATTERN, f"a failure matches {match.pattern!r}: {match.text}")
        if rules.failures:
            count = record.within(rules.window_s, self.clock())
            if count >= rules.failures:
                within = f"within {duration(rules.window_s)}"
                return Why(wire.S_FAILURES, f"{plural(count, 'failure')} {within}")
        return None

    def _look(self, most: int) -> None:
        """Open the gates of those that need no cordon now; then check the next others."""
        move_until = self.clock() + MOVE_S
        for address, cordon in list(islice(self.ongoing.items(), most)):
            ws, entry = cordon.gate.ws, self.entries.get(address)
            if self.scheduler.workers.get(address) is not ws or entry is None:
                self.worker_left(address)
                continue
            self.ongoing.move_to_end(address)
            why = self._why(entry)
            if why is None:
                self._release(address)
                continue
            self.ongoing[address] = cordon._replace(why=why)
            waits = why.kind != wire.S_TASKS and self.deadlines.may_wait_for(ws.resources.keys())
            cordon.gate.admit(self.room, resources=not (waits or why.is_exact))
            if why.kind == SHORT:
                self._use_time(entry, cordon, move_until)
        self._release_surplus()
        for address in list(self.service.taken_over):
            taken = self.scheduler.workers.get(address)
            if taken in self.scheduler.running and not self.service.is_draining(address):
                del self.service.taken_over[address]

    def _use_time(self, entry: Entry, cordon: Cordon, until: float) -> None:
        """Move away what does not fit into the time that a worker has left; give it what does."""
        fits = self.deadlines.fitting(entry)
        if self.clock() <= until:
            cordon.mover.ask(
                back=self.deadlines.may_wait, stays=lambda ts: has_begun(entry.ws, ts) or fits(ts)
            )
        if entry.runs < entry.cordon_at and self._why_failed(entry) is None:
            cordon.gate.offer(fits, self.room)

    def _release_surplus(self) -> None:
        """Open the gates of cordons beyond the number that the operator allows."""
        bounded = [(address, c) for address, c in self.ongoing.items() if c.why.is_bounded]
        bounded.sort(key=lambda row: (ORDER.index(row[1].why.kind), row[1].since, row[0]))
        kept: Counter[str] = Counter()
        for address, cordon in bounded:
            if self.limits.may_cordon(cordon.group, kept):
                kept[cordon.group] += 1
            else:
                self._release(address)

    def _release(self, address: str) -> None:
        self.service.hand(self.ongoing[address].gate)

    def _look_alone(self) -> None:
        """One look of the timer's."""
        is_done = True
        try:
            self.context.lease.check()
            self._refresh()
            self._look(AT_ONCE)
            is_done = self._begin(self._short(), BEGIN_S)
        except Exception:
            # Fail open: no worker stays out of service because of an error of ours.
            logger.exception("Failed to check the cordoned workers; back to service")
            for address in list(self.ongoing):
                self._release(address)
        finally:
            self._arm(self._pause_s() if is_done else NEXT_S)

    def _short(self) -> list[Entry]:
        out = self.ongoing
        return [
            entry
            for entry in self.deadlines.short()
            if entry.ws.address not in out and entry.ws.status in STAYING
        ]

    def _pause_s(self) -> float:
        pause_s = LOOK_S if self.deadlines.have_ends else SEARCH_S
        if self.ongoing:
            work_s = min(len(self.ongoing), AT_ONCE) / 250
            pause_s = min(pause_s, max(SHORTEST_LOOK_S, work_s))
        return max(0.0, min(pause_s, self.context.lease.left_s + SHORTEST_LOOK_S))

    def _hasten(self) -> None:
        if self._timer is not None:
            pause_s = self._pause_s()
            if self._timer.when() > self.scheduler.loop.asyncio_loop.time() + pause_s:
                self._arm(pause_s)

    def _arm(self, pause_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.scheduler.loop.asyncio_loop.call_later(pause_s, self._look_alone)


class AssignedRuns(Component):
    """
    Counts what is on its way to workers whose quota is exact. Patched in only while there is such a
    quota: nobody else pays for it.

    `Scheduler._add_to_processing` is where every release assigns a task, whether it was waiting,
    queued or without a worker. Steals are assigned by `WorkStealing.move_task_confirm` when their
    victim has agreed, so they count from their request on.
    """

    def __init__(self, context: Context, reached: Callable[[Entry], None]) -> None:
        super().__init__(context)
        self._reached = reached  # to be called for a worker that may have come to its quota
        self._patches = Patches(self.scheduler)
        self._put: list[Patch] = []

    def install(self) -> None:
        """Harmless when it is in place; what others have taken away with theirs is put back."""
        if self._put and all([patch.is_called for patch in self._put]):
            return
        self.uninstall()
        try:
            with self._patches.together() as self._put:
                self._patches.put(patching.ADD_TO_PROCESSING, self._adding)
                if stealing(self.scheduler) is not None:
                    self._patches.put(patching.MOVE_TASK_REQUEST, self._moving)
        except patching.Mismatch as error:
            logger.warning("Quotas cannot be exact in this scheduler: %s", error)

    def uninstall(self) -> None:
        self._patches.close()
        self._put = []

    def near(self) -> list[Entry]:
        """Workers that may have as much as they may have: of these `given` must be asked."""
        arriving = len(self._in_flight)
        return [
            entry
            for entry in self.context.roster.entries.values()
            if entry.runs + len(entry.ws.processing) + arriving >= entry.exact_at
        ]

    def given(self, entry: Entry) -> int:
        """Runs that a worker has made, has, and is about to be given; exact near its limit."""
        ws, in_flight = entry.ws, self._in_flight
        given = entry.runs + len(ws.processing)
        if given + len(in_flight) < entry.exact_at:
            return given
        return given + sum([info["thief"] is ws for info in in_flight.values()])

    @property
    def _in_flight(self) -> Any:
        extension = stealing(self.scheduler)
        return extension.in_flight if extension is not None else {}

    def _check(self, ws: WorkerState) -> None:
        entry = self.context.roster.entries.get(ws.address)
        if entry is not None and self.given(entry) >= entry.exact_at:
            self._reached(entry)  # never raises

    def _adding(self, stock: Call) -> Call:
        def add_to_processing(ts: TaskState, ws: WorkerState, *args: Any, **kwargs: Any) -> Any:
            answer = stock(ts, ws, *args, **kwargs)
            self._check(ws)
            return answer

        return add_to_processing

    def _moving(self, stock: Call) -> Call:
        def move_task_request(ts: TaskState, victim: WorkerState, thief: WorkerState) -> Any:
            # `WorkStealing.balance` looks up its thieves once a round, so it may ask for one that
            # has left service in the middle of it. Who is no worker takes nothing.
            if thief.address in self.scheduler.workers and thief not in self.scheduler.running:
                self._keep_stealable(ts)
                return REFUSED
            answer = stock(ts, victim, thief)
            info = self._in_flight.get(ts)  # what we have wrapped may have found another thief
            if info is not None:
                self._check(info["thief"])
            return answer

        return move_task_request

    def _keep_stealable(self, ts: TaskState) -> None:
        """`balance` takes a task that it has asked for off its list; put it back afterwards."""

        def put_back() -> None:
            extension = stealing(self.scheduler)
            # Fail open: the task runs where it is.
            with logged(logger, "Failed to put %s back on the list of tasks to steal", ts.key):
                if extension is not None and ts.state == "processing":
                    extension.recalculate_cost(ts)

        self.scheduler.loop.asyncio_loop.call_soon(put_back)
