"""
Workers whose addresses code knows: it has asked who has its results, or has named them for tasks.

Libraries (XGBoost, LightGBM, RAPIDS) note addresses and name them later; such a task waits for ever
if its worker has left. So these are leased for as long as anybody wants what they were asked for.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any

from dask_adaptive_agent import patching, wire
from dask_adaptive_agent.failing import logged
from dask_adaptive_agent.protocol.requests import AgentSettings

if TYPE_CHECKING:
    from dask_adaptive_agent.patching import Call, Patches
    from dask_adaptive_agent.pins.leases import LeaseTable
    from dask_adaptive_agent.protocol.operator_side import OperatorLease

logger = logging.getLogger(__name__)

#: The owner of these leases.
KNOWN = "addresses"


@dataclass(eq=False)
class KnownWorkers:
    """What was asked for, by address; each has a lease of `spec.pins.client.maxDuration`."""

    scheduler: Any
    leases: LeaseTable
    settings: AgentSettings
    lease: OperatorLease  # without an operator nobody of ours takes a worker away
    expect_holds: Callable[[], None]  # called before something holds a worker
    #: The oldest first; asked for again, a key keeps its place, and prolongs nothing.
    _keys: dict[str, dict[Any, None]] = field(default_factory=dict)
    _is_governed: bool = False  # by settings of a policy

    def install(self, patches: Patches) -> None:
        self._is_governed = True
        patches.put(patching.WHO_HAS_RPC, lambda stock: self._answering(stock, _by_address))
        patches.put(patching.HAS_WHAT_RPC, lambda stock: self._answering(stock, dict))

    def graph_added(self, annotations: Mapping[str, Any]) -> None:
        """A graph has come; `annotations` by kind and key. Never raises."""
        # Fail open: those workers may leave, as with stock code.
        with logged(logger, "Failed to note the workers that a graph names"):
            named = [self.scheduler.tasks.get(key) for key in annotations.get("workers", ())]
            bound = {
                ts.key: ts.worker_restrictions or ()
                for ts in named
                if ts is not None and not ts.loose_restrictions
            }
            if bound:
                self._lease(_by_address(bound))

    def refresh(self) -> None:
        """Give up those of which nobody wants anything any more. A key is paid for once."""
        tasks, gone = self.scheduler.tasks, []
        for address, keys in self._keys.items():
            while keys and not _is_wanted(tasks.get(next(reversed(keys)))):
                keys.popitem()
            if not keys or not self._is_on or address not in self.scheduler.workers:
                gone.append(address)
        for address in gone:
            del self._keys[address]
        if gone:
            self.leases.unpin(source=wire.CLIENT, owner=KNOWN, names=gone)

    @property
    def _is_on(self) -> bool:
        is_governed = self._is_governed and not math.isinf(self.lease.silent_s)
        return is_governed and self.settings.client_pins

    def _answering(self, stock: Call, read: Callable[[Any], Mapping[str, Any]]) -> Call:
        @wraps(stock)
        def answer(*args: Any, **kwargs: Any) -> Any:
            told = stock(*args, **kwargs)
            # Fail open: those workers may leave, as with stock code.
            with logged(logger, "Failed to note the workers of which code was told"):
                self._lease(read(told))
            return told

        return answer

    def _lease(self, asked: Mapping[str, Iterable[Any]]) -> None:
        if not self._is_on:
            return
        new = []
        for address in asked.keys() & self.scheduler.workers.keys():
            keys = self._keys.setdefault(address, {})
            known = len(keys)
            keys.update(dict.fromkeys(asked[address]))
            if len(keys) > known:
                new.append(address)
        if new:
            self.expect_holds()
            self.leases.pin(
                new,
                source=wire.CLIENT,
                owner=KNOWN,
                reason="code knows where its results are",
                ttl_s=self.settings.client_max_ms / 1000,
            )


def _by_address(addresses: Mapping[Any, Iterable[str]]) -> Mapping[str, list[Any]]:
    """Keys by address, of addresses by key."""
    out: dict[str, list[Any]] = defaultdict(list)
    for key, each in addresses.items():
        for address in each:
            out[address].append(key)
    return out


def _is_wanted(ts: Any) -> bool:
    return ts is not None and bool(ts.who_wants or ts.waiters)
