"""Random worlds over 200 passes: the number settles, what waits is served, nothing turns back."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dask_adaptive.loop.one_pass import POLL_S, ClusterLoop
from dask_adaptive.model.policy import Policy, parse_policy
from dask_adaptive.model.reason import Reason
from dask_adaptive_lab.simulate.cluster import SimulatedCluster, Worker
from dask_adaptive_lab.simulate.simulated_ports import SimulatedPorts, completed
from dask_adaptive_lab.simulate.workload import Arrival, Workload
from support.worlds import GPU, GROUP, KEY

PASSES = 200

#: Within 20 passes a number settles and a queue is served, but for what policies and machines take.
SOON_S = 20 * POLL_S

#: A target beyond Dask's own of 5 s: what a queue that never empties asks for doubles as slowly.
USUAL_TARGET_S, DOUBLINGS = 5.0, 6


@dataclass(frozen=True)
class World:
    spec: dict[str, Any]
    task_s: float
    #: Tasks, and the pause until the next ones, again and again; or loops, each of which submits
    #: its next task when its last one is done.
    bursts: tuple[tuple[int, float], ...] = ()
    loops: int = 0
    start_s: float = 5.0
    workers: tuple[int, int] = (0, 0)  # of two groups
    threads: tuple[int, int] = (1, 1)  # of each of their workers

    @property
    def policy(self) -> Policy:
        return parse_policy({"clusterRef": {"name": "etl"}, **self.spec})

    def arrivals(self) -> Iterator[Arrival]:
        if self.loops:
            yield Arrival(0.0, "a", self.loops, 0)
        t = 0.0
        for tasks, pause_s in itertools.cycle(self.bursts):
            yield Arrival(t, "a", tasks, 0)
            t += pause_s
            if t > PASSES * POLL_S:
                return


class LoopingCluster(SimulatedCluster):
    def __init__(self, world: World) -> None:
        work = Workload(tuple(world.arrivals()), (), (), {"a": world.task_s}, {})
        names = (GROUP, GPU)
        threads = dict(zip(names, world.threads, strict=True))
        super().__init__(work, lambda *_: world.start_s, threads)
        self.is_looping, self.was_empty = bool(world.loops), False
        for name, count in zip(names, world.workers, strict=True):
            self.replicas[name] = self.handled[name] = count
            for _ in range(count):
                self.add(name, connects_at=0.0)

    def run(self, worker: Worker, prefix: str) -> None:
        super().run(worker, prefix)
        self.was_empty |= not self.ready.total()

    def finish(self, worker: Worker, number: int) -> None:
        before = self.finished
        super().finish(worker, number)
        if self.is_looping and self.finished > before:
            self.arrive(Arrival(self.now, "a", 1, 0))


@dataclass(frozen=True)
class Seen:
    """What one pass left behind."""

    t: float
    workers: int  # that stay
    is_served: bool  # the queue has been empty since the pass before, or can't be served sooner
    idle_timeouts_s: tuple[float, ...]


def watched(world: World) -> list[Seen]:
    cluster, policy = LoopingCluster(world), world.policy
    loop, seen, now = ClusterLoop(KEY, SimulatedPorts(cluster, KEY).ports()), [], 0.0
    has_own = any(b.name == GROUP for b in policy.own_bounds)
    for _ in range(PASSES):
        cluster.advance(now)
        is_empty, cluster.was_empty = cluster.was_empty or not cluster.ready.total(), False
        result = completed(loop.one_pass(policy))
        bounds = {b.name: b for b in result.policy.bounds(GROUP)}
        groups = result.plan.groups
        assert all(g.desired <= bounds[g.group].maximum for g in groups)
        # A minimum is come to no faster than maxPending allows, and takes nobody's place.
        if policy.behavior.scale_up.max_pending is None and any(
            g.desired < bounds[g.group].minimum for g in groups
        ):
            assert len(cluster.workers) >= policy.max_replicas
            assert all(g.desired <= g.current for g in groups)
        groups = [g for g in result.plan.groups if g.desired < bounds[g.group].maximum]
        # One beyond its group's maximum takes a place of all groups for as long as it is busy.
        is_full = has_own and len(cluster.workers) >= policy.max_replicas
        staying = [w for w in cluster.workers.values() if w.retiring is None and not w.deleting]
        is_held = any(g.reason is Reason.WITHIN_TOLERANCE for g in groups)  # the user's own wish
        is_coming = any(not w.is_here for w in staying)
        is_served = is_empty or not groups or is_full or is_held or is_coming
        idle = tuple(b.idle_timeout_s for b in bounds.values())
        seen.append(Seen(now, len(staying), is_served, idle))
        now += min(result.again_in_s, POLL_S)
    assert (0, 0) == (cluster.redone, cluster.killed)
    return seen


def settles(world: World, seen: list[Seen]) -> None:
    """On constant load, where no pause between tasks is as long as an `idleTimeout`."""
    idle_s = [s for pass_ in seen for s in pass_.idle_timeouts_s]
    is_constant = world.loops or (len(world.bursts) == 1 and world.bursts[0][1] < min(idle_s))
    if not is_constant:
        return
    target_s = world.policy.target.duration_s
    slowly_s = DOUBLINGS * target_s if target_s > USUAL_TARGET_S else 0.0
    if pending := world.policy.behavior.scale_up.max_pending:  # they come one after the other
        slowly_s += world.start_s * max(s.workers for s in seen) / pending
    from_s = SOON_S + world.start_s + 2 * world.task_s + max(idle_s) + slowly_s
    assert len({s.workers for s in seen if s.t > from_s}) <= 1


def all_is_served(world: World, seen: list[Seen]) -> None:
    """A queue that is never empty has the number grow for as long as it may."""
    most_s = SOON_S + world.start_s + 2 * world.policy.target.duration_s
    since = 0.0
    for before, after in itertools.pairwise(seen):
        if after.is_served or after.workers > before.workers:
            since = after.t
        assert after.t - since <= most_s


def no_fall_follows_a_rise(seen: list[Seen]) -> None:
    """Within `idleTimeout`; a rise may follow a fall at once, where load asks for it."""
    rose_at = -math.inf
    for before, after in itertools.pairwise(seen):
        if after.workers > before.workers:
            rose_at = before.t  # they were asked for then
        if after.workers < before.workers:
            assert after.t - rose_at >= min(after.idle_timeouts_s) - 1e-6


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    idle = st.sampled_from(["Auto", "5s", "20s", "60s"])
    tolerance = st.sampled_from([{}, {}, {"tolerance": "0.1"}, {"tolerance": "0.3"}])
    low, pending = draw(st.integers(0, 2)), draw(st.none() | st.integers(1, 3))
    bounds = {"minReplicas": low, "idleTimeout": draw(idle)}
    maximum = low + draw(st.integers(1, 20))
    up = {**draw(tolerance), **({"maxPending": pending} if pending else {})}
    spec = {
        "maxReplicas": maximum,
        "target": {"duration": draw(st.sampled_from(["1s", "5s", "5s", "20s", "2m"]))},
        "behavior": {"scaleUp": up, "scaleDown": draw(tolerance)},
    }
    how = draw(st.sampled_from(["one group", "another", "both"]))
    if how == "one group":
        return {**spec, **bounds}
    priority = draw(st.integers(-1, 1))
    groups = [{"name": GPU, "maxReplicas": draw(st.integers(1, 9)), "priority": priority}]
    if how == "another":
        return {**spec, **bounds, "workerGroups": groups}
    return {**spec, "workerGroups": [*groups, {"name": GROUP, "maxReplicas": maximum, **bounds}]}


tasks_s = st.sampled_from([0.1, 0.5, 1.0, 2.0, 5.0, 17.0, 60.0])
pauses_s = st.sampled_from([0.3, 1.0, 3.0, 8.0, 15.0, 40.0, 70.0, 130.0])
threads = st.sampled_from([1, 1, 2, 4])
machines: dict[str, Any] = {
    "start_s": st.sampled_from([0.5, 2.0, 8.0, 20.0, 45.0]),
    "workers": st.tuples(st.integers(0, 4), st.integers(0, 3)),
    "threads": st.tuples(threads, threads),
}
worlds = st.one_of(
    st.builds(
        World, specs(), tasks_s | st.just(1e6), loops=st.integers(1, 40), **machines
    ),
    st.builds(
        World, specs(), tasks_s,
        st.tuples(st.tuples(st.integers(1, 3), st.sampled_from([0.2, 0.5, 1.0, 2.0, 3.0]))),
        **machines,
    ),
    st.builds(
        World, specs(), tasks_s,
        st.lists(st.tuples(st.integers(1, 60), pauses_s), min_size=1, max_size=6).map(tuple),
        **machines,
    ),
)  # fmt: skip


@settings(max_examples=8, deadline=None, derandomize=True)
# One task too many for seven workers of four threads waited for good.
@example(World({"maxReplicas": 16}, 1e6, loops=29, threads=(4, 1)))
# A busy worker beyond its group's maximum has the last place.
@example(
    World(
        {
            "maxReplicas": 18, "behavior": {"scaleUp": {"maxPending": 1}},
            "workerGroups": [
                {"name": GPU, "maxReplicas": 2, "priority": -1},
                {"name": GROUP, "maxReplicas": 18, "idleTimeout": "20s"},
            ],
        },
        2.0, loops=37, start_s=0.5, workers=(3, 3),
    )
)  # fmt: skip
# A group of a higher priority leaves the others their minimums.
@example(
    World(
        {
            "maxReplicas": 2,
            "workerGroups": [
                {"name": GPU, "maxReplicas": 2, "priority": 1},
                {"name": GROUP, "maxReplicas": 2, "minReplicas": 1},
            ],
        },
        1e6, loops=3, start_s=0.5,
    )
)  # fmt: skip
# Passes, which are the looks at a queue, are not as frequent as workers are quick to start.
@example(
    World(
        {"maxReplicas": 16, "target": {"duration": "20s"}}, 0.1, loops=29, start_s=0.5,
        workers=(4, 0), threads=(2, 1),
    )
)  # fmt: skip
@given(worlds)
def test_over_200_passes(world: World) -> None:
    seen = watched(world)

    settles(world, seen)
    all_is_served(world, seen)
    no_fall_follows_a_rise(seen)


@pytest.mark.thorough
@pytest.mark.timeout(900)
@settings(
    # The same worlds each time: a commit is judged by what it changes. WORLDS=2000 tries others.
    max_examples=int(os.environ.get("WORLDS", "300")), derandomize="WORLDS" not in os.environ,
    deadline=None, suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(worlds)
def test_over_200_passes_of_very_many_worlds(world: World) -> None:
    test_over_200_passes.hypothesis.inner_test(world)
