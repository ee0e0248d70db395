"""
The relief `prefixes`: totals of task prefixes are kept at each change.

Before 2024.6.0 `TaskPrefix.states` and its like walk all groups of the prefix at each read: 20 to
50 ms at 50,000 groups, ten times a second while somebody looks at the dashboard's task progress
(`TaskProgress.update`), and at each scrape of metrics.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from dask_adaptive_agent import patching, wire
from dask_adaptive_agent.patching import Patch
from dask_adaptive_agent.relief import totals
from dask_adaptive_agent.relief.base import Mismatch, Place, Relief
from dask_adaptive_agent.relief.totals import KeptPrefix, upstream

#: What upstream works out at each read.
READS = ("states", "active_states", "nbytes_total", "duration", "types")

_SLOTS = {
    "all_durations", "duration_average", "groups", "max_exec_time", "name", "state_counts",
    "suspicious",
}  # fmt: skip

#: So many groups are worked out in upstream's way, to prove ours, when it is put in.
_PROVEN_GROUPS = 2_000


def _set_state(stock: Any) -> property:
    return property(stock.fget, totals.set_state, doc=stock.__doc__)


_PATCHES = (
    (patching.TASK_STATE, _set_state),
    (patching.TASK_NBYTES, lambda stock: totals.set_nbytes),
    (patching.GROUP_ADD, lambda stock: totals.add_task),
)


class _Converting(dict):  # type: ignore[type-arg]
    """`Scheduler.task_prefixes` that converts what `SchedulerState.new_task` puts in."""

    __slots__ = ("drifted",)

    drifted: totals.Drifted

    def __setitem__(self, name: str, prefix: Any) -> None:
        dict.__setitem__(self, name, prefix)
        if type(prefix) is upstream.TaskPrefix:
            totals.convert(prefix, self.drifted)

    def clear(self) -> None:
        """At a restart (`_clear_task_state`). Who still holds a prefix gets upstream's."""
        _restore(self)
        dict.clear(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (dict(self),)


def _restore(prefixes: dict[str, Any]) -> None:
    for prefix in prefixes.values():
        if type(prefix) is KeptPrefix:
            totals.restore(prefix)


class Prefixes(Relief):
    """Reads of a task prefix cost the same with one group as with 50,000."""

    name = "prefixes"

    def __init__(self, place: Place, choice: str = wire.AUTO) -> None:
        super().__init__(place, choice)
        self._prefixes: _Converting | None = None
        self._patched: list[Patch] = []

    @classmethod
    def needless(cls) -> str:
        is_kept = hasattr(upstream, "TaskCollection")
        return "distributed 2024.6.0 and later keep them themselves" if is_kept else ""

    def install(self) -> None:
        _look()
        scheduler: Any = self.place.scheduler
        if type(scheduler.task_prefixes) is not dict:
            raise Mismatch("Scheduler.task_prefixes is not upstream's dict")
        if any(ts.prefix is not ts.group.prefix for ts in scheduler.tasks.values()):
            raise Mismatch("a group of this scheduler has tasks of several prefixes")
        stock = _lives_of_samples()
        self._patched = [self.patches.put(target, wrap) for target, wrap in _PATCHES]
        if _lives_of_samples() != stock:
            raise Mismatch("what keeps the totals does something else than upstream")
        self._prefixes = ours = _Converting(scheduler.task_prefixes)
        ours.drifted = self.place.give_up
        for prefix in ours.values():
            totals.convert(prefix, self.place.give_up)
        scheduler.task_prefixes = ours

    def check(self) -> None:
        for prefix in (_sample(), *self._few()):
            _compare(prefix)

    def _few(self) -> list[KeptPrefix]:
        """Prefixes that are quick to work out in upstream's way."""
        few, n_groups = [], 0
        for prefix in islice((self._prefixes or {}).values(), _PROVEN_GROUPS):
            if n_groups + len(prefix.groups) <= _PROVEN_GROUPS:
                n_groups += len(prefix.groups)
                few.append(prefix)
        return few

    def uninstall(self) -> None:
        ours, self._prefixes = self._prefixes, None
        if ours is not None:
            _restore(ours)
            scheduler: Any = self.place.scheduler
            if scheduler.task_prefixes is ours:
                scheduler.task_prefixes = dict(ours)
        super().uninstall()

    def counts(self) -> dict[str, int]:
        if not all([patch.is_called for patch in self._patched]):
            self.place.give_up("another package has replaced what keeps the totals")
        return {"prefixes": len(self._prefixes or ())}


def _look() -> None:
    """Whether upstream is what `totals` stands in for. Raises `Mismatch`."""
    prefix: Any = upstream.TaskPrefix
    if set(getattr(prefix, "__slots__", ())) != _SLOTS:
        raise Mismatch("TaskPrefix of distributed.scheduler has other attributes than expected")
    if any(old == "forgotten" for old, _ in upstream.SchedulerState._TRANSITIONS_TABLE):
        raise Mismatch("forgotten tasks can come back in this release of distributed")


class _Worker:
    nbytes = 0


def _facts(of: Any) -> dict[str, str]:
    """What it holds itself; it refers to objects that are others each time."""
    held = {name: getattr(of, name, None) for name in type(of).__slots__}
    plain = (int, float, str, dict, set, type(None))
    return {
        name: repr(value)
        for name, value in held.items()
        if isinstance(value, plain) and name != "who_has"
    }


def _lives_of_samples() -> list[Any]:
    """All that is known of some tasks, their groups and prefix, step by step."""
    steps = []
    prefix: Any = upstream.TaskPrefix("life")
    group: Any = upstream.TaskGroup("life")
    group.prefix = prefix
    prefix.groups.append(group)
    worker = _Worker()
    for key, states in (("life-1", ("waiting", "memory", "released")), ("life-2", ("erred",))):
        ts: Any = upstream.TaskState(key, None, "released")
        ts.prefix = prefix
        group.add(ts)
        ts.who_has = {worker}
        ts.set_nbytes(len(states))
        ts.set_nbytes(10)
        for state in states:
            ts.state = state
            steps.append([worker.nbytes, *map(_facts, (ts, group, prefix))])
    return steps


def _sample() -> KeptPrefix:
    """A prefix that has been through everything, on objects of no scheduler."""
    prefix: Any = upstream.TaskPrefix("sample")

    def drifted(message: str) -> None:
        raise Mismatch(message)

    totals.convert(prefix, drifted)
    for i, states in enumerate((("waiting", "memory"), ("erred",), ("released", "forgotten"))):
        group: Any = upstream.TaskGroup(f"sample-{i}")
        group.prefix = prefix
        prefix.groups.append(group)
        for j in range(i + 1):
            _run(group, f"sample-{i}-{j}", states)
        _compare(prefix)
    for group in prefix.groups[1:]:
        prefix.groups.remove(group)
        _compare(prefix)
    return prefix  # type: ignore[no-any-return]


def _run(group: Any, key: str, states: tuple[str, ...]) -> None:
    ts: Any = upstream.TaskState(key, None, "released")
    ts.prefix = group.prefix
    group.add(ts)
    ts.set_nbytes(len(key))
    group.types.add(f"type-{key[-1]}")
    group.add_duration("compute", 1.0, 1.5)
    for state in states:
        ts.state = state
        _compare(group.prefix)


def _compare(prefix: Any) -> None:
    """Ours against upstream's own functions on the same groups. Raises `Mismatch`."""
    stock = {name: getattr(upstream.TaskPrefix, name).fget(prefix) for name in READS}
    stock["len"] = upstream.TaskPrefix.__len__(prefix)
    ours = {**{name: getattr(prefix, name) for name in READS}, "len": len(prefix)}
    apart = abs(stock.pop("duration") - ours.pop("duration"))
    if stock != ours or apart > 1e-9 * (1 + sum(prefix.all_durations.values())):
        raise Mismatch(f"totals of {prefix.name!r:.80} are not those that upstream works out")
