"""
Finds workers that have too little time left for the tasks that are there.

A worker is short of time once it has less left than the longest unfinished kind of task is expected
to take. `cordons` gives it no more tasks then: no task begins that would not end before its worker,
and a worker's life loses no more than the time of one such task.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distributed.core import Status

from dask_adaptive_agent import wire
from dask_adaptive_agent.demand.durations import UNFINISHED, Durations, TaskKind, is_among
from dask_adaptive_agent.protocol.operator_side import Noting
from dask_adaptive_agent.quotas.worker_limits import UNNAMED, WorkerLimits
from dask_adaptive_agent.text import duration
from dask_adaptive_agent.worker_side import lifetime

if TYPE_CHECKING:
    from distributed.scheduler import TaskPrefix

    from dask_adaptive_agent.quotas.roster import Entry

#: Seconds between two looks while some worker has an end, and between two searches for ends that
#: workers report by themselves.
LOOK_S, SEARCH_S = 0.5, 5.0

#: From the look that allows a task to its start: the pause between two looks, and messages.
SLACK_S = 1.0

#: Seconds after its end from which a worker that is still there counts as one without an end.
LATE_S = 10.0

#: A worker that has registered runs within moments: its plugins are set up meanwhile.
SETTLING_S = 5.0

#: Seconds between two notes about the same kind of task.
NOTE_AGAIN_S = 600.0


@dataclass(eq=False)
class Deadlines(Noting):
    """Says which workers are short of time, as of the last look."""

    entries: Mapping[str, Entry]  # the roster's, by address
    limits: WorkerLimits
    durations: Durations
    is_cordoned: Callable[[str], bool]  # an address is out of service as it is short of time
    are_arriving: Callable[[], bool]  # workers are on their way
    heeds_lifetimes: Callable[[], bool]  # somebody has asked for more than stock code does
    have_ends: bool = False
    may_wait: bool = False  # for workers that are on their way

    def __post_init__(self) -> None:
        #: Duration of the longest unfinished kind that somebody in service can finish.
        self._needed_s = 0.0
        self._reach_s = math.inf  # how long the longest-lived worker in service still lives
        #: Kinds that nobody has asked for now, and that some worker is too short for.
        self._absent: list[TaskKind] = []
        self._look_at = self._search_at = -math.inf
        self._noted_at: dict[str, float] = {}

    def is_short(self, entry: Entry) -> bool:
        left_s = entry.ends_at - self.clock()
        return self._needed_s > 0 and -LATE_S < left_s < self._needed_s

    def short(self) -> list[Entry]:
        if not self._needed_s:
            return []
        now = self.clock()
        since, until = now - LATE_S, now + self._needed_s
        return [e for e in self.entries.values() if since < e.ends_at < until]

    def message(self, entry: Entry) -> str:
        left_s = max(0.0, entry.ends_at - self.clock())
        needed = duration(self._needed_s - SLACK_S)
        return f"ends in {duration(left_s)}, and a task that is there may take {needed}"

    def expected_s(self) -> float:
        """Expected duration of the longest unfinished kind of task; 0: none."""
        there, _ = self._kinds()
        return max([kind.expected_s for kind in there], default=0.0)

    def refresh(self, *, anew: bool = False) -> None:
        """Look at workers and kinds of tasks, anew or if the last look is long ago."""
        now = self.clock()
        if not anew and now < self._look_at:
            return
        self._look_at = now + LOOK_S
        if self.heeds_lifetimes() and (anew or now >= self._search_at):
            self._search_at = now + SEARCH_S
            for entry in self.entries.values():
                if lifetime.METRIC in entry.ws.metrics:
                    entry.ends_at = min(entry.ends_at, now + lifetime.left_s(entry.ws))
        since = now - LATE_S
        self.have_ends = any([since < e.ends_at < math.inf for e in self.entries.values()])
        self.durations.switch(self.have_ends)
        if self.have_ends:
            self._judge(now)
        else:
            self._needed_s, self._absent = 0.0, []

    def graph_added(self) -> bool:
        """A graph has come; tells whether it has tasks that some worker is too short for."""
        if not self._absent:
            return False
        states = (*UNFINISHED, "released")
        came = [kind for kind in self._absent if is_among(kind.prefix, states)]
        self.durations.came([kind.prefix for kind in came])
        needed_s = max([kind.expected_s + SLACK_S for kind in came], default=0.0)
        if needed_s <= self._needed_s:
            return False
        self._needed_s = needed_s
        return True

    def _judge(self, now: float) -> None:
        # Locals, because this is done for each of thousands of workers.
        running, since, is_cordoned = Status.running, now - LATE_S, self.is_cordoned
        in_service = [
            e.ends_at - now if e.ends_at > since else math.inf
            for e in self.entries.values()
            if e.ws.status is running or is_cordoned(e.ws.address)
        ]
        reach_s = max(in_service, default=0.0)
        # One that registers runs before the next look.
        shortest_s = min([e.ends_at - now for e in self.entries.values() if e.ends_at > since])
        rules = self.limits.rules
        self.may_wait = self._may_wait(now)
        if self.may_wait:
            reach_s = max(reach_s, max([one.fresh_s for one in rules], default=math.inf))
        self._reach_s = reach_s
        there, others = self._kinds()
        needed = [kind.expected_s + SLACK_S for kind in there]
        self._needed_s = max([s for s in needed if s <= reach_s], default=0.0)
        for kind in there:
            if kind.expected_s + SLACK_S > reach_s and is_among(kind.prefix, UNFINISHED):
                self._note_too_long(kind.prefix, kind.expected_s, now)
        self._absent = [k for k in others if shortest_s < k.expected_s + SLACK_S <= reach_s]

    def _may_wait(self, now: float) -> bool:
        """Tells whether all tasks may wait for workers on their way, as nothing fails them."""
        if getattr(self.scheduler, "no_workers_timeout", None) is not None:
            return False
        if self.are_arriving():
            return True
        if len(self.scheduler.running) == len(self.scheduler.workers):
            return False
        init, since = Status.init, now - SETTLING_S
        return any([e.ws.status is init and e.active_at > since for e in self.entries.values()])

    def _kinds(self) -> tuple[list[TaskKind], list[TaskKind]]:
        rules = self.limits.rules
        return self.durations.kinds(max([one.floor_s for one in rules], default=UNNAMED.floor_s))

    def _note_too_long(self, prefix: TaskPrefix, expected_s: float, now: float) -> None:
        name = prefix.name
        if now - self._noted_at.get(name, -math.inf) < NOTE_AGAIN_S:
            return
        self._noted_at[name] = now
        fresh_s = max([one.fresh_s for one in self.limits.rules], default=math.inf)
        fresh = f" (a new one: {duration(fresh_s)})" if math.isfinite(fresh_s) else ""
        self.note(
            wire.N_TASK_TOO_LONG,
            f"tasks {name} are expected to take {duration(expected_s)}, and no worker lives so "
            f"long: the longest has {duration(self._reach_s)} left{fresh}. They run where the "
            "scheduler puts them",
            [],
        )
