"""Machines under simulated workers: each has room for so many, and is paid for while it has one."""

from __future__ import annotations

import math
from collections import Counter
from itertools import count


class Nodes:
    """
    Nodes as a cluster's autoscaler keeps them: as many more as pods that come together need, and
    none that is empty. No time passes until one is there, or gone: that is the same for all orders.

    Args:
        places: Workers that a node has room for.
        packed: Whether a worker prefers the fullest node with room (the webhook's affinity); else
            it gets the emptiest, as `NodeResourcesFit` spreads pods by default (LeastAllocated).
    """

    def __init__(self, places: int, *, packed: bool = False) -> None:
        self._places, self._packed = places, packed
        self._workers: Counter[str] = Counter()  # by node
        self._names = (f"n{number}" for number in count(1))
        self.node_s = 0.0  # sum over all nodes of the time that each was there
        self.least_s = 0.0  # the same if at each moment as few nodes had held as many workers

    def expect(self, workers: int) -> None:
        """So many come together: there is room for all of them before the first is placed."""
        free = sum(self._places - there for there in self._workers.values())
        for _ in range(math.ceil(max(0, workers - free) / self._places)):
            self._workers[next(self._names)] = 0

    def take(self) -> str:
        """A place for a worker: the name of its node."""
        self.expect(1)
        sign = -1 if self._packed else 1
        open_nodes = (n for n, workers in self._workers.items() if workers < self._places)
        node = min(open_nodes, key=lambda n: (sign * self._workers[n], n))
        self._workers[node] += 1
        return node

    def leave(self, node: str) -> None:
        """A worker is gone."""
        self._workers[node] -= 1
        if not self._workers[node]:
            del self._workers[node]

    def pass_time(self, seconds: float) -> None:
        self.node_s += len(self._workers) * seconds
        self.least_s += math.ceil(self._workers.total() / self._places) * seconds
