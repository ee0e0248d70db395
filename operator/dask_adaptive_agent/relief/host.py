"""
Parses each worker's address once. Before 2025.4.0 `WorkerState.host` does so at each read: 800
times for one answer to `identity`, 5,000 times for `workers_to_close(key=lambda ws: ws.host)`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar
from weakref import WeakSet

from distributed import scheduler as upstream
from distributed.scheduler import WorkerState

from dask_adaptive_agent import patching
from dask_adaptive_agent.relief.base import Mismatch, Relief

#: So many addresses are remembered; one more, and all are forgotten. Some 200 bytes each.
MOST = 50_000


class _Hosts(dict[str, str]):
    """Hosts by address. A subscript that hits runs no Python code but the caller's."""

    def __missing__(self, address: str) -> str:
        if len(self) >= MOST:
            self.clear()
        host = self[address] = _parsed(address)
        return host


_hosts = _Hosts()

#: Whose schedulers want it: the last to go forgets the addresses.
_users: WeakSet[Host] = WeakSet()


class Host(Relief):
    """`WorkerState.host`, parsed once for each address."""

    name: ClassVar[str] = "host"

    @classmethod
    def needless(cls) -> str:
        # A slot since 2025.4.0, set by WorkerState.__init__.
        if isinstance(WorkerState.__dict__.get("host"), property):
            return ""
        return "this release parses a worker's address once"

    def install(self) -> None:
        self.patches.put(patching.HOST, _remembering)
        _users.add(self)

    def check(self) -> None:
        for ws in self.place.scheduler.workers.values():
            if ws.host != _parsed(ws.address):
                raise Mismatch(f"the host of {ws.address} is not what upstream makes of it")

    def uninstall(self) -> None:
        super().uninstall()
        _users.discard(self)
        if not _users:
            _hosts.clear()

    def counts(self) -> dict[str, int]:
        return {"addresses": len(_hosts)}


def _parsed(address: str) -> str:
    # Looked up at each use: others may replace it.
    host: str = vars(upstream)["get_address_host"](address)
    return host


def _remembering(stock: Any) -> property:
    """Raises `Mismatch` unless upstream's answer follows from an address alone."""
    address = "tcp://192.0.2.1:8786"
    try:
        known = stock.fget(SimpleNamespace(address=address)) == _parsed(address)
    except Exception as error:
        raise Mismatch(f"WorkerState.host asks more than its address: {error!r:.200}") from None
    if not known or stock.fset is not None:
        raise Mismatch("WorkerState.host is not what upstream makes of an address")

    def host(ws: WorkerState) -> str:
        return _hosts[ws.address]

    return property(host, doc=stock.__doc__)
