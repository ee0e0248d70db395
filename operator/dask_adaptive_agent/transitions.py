"""
A scheduler's own table of transitions, in which several of us replace functions for a while.

`SchedulerState._TRANSITIONS_TABLE`, `{(start, finish): function}`, is a class attribute;
`SchedulerState._transition` looks at the instance first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

TABLE = "_TRANSITIONS_TABLE"

Pair = tuple[str, str]
Transition = Callable[..., Any]


class Transitions(dict):  # type: ignore[type-arg]
    """Upstream's, but for what its users have replaced; gone with the last of them."""

    __slots__ = ("begun", "users")

    def __init__(self, table: Any) -> None:
        super().__init__(table)
        self.begun: Any = None  # of the relief `idle`, which is found by it
        self.users = 0

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (dict(self),)


class Replaced:
    """What one user has replaced in the table of one scheduler."""

    def __init__(self, scheduler: Any) -> None:
        """Raises `LookupError` where somebody else has put a table of theirs on the scheduler."""
        table = scheduler.__dict__.get(TABLE)
        if table is None:
            table = Transitions(getattr(scheduler, TABLE))
            setattr(scheduler, TABLE, table)
        if type(table) is not Transitions:
            raise LookupError("somebody has replaced this scheduler's table of transitions")
        self._scheduler = scheduler
        self.table: Transitions = table
        self._functions: dict[Pair, tuple[Transition, Transition]] = {}
        table.users += 1

    @property
    def is_in_place(self) -> bool:
        return self._scheduler.__dict__.get(TABLE) is self.table

    def replace(self, pair: Pair, wrap: Callable[[Transition], Transition]) -> None:
        """Each pair once."""
        stock = self.table[pair]
        self.table[pair] = wrap(stock)
        self._functions[pair] = stock, self.table[pair]

    def undo(self) -> None:
        """Call it once. What somebody has put over ours stays."""
        for pair, (stock, ours) in self._functions.items():
            if self.table[pair] is ours:
                self.table[pair] = stock
        self.table.users -= 1
        if not self.table.users and self.is_in_place:
            delattr(self._scheduler, TABLE)
