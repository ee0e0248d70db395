"""What one pass leaves for the next: enough to be quick, never enough to be rash."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_adaptive.model.observed import (
    Ending,
    Leaving,
    ObservedCluster,
    ObservedScheduler,
    ObservedWorker,
)
from dask_adaptive.model.past import Past, Recommendation
from dask_adaptive.model.plan import (
    Action,
    Cancel,
    Delete,
    GroupPlan,
    Leave,
    Outcome,
    Plan,
    Retire,
    SetReplicas,
)
from dask_adaptive.model.reason import Reason
from dask_adaptive.planner.plan import plan
from dask_adaptive.planner.remember import remember
from support.worlds import GROUP, NOW, PAST, POLICY, busy, cluster, past_of, pending, worker

HOLD = Plan(Reason.DESIRED_WITHIN_RANGE, "", wanted=2)


def held(wanted: int = 2, reason: Reason = Reason.DESIRED_WITHIN_RANGE) -> tuple[GroupPlan, ...]:
    """What there is to remember of the default group, that has one worker."""
    is_frozen = reason is Reason.PAUSED
    return (GroupPlan(GROUP, 1, wanted, 1, reason, "", current=1, is_frozen=is_frozen),)


def done(action: Action) -> Outcome:
    return Outcome(action, True, action.reason, "")


def after(world: ObservedCluster, *outcomes: Outcome, past: Past = PAST, **plan: Any) -> Past:
    reason = plan.get("reason", HOLD.reason)
    decided = dataclasses.replace(HOLD, groups=held(reason=reason), **plan)
    return remember(past, world, POLICY, decided, outcomes, now=NOW)


DELETE_X = Delete("x", "u", ("x",), Reason.DRAINED, "")
SET_5 = SetReplicas(GROUP, 5, Reason.LOAD_INCREASED, "")


@pytest.mark.parametrize(
    ("world", "outcomes", "past", "expected"),
    [
        pytest.param(cluster([busy("a")]), [done(DELETE_X)], {}, {"x"}, id="deleted"),
        pytest.param(
            cluster([busy("a")], replicas=2), [], {"leaving": frozenset("x")}, {"x"}, id="missing"
        ),
        pytest.param(cluster([busy("a")]), [], {"leaving": frozenset("x")}, set(), id="settled"),
        pytest.param(
            cluster([busy("a")]), [done(SET_5)], {"leaving": frozenset("x")}, set(),
            id="settled-and-raised-in-the-first-pass-of-a-new-operator",
        ),
        pytest.param(
            cluster([busy("a")], replicas=2), [done(SET_5)], {"leaving": frozenset("x")}, set(),
            id="raised-with-the-missing-counted",
        ),
        pytest.param(
            cluster([worker("x", leaving=Leaving.DRAINING)]), [], {}, {"x"}, id="on-its-way"
        ),
        pytest.param(
            cluster([worker("x")]), [], {"leaving": frozenset("x")}, set(), id="called-back"
        ),
    ],
)  # fmt: skip
def test_who_explains_a_gap(
    world: ObservedCluster, outcomes: list[Outcome], past: dict[str, Any], expected: set[str]
) -> None:
    assert expected == after(world, *outcomes, past=dataclasses.replace(PAST, **past)).leaving


def test_a_refusal_is_kept_for_a_while() -> None:
    refused = Outcome(Retire("a", ("a",), Reason.UNDERUTILIZED, ""), False, Reason.PINNED, "why")
    past = after(cluster([worker("a")]), refused)

    assert (Reason.PINNED, "why") == (past.refusals["a"].reason, past.refusals["a"].message)
    later = remember(past, cluster([worker("a")]), POLICY, HOLD, (), now=NOW + 60)
    assert {} == later.refusals


def test_a_refusal_on_a_node_that_goes_is_asked_again_soon() -> None:
    action = Retire("a", ("a",), Reason.NODE_GOING, "", busy_ok=True)
    past = after(cluster([worker("a")]), Outcome(action, False, Reason.NO_RECIPIENT, "why"))

    assert NOW + 5 == past.refusals["a"].until


def test_whom_we_told_is_remembered_until_it_has_ended() -> None:
    action = Leave("a", ("tcp://a",), 60.0, Reason.POD_ENDING, "")
    pod = Ending("a", "a-x", (), 60.0, ("tcp://a",))
    past = after(dataclasses.replace(cluster([]), ending=(pod,)), done(action))
    later = after(dataclasses.replace(cluster([]), ending=(pod,)), past=past)

    assert {"tcp://a"} == past.told == later.told
    assert set() == after(cluster([]), past=later).told


def test_a_new_session_begins_a_new_window() -> None:
    past = after(cluster([busy("a")], session="new"))

    assert ("new", NOW) == (past.session, past.since)
    assert (Recommendation(NOW, 2),) == past.of(GROUP).recommendations


def test_silence_is_no_news() -> None:
    silent = dataclasses.replace(
        cluster([busy("a")]), scheduler=ObservedScheduler(Reason.SCHEDULER_UNREACHABLE)
    )

    assert PAST == after(silent)


def test_after_blindness_the_window_begins_anew() -> None:
    blind = past_of(recommendations=(Recommendation(NOW - 60, 0),))

    assert NOW == after(cluster([busy("a")]), past=blind).since


def test_a_pause_begins_the_window_anew() -> None:
    past = after(cluster([busy("a")]), reason=Reason.PAUSED)

    assert (NOW, ()) == (past.since, past.of(GROUP).recommendations)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30))
def test_the_windows_maximum_is_never_lost(wanted: list[int]) -> None:
    past, now = Past(), NOW
    for n in wanted:
        now += 1
        decided = dataclasses.replace(HOLD, wanted=n, groups=held(n))
        past = remember(past, cluster([busy("a")]), POLICY, decided, (), now=now)

    recent = wanted[-int(POLICY.idle_timeout_s) :]
    assert max(recent) == max(r.replicas for r in past.of(GROUP).recommendations if now - r.at < 30)


class Upstream:
    """dask-kubernetes as facts 2 and 9a tell: acts on changes of `replicas`, late and rashly."""

    def __init__(self, *, knows_handled: bool = False) -> None:
        self.knows_handled = knows_handled
        self.replicas = self.handled = 0
        self.workers: dict[str, str] = {}  # name -> "pending" | "idle" | "busy" | "drained"
        self.killed_busy = 0
        self.made = 0

    def handle(self) -> None:
        if self.replicas == self.handled:
            return
        self.handled = self.replicas
        while len(self.workers) < self.replicas:
            self.made += 1
            self.workers[f"w{self.made}"] = "pending"
        while len(self.workers) > self.replicas:  # the victims are its own choice: the worst one
            victim = max(self.workers, key=lambda n: self.workers[n] == "busy")
            self.killed_busy += self.workers.pop(victim) == "busy"

    def obey(self, action: Action) -> None:
        match action:
            case SetReplicas(_, replicas):
                if replicas >= len(self.workers):  # the platform refuses else
                    self.replicas = replicas
            case Delete(name):
                self.workers.pop(name, None)
            case Retire(name):
                self.workers[name] = "drained"
            case Cancel(name):
                self.workers[name] = "idle"

    def seen(self, target: int) -> ObservedCluster:
        make = {
            "pending": pending,
            "busy": busy,
            "idle": worker,
            "drained": lambda n: worker(n, leaving=Leaving.DRAINED, in_service=False),
        }
        workers = [make[state](name) for name, state in self.workers.items()]
        return self.cluster(workers, target)

    def cluster(self, workers: list[ObservedWorker], target: int) -> ObservedCluster:
        world = cluster(workers, target=target, replicas=self.replicas)
        handled = self.handled if self.knows_handled else None
        group = dataclasses.replace(world.groups[0], handled=handled)
        return dataclasses.replace(world, groups=(group,))


steps = st.lists(
    st.tuples(
        st.integers(0, 8),  # what the load asks for
        st.booleans(),  # upstream gets round to its work
        st.booleans(),  # our own operator dies after acting, and starts with what the status said
        st.booleans(),  # what we see is one step old
    ),
    min_size=5,
    max_size=40,
)


@pytest.mark.long
@settings(max_examples=300)
@given(steps, st.booleans())
def test_upstream_is_never_made_to_choose_a_victim(
    history: list[tuple[int, bool, bool, bool]], knows_handled: bool
) -> None:
    """However the load changes, slow upstream is, often we die, or old our view is."""
    upstream, past, now = Upstream(knows_handled=knows_handled), Past(), NOW
    policy = dataclasses.replace(POLICY, idle_timeout_s=0.0)
    old = upstream.seen(0)
    for target, is_handled, is_killed, is_stale in history:
        now += 5.0
        fresh = upstream.seen(target)
        world = old if is_stale else fresh
        old = fresh
        decided = plan(world, policy, past, now=now)
        outcomes = []
        for action in decided.actions:
            name = getattr(action, "worker", None)
            is_there = name is None or name in upstream.workers
            is_safe = not (
                isinstance(action, Delete | Retire) and upstream.workers.get(name) == "busy"
            )  # the agent refuses
            if is_there and is_safe:
                upstream.obey(action)
            outcomes.append(Outcome(action, is_there and is_safe, action.reason, ""))
        past = remember(past, world, policy, decided, outcomes, now=now)
        if is_killed:
            past = Past(leaving=past.leaving)
        if is_handled:
            upstream.handle()
        for i, (name, state) in enumerate(list(upstream.workers.items())):
            if state != "drained":
                upstream.workers[name] = "busy" if i < target else "idle"

    assert 0 == upstream.killed_busy


class Nodes(Upstream):
    """Upstream on machines that come and go: workers drain with tasks, pods are deleted."""

    def __init__(self, *, knows_handled: bool = False) -> None:
        super().__init__(knows_handled=knows_handled)
        self.doomed: set[str] = set()
        self.lost = 0

    def happen(self, what: str, which: int) -> None:
        """Something that nobody asked us about."""
        if what == "uncordon":
            self.doomed.clear()
        if not self.workers:
            return
        name = list(self.workers)[which % len(self.workers)]
        if what == "cordon":
            self.doomed.add(name)
        if what == "delete pod":  # the Deployment makes another, elsewhere; the old process departs
            self.workers[name] = "pending"
            self.doomed.discard(name)

    def obey(self, action: Action) -> None:
        if isinstance(action, Retire):
            # The agent: a busy worker leaves only if that was said, and its tasks finish first.
            self.workers[action.worker] = "draining"
            return
        if isinstance(action, Delete):
            self.lost += self.workers.get(action.worker) in {"busy", "idle", "draining"}
        super().obey(action)

    def allows(self, action: Action) -> bool:
        state = self.workers.get(getattr(action, "worker", ""), "")
        match action:
            case SetReplicas():
                return True
            case Retire(busy_ok=busy_ok):
                return state == "idle" or (state == "busy" and busy_ok)
            case Delete():  # asked once more: it has to have drained, or never to have connected
                return state in {"pending", "drained"}
        return state != ""

    def work(self, target: int) -> None:
        """A step of time: tasks go where workers serve, and those that drain get done."""
        free = target
        for name, state in self.workers.items():
            if state in {"draining", "drained"}:
                self.workers[name] = "drained"
            else:
                self.workers[name] = "busy" if free > 0 else "idle"
                free -= 1

    def seen(self, target: int) -> ObservedCluster:
        leaving = {"draining": Leaving.DRAINING, "drained": Leaving.DRAINED}
        workers = []
        for name, state in self.workers.items():
            going = {"node_going": "node n1: cordoned"} if name in self.doomed else {}
            if state in leaving:
                workers.append(worker(name, leaving=leaving[state], in_service=False, **going))
            else:
                make = {"pending": pending, "busy": busy, "idle": worker}[state]
                workers.append(make(name, **going))
        return self.cluster(workers, target)


nodes_steps = st.lists(
    st.tuples(
        st.integers(0, 8),  # what the load asks for
        st.booleans(),  # upstream gets round to its work
        st.booleans(),  # our own operator dies
        st.sampled_from(["", "", "cordon", "cordon", "uncordon", "delete pod"]),
        st.integers(0, 7),  # to which worker
    ),
    min_size=5,
    max_size=40,
)
CALM = [(True, False, "", 0)] * 30


@pytest.mark.long
@settings(max_examples=300)
@given(nodes_steps, st.integers(0, 8), st.integers(0, 3), st.booleans(), st.booleans())
def test_whatever_happens_to_nodes_and_pods_no_work_is_lost_and_all_settles(
    history: list[tuple[int, bool, bool, str, int]],
    last: int,
    minimum: int,
    is_uncordoned: bool,
    knows_handled: bool,
) -> None:
    """Until the last step anything may happen; then nothing does, and the plan comes to rest."""
    world, past, now = Nodes(knows_handled=knows_handled), Past(), NOW
    policy = dataclasses.replace(POLICY, idle_timeout_s=0.0, minimum=minimum)
    if is_uncordoned:
        history = [*history, (last, True, False, "uncordon", 0)]
    decided = HOLD
    for target, is_handled, is_killed, what, which in [*history, *((last, *c) for c in CALM)]:
        now += 5.0
        world.happen(what, which)
        seen = world.seen(target)
        decided = plan(seen, policy, past, now=now)
        outcomes = []
        for action in decided.actions:
            is_done = world.allows(action)
            if is_done:
                world.obey(action)
            outcomes.append(Outcome(action, is_done, action.reason, ""))
        past = remember(past, seen, policy, decided, outcomes, now=now)
        past = Past(leaving=past.leaving) if is_killed else past
        if is_handled:
            world.handle()
        world.work(target)

    assert (0, 0) == (world.killed_busy, world.lost)
    assert () == decided.actions
    assert max(last, minimum) == len(world.workers) == world.replicas
    assert not world.doomed & set(world.workers)
