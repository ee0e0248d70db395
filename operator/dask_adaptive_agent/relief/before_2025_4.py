"""
The reliefs `prefixes`, for releases before 2024.6.0, and `host`, for releases before 2025.4.0.

**prefixes**: reads of a task prefix with many groups. `TaskPrefix.states` and its like walk all
groups of the prefix at each read: 20 to 50 ms at 50,000 groups, ten times a second while somebody
looks at the dashboard's task progress (`TaskProgress.update`), and at each scrape of metrics. No
decision of the scheduler reads them. Upstream still works out each answer. Of a prefix with many
groups it is asked again only when the last answer is so old that all such walks together take no
more than `SHARE` of the time.

**host**: each worker's address is parsed once. `WorkerState.host` parses it at each read: 800 times
for one answer to `identity`, 5,000 times for `workers_to_close(key=lambda ws: ws.host)`.
"""

from __future__ import annotations

from copy import copy
from functools import lru_cache, partial
from time import perf_counter
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

from distributed import scheduler as upstream

from dask_adaptive_agent import patching
from dask_adaptive_agent.relief.registry import Mismatch, Relief

#: Fewer groups are asked as upstream does: that takes less than a millisecond.
MANY_GROUPS = 1_000

#: The most that walks over the groups of large prefixes take of a scheduler's time.
SHARE = 1 / 20


#: Answers, and until when they hold, by read, and the prefix's id and name. The prefixes
#: themselves are not kept alive.
_answers: dict[tuple[str, int, str], tuple[Any, float]] = {}

#: Prefixes of other schedulers in the process are read as upstream does.
_schedulers: WeakSet[Any] = WeakSet()


def _keeping(name: str, stock: Any) -> Any:
    """Upstream's property or method of that name, asked less often."""
    work_out: Any = stock.fget if isinstance(stock, property) else stock

    def read(prefix: Any) -> Any:
        if len(prefix.groups) < MANY_GROUPS or not _is_ours(prefix):
            return work_out(prefix)
        key = name, id(prefix), prefix.name
        now = perf_counter()
        value, until = _answers.get(key, (None, 0.0))
        if now >= until:
            for other in [other for other, (_, end) in _answers.items() if end <= now]:
                del _answers[other]
            value = work_out(prefix)
            took = perf_counter() - now
            _answers[key] = value, now + took * (len(_answers) + 1) / SHARE
        return copy(value)  # as upstream's reads do, it gives a fresh object

    return property(read, doc=stock.__doc__) if isinstance(stock, property) else read


def _is_ours(prefix: Any) -> bool:
    return any(s.task_prefixes.get(prefix.name) is prefix for s in _schedulers)


class PrefixesRelief(Relief):
    """Reads of a task prefix with 50,000 groups do not slow a scheduler down."""

    name = "prefixes"

    def install(self) -> None:
        for target in patching.PREFIX_READS:
            self.patches.put(target, partial(_keeping, target.name))
        _schedulers.add(self.scheduler)

    def uninstall(self) -> None:
        _schedulers.discard(self.scheduler)
        if not _schedulers:
            _answers.clear()
        super().uninstall()


@lru_cache(maxsize=50_000)  # some 200 bytes each
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
