"""Which Dask worker belongs to which Deployment."""

from __future__ import annotations

from typing import Any

import pytest

from dask_adaptive.loop.join import join
from dask_adaptive.model.observed import (
    Leaving,
    ObservedCluster,
    ObservedScheduler,
    ObservedWorker,
    Pin,
    PlatformGroup,
    PlatformView,
    PlatformWorker,
    SchedulerWorker,
)
from support.worlds import GROUP, KEY, SHUFFLE


def process(name: str, **changes: Any) -> SchedulerWorker:
    settings = {
        "address": f"tcp://10.0.0.9:{len(name)}", "status": "running", "nthreads": 1,
        "processing": 0, "idle_s": 10.0, "sole_bytes": 0, "closable": True, **changes,
    }  # fmt: skip
    return SchedulerWorker(name, **settings)


def joined(*processes: SchedulerWorker, **deployment: Any) -> ObservedCluster:
    worker = PlatformWorker("w", "uid", GROUP, 5.0, **deployment)
    view = PlatformView(groups=(PlatformGroup(GROUP, 1),), workers=(worker,))
    return join(KEY, view, ObservedScheduler(workers=processes))


def only(cluster: ObservedCluster) -> ObservedWorker:
    return cluster.groups[0].workers[0]


@pytest.mark.parametrize(
    ("name", "addresses", "names", "strangers"),
    [
        pytest.param("w", (), ("w",), (), id="by-name"),
        pytest.param("w-0", (), ("w-0",), (), id="one-of-several-processes"),
        pytest.param("tcp://10.0.0.7:1", ("10.0.0.7",), ("tcp://10.0.0.7:1",), (), id="by-address"),
        pytest.param(
            "tcp://10.0.0.8:1", ("10.0.0.7",), (), ("tcp://10.0.0.8:1",), id="another-pod"
        ),
        pytest.param("x", (), (), ("x",), id="a-stranger"),
        pytest.param("w-x", (), (), ("w-x",), id="not-a-process-number"),
    ],
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
            process("w-0", processing=2, idle_s=0.0, sole_bytes=3, pins=(SHUFFLE, other)),
            process("w-1", processing=1, idle_s=7.0, sole_bytes=4, closable=False, pins=(longer,)),
        )
    )

    assert (3, 0.0, 7, False) == (
        worker.processing, worker.idle_s, worker.sole_bytes, worker.closable,
    )  # fmt: skip
    assert {SHUFFLE, longer} == set(worker.pins)


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ((Leaving.NO, Leaving.NO), Leaving.NO),
        ((Leaving.DRAINED, Leaving.DRAINED), Leaving.DRAINED),
        ((Leaving.DRAINED, Leaving.DRAINING), Leaving.DRAINING),
        ((Leaving.DRAINED, Leaving.NO), Leaving.DRAINING),
    ],
)
def test_processes_leave_together(states: tuple[Leaving, Leaving], expected: Leaving) -> None:
    worker = only(joined(*(process(f"w-{i}", leaving=s) for i, s in enumerate(states))))

    assert expected is worker.leaving


def test_a_deployment_without_a_dask_worker_is_not_connected() -> None:
    worker = only(joined(waiting="Unschedulable: no room"))

    assert not worker.is_connected
    assert not worker.closable
    assert "Unschedulable: no room" == worker.waiting
