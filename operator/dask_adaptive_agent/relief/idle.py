"""
The relief `idle`: whether a scheduler is idle is known without a walk over all task groups.

`SchedulerState.is_idle` (2023.5.1 on) asks every group that there is, and each submitted graph asks
it (`Scheduler.update_graph`, later `_create_taskstate_from_graph`): 24 ms at 50,000 groups.

A group can have become busy only through a transition from a state of rest to one that is none;
upstream has one such, from released to waiting. So groups are noted when a task of theirs takes it,
and only those are asked, each until it is seen at rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import distributed.scheduler

from dask_adaptive_agent import wire
from dask_adaptive_agent.relief.base import Mismatch, Place, Relief
from dask_adaptive_agent.relief.classwide import ClassWide, expect
from dask_adaptive_agent.transitions import Pair, Replaced, Transition, Transitions

upstream: Any = distributed.scheduler

#: So many groups may be noted before those at rest are struck off, even while others are busy.
_ROOM = 1024


class Begun:
    """Groups that may be busy, of one scheduler. Found by its property through its transitions."""

    __slots__ = ("_begun", "_busy_states", "_room", "_witness")

    def __init__(self, busy_states: Iterable[str], groups: Iterable[Any]) -> None:
        self._busy_states = tuple(busy_states)
        self._begun: dict[Any, None] = {g: None for g in groups if self._is_busy(g)}
        self._room = _ROOM
        self._witness: Any = None  # the group that was busy when last asked

    def pairs(self, table: Iterable[Pair]) -> list[Pair]:
        """The transitions by which tasks leave rest."""
        busy = self._busy_states
        return [pair for pair in table if pair[1] in busy and pair[0] not in busy]

    def noting(self, stock: Transition) -> Transition:
        begun = self._begun

        def transition(state: Any, key: Any, stimulus_id: str, **kwargs: Any) -> Any:
            ts = state.tasks.get(key)
            if ts is not None:
                begun[ts.group] = None
            return stock(state, key, stimulus_id, **kwargs)

        return transition

    def _is_busy(self, group: Any) -> bool:
        return any(map(group.states.__getitem__, self._busy_states))

    def is_idle(self, task_groups: dict[str, Any]) -> bool:
        begun = self._begun
        if len(begun) > self._room:
            self._strike_off()
        witness = self._witness
        if witness is not None:
            if self._is_busy(witness) and task_groups.get(witness.name) is witness:
                return False
            self._witness = None
        while begun:
            # The last one in: cheap to take, and the likeliest to be busy.
            group, _ = begun.popitem()
            # A restart drops groups that were busy (`_clear_task_state`).
            if self._is_busy(group) and task_groups.get(group.name) is group:
                begun[group] = None
                self._witness = group
                return False
        return True

    def _strike_off(self) -> None:
        """So that a scheduler that is never idle does not keep groups that are long gone."""
        begun = self._begun
        for group in [g for g in begun if not self._is_busy(g)]:
            del begun[group]
        self._room = 2 * len(begun) + _ROOM


def _stock_is_idle() -> Any:
    return upstream.SchedulerState.__dict__.get("is_idle")


def _is_idle(self: Any) -> bool:
    table = self._TRANSITIONS_TABLE
    if type(table) is Transitions and table.begun is not None:
        return table.begun.is_idle(self.task_groups)  # type: ignore[no-any-return]
    return _PATCH.below.fget(self)  # type: ignore[no-any-return]


_PATCH = ClassWide(
    upstream.SchedulerState,
    "is_idle",
    property(_is_idle, doc=getattr(_stock_is_idle(), "__doc__", None)),
)


class Idle(Relief):
    """A submit costs the same with 50,000 finished groups as with none."""

    name = "idle"

    def __init__(self, place: Place, choice: str = wire.AUTO) -> None:
        super().__init__(place, choice)
        self._transitions: Replaced | None = None

    @classmethod
    def needless(cls) -> str:
        has_it = _stock_is_idle() is not None
        return "" if has_it else "distributed before 2023.5.1 never asks whether it is idle"

    def install(self) -> None:
        scheduler: Any = self.place.scheduler
        _look(scheduler)
        try:
            self._transitions = ours = Replaced(scheduler)
        except LookupError as error:
            raise Mismatch(str(error)) from None
        begun = Begun(busy_states(), scheduler.task_groups.values())
        for pair in begun.pairs(list(ours.table)):
            ours.replace(pair, begun.noting)
        ours.table.begun = begun
        _PATCH.hold(self)

    def check(self) -> None:
        scheduler: Any = self.place.scheduler
        if scheduler.is_idle is not _PATCH.below.fget(scheduler):
            raise Mismatch("what it says of this scheduler is not what upstream says")

    def uninstall(self) -> None:
        ours, self._transitions = self._transitions, None
        if ours is None:
            return
        ours.table.begun = None
        ours.undo()
        _PATCH.let_go(self)


#: States that are not rest, as upstream has them, and as 2023.5.1 had them, which writes "error"
#: where it means "erred".
_BUSY = {"waiting", "queued", "processing", "no-worker"}
_BUSY_AS_KNOWN = (_BUSY, _BUSY | {"erred"})


def busy_states() -> list[str]:
    """Ask upstream, one state after the other, whether a scheduler with such a task is idle."""
    asked = _PATCH.stock.fget
    done = getattr(upstream.TaskGroup, "done", None)
    busy = []
    for state in upstream.ALL_TASK_STATES:
        group = SimpleNamespace(states={**dict.fromkeys(upstream.ALL_TASK_STATES, 0), state: 1})
        group.done = done is not None and done.fget(group)
        if not asked(SimpleNamespace(task_groups={"group": group})):
            busy.append(state)
    return busy


def _look(scheduler: Any) -> None:
    """Whether upstream is what this stands in for. Raises `Mismatch`."""
    stock = getattr(_PATCH.stock, "fget", None)
    name = "SchedulerState.is_idle"
    if hasattr(upstream.TaskGroup, "done"):
        expect(stock, name, "all", "task_groups", "values", "done")
    else:
        expect(stock, name, "all", "task_groups", "values", "states", "items")
    if type(scheduler).is_idle is not upstream.SchedulerState.__dict__["is_idle"]:
        raise Mismatch("this class of scheduler has an is_idle of its own")
    transition = upstream.SchedulerState._transition
    if "_TRANSITIONS_TABLE" not in transition.__code__.co_names:
        raise Mismatch("transitions are not looked up in the table any more")
    busy = set(busy_states())
    if busy not in _BUSY_AS_KNOWN:
        raise Mismatch(f"states that are not rest are others than expected: {sorted(busy)}")
    leaving = {pair for pair in scheduler._TRANSITIONS_TABLE if pair[1] in busy - {"erred"}}
    if {old for old, _ in leaving} - busy != {"released"}:
        raise Mismatch("tasks get to work in other ways than expected")
