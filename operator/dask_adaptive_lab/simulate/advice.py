"""Policies tried on recorded work, and which of them are worth having. Deterministic."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from dask_adaptive.model.policy import InvalidPolicy, Policy, parse_policy
from dask_adaptive.model.scaling import IdleAction
from dask_adaptive_lab.simulate.replay import Assumptions, replay, worker_seconds
from dask_adaptive_lab.simulate.workload import workload_of
from dask_adaptive_lab.trace import Trace

#: Fewer bursts of work, or a shorter time, say too little about what comes next.
LEAST_BURSTS, LEAST_S = 3, 120.0

#: What differs less than this part is the same: the model is no better.
TELLING = 0.02

#: An hour has regular work if it had some on so many of the recorded days.
REGULAR, LEAST_DAYS = 0.6, 2

#: So long before the hour's first work the floor of a schedule holds.
LEAD_MIN = 5

#: Workers that stay are counted until so long after the recording: the longest timeout tried.
TAIL_S = 600.0

DAY_S = 86_400.0

#: What differs from today's policy: values of a spec, by dotted path.
Changes: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Result:
    """What a policy costs, and how long work waits, on one part of the recording or on several."""

    worker_s: float
    wait_s: float  # mean over tasks: from when one could run until it does
    makespan_s: float
    tasks: int
    is_done: bool = True  # all work, none of it twice


@dataclass(frozen=True, slots=True)
class Tried:
    """One policy and its results, a part of the recording each."""

    changes: Changes
    parts: tuple[Result, ...]

    def total(self, without: int | None = None) -> Result:
        """All parts together, or all but one."""
        parts = [p for n, p in enumerate(self.parts) if n != without]
        tasks = sum(p.tasks for p in parts)
        return Result(
            worker_s=sum(p.worker_s for p in parts),
            wait_s=sum(p.wait_s * p.tasks for p in parts) / max(tasks, 1),
            makespan_s=sum(p.makespan_s for p in parts),
            tasks=tasks,
            is_done=all(p.is_done for p in parts),
        )

    @property
    def is_done(self) -> bool:
        """All the work of all parts."""
        return all(part.is_done for part in self.parts)

    @property
    def key(self) -> str:
        return json.dumps(self.changes, sort_keys=True)


@dataclass(frozen=True, slots=True)
class Advice:
    """One policy that is better than today's in one respect, and how sure that is."""

    title: str  # cheaper, faster, between
    tried: Tried
    saved: tuple[float, ...]  # part of today's worker-seconds, by part of the recording
    held_out: tuple[float, ...]  # the same of the policy that is chosen without that part


def too_short(traces: Sequence[Trace]) -> str:
    """Say in a sentence why traces can't tell what would be better; empty if they can."""
    bursts = sum(len(workload_of(t).bursts) for t in traces)
    lasted_s = sum(t.samples[-1].t - t.samples[0].t for t in traces)
    if bursts >= LEAST_BURSTS and lasted_s >= LEAST_S:
        return ""
    return (
        f"too short to tell: {bursts} bursts of work in {lasted_s:.0f} s; advice needs at least"
        f" {LEAST_BURSTS} in {LEAST_S:.0f} s, better a day: record for longer"
    )


def parts_of(traces: Iterable[Trace]) -> list[Trace]:
    """Cut traces by the day (UTC), where nothing is to be done."""
    parts = []
    for trace in traces:
        days = [int((trace.origin.started + s.t) // DAY_S) for s in trace.samples]
        cuts = [0]
        for n, sample in enumerate(trace.samples):
            if days[n] > days[cuts[-1]] and not sample.unfinished:
                cuts.append(n)
        for begin, end in itertools.pairwise([*cuts, len(days)]):
            parts.append(replace(trace, samples=trace.samples[begin:end]))
    return [part for part in parts if workload_of(part).bursts]


def result_of(trace: Trace, policy: Policy) -> Result:
    run = replay(trace, policy, Assumptions())
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


def results_of(parts: Sequence[Trace], policy: Policy) -> list[Result]:
    return [result_of(part, policy) for part in parts]


#: Runs a policy on all parts of the recording.
Runner: TypeAlias = Callable[[Sequence[Trace], Policy], Sequence[Result]]


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


def knobs(spec: Mapping[str, Any], parts: Sequence[Trace]) -> dict[str, list[Any]]:
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
        own = spec.get("schedules") or []  # they stay
        if hours := regular_hours(parts):
            tried["schedules"] = [
                [*own, *({**each, "minReplicas": math.ceil(most * part)} for each in hours)]
                for part in (0.25, 0.5, 1.0)
            ]
    return tried


def regular_hours(parts: Sequence[Trace]) -> list[dict[str, str]]:
    """Hours (UTC) at which work comes day by day, as `cron` and `duration` of a schedule."""
    first: dict[int, dict[int, int]] = defaultdict(dict)  # minute of the first work, by hour, day
    times = [(p.origin.started + s.t, s.unfinished) for p in parts for s in p.samples]
    for at, unfinished in times:
        if unfinished:
            first[int(at % DAY_S // 3600)].setdefault(int(at // DAY_S), int(at % 3600 // 60))
    days = {int(at // DAY_S) for at, _ in times}
    if len(days) < LEAST_DAYS:
        return []
    regular = {hour for hour, seen in first.items() if len(seen) >= REGULAR * len(days)}
    at_work = {(day + 3) % 7 for hour in regular for day in first[hour]}  # day 0 was a Thursday
    weekdays = "1-5" if at_work <= set(range(5)) and len(at_work) > 1 else "*"
    found = []
    # A cluster that works all day needs minReplicas: its hours begin nowhere.
    for begin in sorted(hour for hour in regular if (hour - 1) % 24 not in regular):
        hours = next(n for n in range(1, 25) if (begin + n) % 24 not in regular)
        # Not earlier than midnight: the day before may be none of its weekdays.
        lead = max(0, begin * 60 + min(first[begin].values()) - LEAD_MIN)
        cron = f"{lead % 60} {lead // 60} * * {weekdays}"
        found.append({"cron": cron, "duration": f"{(begin + hours) * 60 - lead}m"})
    return found


def search(
    spec: Mapping[str, Any], parts: Sequence[Trace], run: Runner = results_of, *, limit: int,
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
        InvalidPolicy: `spec` makes no sense.
    """
    seen, tried, expanded = list[Policy](), list[Tried](), set[str]()

    def attempt(batch: Iterable[Changes]) -> None:
        for changes, policy in itertools.islice(_sensible(spec, batch, seen), limit - len(seen)):
            one = Tried(changes, tuple(run(parts, policy)))
            if not tried or one.is_done:
                tried.append(one)
        told(len(seen))

    spec = {**spec, "mode": "Auto"}  # one that only advises today would never do anything
    if parse_policy(spec).idle.action is IdleAction.DELETE_CLUSTER:
        del spec["idle"]  # the recorded cluster has not been deleted
    values = knobs(spec, parts)
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


def front(tried: Iterable[Tried], without: int | None = None) -> list[Tried]:
    """
    The policies that do all the work and to which no other is better in one respect and as good in
    the other, the cheapest first. Of equals the one with the fewest changes is taken.
    """
    found: list[Tried] = []
    totals = [(t.total(without), t) for t in tried if t.is_done]
    for total, each in sorted(
        totals, key=lambda p: (p[0].worker_s, p[0].wait_s, len(p[1].changes), p[1].key)
    ):
        if not found or total.wait_s < found[-1].total(without).wait_s:
            found.append(each)
    return found


def is_as_good(a: Result, b: Result) -> bool:
    return (
        a.worker_s <= b.worker_s * (1 + TELLING)
        and a.wait_s <= b.wait_s * (1 + TELLING) + 0.05
        and a.makespan_s <= b.makespan_s * (1 + TELLING)
    )


def _is_better(title: str, a: Result, b: Result) -> bool:
    """Whether the first keeps what its title says."""
    is_cheaper = not is_as_good(replace(b, wait_s=0.0, makespan_s=0.0), a)
    is_faster = not is_as_good(replace(b, worker_s=0.0, makespan_s=0.0), a)
    return {"cheaper": is_cheaper, "faster": is_faster}.get(title, is_cheaper or is_faster)


def chosen(tried: Sequence[Tried], without: int | None = None) -> dict[str, Tried]:
    """Of the front: the cheapest that is as fast as today's, the fastest as cheap, and between."""
    now = tried[0].total(without)
    on_front = [(t, t.total(without)) for t in front(tried, without)]
    if not on_front:
        return {}
    cheap = [t for t, r in on_front if is_as_good(replace(r, worker_s=0.0), now)]
    fast = [t for t, r in on_front if is_as_good(replace(r, wait_s=0.0), now)]
    between = min(on_front, key=lambda p: p[1].worker_s * (p[1].wait_s + 1))[0]
    found: dict[str, Tried] = {}
    for title, ones in (("cheaper", cheap[:1]), ("faster", fast[-1:]), ("between", [between])):
        for one in ones:
            total = one.total(without)
            # What makes no difference is left as it is today.
            plain = min(
                (t for t in tried if t.is_done and is_as_good(t.total(without), total)),
                key=lambda t: (len(t.changes), t.key),
            )
            is_better = not tried[0].is_done or _is_better(title, plain.total(without), now)
            if is_better and plain not in found.values():
                found[title] = plain
    return found


def advise(tried: Sequence[Tried]) -> list[Advice]:
    """Up to three policies to choose from; none where today's, the first, is as good as any."""
    parts = range(len(tried[0].parts))

    def saved(one: Tried, n: int) -> float:
        return 1 - one.parts[n].worker_s / max(tried[0].parts[n].worker_s, 1e-9)

    held_out = [chosen(tried, without=n) for n in parts] if len(parts) > 1 else []
    return [
        Advice(
            title,
            one,
            saved=tuple(saved(one, n) for n in parts),
            held_out=tuple(saved(c.get(title, tried[0]), n) for n, c in enumerate(held_out)),
        )
        for title, one in chosen(tried).items()
    ]
