"""Which Dask worker belongs to which Deployment."""

from __future__ import annotations

import math
from typing import Any

import pytest

from dask_adaptive.loop.join import join
from dask_adaptive.model.observed import (
    Clocks,
    Closing,
    Cordon,
    Lifecycle,
    ObservedCluster,
    ObservedGroup,
    ObservedScheduler,
    ObservedWorker,
    Pin,
    PlatformView,
    PlatformWorker,
    Retiring,
    SchedulerWorker,
    Serving,
    TerminatingPod,
)
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import UNUSED, Quota, Use
from support.tables import table
from support.worlds import DRAINED, GROUP, KEY, SHUFFLE


def process(name: str, **changes: Any) -> SchedulerWorker:
    settings = {
        "address": f"tcp://10.0.0.9:{len(name)}", "status": "running", "nthreads": 1,
        "processing": 0, "idle_since": -10.0, "sole_bytes": 0, "closable": True, **changes,
    }  # fmt: skip
    return SchedulerWorker(name, **settings)


def joined(
    *processes: SchedulerWorker, terminating: tuple[TerminatingPod, ...] = (), **deployment: Any
) -> ObservedCluster:
    worker = PlatformWorker("w", "uid", GROUP, 5.0, **deployment)
    view = PlatformView(
        groups=(ObservedGroup(GROUP, 1),), workers=(worker,), terminating=terminating
    )
    return join(KEY, view, ObservedScheduler(workers=processes))


def only(cluster: ObservedCluster) -> ObservedWorker:
    return cluster.groups[0].workers[0]


@table(
    "name, addresses, names, strangers",
    by_name=("w", (), ("w",), ()),
    one_of_several_processes=("w-0", (), ("w-0",), ()),
    by_address=("tcp://10.0.0.7:1", ("10.0.0.7",), ("tcp://10.0.0.7:1",), ()),
    another_pod=("tcp://10.0.0.8:1", ("10.0.0.7",), (), ("tcp://10.0.0.8:1",)),
    a_stranger=("x", (), (), ("x",)),
    not_a_process_number=("w-x", (), (), ("w-x",)),
)
def test_a_dask_worker_finds_its_deployment(
    name: str, addresses: tuple[str, ...], names: tuple[str, ...], strangers: tuple[str, ...]
) -> None:
    address = name if name.startswith("tcp") else "tcp://10.9.9.9:1"
    cluster = joined(process(name, address=address), addresses=addresses)

    assert names == only(cluster).dask_names
    assert strangers == cluster.strangers


def test_processes_of_one_deployment_are_one_worker() -> None:
    other = Pin("manual", "operator", "", 5.0)
    longer = Pin("manual", "operator", "", 50.0)
    worker = only(
        joined(
            process("w-0", processing=2, idle_since=0.0, sole_bytes=3, pins=(SHUFFLE, other)),
            process(
                "w-1", processing=1, idle_since=-7.0, sole_bytes=4, closable=False, pins=(longer,)
            ),
        )
    )

    assert (3, 0.0, 7, False) == (
        worker.process.processing, Clocks().idle_s(worker), worker.process.sole_bytes,
        worker.process.closable,
    )  # fmt: skip
    assert {SHUFFLE, longer} == set(worker.process.pins)


STOPPED = Cordon(Quota.TASKS, "7 runs")
GRACE = "closing_gracefully"


@table(
    "processes, expected",
    serves=([{}], Serving()),
    paused=([{"status": "paused"}], Serving()),
    stopped_by_the_agent=([{"status": GRACE, "cordon": STOPPED}], Serving()),
    somebody_closes_it=([{"status": GRACE}], Closing()),
    both_serve=([{}, {}], Serving()),
    both_have_drained=([DRAINED] * 2, DRAINED["retiring"]),
    one_has_drained=([DRAINED, {"retiring": Retiring()}], Retiring()),
    one_leaves_for_a_quota=(
        [{"retiring": Retiring(Reason.TASK_QUOTA)}],
        Retiring(Reason.TASK_QUOTA)),
    they_leave_together=([DRAINED, {}], Retiring()),
)  # fmt: skip
def test_the_lifecycle_of_a_worker(processes: list[dict[str, Any]], expected: Lifecycle) -> None:
    seen = only(joined(*(process(f"w-{i}", **changes) for i, changes in enumerate(processes))))

    assert expected == seen.lifecycle


def test_a_deployment_without_a_dask_worker_is_not_connected() -> None:
    worker = only(joined(waiting="Unschedulable: no room"))

    assert not worker.is_connected
    assert not worker.process.closable
    assert "Unschedulable: no room" == worker.waiting


OLD, NEW = "tcp://10.0.0.1:40001", "tcp://10.0.0.2:40001"
POD = TerminatingPod("w", "w-old", ("10.0.0.1",), 100.0)
LEAVES = {"terminating": "1 task", "terminates_at": 98.0}


def old(name: str = "w", port: int = 1, **changes: Any) -> SchedulerWorker:
    """In the pod that ends."""
    return process(name, address=f"tcp://10.0.0.1:{port}", processing=1, **changes)


ADDRESS, UNTOLD = "tcp://10.0.0.1:1", "the scheduler has not been informed yet"


@table(
    "processes, deployment, names, said, known_left_s",
    no_worker=([old(**LEAVES)], {}, (), ("1 task", "its pod is ending: 1 task"), {}),
    what_its_pod_waits_for_is_said_first=(
        [old(**LEAVES)], {"waiting": "Unschedulable: no room"}, (),
        ("1 task", "Unschedulable: no room"), {}),
    renamed=([old("w (leaving)", **LEAVES)], {}, (), ("", ""), {}),
    its_replacement_is_the_worker=(
        [old(**LEAVES), process("w", address=NEW)], {"terminating": (POD,)}, ("w",), ("", ""),
        {(ADDRESS,): 98.0}),
    named_by_its_address=([old(ADDRESS, **LEAVES)], {"terminating": (POD,)}, (),
        ("1 task", "its pod is ending: 1 task"), {(ADDRESS,): 98.0}),
    before_the_scheduler_knows=(
        [old()], {"terminating": (POD,)}, (), (UNTOLD, f"its pod is ending: {UNTOLD}"),
        {(ADDRESS,): math.inf}),
    all_in_the_pod_and_the_one_with_most_time_counts=(
        [old("w-0", **LEAVES), old("w-1", 2), old("tcp://10.0.0.1:3", 3, **LEAVES)],
        {"terminating": (POD,)}, (),
        (f"1 task; {UNTOLD}", f"its pod is ending: 1 task; {UNTOLD}"),
        {(ADDRESS, "tcp://10.0.0.1:2", "tcp://10.0.0.1:3"): math.inf}),
)  # fmt: skip
def test_a_process_that_departs_is_neither_a_worker_nor_a_stranger(
    processes: list[SchedulerWorker], deployment: dict[str, Any], names: tuple[str, ...],
    said: tuple[str, str], known_left_s: dict[tuple[str, ...], float],
) -> None:  # fmt: skip
    cluster = joined(*processes, **deployment)
    worker = only(cluster)

    assert (names, 0, ()) == (worker.dask_names, worker.process.processing, cluster.strangers)
    assert said == (worker.terminating, worker.waiting)
    assert known_left_s == {t.dask_names: t.known_left_s for t in cluster.terminating}
    assert all(w.terminating for w in cluster.scheduler.workers if w.address != NEW)


@table(
    "processes, deployment, expected",
    no_other_pod=([process("w", address=OLD)], {"pod": "w-old"}, (OLD,)),
    the_replacement_does_not_run_yet=(
        [process("w", address=OLD)], {"pod": "w-new", "waiting": "Pending"}, (OLD,)),
    it_may_be_the_new_one=([process("w", address=OLD)], {"pod": "w-new"}, ()),
    both=([process("w", address=OLD, **LEAVES), process("w", address="tcp://10.0.0.1:40002")],
        {"pod": "w-new"}, (OLD,)),
    another_pod_there=([process("x", address=OLD)], {"pod": "w-old"}, ()),
)  # fmt: skip
def test_pods_that_share_an_address_are_told_apart_by_name(
    processes: list[SchedulerWorker], deployment: dict[str, Any], expected: tuple[str, ...]
) -> None:
    shared = TerminatingPod("w", "w-old", (), 100.0)

    (seen,) = joined(*processes, terminating=(shared,), **deployment).terminating

    assert expected == seen.dask_names


def test_the_next_pod_of_a_worker_is_on_another_node() -> None:
    cluster = joined(old(), terminating=(POD,), pod="w-old", node_terminating="node n1: cordoned")

    assert "" == only(cluster).platform.node_terminating


def test_of_several_processes_in_a_pod_the_highest_use_of_each_counts() -> None:
    one = Use(runs=7, failures=1, process=0.2, unmanaged=0.1)
    other = Use(runs=2, failures=3, match="CUDA", process=0.9)
    worker = only(
        joined(
            process("w-0", use=one, cordon=STOPPED, lifetime_ends_at=90.0),
            process("w-1", use=other, too_short=True),
            ends_at=300.0,
        )
    )

    assert Use(7, 3, "CUDA", 0.9, 0.1) == worker.use
    assert (STOPPED, True) == (worker.process.cordon, worker.process.too_short)
    assert 90.0 == Clocks().ends_in_s(worker)
    assert one is only(joined(process("w", use=one))).use
    assert UNUSED is only(joined(process("w"))).use
    assert UNUSED is only(joined()).use


@table("created_at, expected", by_its_pod=(940.0, 60.0), another_clock_is_ahead=(1_000.5, 0.0))
def test_the_age_of_a_pod(created_at: float, expected: float) -> None:
    worker = PlatformWorker("w", "uid", GROUP, 995.0, pod_made_at=created_at)
    view = PlatformView(groups=(ObservedGroup(GROUP, 1, handled=3),), workers=(worker,), at=1_000.0)
    cluster = join(KEY, view, ObservedScheduler())

    assert expected == cluster.clocks.pod_age_s(only(cluster))
    assert (1_000.0, 3) == (cluster.at, cluster.groups[0].handled)


@pytest.mark.parametrize("names", [("w",), ("w-0", "w-1")])
def test_a_worker_that_ends_too_soon_is_in_service_and_takes_no_tasks(
    names: tuple[str, ...],
) -> None:
    """Else nobody would replace it: it has the status of one that is being closed by somebody."""
    short: dict[str, Any] = {"status": "closing_gracefully", "too_short": True}
    seen = only(joined(*(process(name, **short) for name in names)))

    assert (Serving(), False) == (seen.lifecycle, seen.takes_tasks)
