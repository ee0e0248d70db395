"""
The relief `idle`: whether a scheduler is idle is known without a walk over all task groups.

`SchedulerState.is_idle` (2023.5.1 on) asks every group that there is, and each submitted graph asks
it (`Scheduler.update_graph`, later `_create_taskstate_from_graph`): 24 ms at 50,000 groups.

A group can have become busy only through a transition from a state of rest to one that is none;
upstream has one such, from released to waiting. So groups are noted when the agent's plugin hears
that a task of theirs waits, and only those are asked, each until it is seen at rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary

import distributed.scheduler

from dask_adaptive_agent import patching, wire
from dask_adaptive_agent.relief.base import Mismatch, Place, Relief

upstream: Any = distributed.scheduler

#: The name of the agent's plugin.
PLUGIN = "dask-adaptive"

#: So many groups may be noted before those at rest are struck off, even while others are busy.
_ROOM = 1024


class Begun:
    """Groups that may be busy, of one scheduler."""

    __slots__ = ("_begun", "_busy_states", "_room", "_witness")

    def __init__(self, busy_states: Iterable[str], groups: Iterable[Any]) -> None:
        self._busy_states = tuple(busy_states)
        self._begun: dict[Any, None] = {g: None for g in groups if self._is_busy(g)}
        self._room = _ROOM
        self._witness: Any = None  # the group that was busy when last asked

    def noting(self, tasks: dict[Any, Any]) -> Callable[[Any], None]:
        """Notes the group of a task. Once a task: as few calls as there can be."""
        begun = self._begun

        def note(key: Any) -> None:
            ts = tasks.get(key)
            if ts is not None:
                begun[ts.group] = None

        return note

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


#: By scheduler; those without the relief get the stock answer.
_BEGUN: WeakKeyDictionary[Any, Begun] = WeakKeyDictionary()


def _answering(stock: property) -> property:
    def is_idle(self: Any) -> bool:
        begun = _BEGUN.get(self)
        # Without the plugin, which anybody may remove, nobody notes what begins.
        if begun is None or PLUGIN not in self.plugins:
            return stock.fget(self)  # type: ignore[misc, no-any-return]
        return begun.is_idle(self.task_groups)

    return property(is_idle, doc=stock.__doc__)


class Idle(Relief):
    """A submit costs the same with 50,000 finished groups as with none."""

    name = "idle"

    def __init__(self, place: Place, choice: str = wire.AUTO) -> None:
        super().__init__(place, choice)
        self._stock: Any = None
        self._note: Any = None

    @classmethod
    def needless(cls) -> str:
        has_it = hasattr(upstream.SchedulerState, "is_idle")
        return "" if has_it else "distributed before 2023.5.1 never asks whether it is idle"

    def install(self) -> None:
        scheduler: Any = self.place.scheduler
        patch = self.patches.put(patching.IS_IDLE, _answering)
        self._stock = patch.stock
        busy = _look(scheduler, self._stock)
        _BEGUN[scheduler] = begun = Begun(busy, scheduler.task_groups.values())
        self._note = begun.noting(scheduler.tasks)
        self.place.waiting.append(self._note)

    def check(self) -> None:
        scheduler: Any = self.place.scheduler
        if scheduler.is_idle is not self._stock.fget(scheduler):
            raise Mismatch("what it says of this scheduler is not what upstream says")

    def uninstall(self) -> None:
        _BEGUN.pop(self.place.scheduler, None)
        if self._note in self.place.waiting:
            self.place.waiting.remove(self._note)
        super().uninstall()


#: States that are not rest, as upstream has them, and as 2023.5.1 had them, which writes "error"
#: where it means "erred".
_BUSY = {"waiting", "queued", "processing", "no-worker"}
_BUSY_AS_KNOWN = (_BUSY, _BUSY | {"erred"})


def busy_states(stock: Any) -> list[str]:
    """
    Ask upstream, one state after the other, whether a scheduler with such a task is idle.

    Raises `Mismatch` if it asks anything else of a scheduler, or not each group.
    """
    done = getattr(upstream.TaskGroup, "done", None)

    def is_idle(*states: str) -> bool:
        groups = {}
        for state in states:
            counts = {**dict.fromkeys(upstream.ALL_TASK_STATES, 0), state: 1}
            groups[state] = group = SimpleNamespace(states=counts)
            group.done = done is not None and done.fget(group)
        return stock.fget(SimpleNamespace(task_groups=groups))  # type: ignore[no-any-return]

    try:
        busy = [state for state in upstream.ALL_TASK_STATES if not is_idle(state)]
        rest = [state for state in upstream.ALL_TASK_STATES if state not in busy]
        answers = is_idle(), is_idle(*rest), *(is_idle(*rest, state) for state in busy)
    except Exception as error:
        raise Mismatch(f"is_idle asks more than is known: {error!r:.200}") from None
    if answers != (True, True, *(False for _ in busy)):
        raise Mismatch("is_idle is not whether each group is at rest")
    return busy


def _look(scheduler: Any, stock: Any) -> list[str]:
    """States that are not rest. Raises `Mismatch` where upstream is not what this stands in for."""
    if "is_idle" in vars(type(scheduler)):
        raise Mismatch("this class of scheduler has an is_idle of its own")
    busy = busy_states(stock)
    if set(busy) not in _BUSY_AS_KNOWN:
        raise Mismatch(f"states that are not rest are others than expected: {sorted(busy)}")
    leaving = {pair for pair in scheduler._TRANSITIONS_TABLE if pair[1] in set(busy) - {"erred"}}
    if {old for old, _ in leaving} - set(busy) != {"released"}:
        raise Mismatch("tasks get to work in other ways than expected")
    return busy
