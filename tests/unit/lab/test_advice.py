"""Advice: a front that is one, the same advice each time, and none where the trace is too short."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_adaptive.model.observed import PrefixWork
from dask_adaptive.model.policy import Policy, parse_policy
from dask_adaptive_lab.simulate import advice as model
from dask_adaptive_lab.simulate.advice import Result, Tried, advise, changed, result_of, search
from dask_adaptive_lab.simulate.replay import replay
from dask_adaptive_lab.simulate.workload import WorkBurst, workload_of
from dask_adaptive_lab.trace import Origin, Sample, Trace, TraceGroup
from support.tables import table

GROUP = (TraceGroup("etl-default", 4, 4, 4, 0, 1),)
SPEC: dict[str, Any] = {"clusterRef": {"name": "etl"}, "maxReplicas": 4, "idleTimeout": "2m"}
DAY_S = 86_400.0


def trace(
    begins: Sequence[float], *, tasks: int = 40, started: float = 20_000 * DAY_S, end: float = 0.0
) -> Trace:
    """Bursts of tasks of 2 s, worked off by four workers."""
    samples, done = [Sample(0.0, groups=GROUP)], 0
    for at in begins:
        for t in range(tasks // 2):
            left = tasks - 2 * t
            row = PrefixWork("inc", 2.0, min(left, 4), max(0, left - 4), 0, done=done)
            samples.append(Sample(at + t, prefixes=(row,), groups=GROUP))
            done += 2
        samples.append(Sample(at + tasks // 2, groups=GROUP, arrived=(("etl-default", 8.0),)))
    if end:
        samples.append(Sample(end, groups=GROUP))
    return Trace(Origin("etl", started, 1.0, "etl-default"), tuple(samples))


WAVES = trace([10, 60, 110, 300], end=420)


def tried(*traces: Trace, limit: int = 12, **spec: Any) -> list[Tried]:
    return search({**SPEC, **spec}, traces, limit=limit)


class TestFollowing:
    """Work that followed on other work does so in the model."""

    def test_a_burst_soon_after_the_end_of_all_work_follows_on_it(self) -> None:
        bursts = workload_of(WAVES).bursts

        assert (
            WorkBurst(10, None),
            WorkBurst(60, 30.0),
            WorkBurst(110, 30.0),
            WorkBurst(300, None),
        ) == bursts

    def test_work_that_comes_all_the_time_is_one_burst(self) -> None:
        rows = [PrefixWork("inc", 0.2, 1, 1, 0, done=4 * t) for t in range(50)]
        samples = tuple(Sample(float(t), prefixes=(row,)) for t, row in enumerate(rows))

        assert 1 == len(workload_of(Trace(WAVES.origin, samples)).bursts)

    def test_what_follows_is_late_where_the_work_before_is_late(self) -> None:
        slow = replay(WAVES, parse_policy({**SPEC, "maxReplicas": 1}))
        fast = replay(WAVES, parse_policy({**SPEC, "maxReplicas": 8, "minReplicas": 8}))

        # 80 s a wave on one worker, two pauses; what came by the clock comes by the clock.
        assert slow.figures.makespan_s >= 4 * 80 > 300
        assert fast.figures.makespan_s == pytest.approx(300 + 10 - 10, abs=3)
        assert (160, 0) == (slow.finished, slow.figures.unfinished)

    def test_a_scheduler_that_starts_anew_breaks_the_chain(self) -> None:
        again = [dataclasses.replace(s, session=int(s.t >= 60)) for s in WAVES.samples]

        assert WorkBurst(60, None) == workload_of(Trace(WAVES.origin, tuple(again))).bursts[1]

    def test_what_cannot_be_done_is_not_waited_for(self) -> None:
        run = replay(WAVES, parse_policy({**SPEC, "maxReplicas": 0, "minReplicas": 0}))

        assert 160 == run.finished + run.figures.unfinished


class TestTooShort:
    @table(
        "traces, said",
        enough=([WAVES], ""),
        one_burst=([trace([10], end=999)], "1 of at least 3 bursts of work, and 999"),
        a_minute=([trace([10, 31, 52])], "3 of at least 3 bursts of work, and 72"),
        two_traces=([trace([10, 40]), trace([10, 40])], ""),
    )
    def test_is_said(self, traces: list[Trace], said: str) -> None:
        found = model.too_short(traces)

        assert said in found
        assert bool(said) == bool(found)


results = st.builds(
    Result, worker_s=st.integers(0, 20).map(float), wait_s=st.integers(0, 20).map(float),
    makespan_s=st.just(1.0), tasks=st.just(1),
)  # fmt: skip


class TestFront:
    @given(st.lists(results, min_size=1, max_size=30))
    def test_nothing_is_better_than_what_is_on_it_and_something_than_what_is_not(
        self, found: list[Result]
    ) -> None:
        made = [Tried({"n": n}, (result,)) for n, result in enumerate(found)]
        best = model.front(made)

        def is_no_worse(a: Tried, b: Tried) -> bool:
            x, y = a.total(), b.total()
            return x.worker_s <= y.worker_s and x.wait_s <= y.wait_s

        assert not any(is_no_worse(a, b) for a in best for b in best if a is not b)
        assert all(any(is_no_worse(a, b) for a in best) for b in made)

    @given(st.lists(results, min_size=1, max_size=12), st.randoms())
    def test_it_is_the_same_in_whatever_order_policies_were_tried(
        self, found: list[Result], random: Any
    ) -> None:
        made = [Tried({"n": n}, (result,)) for n, result in enumerate(found)]
        shuffled = random.sample(made, len(made))

        assert model.front(made) == model.front(shuffled)


class TestAdvice:
    def test_it_is_a_valid_policy_that_does_all_the_work_and_better(self) -> None:
        made = tried(WAVES, limit=20)
        advice, now = advise(made), made[0].total()

        assert advice
        for each in advice.values():
            then = each.total()
            assert isinstance(parse_policy(changed(SPEC, each.changes)), Policy)
            assert then.is_done
            assert then.worker_s < now.worker_s or then.wait_s < now.wait_s
            assert then.tasks == now.tasks == 160
            # What could be left out without a loss is left out: today's values never return.
            assert all(SPEC.get(path) != value for path, value in each.changes.items())

    @settings(max_examples=3, deadline=None)
    @given(st.integers(2, 12))
    def test_no_more_policies_are_tried_than_allowed(self, limit: int) -> None:
        asked: list[int] = []
        made = search(
            SPEC, [WAVES], lambda *_: Result(float(len(asked)), 1.0, 1.0, 1),
            limit=limit, told=asked.append,
        )  # fmt: skip

        assert 1 <= len(made) <= limit == asked[-1]

    def test_a_policy_that_only_advises_is_tried_as_if_it_acted(self) -> None:
        assert tried(WAVES, limit=2) == tried(WAVES, limit=2, mode="Advise")

    def test_bounds_of_a_policy_with_groups_are_left_alone(self) -> None:
        groups = [{"name": "etl-gpu", "maxReplicas": 2}]
        made = search(
            {**SPEC, "workerGroups": groups}, [WAVES],
            lambda *_: Result(1.0, 1.0, 1.0, 1), limit=60,
        )  # fmt: skip

        assert made[1:]
        assert not any("maxReplicas" in t.changes for t in made)

    def test_a_policy_that_loses_work_is_no_advice(self) -> None:
        def run(_: Trace, policy: Policy) -> Result:
            return Result(99.0, 9.0, 9.0, 1) if policy == today else lossy

        today, lossy = parse_policy(SPEC), Result(1.0, 1.0, 1.0, 1, is_done=False)

        assert {} == advise(search(SPEC, [WAVES], run, limit=9))

    def test_where_today_loses_work_only_what_does_all_of_it_is_advice(self) -> None:
        def run(_: Trace, policy: Policy) -> Result:
            return lossy if policy.max_replicas <= 4 else whole

        lossy, whole = Result(1.0, 1.0, 1.0, 1, is_done=False), Result(9.0, 9.0, 9.0, 1)
        made = search(SPEC, [WAVES], run, limit=60)

        assert [False, True] == sorted({t.total().is_done for t in made})
        assert all(each.total() == whole for each in advise(made).values())
        assert {} == advise(made[:1])

    def test_a_cluster_that_was_recorded_is_not_deleted(self) -> None:
        delete = {"after": "20s", "action": "DeleteCluster"}

        assert all(t.total().is_done for t in tried(WAVES, limit=3, idle=delete))

    @pytest.mark.parametrize("timeout", ["10m", "15m", "1h"])
    def test_workers_that_stay_whatever_the_timeout_cost_the_same(self, timeout: str) -> None:
        costs = [
            result_of(WAVES, parse_policy({**SPEC, "minReplicas": 4, "idleTimeout": t})).worker_s
            for t in ("60s", timeout)
        ]

        assert costs[0] == pytest.approx(costs[1], rel=0.01)

    @given(st.lists(results, min_size=2, max_size=30))
    def test_each_is_what_its_title_says(self, found: list[Result]) -> None:
        made = [Tried({"n": n}, (result,)) for n, result in enumerate(found)]
        now = found[0]
        for title, each in advise(made).items():
            then = each.total()
            is_cheaper, is_faster = then.worker_s < now.worker_s, then.wait_s < now.wait_s
            assert {"cheaper": is_cheaper, "faster": is_faster}.get(title, is_cheaper or is_faster)
