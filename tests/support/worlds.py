"""Small worlds for tests of the planner: quiet defaults, so a case says only what matters."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import (
    ObservedCluster,
    ObservedGroup,
    ObservedScheduler,
    ObservedWorker,
    Pin,
    SchedulerWorker,
)
from dask_adaptive.model.past import GroupPast, Past, Recommendation
from dask_adaptive.model.policy import Policy

NOW = 1_000.0
KEY = ClusterKey("ns", "etl")
GROUP = KEY.default_group
SHUFFLE = Pin("shuffle", "5f3a", "", 60.0)

#: A policy without waiting, so that each case shows one rule.
POLICY = Policy(cluster="etl", maximum=10, idle_timeout_s=30.0)

#: A scheduler that has been watched for long, and always wanted nothing.
PAST = Past(
    session="s",
    since=0.0,
    groups={GROUP: GroupPast(recommendations=(Recommendation(NOW - 5, 0),), since=0.0)},
)


def past_of(past: Past = PAST, *, group: str = GROUP, **changes: Any) -> Past:
    """The same past, with these changes: those about a group in that of the group."""
    names = {f.name for f in dataclasses.fields(GroupPast)} - {"since"}
    own = {name: value for name, value in changes.items() if name in names}
    rest = {name: value for name, value in changes.items() if name not in names}
    groups = {**past.groups, group: dataclasses.replace(past.of(group), **own)}
    return dataclasses.replace(past, groups=groups, **rest)


def worker(name: str, **changes: Any) -> ObservedWorker:
    """A connected worker that has been idle for long and may go."""
    base = ObservedWorker(
        name=name, uid=f"uid-{name}", group=GROUP, age_s=500.0, dask_names=(name,), idle_s=100.0,
        closable=True,
    )  # fmt: skip
    return dataclasses.replace(base, **changes)


def busy(name: str, **changes: Any) -> ObservedWorker:
    return worker(name, processing=1, idle_s=0.0, closable=False, **changes)


def pending(name: str, **changes: Any) -> ObservedWorker:
    return worker(name, dask_names=(), idle_s=0.0, closable=False, **changes)


def cluster(
    workers: Sequence[ObservedWorker],
    *,
    target: int = 0,
    replicas: int | None = None,
    others: Sequence[ObservedGroup] = (),
    **scheduler: Any,
) -> ObservedCluster:
    """The default group with these workers; settled unless `replicas` says otherwise."""
    group = ObservedGroup(GROUP, len(workers) if replicas is None else replicas, tuple(workers))
    groups = (group, *others)
    processes = tuple(
        SchedulerWorker(
            name=name, address=f"tcp://{name}", status="running", nthreads=1,
            processing=w.processing, idle_s=w.idle_s, sole_bytes=w.sole_bytes, leaving=w.leaving,
        )
        for g in groups for w in g.workers for name in w.dask_names
    )  # fmt: skip
    settings = {"session": "s", "agent": "1", "target": target, "workers": processes, **scheduler}
    return ObservedCluster(KEY, groups=groups, scheduler=ObservedScheduler(**settings))
