"""One policy against one trace: the passes of the loop, in simulated time."""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

from dask_adaptive.loop.one_pass import BRISK_S, REST_S
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import Leaving, ObservedCluster
from dask_adaptive.model.past import Past
from dask_adaptive.model.plan import Outcome, Plan
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.trace import Sample, Trace
from dask_adaptive.planner.plan import plan
from dask_adaptive.planner.remember import remember
from dask_adaptive.simulate.carry import carry_out
from dask_adaptive.simulate.load import load_of
from dask_adaptive.simulate.seen import observed
from dask_adaptive.simulate.world import Startup, World, startup_of

#: How long a worker takes to connect where nobody has measured it.
STARTUP_S = 20.0

#: Work that is not done so long after the trace has ended is not waited for.
LONGEST_S = 6 * 3600.0

#: Called with each pass: its time, what was seen, decided and done.
Witness = Callable[[float, ObservedCluster, Plan, "tuple[Outcome, ...]"], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """What the trace does not say, or shall not decide."""

    startup_s: float | None = None  # for every worker; None: as measured
    capacity: int | None = None  # workers that there is room for; None: any number
    threads: int | None = None  # of each worker; None: as recorded


@dataclass(frozen=True, slots=True)
class Point:
    """One instant."""

    t: float
    present: int  # workers that exist, connected or not
    connected: int
    leaving: int
    unfinished: int  # tasks: queued, waiting or running
    running: int
    desired: int


@dataclass(frozen=True, slots=True)
class Run:
    """What would have happened."""

    policy: Policy
    points: tuple[Point, ...]
    tasks: int
    finished: int
    redone: int
    lost: int  # tasks that came when the cluster had been deleted
    waited_s: float  # task-seconds in the queue
    first_work_at: float  # when the first task came; seconds since the trace began
    last_work_at: float  # when the last one finished

    @property
    def is_complete(self) -> bool:
        return self.points[-1].unfinished == 0


def replay(
    trace: Trace, policy: Policy, settings: Settings = Settings(), *, witness: Witness | None = None
) -> Run:
    """Run the trace's work under a policy. The same input gives the same run."""
    replayed = _Replay(trace, policy, settings, witness)
    replayed.warm_up()
    replayed.run()
    world = replayed.world
    return Run(
        policy=policy,
        points=tuple(replayed.points),
        tasks=world.load.tasks,
        finished=world.finished,
        redone=world.redone,
        lost=world.lost,
        waited_s=world.waited_s,
        first_work_at=min((a.at for a in world.load.arrivals), default=0.0),
        last_work_at=world.last_work_at,
    )


class _Replay:
    def __init__(
        self, trace: Trace, policy: Policy, settings: Settings, witness: Witness | None
    ) -> None:
        self._trace, self._policy, self._witness = trace, policy, witness
        self._times = [s.t for s in trace.samples]
        default = trace.origin.default_group or f"{policy.cluster}-default"
        self.key = ClusterKey("simulated", default.removesuffix("-default"))
        self.world = World(
            load_of(trace), _startup(trace, settings),
            _threads(trace, policy, self.key, settings), capacity=settings.capacity,
        )  # fmt: skip
        self.points: list[Point] = []
        self._past = Past()
        self._begin = self._quiet_since = self._times[0]
        self.world.advance(self._begin)
        self._place_workers(trace.samples[0])

    def _place_workers(self, first: Sample) -> None:
        """The workers that are there when the trace begins; those on their way have just begun."""
        for group in first.groups:
            self.world.replicas[group.name] = group.replicas
            for n in range(group.present):
                self.world.add(group.name, connected=n < group.connected)
        if not first.groups:
            self.world.replicas[self.key.default_group] = 0

    def warm_up(self) -> None:
        """
        Let the loop watch the cluster as it stands for as long as any rule looks back, so that it
        judges like an operator that has been there. Nothing is carried out.
        """
        behavior = self._policy.scaling.behavior
        windows = (behavior.up.window_s, behavior.down.window_s, self._policy.idle_timeout_s)
        passes = math.ceil(max(w or 0.0 for w in windows) / REST_S) + 1
        for n in range(passes, 0, -1):
            now = self._begin - n * REST_S
            seen = self._observe()
            decided = plan(seen, self._policy, self._past, now=now)
            self._past = remember(self._past, seen, self._policy, decided, (), now=now)

    def run(self) -> None:
        now, rested = self._begin, 0.0
        end = self._trace.samples[-1].t
        while True:
            self.world.advance(now)
            is_astir = self._one_pass(now)
            pause_s = BRISK_S if is_astir else self._rest_s()
            # Work that nobody does may stay for ever: no worker is allowed, or comes.
            is_quiet = now >= end and not is_astir and not self.world.running()
            rested = rested + pause_s if is_quiet else 0.0
            if rested > self._settle_s() or now > end + LONGEST_S:
                return
            now += pause_s

    def _one_pass(self, now: float) -> bool:
        """Returns whether something is done, or on its way: then the loop looks again soon."""
        if self.world.unfinished:
            self._quiet_since = now
        seen = self._observe()
        decided = plan(seen, self._policy, self._past, now=now)
        outcomes = carry_out(decided, self.world)
        self._past = remember(self._past, seen, self._policy, decided, outcomes, now=now)
        self.points.append(self._point(decided))
        if self._witness is not None:
            self._witness(now, seen, decided, outcomes)
        workers = self.world.workers.values()
        on_the_way = any(
            (not w.is_here and not w.is_stuck) or w.leaving is not Leaving.NO for w in workers
        )
        is_short = any(g.desired > g.serving for g in decided.groups)
        return bool(outcomes) or on_the_way or is_short

    def _observe(self) -> ObservedCluster:
        now = self.world.now
        at = bisect.bisect_right(self._times, now) - 1
        recorded = self._trace.samples[max(at, 0)]
        return observed(
            self.world, self.key, self._policy, recorded,
            started=self._trace.origin.started, quiet_s=now - self._quiet_since,
        )  # fmt: skip

    def _rest_s(self) -> float:
        """As the loop rests (`loop.one_pass`)."""
        bounds = self._policy.bounds(self.key.default_group)
        shortest_s = min(self._policy.idle_timeout_of(b) for b in bounds)
        return max(BRISK_S, min(REST_S, shortest_s / 3))

    def _settle_s(self) -> float:
        """How long nothing must have happened after the last work for the run to be over."""
        idle = self._policy.scaling.idle
        windows = (
            self._policy.idle_timeout_s,
            self._policy.scaling.behavior.down.window_s or 0.0,
            *(g.idle_timeout_s or 0.0 for g in self._policy.scaling.groups),
            idle.after_s or 0.0,
        )
        return min(max(windows) + 2 * REST_S, LONGEST_S)

    def _point(self, decided: Plan) -> Point:
        world = self.world
        workers = world.workers.values()
        return Point(
            t=world.now,
            present=len(workers),
            connected=sum(w.is_here for w in workers),
            leaving=sum(w.going or w.leaving is not Leaving.NO for w in workers),
            unfinished=world.unfinished,
            running=sum(len(w.running) for w in workers),
            desired=sum(g.desired for g in decided.groups) if decided.groups else decided.desired,
        )


def _startup(trace: Trace, settings: Settings) -> Startup:
    arrived: dict[str, list[float]] = defaultdict(list)
    if settings.startup_s is None:
        for group, seconds in (a for s in trace.samples for a in s.arrived):
            arrived[group].append(seconds)
    default_s = STARTUP_S if settings.startup_s is None else settings.startup_s
    return startup_of(arrived, default_s)


def _threads(trace: Trace, policy: Policy, key: ClusterKey, settings: Settings) -> dict[str, int]:
    recorded = {g.name: g.threads for s in trace.samples for g in s.groups if g.threads}
    names = dict.fromkeys(
        (key.default_group, *(b.name for b in policy.bounds(key.default_group)),
         *(g.name for g in trace.samples[0].groups))
    )  # fmt: skip
    usual = max(recorded.values(), default=1)
    return {name: settings.threads or recorded.get(name, usual) for name in names}
