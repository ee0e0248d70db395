"""
Totals of a task prefix that are kept at each change, where upstream (< 2024.6.0) walks its groups.

A prefix is converted in place: its class becomes `KeptPrefix`, which has the same layout, and its
list of groups becomes `Groups`, which holds the totals. The functions at the end stand in for
upstream's in all schedulers of the process; a prefix that is not converted gets what it always got.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import distributed.scheduler

#: Upstream's module; without types, because those of the newest release are not the ones meant.
upstream: Any = distributed.scheduler

#: What a group of tasks, a prefix and a task are here: upstream's, of a release that has them thus.
Group = Any
Prefix = Any
Task = Any

Drifted = Callable[[str], None]


class Types(set):  # type: ignore[type-arg]
    """Result types of one group. Upstream but adds to them (`SchedulerState._add_to_memory`)."""

    __slots__ = ("groups",)

    groups: Groups

    def add(self, typename: str) -> None:
        if typename not in self:
            set.add(self, typename)
            types = self.groups.types
            types[typename] = types.get(typename, 0) + 1

    def copy(self) -> set[str]:
        return set(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return set, (list(self),)


class Groups(Sequence[Group]):
    """
    The groups of one prefix in the order in which they came, as upstream's list, and their totals.

    A change of state writes one number: `moves[old][new]`. The totals catch up when they are read,
    and so does upstream's own count of arrivals (`state_counts`), which the moves stand for
    meanwhile. What a read costs depends on how many kinds of moves there were since the last one
    (4 or 5 as a rule), not on how many moves or groups.
    """

    __slots__ = (
        "arrivals",
        "dead",
        "drifted",
        "gone_s",
        "live",
        "moves",
        "nbytes",
        "states",
        "types",
    )

    def __init__(self, arrivals: defaultdict[str, int], drifted: Drifted) -> None:
        self.arrivals = arrivals  # upstream's `TaskPrefix.state_counts`
        self.drifted = drifted
        self.moves: defaultdict[str, defaultdict[str, int]] = defaultdict(partial(defaultdict, int))
        self.states = dict.fromkeys(upstream.ALL_TASK_STATES, 0)
        self.live: dict[Group, int] = {}  # tasks that are not forgotten, by group
        self.dead: dict[Group, None] = {}  # groups with none; upstream removes them very soon
        self.nbytes = 0
        self.types: dict[str, int] = {}  # groups that have it, by type
        self.gone_s = 0.0  # what groups that are gone have taken, of the prefix's `all_durations`

    def __len__(self) -> int:
        return len(self.live)

    def __iter__(self) -> Iterator[Group]:
        return iter(self.live)

    def __reversed__(self) -> Iterator[Group]:
        return reversed(self.live)

    def __contains__(self, group: object) -> bool:
        return group in self.live

    def __getitem__(self, at: Any) -> Any:
        return list(self.live)[at]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Groups):
            return self is other
        return list(self.live) == other

    __hash__ = None  # type: ignore[assignment]  # as a list

    def __repr__(self) -> str:
        return repr(list(self.live))

    def append(self, group: Group) -> None:
        states = group.states
        for state, n in states.items():
            self.states[state] += n
        live = sum(states.values()) - states["forgotten"]
        self.live[group] = live
        if not live:
            self.dead[group] = None
        self.nbytes += group.nbytes_total
        kept = Types(group.types)
        kept.groups = self
        for typename in kept:
            self.types[typename] = self.types.get(typename, 0) + 1
        group.types = kept

    def remove(self, group: Group) -> None:
        if self.live.pop(group, None) is None:
            raise ValueError("list.remove(x): x not in list")
        self.dead.pop(group, None)
        for state, n in group.states.items():
            self.states[state] -= n
        self.nbytes -= group.nbytes_total
        group.types = set(group.types)
        for typename in group.types:
            self.types[typename] -= 1
            if not self.types[typename]:
                del self.types[typename]
        if self.live:
            self.gone_s += group.duration
        else:
            self._emptied(group.prefix)

    def _emptied(self, prefix: Prefix) -> None:
        """Nothing is left, so that all has to be 0; what rounding has left of the time goes too."""
        self.gone_s = sum(prefix.all_durations.values())
        self.settle()
        if self.nbytes or any(self.states.values()):
            self.drifted(f"the totals of {prefix.name!r:.80} have come out wrong")

    def add(self, group: Group, state: str) -> None:
        """A new task."""
        self.states[state] += 1
        live = self.live
        if state != "forgotten" and group in live:
            live[group] += 1
            self.dead.pop(group, None)

    def settle(self) -> None:
        states, arrivals = self.states, self.arrivals
        for old, row in self.moves.items():
            for new, n in row.items():
                states[old] -= n
                states[new] += n
                arrivals[new] += n
        self.moves.clear()


class KeptPrefix(upstream.TaskPrefix):  # type: ignore[misc]
    """A prefix whose `groups` are `Groups`. Reads give fresh objects, as upstream's do."""

    __slots__ = ()

    groups: Any

    @property
    def states(self) -> dict[str, int]:
        groups = self.groups
        if groups.moves:
            groups.settle()
        return groups.states.copy() if groups.live else {}

    @property
    def active_states(self) -> dict[str, int]:
        states = self.states
        dead = self.groups.dead
        if not dead:
            return states
        if len(dead) == len(self.groups.live):
            return {}
        states["forgotten"] -= sum(group.states["forgotten"] for group in dead)
        return states

    @property
    def state_counts(self) -> defaultdict[str, int]:
        groups = self.groups
        if groups.moves:
            groups.settle()
        return groups.arrivals  # type: ignore[no-any-return]

    @property
    def nbytes_total(self) -> int:
        return self.groups.nbytes  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return sum(self.groups.states.values())

    @property
    def duration(self) -> float:
        # `TaskGroup.add_duration` is the only one who calls `TaskPrefix.add_duration`, so that the
        # prefix's time is that of its groups, gone or not.
        groups = self.groups
        return sum(self.all_durations.values()) - groups.gone_s if groups.live else 0

    @property
    def types(self) -> set[str]:
        return set(self.groups.types)


def convert(prefix: Prefix, drifted: Drifted) -> None:
    """Keep the totals of this prefix from now on. O(groups)."""
    stock = prefix.groups
    groups = Groups(prefix.state_counts, drifted)
    for group in stock:
        groups.append(group)
    groups.gone_s = sum(prefix.all_durations.values()) - sum(group.duration for group in stock)
    prefix.groups = groups
    prefix.__class__ = KeptPrefix


def restore(prefix: Prefix) -> None:
    """Make upstream's of a prefix again. O(groups)."""
    groups = prefix.groups
    groups.settle()
    for group in groups:
        group.types = set(group.types)
    prefix.__class__ = upstream.TaskPrefix
    prefix.groups = list(groups)


def set_state(self: Task, value: str) -> None:
    """Stands in for the setter of `TaskState.state`, the hottest function here."""
    group = self.group
    old = self._state
    states = group.states
    states[old] -= 1
    states[value] += 1
    self._state = value
    prefix = self.prefix
    if type(prefix) is KeptPrefix:
        groups = prefix.groups
        groups.moves[old][value] += 1
        if value == "forgotten":
            live = groups.live
            n = live.get(group, 0) - 1
            if n >= 0:
                live[group] = n
                if not n:
                    groups.dead[group] = None
    else:
        prefix.state_counts[value] += 1


def set_nbytes(self: Task, nbytes: int) -> None:
    """Stands in for `TaskState.set_nbytes`."""
    diff = nbytes
    old_nbytes = self.nbytes
    if old_nbytes >= 0:
        diff -= old_nbytes
    group = self.group
    group.nbytes_total += diff
    for ws in self.who_has or ():  # None where upstream (2023.12.0 on) has no set
        ws.nbytes += diff
    self.nbytes = nbytes
    prefix = group.prefix
    if type(prefix) is KeptPrefix:
        prefix.groups.nbytes += diff


def add_task(self: Group, other: Task) -> None:
    """Stands in for `TaskGroup.add`."""
    state = other.state
    self.states[state] += 1
    other.group = self
    prefix = self.prefix
    if type(prefix) is KeptPrefix:
        groups = prefix.groups
        groups.add(self, state)
        if other.prefix is not prefix:
            # Names of groups and of prefixes are cut from keys by two functions (`key_split_group`,
            # `key_split`). Changes of such a task would be counted for the wrong prefix.
            groups.drifted(f"the tasks of group {self.name!r:.80} have several prefixes")
