"""Policies tried on recorded work, and which of them are worth having. Deterministic."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from dask_adaptive.model.policy import InvalidPolicy, Policy, parse_policy
from dask_adaptive.model.scaling import IdleAction
from dask_adaptive_lab.simulate.replay import replay, worker_seconds
from dask_adaptive_lab.simulate.workload import workload_of
from dask_adaptive_lab.trace import Trace

#: Fewer bursts of work, or a shorter time, say too little about what comes next.
LEAST_BURSTS, LEAST_S = 3, 120.0

#: What differs less than this part is the same: the model is no better.
TELLING = 0.02

#: Workers that stay are counted until so long after the recording: the longest timeout tried.
TAIL_S = 600.0

#: What differs from today's policy: values of a spec, by dotted path.
Changes: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Result:
    """The costs of a policy, and the waits of work, on one trace or on several."""

    worker_s: float
    wait_s: float  # mean over tasks: from when one could run until it does
    makespan_s: float
    tasks: int
    is_done: bool = True  # all work, none of it twice


@dataclass(frozen=True, slots=True)
class Tried:
    """One policy and its results, one for each trace."""

    changes: Changes
    results: tuple[Result, ...]

    def total(self) -> Result:
        """All traces together."""
        tasks = sum(r.tasks for r in self.results)
        return Result(
            worker_s=sum(r.worker_s for r in self.results),
            wait_s=sum(r.wait_s * r.tasks for r in self.results) / max(tasks, 1),
            makespan_s=sum(r.makespan_s for r in self.results),
            tasks=tasks,
            is_done=self.is_done,
        )

    @property
    def is_done(self) -> bool:
        """All the work of all traces."""
        return all(one.is_done for one in self.results)

    @property
    def key(self) -> str:
        return json.dumps(self.changes, sort_keys=True)


def too_short(traces: Sequence[Trace]) -> str:
    """Say in a sentence why traces can't tell what would be better; empty if they can."""
    bursts = sum(len(workload_of(t).bursts) for t in traces)
    lasted_s = sum(t.samples[-1].t - t.samples[0].t for t in traces)
    if bursts >= LEAST_BURSTS and lasted_s >= LEAST_S:
        return ""
    return (
        f"too short to tell: {bursts} of at least {LEAST_BURSTS} bursts of work, and"
        f" {lasted_s:.0f} of at least {LEAST_S:.0f} s; record for longer, best for a day"
    )


def result_of(trace: Trace, policy: Policy) -> Result:
    run = replay(trace, policy)
    figures, points = run.figures, run.points
    # A run ends some time after the work does, later with a longer timeout. Who stays is counted
    # for as long after the recording, or the work, whatever the policy is.
    at_work = [p.t for p in points if p.unfinished]
    until = max(trace.samples[-1].t + TAIL_S, *at_work)
    return Result(
        worker_s=worker_seconds(points, until),
        wait_s=figures.mean_wait_s or 0.0,
        makespan_s=figures.makespan_s,
        tasks=run.finished,
        is_done=not figures.unfinished and not figures.redone,
    )


def changed(spec: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    """A spec with other values. What lies beside them stays."""
    made: dict[str, Any] = json.loads(json.dumps(spec))
    for path, value in changes.items():
        *parents, name = path.split(".")
        place = made
        for parent in parents:
            place[parent] = dict(place.get(parent) or {})  # it may be there, and empty
            place = place[parent]
        place[name] = value
    return made


def knobs(spec: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The values that are tried, by path in the spec."""
    policy = parse_policy(spec)
    most = policy.max_replicas
    tried: dict[str, list[Any]] = {
        "idleTimeout": ["Auto", "15s", "30s", "60s", "2m", "5m", "10m"],
        "target.duration": ["1s", "2s", "5s", "10s", "20s", "60s"],
        "behavior.scaleUp.policies": [[], [{"type": "Percent", "value": 100, "period": "15s"}]],
        "behavior.scaleDown.policies": [[], [{"type": "Percent", "value": 25, "period": "30s"}]],
    }
    if not policy.worker_groups:  # with several it is not known whose work it was
        tried["maxReplicas"] = [math.ceil(most * part) for part in (0.5, 0.75, 1.5, 2.0)]
        tried["minReplicas"] = [0, 1, 2, math.ceil(most / 4), math.ceil(most / 2)]
    return tried


def search(
    spec: Mapping[str, Any], traces: Sequence[Trace],
    run: Callable[[Trace, Policy], Result] = result_of, *, limit: int,
    told: Callable[[int], object] = lambda _: None,
) -> list[Tried]:  # fmt: skip
    """
    Try policies until the front is where it was: those on it are changed in one place at a time.

    Args:
        limit: The most policies that are tried.
        told: Called with the number of policies tried so far.

    Returns:
        Today's first, then those that do all the work.

    Raises:
        InvalidPolicy: `spec` is invalid.
    """
    seen, tried, expanded = list[Policy](), list[Tried](), set[str]()

    def attempt(batch: Iterable[Changes]) -> None:
        for changes, policy in itertools.islice(_sensible(spec, batch, seen), limit - len(seen)):
            one = Tried(changes, tuple(run(trace, policy) for trace in traces))
            if not tried or one.is_done:
                tried.append(one)
            told(len(seen))

    spec = {**spec, "mode": "Auto"}  # one that only advises today would never do anything
    if parse_policy(spec).idle.action is IdleAction.DELETE_CLUSTER:
        del spec["idle"]  # the recorded cluster has not been deleted
    values = knobs(spec)
    attempt([{}])
    while len(seen) < limit and (
        fresh := [t for t in front(tried) or tried if t.key not in expanded]
    ):
        for one in fresh[:: max(1, (len(fresh) - 1) // 2)]:  # its ends, and the middle
            expanded.add(one.key)
            attempt({**one.changes, path: value} for path in values for value in values[path])
    return tried


def _sensible(
    spec: Mapping[str, Any], batch: Iterable[Changes], seen: list[Policy]
) -> Iterator[tuple[Changes, Policy]]:
    """Policies that are allowed, and were not seen; they are from now on."""
    for changes in batch:
        with contextlib.suppress(InvalidPolicy):  # at least more than at most, for example
            policy = parse_policy(changed(spec, changes))
            if policy not in seen:
                seen.append(policy)
                yield changes, policy


def front(tried: Iterable[Tried]) -> list[Tried]:
    """
    The policies that do all the work and to which no other is better in one respect and as good in
    the other, the cheapest first. Of equals the one with the fewest changes is taken.
    """
    found: list[Tried] = []
    totals = [(t.total(), t) for t in tried if t.is_done]
    for total, each in sorted(
        totals, key=lambda p: (p[0].worker_s, p[0].wait_s, len(p[1].changes), p[1].key)
    ):
        if not found or total.wait_s < found[-1].total().wait_s:
            found.append(each)
    return found


def is_as_good(a: Result, b: Result) -> bool:
    return (
        a.worker_s <= b.worker_s * (1 + TELLING)
        and a.wait_s <= b.wait_s * (1 + TELLING) + 0.05
        and a.makespan_s <= b.makespan_s * (1 + TELLING)
    )


def _is_better(title: str, a: Result, b: Result) -> bool:
    """True if the first keeps the promise of its title."""
    is_cheaper = not is_as_good(replace(b, wait_s=0.0, makespan_s=0.0), a)
    is_faster = not is_as_good(replace(b, worker_s=0.0, makespan_s=0.0), a)
    return {"cheaper": is_cheaper, "faster": is_faster}.get(title, is_cheaper or is_faster)


def advise(tried: Sequence[Tried]) -> dict[str, Tried]:
    """
    Up to three policies to choose from, by title; none where today's, the first, is as good as any.

    Of the front: the cheapest that is as fast as today's, the fastest as cheap, and between.
    """
    now = tried[0].total()
    on_front = [(t, t.total()) for t in front(tried)]
    if not on_front:
        return {}
    cheap = [t for t, r in on_front if is_as_good(replace(r, worker_s=0.0), now)]
    fast = [t for t, r in on_front if is_as_good(replace(r, wait_s=0.0), now)]
    between = min(on_front, key=lambda p: p[1].worker_s * (p[1].wait_s + 1))[0]
    found: dict[str, Tried] = {}
    for title, ones in (("cheaper", cheap[:1]), ("faster", fast[-1:]), ("between", [between])):
        for one in ones:
            # What makes no difference is left as it is today.
            plain = min(
                (t for t in tried if t.is_done and is_as_good(t.total(), one.total())),
                key=lambda t: (len(t.changes), t.key),
            )
            is_better = not tried[0].is_done or _is_better(title, plain.total(), now)
            if is_better and plain not in found.values():
                found[title] = plain
    return found
