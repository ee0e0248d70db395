"""Tasks that only some workers may run, and the worker groups that those belong to."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from dask_adaptive.model.demand import Demand, Need
from dask_adaptive.model.observed import ObservedCluster, ObservedGroup
from dask_adaptive.planner.supply import Supply, fill
from dask_adaptive.planner.work import Part, left_after, threads_for


@dataclass(frozen=True, slots=True)
class Bound:
    """What restricted tasks come to."""

    workers: Mapping[str, int]  # needed for them, by group
    messages: Mapping[str, str] = field(default_factory=dict)  # by group
    nobody: str = ""  # not empty: tasks that no group which is scaled can run


def bound_workers(
    observed: ObservedCluster, every: Sequence[Supply], demand: Demand, duration_s: float
) -> Bound:
    """Workers of each group that are there, or should be, for tasks that only they may run."""
    workers = dict.fromkeys((s.name for s in every), 0)
    kinds: dict[str, list[str]] = {}
    nobody: list[str] = []
    # Those that wait for others are not asked for yet: it may be hours until they can run.
    for need in (n for n in demand.needs if n.tasks > 0 and is_strict(n)):
        said = f"{need.tasks} tasks need {described(need)}"
        able = [a for s in every if (a := _able(observed, s, need)) is not None]
        able = [replace(s, maximum=max(0, s.maximum - workers[s.name])) for s in able]
        other = _others_able(observed, need, every)
        if not able and not other:
            nobody.append(f"{said}, which no worker of a group that is scaled has")
        for name, number in _asked(able, need, duration_s, other).items():
            if number:
                workers[name] += number
                kinds.setdefault(name, []).append(said)
    return Bound(workers, {n: ", ".join(k[:3]) for n, k in kinds.items()}, "; ".join(nobody[:3]))


def _asked(
    able: Sequence[Supply], need: Need, duration_s: float, other: float
) -> Mapping[str, int]:
    if not able:
        return {}
    part = Part(max(need.seconds, 0.001), need.tasks)

    def threads(at_s: float, done: float) -> float:
        return threads_for(left_after([part], at_s, done), duration_s)

    return fill(able, threads, other=other)


def is_strict(need: Need) -> bool:
    """Whether it is a must; `allow_other_workers` makes a wish of all but resources."""
    return bool(need.resources) or (bool(need.workers or need.hosts) and not need.loose)


def described(need: Need) -> str:
    said = [f"{name}={amount:g}" for name, amount in sorted(need.resources.items())]
    if not need.loose:
        named = [*need.workers, *need.hosts]
        if named:
            said.append("one of " + ", ".join(named[:3]) + (", …" if len(named) > 3 else ""))
    return " and ".join(said)


def _able(observed: ObservedCluster, supply: Supply, need: Need) -> Supply | None:
    """The group as far as it can serve a need: how many such tasks one worker runs at once."""
    group = observed.group(supply.name)
    at_once = None if group is None else _at_once(group, supply, need)
    if group is None or at_once is None:
        return None
    named = [*need.workers, *need.hosts]
    if not named or need.loose or group.name in named:
        return replace(supply, threads=at_once)
    # A worker that is named is one of a kind: another one of its group is no help.
    here = _named(group, named)
    if not here:
        return None
    return replace(
        supply, threads=at_once, connected=min(supply.connected, here), pending=(), grows=False
    )


def _at_once(group: ObservedGroup, supply: Supply, need: Need) -> float | None:
    offered = dict(group.resources)
    claims = {name: amount for name, amount in need.resources.items() if amount > 0}
    if all(offered.get(name, 0.0) >= amount for name, amount in claims.items()):
        fits = (math.floor(offered[name] / amount) for name, amount in claims.items())
        return float(max(1, min([math.floor(supply.threads), *fits])))
    here = {name for w in group.workers for name in w.dask_names}
    # Nobody says what its workers are started with, and some of them may run such tasks.
    return 1.0 if here.intersection(need.able) else None


def _named(group: ObservedGroup, names: Collection[str]) -> int:
    return sum(
        w.name in names or any(name in names for name in w.dask_names)
        for w in group.workers
        if w.is_connected
    )


def _others_able(observed: ObservedCluster, need: Need, every: Sequence[Supply]) -> float:
    """How many such tasks run on workers that are not scaled."""
    scaled = {s.name for s in every}
    groups = [g for g in observed.groups if g.name in scaled]
    ours = {name for g in groups for w in g.workers for name in w.dask_names}
    return float(len([name for name in need.able if name not in ours]))
