"""What is kept from pass to pass makes no difference, whatever comes, goes or changes between."""

from __future__ import annotations

import contextlib
import dataclasses
from functools import cached_property
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dask_adaptive.kube import view as kube
from dask_adaptive.kube.notes import Note
from dask_adaptive.loop import join as loop
from dask_adaptive.loop.join import join
from dask_adaptive.model.observed import (
    ObservedCluster,
    ObservedScheduler,
    ObservedWorker,
    Pin,
    PlatformView,
    Retiring,
    SchedulerWorker,
    WorkerTable,
)
from support import kube_objects as ko
from support.any_world import MANY

NAMES = [f"w{i}" for i in range(5)]
NOTES: list[dict[str, str]] = [
    {"pin": "2m"}, {"pin": "true"}, {"pin": "false"}, {"expires_at": "2026-02-01T00:10:00Z"},
    {"recycle": "now"}, {"recycle": "2026-02-01T00:03:00Z"}, {"recycle_tasks": "5"}, {"pin": "x"},
]  # fmt: skip


class Changing:
    """A cluster in which anything may happen; and what an operator has kept of it."""

    def __init__(self, seed: int) -> None:
        self.rng, self.now, self.version = Random(seed), ko.CREATED_AT + 60.0, 1
        self.world = ko.world_of(ko.cluster(), ko.group(), ko.node("n1"), ko.node("n2"))
        self.processes: dict[str, SchedulerWorker] = {}
        self.of_platform, self.of_loop = kube.ClusterLook(), loop.JoinedWorkers()
        for name in NAMES[:3]:
            self.deploy(name)
            self.put_pod(f"{name}-a", name)
            self.connect(name)

    def one(self, *values: Any) -> Any:
        return self.rng.choice(values)

    def take(self, body: dict[str, Any], event: str = "MODIFIED") -> None:
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        ko.take(self.world, event, body)

    def noted(self) -> dict[str, Any]:
        if self.rng.random() < 0.6:
            return {}
        found = ko.noted(at=self.one(ko.CREATED, "2026-02-01T00:02:00Z"), **self.one(*NOTES))
        return found if self.rng.random() < 0.7 else {"annotations": found["annotations"]}

    def deploy(self, name: str, event: str = "MODIFIED", **metadata: Any) -> None:
        self.take(ko.deployment(name, metadata=metadata), event)

    def put_pod(self, name: str, worker: str, event: str = "MODIFIED", **metadata: Any) -> None:
        status = {"phase": "Running", "podIP": f"10.0.0.{self.rng.randrange(4)}"}
        spec = {"nodeName": self.one("n1", "n2"), "activeDeadlineSeconds": self.one(0, 900)}
        self.take(ko.pod(name, worker, status=status, spec=spec, metadata=metadata), event)

    def connect(self, name: str, **changes: Any) -> None:
        address = f"tcp://10.0.0.{self.rng.randrange(8)}:{self.rng.randrange(2)}"
        if name in self.processes:
            address = self.processes[name].address
        facts = {
            "processing": self.one(0, 1), "idle_since": self.now - self.rng.randrange(99),
            "sole_bytes": 0, "retiring": self.one(*[None] * 5, Retiring()),
            "pins": self.one((), (), (Pin("client", "nb", "", 1e9),)),
            "terminating": self.one(*[""] * 9, "data"), **changes,
        }  # fmt: skip
        self.processes[name] = SchedulerWorker(name, address, "running", 1, **facts)

    def change(self) -> None:
        name = self.one(*NAMES)
        dask_name = self.one(name, f"{name}-0", f"{name}-1", "stranger", "tcp://10.0.0.1:9")
        self.one(
            self.wait,
            lambda: self.change_kubernetes(name),
            lambda: self.change_kubernetes(name),
            lambda: self.processes.pop(dask_name, None),
            lambda: self.connect(dask_name),
            lambda: self.connect(dask_name),
            self.restart_scheduler,
            self.look,
            self.fail,
        )()

    def restart_scheduler(self) -> None:
        """Its workers come back, some of them later; what is said of them is the same."""
        back = [name for name in self.processes if self.rng.random() < 0.7]
        self.processes = {name: dataclasses.replace(self.processes[name]) for name in back}

    def look(self, **how: Any) -> PlatformView:
        """What changes between two looks must not be lost, whether or not the first is joined."""
        return kube.view(self.world, ko.KEY, now=self.now, look=self.of_platform, **how)

    def fail(self) -> None:
        """The look breaks off where it reads an annotation."""

        def since(note: Note) -> float:
            raise LookupError(note)

        with contextlib.suppress(LookupError):
            self.look(since=since)

    def wait(self) -> None:
        self.now += self.one(1.0, 40.0, 200.0)

    def change_kubernetes(self, name: str) -> None:
        pod, gone = f"{name}-{self.one('a', 'b')}", self.one("DELETED", "MODIFIED")
        deleted = {"deletionTimestamp": self.one(ko.CREATED, "2026-02-01T00:20:00Z")}
        node = ko.node(self.one("n1", "n2"), spec={"unschedulable": self.one(True, False)})
        self.one(
            lambda: self.deploy(name, **self.noted()),
            lambda: self.deploy(name, gone, **deleted),
            lambda: self.put_pod(pod, name, **self.noted()),
            lambda: self.put_pod(pod, name, **self.noted()),
            lambda: self.put_pod(pod, name, gone, **deleted),
            lambda: self.take(self.one(ko.cluster, ko.group)(**self.noted())),
            lambda: self.take(ko.group(), gone),
            lambda: self.take(node),
        )()

    def scheduler(self) -> ObservedScheduler:
        return ObservedScheduler(at=self.now, workers=tuple(self.processes.values()))

    def seen(self) -> ObservedCluster:
        return join(ko.KEY, self.look(), self.scheduler(), self.of_loop)

    def seen_anew(self) -> ObservedCluster:
        return join(ko.KEY, kube.view(self.world, ko.KEY, now=self.now), self.scheduler())


def check(seed: int) -> None:
    case = Changing(seed)
    for _ in range(30):
        for _ in range(case.one(0, 1, 1, 2, 5)):
            case.change()
        anew, kept = case.seen_anew(), case.seen()
        assert anew == kept
        assert [facts(g.table) for g in anew.groups] == [facts(g.table) for g in kept.groups]


def facts(table: WorkerTable) -> list[object]:
    """All that a table has computed, in order."""
    names = [name for name, of in vars(WorkerTable).items() if isinstance(of, cached_property)]
    found = [getattr(table, name) for name in names]
    return [list(one.items()) if isinstance(one, dict) else one for one in found]


@settings(max_examples=100)
@given(st.integers(0, 2**32))
def test_what_is_kept_makes_no_difference(seed: int) -> None:
    check(seed)


@pytest.mark.parametrize("clusters", MANY)
@pytest.mark.timeout(600)  # half a minute of nothing but computing
def test_whatever_many_clusters_come_to_what_is_kept_makes_no_difference(clusters: int) -> None:
    for seed in range(clusters):
        check(seed)


def workers(seen: ObservedCluster) -> dict[str, ObservedWorker]:
    return {w.name: w for w in seen.groups[0].workers}


def test_a_worker_of_which_nothing_has_changed_is_the_same_object() -> None:
    case = Changing(0)
    for name in case.processes:
        case.connect(name, terminating="")
    first = workers(case.seen())
    case.now += 60.0
    later = workers(case.seen())
    assert all(later[name] is first[name] for name in first)

    case.processes["w1"] = dataclasses.replace(case.processes["w1"], processing=7)
    changed = workers(case.seen())
    assert ["w1"] == [name for name in first if changed[name] is not first[name]]
    case.put_pod("w2-a", "w2", uid="another")
    case.deploy("w4")
    again = workers(case.seen())
    assert ["w2"] == [name for name in first if again[name] is not changed[name]]
    assert again.keys() - first.keys() == {"w4"}
