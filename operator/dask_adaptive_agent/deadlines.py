"""
When each worker ends, and who has too little time left for the tasks that are there.

A worker is short of time once what it has left is less than the longest of the unfinished kinds of
tasks is expected to take. `cordons` gives it no more tasks then, so no task begins that would not
end before its worker does, and a worker's life loses no more than one such task's time by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from distributed.core import Status

from dask_adaptive_agent import lifespan, wire
from dask_adaptive_agent.durations import UNFINISHED, Durations, Kind, is_among
from dask_adaptive_agent.limits import UNNAMED, Limits
from dask_adaptive_agent.words import duration

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler, TaskPrefix

    from dask_adaptive_agent.roster import Entry

#: Seconds between two looks while some worker has an end, and between two searches for ends that
#: workers report by themselves.
LOOK_S, SEARCH_S = 0.5, 5.0

#: A task has begun so long after the look that let it: the pause between two looks, and messages.
SLACK_S = 1.0

#: An end that has passed is none: a worker that is still there after so many seconds serves.
OVERDUE_S = 10.0

#: A worker that has registered runs within moments: its plugins are set up meanwhile.
SETTLING_S = 5.0

#: The same kind of task is told of once in so many seconds.
TELL_AGAIN_S = 600.0


class Deadlines:
    """
    Says which workers are short of time, as of the last look.

    Args:
        scheduler: Read, not changed.
        entries: The roster's, by address.
        limits: As the operator said last.
        durations: Of the scheduler's tasks.
        is_cordoned: Whether an address is out of service because it is short of time.
        are_arriving: Whether workers are on their way.
        tell: Makes a note: kind, message, names of workers.
        clock: That of `limits`.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        entries: Mapping[str, Entry],
        limits: Limits,
        durations: Durations,
        *,
        is_cordoned: Callable[[str], bool],
        are_arriving: Callable[[], bool],
        tell: Callable[[str, str, Sequence[str]], None],
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._entries = entries
        self._limits = limits
        self._durations = durations
        self._is_cordoned = is_cordoned
        self._are_arriving = are_arriving
        self._tell = tell
        self._clock = clock
        self.have_ends = False
        self.may_wait = False  # for workers that are on their way
        #: What the longest unfinished kind takes of those that somebody in service can finish.
        self._needed_s = 0.0
        self._reach_s = math.inf  # how long the longest-lived worker in service still lives
        #: Kinds that nobody has asked for now, and that some worker is too short for.
        self._absent: list[Kind] = []
        self._look_at = self._search_at = -math.inf
        self._generation = -1  # of the limits, at the last look
        self._told_at: dict[str, float] = {}

    def is_short(self, entry: Entry) -> bool:
        """Whether a worker gets no more tasks."""
        left_s = entry.ends_at - self._clock()
        return self._needed_s > 0 and -OVERDUE_S < left_s < self._needed_s

    def short(self) -> list[Entry]:
        if not self._needed_s:
            return []
        now = self._clock()
        since, until = now - OVERDUE_S, now + self._needed_s
        return [e for e in self._entries.values() if since < e.ends_at < until]

    def message(self, entry: Entry) -> str:
        left_s = max(0.0, entry.ends_at - self._clock())
        needed = duration(self._needed_s - SLACK_S)
        return f"ends in {duration(left_s)}, and a task that is there may take {needed}"

    def expected_s(self) -> float:
        """How long the longest of the unfinished kinds of tasks is expected to take; 0: none."""
        there, _ = self._kinds()
        return max([kind.expected_s for kind in there], default=0.0)

    def refresh(self, *, anew: bool = False) -> None:
        """Look at workers and kinds of tasks, if limits are new or the last look is long ago."""
        now = self._clock()
        if not anew and now < self._look_at and self._limits.generation == self._generation:
            return
        self._generation = self._limits.generation
        self._look_at = now + LOOK_S
        if now >= self._search_at:
            self._search_at = now + SEARCH_S
            for entry in self._entries.values():
                if lifespan.METRIC in entry.ws.metrics and math.isinf(entry.own_end_at):
                    entry.own_end_at = now + lifespan.left_s(entry.ws)
                    entry.ends_at = min(entry.ends_at, entry.own_end_at)
        since = now - OVERDUE_S
        self.have_ends = any([since < e.ends_at < math.inf for e in self._entries.values()])
        self._durations.switch(self.have_ends or any(p.measure for p in self._limits.profiles))
        if self.have_ends:
            self._judge(now)
        else:
            self._needed_s, self._absent = 0.0, []

    def graph_added(self) -> bool:
        """A graph has come: whether it has tasks that some worker is too short for."""
        if not self._absent:
            return False
        states = (*UNFINISHED, "released")
        came = [kind for kind in self._absent if is_among(kind.prefix, states)]
        self._durations.came([kind.prefix for kind in came])
        needed_s = max([kind.expected_s + SLACK_S for kind in came], default=0.0)
        if needed_s <= self._needed_s:
            return False
        self._needed_s = needed_s
        return True

    def _judge(self, now: float) -> None:
        # Locals, because this is done for each of thousands of workers.
        running, since, is_cordoned = Status.running, now - OVERDUE_S, self._is_cordoned
        in_service = [
            e.ends_at - now if e.ends_at > since else math.inf
            for e in self._entries.values()
            if e.ws.status is running or is_cordoned(e.ws.address)
        ]
        reach_s = max(in_service, default=0.0)
        # One that registers runs before the next look.
        shortest_s = min([e.ends_at - now for e in self._entries.values() if e.ends_at > since])
        profiles = self._limits.profiles
        self.may_wait = self._may_wait(now)
        if self.may_wait:
            reach_s = max(reach_s, max([p.fresh_s for p in profiles], default=math.inf))
        self._reach_s = reach_s
        there, others = self._kinds()
        needed = [kind.expected_s + SLACK_S for kind in there]
        self._needed_s = max([s for s in needed if s <= reach_s], default=0.0)
        for kind in there:
            if kind.expected_s + SLACK_S > reach_s and is_among(kind.prefix, UNFINISHED):
                self._say(kind.prefix, kind.expected_s, now)
        self._absent = [k for k in others if shortest_s < k.expected_s + SLACK_S <= reach_s]

    def _may_wait(self, now: float) -> bool:
        """Whether all tasks may wait for workers on their way; the scheduler must not fail them."""
        if getattr(self._scheduler, "no_workers_timeout", None) is not None:
            return False
        if self._are_arriving():
            return True
        if len(self._scheduler.running) == len(self._scheduler.workers):
            return False
        init, since = Status.init, now - SETTLING_S
        return any([e.ws.status is init and e.active_at > since for e in self._entries.values()])

    def _kinds(self) -> tuple[list[Kind], list[Kind]]:
        profiles = self._limits.profiles
        return self._durations.kinds(
            max([p.deviations for p in profiles], default=UNNAMED.deviations),
            max([p.floor_s for p in profiles], default=UNNAMED.floor_s),
        )

    def _say(self, prefix: TaskPrefix, expected_s: float, now: float) -> None:
        name = prefix.name
        if now - self._told_at.get(name, -math.inf) < TELL_AGAIN_S:
            return
        self._told_at[name] = now
        fresh_s = max([p.fresh_s for p in self._limits.profiles], default=math.inf)
        fresh = f" (a new one: {duration(fresh_s)})" if math.isfinite(fresh_s) else ""
        self._tell(
            wire.N_TASK_TOO_LONG,
            f"tasks {name} are expected to take {duration(expected_s)}, and no worker lives so "
            f"long: the longest has {duration(self._reach_s)} left{fresh}. They run where the "
            "scheduler puts them",
            [],
        )
