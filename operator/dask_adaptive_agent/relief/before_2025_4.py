"""
The relief `host`, for releases before 2025.4.0: each worker's address is parsed once.

`WorkerState.host` parses it at each read: 800 times for one answer to `identity`, 5,000 times for
`workers_to_close(key=lambda ws: ws.host)`.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

from distributed import scheduler as upstream

from dask_adaptive_agent import patching
from dask_adaptive_agent.relief.registry import Mismatch, Relief


@functools.lru_cache(maxsize=50_000)  # some 200 bytes each
def host_of(address: str) -> str:
    """The host of a worker's address, as upstream has it."""
    # Looked up at each use: others may replace it.
    host: str = vars(upstream)["get_address_host"](address)
    return host


class HostRelief(Relief):
    """`WorkerState.host`, parsed once for each address."""

    name = "host"

    def install(self) -> None:
        self.patches.put(patching.HOST, _remembering)
        for ws in self.scheduler.workers.values():
            if ws.host != host_of.__wrapped__(ws.address):
                raise Mismatch(f"the host of {ws.address} is not what upstream makes of it")

    def uninstall(self) -> None:
        super().uninstall()
        host_of.cache_clear()


def _remembering(stock: Any) -> property:
    """Raises `Mismatch` unless upstream's answer follows from an address alone."""
    address = "tcp://192.0.2.1:8786"
    try:
        known = stock.fget(SimpleNamespace(address=address)) == host_of.__wrapped__(address)
    except Exception as error:
        raise Mismatch(f"WorkerState.host asks more than its address: {error!r:.200}") from None
    if not known or stock.fset is not None:
        raise Mismatch("WorkerState.host is not what upstream makes of an address")
    return property(lambda ws: host_of(ws.address), doc=stock.__doc__)
