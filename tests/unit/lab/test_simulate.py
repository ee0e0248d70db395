"""The model of `simulate`: what a trace says, what a world does with it, and what it comes to."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_adaptive.loop.ports import PlatformError
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import PrefixWork, Want
from dask_adaptive.model.policy import Policy, parse_policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Limits, Profile
from dask_adaptive_lab import trace as form
from dask_adaptive_lab.cli.simulate import table_of
from dask_adaptive_lab.simulate.cluster import SimulatedCluster, startup_of
from dask_adaptive_lab.simulate.replay import recorded, replay, turns
from dask_adaptive_lab.simulate.simulated_ports import SimulatedPorts, completed
from dask_adaptive_lab.simulate.workload import Arrival, Release, Withdrawal, Workload, workload_of
from dask_adaptive_lab.trace import InvalidTrace, Origin, Sample, Trace, TraceGroup
from support.tables import table

ORIGIN = Origin("etl", 1_770_000_000.0, 1.0, "etl-default", "2026.8.0", "0.1.0")
GROUP, KEY = "etl-default", ClusterKey("team", "etl")


def work(name: str, running: int = 0, ready: int = 0, waiting: int = 0, done: int = 0,
         mean_s: float | None = 1.0, **more: Any) -> PrefixWork:  # fmt: skip
    return PrefixWork(name, mean_s, running, ready, waiting, 0.0, done, **more)


def sample(t: float, *prefixes: PrefixWork, workers: int = 1, **more: Any) -> Sample:
    group = TraceGroup(GROUP, workers, workers, workers, 0, 1)
    return Sample(t, prefixes=prefixes, groups=(group,), **more)


def trace(*samples: Sample) -> Trace:
    return Trace(ORIGIN, samples)


def written(*samples: Sample) -> list[str]:
    return [form.origin_line(ORIGIN), *map(form.sample_line, samples)]


def policy(maximum: int = 5, **spec: Any) -> Policy:
    return parse_policy({"clusterRef": {"name": "etl"}, "maxReplicas": maximum, **spec})


#: A hundred tasks at once, and forty that each wait for some of them.
BURST = trace(
    sample(0),
    sample(5, work("load", 1, 99, mean_s=2.0), work("sum", waiting=40, level=1)),
    sample(105, work("load", done=100, mean_s=2.0), work("sum", 1, 10, 20, done=9)),
    sample(130),
)


class TestTrace:
    def test_what_is_written_can_be_read(self) -> None:
        full = sample(
            1.5, work("a", 1, 2, 3, 4, mean_s=None, level=2, width=7, fan_in=2.5), session=1,
            pins=(("shuffle", 2),), wants=(Want(3, 60.0, "me", GROUP),),
            arrived=((GROUP, 12.25),), no_client_s=9.5,
        )  # fmt: skip
        one = trace(full, sample(2.5))

        assert one == form.read_trace(written(*one.samples))

    def test_a_line_that_was_cut_off_is_passed_over(self) -> None:
        *lines, last = written(sample(0), sample(1))

        assert (sample(0),) == form.read_trace([*lines, last[:-9]]).samples

    @table(
        "lines, said",
        empty=([], "is empty"),
        another_file=(["{}"], "this is no trace"),
        no_json=(["nonsense"], "this is no trace"),
        newer=(['{"trace":2}'], "version 2"),
        half_an_origin=(['{"trace":1}'], "no trace: line 1 .* `cluster`"),
        nothing_recorded=(written(), "no sample"),
        broken_line=([*written(), "{}", *written(sample(1))[1:]], "line 2"),
        backwards=([*written(sample(2), sample(1)), ""], "line 3 goes back"),
    )  # fmt: skip
    def test_what_is_no_trace_is_refused_with_a_sentence(self, lines: list[str], said: str) -> None:
        with pytest.raises(InvalidTrace, match=said):
            form.read_trace(lines)


class TestWorkload:
    def test_new_tasks_are_the_unfinished_and_the_finished_that_were_not_there(self) -> None:
        found = workload_of(BURST)

        assert (Arrival(5, "load", 100, 0), Arrival(5, "sum", 0, 40)) == found.arrivals
        assert 40 == sum(r.tasks for r in found.releases)
        assert {"load": 2.0, "sum": 1.0} == dict(found.duration_s)

    def test_waiting_tasks_get_ready_when_as_many_have_finished_as_in_the_trace(self) -> None:
        releases = workload_of(BURST).releases

        assert all(1 <= r.after <= 140 for r in releases)
        # By the third sample 109 had finished, and 20 of 40 had got ready.
        assert 20 == sum(r.tasks for r in releases if r.after <= 109)

    @table(
        "samples, arrivals, withdrawals",
        some_vanish_unfinished_and_the_last_are_done=(
            (sample(0, work("a", 1, 9)), sample(1, work("a", 1, 4)), sample(2)),
            (Arrival(0, "a", 10, 0),), (Withdrawal(1, "a", 5),)),
        done_before_the_trace_is_no_work=(
            (sample(0, work("a", 1, done=500)), sample(1, work("a", 1, done=501))),
            (Arrival(0, "a", 1, 0), Arrival(1, "a", 1, 0)), ()),
        known_before_is_not_new=(  # its runs of old were not told while it was idle
            (sample(0), sample(1, work("a", 1, done=500))), (Arrival(1, "a", 3, 0),), ()),
        a_scheduler_that_starts_anew_has_lost_its_work=(
            (sample(0, work("a", 1, 9)), sample(5, work("a", 1, 3), session=1)),
            (Arrival(0, "a", 10, 0), Arrival(5, "a", 4, 0)), (Withdrawal(5, "a", 10),)),
    )  # fmt: skip
    def test_tasks_come_and_go(
        self, samples: tuple[Sample, ...], arrivals: Any, withdrawals: Any
    ) -> None:
        found = workload_of(trace(*samples))

        assert (arrivals, withdrawals) == (found.arrivals, found.withdrawals)

    def test_what_waits_when_the_trace_ends_follows_level_by_level(self) -> None:
        rows = (work("a", 2, 8), work("b", waiting=10, level=1), work("c", waiting=5, level=2))
        found = workload_of(trace(sample(0, *rows)))
        last = {p: max(r.after for r in found.releases if r.prefix == p) for p in "bc"}

        assert {"b": 10, "c": 20} == last


def simulated(
    *arrivals: Arrival, releases: tuple[Release, ...] = (), workers: int = 0, threads: int = 1
) -> SimulatedCluster:
    names = {a.prefix for a in arrivals}
    todo = Workload(arrivals, (), releases, dict.fromkeys(names, 2.0), {})
    made = SimulatedCluster(todo, lambda *_: 10.0, {GROUP: threads})
    made.replicas[GROUP] = made.handled[GROUP] = workers
    for _ in range(workers):
        made.add(GROUP, connects_at=0.0)
    return made


class TestCluster:
    def test_tasks_run_on_free_threads_for_as_long_as_they_take(self) -> None:
        c = simulated(Arrival(0, "a", 5, 0), workers=1, threads=2)
        c.advance(1.9)

        assert (0, 2, 3) == (c.finished, sum(n for n, _ in c.running().values()), c.ready["a"])
        c.advance(6.0)
        assert (5, 0, 6.0) == (c.finished, c.unfinished, c.last_work_at)
        assert 3 * 2.0 + 1 * 2.0 == c.waited_s

    def test_how_long_a_task_has_run_is_known_from_the_last_heartbeat(self) -> None:
        c = simulated(Arrival(0, "a", 1, 0), workers=1)
        c.advance(1.25)

        assert {"a": (1, 0.75)} == c.running()

    def test_waiting_tasks_follow_those_that_they_wait_for(self) -> None:
        c = simulated(Arrival(0, "a", 2, 0), Arrival(0, "b", 0, 2), workers=4,
                      releases=(Release(2, "b", 2),))  # fmt: skip
        c.advance(2.0)
        assert {"b": 2} == {k: n for k, (n, _) in c.running().items()}

    def test_nothing_waits_for_ever(self) -> None:
        """A trace that tells of fewer releases than of waiting tasks, or of too late ones."""
        c = simulated(Arrival(0, "a", 1, 3), workers=1, releases=(Release(99, "a", 1),))
        c.advance(100.0)

        assert (4, 0) == (c.finished, c.unfinished)

    def test_the_agent_refuses_to_retire_a_worker_with_tasks_but_for_its_replacement(self) -> None:
        c = simulated(Arrival(0, "a", 1, 0), workers=1)
        c.advance(1.0)
        (name,) = c.workers

        assert [Reason.BUSY] == retire(c, name, Reason.UNDERUTILIZED)
        assert [None] == retire(c, name, Reason.LIFETIME, busy_ok=True)
        c.advance(1.9)
        assert "draining" == c.workers[name].state
        c.advance(3.0)
        assert ("drained", 1) == (c.workers[name].state, c.finished)

    def test_a_worker_that_is_deleted_with_a_task_has_its_work_redone(self) -> None:
        """The model does not hide what must not happen: it counts it."""
        c = simulated(Arrival(0, "a", 2, 0), workers=2)
        c.advance(1.0)
        with pytest.raises(PlatformError, match="has 2 workers"):
            completed(SimulatedPorts(c, KEY).set_replicas(GROUP, 1))
        c.set_replicas(GROUP, 1)
        c.advance(10.0)

        assert (1, 1, 2) == (c.killed, c.redone, c.finished)
        assert 4.0 == c.last_work_at, "the other worker does it once more, from the start"

    def test_an_exact_quota_is_never_passed(self) -> None:
        c = simulated(Arrival(0, "a", 9, 0), workers=1, threads=2)
        c.enforce(Limits(profiles=(Profile(exact=True, runs=3),), others=0))
        c.advance(100.0)
        assert 3 == c.finished

        c.restart(next(iter(c.workers)))
        c.advance(200.0)
        assert 6 == c.finished

    @given(st.lists(st.floats(0.5, 90.0), min_size=1, max_size=9), st.integers(1, 40))
    def test_measured_startups_come_up_as_often_as_measured(
        self, measured: list[float], rounds: int
    ) -> None:
        startup = startup_of({GROUP: measured}, 20.0)
        n = 2 ** math.ceil(math.log2(len(measured) * rounds + 1))
        drawn = [startup(GROUP, number) for number in range(n)]

        assert set(drawn) <= set(measured)
        assert sum(drawn) / n == pytest.approx(
            sum(measured) / len(measured), abs=(max(measured) - min(measured)) * len(measured) / n
            + 1e-9,
        )  # fmt: skip

    def test_startup_of_a_group_that_nobody_measured(self) -> None:
        assert 20.0 == startup_of({}, 20.0)(GROUP, 1)
        assert 7.0 == startup_of({"etl-gpu": [7.0]}, 20.0)(GROUP, 1)


def retire(c: SimulatedCluster, name: str, reason: Reason, **how: bool) -> list[Reason | None]:
    answers = completed(SimulatedPorts(c, KEY).retire([name], policy(), reason, **how))
    return [answer.veto for answer in answers]


class TestReplay:
    def test_a_burst_is_worked_off_and_the_workers_leave(self) -> None:
        run = replay(BURST, policy(), 10.0)
        figures = run.figures

        assert (140, 0, 0) == (run.finished, figures.redone, figures.unfinished)
        assert (5, 0) == (figures.peak, run.points[-1].present)
        # 240 thread-seconds on five threads, once they are there.
        assert 240 / 5 <= figures.makespan_s <= 240 / 5 + 10 + 25

    def test_a_longer_idle_timeout_costs_more(self) -> None:
        quick, patient = (replay(BURST, policy(8, **o)) for o in ({}, {"idleTimeout": "10m"}))

        assert patient.figures.worker_s > quick.figures.worker_s

    def test_an_initial_worker_that_was_on_its_way_comes(self) -> None:
        group = TraceGroup(GROUP, 2, 2, 1, 1, 1)
        run = replay(trace(Sample(0, prefixes=(work("a", 1, 9),), groups=(group,))), policy())

        assert (10, 0) == (run.finished, run.figures.redone)
        assert 2 == run.points[0].present

    @table(
        "more, expected",
        without_others_it_counts=((), 40.0),
        it_may_have_waited_for_its_scheduler=(((GROUP, 4.0),), 4.0),
    )
    def test_it_comes_when_it_came_and_others_as_fast_as_others(
        self, more: tuple[tuple[str, float], ...], expected: float
    ) -> None:
        group = TraceGroup(GROUP, 1, 1, 0, 0, 1)
        rows = (work("a", 1, 99),)
        run = replay(
            trace(
                Sample(0, prefixes=rows, groups=(group,)),
                sample(7, *rows, arrived=((GROUP, 40.0),)),
                sample(20, *rows, workers=1 + len(more), arrived=more),
            ),
            policy(2),
        )
        came = [min(p.t for p in run.points if p.connected > n) for n in (0, 1)]
        asked = min(p.t for p in run.points if p.present == 2)

        assert sorted([7.0, asked + expected]) == pytest.approx(came, abs=2)

    def test_what_clients_ask_for_and_what_is_pinned_counts(self) -> None:
        wants = replay(trace(sample(0, wants=(Want(4, 600.0, "me"),)), sample(600)), policy())
        pinned = replay(
            trace(*(sample(float(t), workers=3, pins=(("shuffle", 2),)) for t in range(0, 600, 5))),
            policy(),
        )

        assert 4 == max(p.present for p in wants.points)
        assert 2 == [p.present for p in pinned.points if p.t < 590][-1]

    def test_a_policy_that_only_advises_changes_nothing(self) -> None:
        run = replay(BURST, policy(mode="Advise"))

        assert {1} == {p.present for p in run.points}
        assert 0 == run.figures.unfinished

    def test_a_schedule_is_kept_by_the_clock_of_the_trace(self) -> None:
        always = policy(schedules=[{"cron": "* * * * *", "duration": "1m", "minReplicas": 3}])
        run = replay(trace(sample(0), sample(300)), always)

        assert 3 == next(p.present for p in run.points if p.t > 60)


class TestFigures:
    @pytest.mark.parametrize(
        ("numbers", "expected"),
        [([], 0), ([1, 2, 3], 0), ([1, 3, 3, 2], 1), ([1, 3, 2, 3, 2], 3), ([2, 2], 0)],
    )
    def test_changes_of_direction(self, numbers: list[int], expected: int) -> None:
        assert expected == turns(numbers)

    def test_of_what_was_recorded(self) -> None:
        one = trace(
            sample(0, workers=2), sample(10, work("a", 1), workers=4), sample(20, workers=4)
        )
        figures = recorded(one).figures

        assert (4, 2 * 10 + 4 * 10, 10.0, 20, 0) == (
            figures.peak, figures.worker_s, figures.makespan_s, figures.lasted_s, figures.turns,
        )  # fmt: skip
        assert figures.redone is None, "a trace does not say"

    def test_rows_that_say_nothing_are_left_out(self) -> None:
        runs = [recorded(BURST), replay(BURST, policy(), title="policy.yaml")]
        lines = [line.plain.split() for line in table_of(runs)]

        assert ["tasks", "rerun", "by", "scaling", "0"] in lines, "a recording does not say"
        assert "unfinished" not in [word for line in lines for word in line]
