"""
Finds workers that have too little time left for the tasks that are there.

A worker is short of time once it has less left than the longest kind of task is expected to take
that it might be given: such tasks are yet to begin, and want no resource that it lacks. `cordons`
gives it no more tasks then: no task begins that would not end before its worker, and a worker's
life loses no more than the time of one such task.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Set
from functools import cache
from typing import TYPE_CHECKING

from distributed.core import Status

from dask_adaptive_agent import wire
from dask_adaptive_agent.component import Component, Context
from dask_adaptive_agent.demand.durations import TO_COME, Durations, Stage, TaskKind, is_among
from dask_adaptive_agent.quotas.roster import Entry
from dask_adaptive_agent.quotas.worker_limits import UNNAMED
from dask_adaptive_agent.service.service import Service
from dask_adaptive_agent.text import duration, group_of
from dask_adaptive_agent.worker_side import lifetime

if TYPE_CHECKING:
    from distributed.scheduler import TaskPrefix, TaskState

#: Seconds between two looks while some worker has an end, and between two searches for ends that
#: workers report by themselves.
LOOK_S, SEARCH_S = 0.5, 5.0

#: From the look that allows a task to its start: the pause between two looks, and messages.
SLACK_S = 1.0

#: Seconds after its end from which a worker that is still there counts as one without an end.
LATE_S = 10.0

#: Seconds between two notes about the same kind of task.
NOTE_AGAIN_S = 600.0


class Deadlines(Component):
    """Says which workers are short of time, as of the last look."""

    def __init__(self, context: Context, service: Service, durations: Durations) -> None:
        super().__init__(context)
        self.entries, self.durations, self._service = context.roster.entries, durations, service
        self.have_ends = self.may_wait = False  # the latter: for workers that are on their way
        #: By the resources that they want: duration of the longest kind that is yet to begin, and
        #: that somebody in service can finish.
        self._needed: dict[frozenset[str], float] = {}
        self._needed_s = 0.0  # the longest of these
        #: Other known kinds that some worker is too short for.
        self._others: list[TaskKind] = []
        self._look_at = self._search_at = -math.inf
        self._noted_at: dict[str, float] = {}

    def is_short(self, entry: Entry) -> bool:
        left_s = entry.ends_at - self.clock()
        # The first part for most of thousands of workers.
        return -LATE_S < left_s < self._needed_s and left_s < self._needed_of(entry)

    def short(self) -> list[Entry]:
        return [e for e in self.entries.values() if self.is_short(e)] if self._needed_s else []

    def _needed_of(self, entry: Entry) -> float:
        has = entry.ws.resources.keys()
        return max([s for wanted, s in self._needed.items() if wanted <= has], default=-LATE_S)

    def fitting(self, entry: Entry) -> Callable[[TaskState], bool]:
        """Return a test of whether a worker has enough time left for a task."""
        floor_s, left_s = self._floor_s, entry.ends_at - self.clock()
        return lambda ts: self.durations.expected_s(ts.prefix, floor_s) + SLACK_S <= left_s

    def message(self, entry: Entry) -> str:
        left_s = max(0.0, entry.ends_at - self.clock())
        needed = duration(self._needed_of(entry) - SLACK_S)
        return f"ends in {duration(left_s)}, and a task in the scheduler may take {needed}"

    def expected_s(self) -> float:
        """Expected duration of the longest unfinished kind of task; 0: none."""
        kinds = self.durations.kinds(self._floor_s)
        there = [kind.expected_s for kind in kinds if kind.stage is not Stage.ABSENT]
        return max(there, default=0.0)

    def refresh(self, *, anew: bool = False) -> None:
        """Look at workers and kinds of tasks, now or if the last look is long ago."""
        now = self.clock()
        if not anew and now < self._look_at:
            return
        self._look_at = now + LOOK_S
        if self.context.settings.lifetime_s and (anew or now >= self._search_at):
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
            self._needed, self._needed_s, self._others = {}, 0.0, []

    def graph_added(self) -> bool:
        """A graph has come; tells whether it has tasks that some worker is too short for."""
        states = (*TO_COME, "released")
        return self.came([kind.prefix for kind in self._others if is_among(kind.prefix, states)])

    def came(self, prefixes: Collection[TaskPrefix]) -> bool:
        """Tasks of these kinds are to begin; tells whether some worker is too short for them."""
        came = [kind for kind in self._others if kind.prefix in prefixes]
        self.durations.came([kind.prefix for kind in came])
        return any([self._need(kind) for kind in came])

    def _need(self, kind: TaskKind) -> bool:
        """Note a kind that is needed; true if it takes longer than those known."""
        needed_s, known_s = kind.expected_s + SLACK_S, self._needed.get(kind.resources, 0.0)
        self._needed[kind.resources] = max(needed_s, known_s)
        self._needed_s = max(needed_s, self._needed_s)
        return needed_s > known_s

    def _judge(self, now: float) -> None:
        # Locals, because this is done for each of thousands of workers.
        running, since, is_short = Status.running, now - LATE_S, self._service.is_short
        in_service = [
            e for e in self.entries.values() if e.ws.status is running or is_short(e.ws.address)
        ]
        # One that registers runs before the next look.
        shortest_s = min([e.ends_at - now for e in self.entries.values() if e.ends_at > since])
        self.may_wait = self.may_wait_for(frozenset())
        fresh_s = max([one.fresh_s for one in self.context.limits.rules], default=math.inf)

        @cache
        def reach_s(wanted: frozenset[str]) -> float:
            """Seconds that the longest-lived worker with these resources has left."""
            left = [
                e.ends_at - now if e.ends_at > since else math.inf
                for e in in_service
                if wanted <= e.ws.resources.keys()
            ]
            return max([fresh_s if self.may_wait_for(wanted) else 0.0, *left])

        self._needed, self._needed_s, self._others = {}, 0.0, []
        for kind in self.durations.kinds(self._floor_s):
            needed_s, most_s = kind.expected_s + SLACK_S, reach_s(kind.resources)
            if needed_s > most_s:
                if kind.stage is not Stage.ABSENT:
                    self._note_too_long(kind, most_s, now)
            elif kind.stage is Stage.TO_BEGIN:
                self._need(kind)
            elif shortest_s < needed_s:
                self._others.append(kind)

    def may_wait_for(self, wanted: Set[str]) -> bool:
        """
        Tells whether tasks that want these resources may wait for workers on their way, as nothing
        fails them. Those of a group without the resources do not count.
        """
        if getattr(self.scheduler, "no_workers_timeout", None) is not None:
            return False
        every = [e.ws for e in self.entries.values()] if wanted else []
        others = {group_of(ws).stem for ws in every if not wanted <= ws.resources.keys()}
        plans, roster = self.context.plans, self.context.roster
        return plans.are_arriving(but=others) or roster.is_settling(wanted)

    @property
    def _floor_s(self) -> float:
        return max([one.floor_s for one in self.context.limits.rules], default=UNNAMED.floor_s)

    def _note_too_long(self, kind: TaskKind, most_s: float, now: float) -> None:
        name = kind.prefix.name
        if now - self._noted_at.get(name, -math.inf) < NOTE_AGAIN_S:
            return
        self._noted_at[name] = now
        fresh_s = max([one.fresh_s for one in self.context.limits.rules], default=math.inf)
        fresh = f" (a new one: {duration(fresh_s)})" if math.isfinite(fresh_s) else ""
        self.context.notes.add(
            wire.N_TASK_TOO_LONG,
            f"tasks {name} are expected to take {duration(kind.expected_s)}, and no worker lives "
            f"that long: the longest has {duration(most_s)} left{fresh}. They run where the "
            "scheduler puts them",
        )
