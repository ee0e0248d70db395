"""
Parses each worker's address once. Before 2025.4.0 `WorkerState.host` does so at each read: 800
times for one answer to `identity`, 5,000 times for `workers_to_close(key=lambda ws: ws.host)`.
"""

from __future__ import annotations

from typing import Any, ClassVar
from weakref import WeakSet

from distributed import scheduler as upstream
from distributed.scheduler import WorkerState

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


class _Patch:
    """
    The class-level property, for as long as one scheduler of this process wants it.

    It answers what the stock property does, for schedulers without the agent too: a host is a
    function of its address.
    """

    def __init__(self) -> None:
        # A scheduler that closes without `uninstall` is not kept alive by it.
        self._users: WeakSet[Host] = WeakSet()
        self._stock: Any = None
        self._ours: Any = None
        self.hosts = _Hosts()

    def apply(self, user: Host) -> None:
        if self._ours is None:
            stock = WorkerState.__dict__["host"]
            if not _is_expected(stock):
                raise Mismatch("WorkerState.host is not upstream's property any more")
            self._stock, self._ours = stock, _remembering(self.hosts, stock.__doc__)
            _put(self._ours)
        self._users.add(user)

    def take_out(self, user: Host) -> None:
        self._users.discard(user)
        if self._users:
            return
        self.hosts.clear()
        if self._ours is not None and WorkerState.__dict__.get("host") is self._ours:
            _put(self._stock)
        # Else somebody has put a property over ours, which may still ask it: it works without us.
        self._stock = self._ours = None


_patch = _Patch()


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
        _patch.apply(self)

    def check(self) -> None:
        for ws in self.place.scheduler.workers.values():
            if ws.host != _parsed(ws.address):
                raise Mismatch(f"the host of {ws.address} is not what upstream makes of it")

    def uninstall(self) -> None:
        _patch.take_out(self)

    def counts(self) -> dict[str, int]:
        return {"addresses": len(_patch.hosts)}


def _parsed(address: str) -> str:
    # Looked up at each use: others may replace it.
    host: str = vars(upstream)["get_address_host"](address)
    return host


def _put(host: Any) -> None:
    setattr(WorkerState, "host", host)  # noqa: B010  # typed as final, as it is since 2025.4.0


def _remembering(hosts: _Hosts, doc: str | None) -> property:
    def host(ws: WorkerState) -> str:
        return hosts[ws.address]

    return property(host, doc=doc)


def _is_expected(stock: Any) -> bool:
    """Whether it is `return get_address_host(self.address)` and no more."""
    code = getattr(getattr(stock, "fget", None), "__code__", None)
    return (
        type(stock) is property
        and stock.fset is None
        and code is not None
        and code.co_names == ("get_address_host", "address")
    )
