"""The operator in this process, against a real API server, with schedulers that are stand-ins."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from dask_adaptive.controller.app import Operator, Settings
from dask_adaptive.kube.api import KubeApi
from dask_adaptive.loop.ports import Retired, Told
from dask_adaptive.model.observed import ObservedScheduler
from dask_adaptive.model.plan import Arriving
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Limits
from support.ports import free_port


class QuietLink:
    """A scheduler without workers or work; `asked` counts how often it was observed."""

    def __init__(self, address: str, *, timeout_s: float, attach: bool, **_: Any) -> None:
        self.address, self.attach = address, attach

    async def observe(self, policy: Policy, *, meters: bool = False) -> ObservedScheduler:
        agent = "1" if self.attach else ""
        return ObservedScheduler(session="s", distributed="2026.8.0", agent=agent)

    async def changed(self) -> None:
        await asyncio.sleep(3600)

    async def retire(
        self, names: Sequence[str], policy: Policy, reason: Reason, *, busy_ok: bool = False,
        over_pins: bool = False,
    ) -> list[Retired]:  # fmt: skip
        return []

    async def limit(self, limits: Limits) -> None: ...

    async def announce(self, arriving: Sequence[Arriving], told: Told) -> None: ...

    async def leave(
        self, names: Sequence[str], *, left_s: float, reason: Reason, ending: bool = True
    ) -> list[Retired]:
        return [Retired(name, "gone") for name in names]

    async def cancel(self, names: Sequence[str]) -> list[Retired]:
        return []

    async def pin(self, names: Sequence[str], *, ttl_s: float, note: str) -> None: ...

    async def unpin(self, names: Sequence[str]) -> None: ...

    async def close(self) -> None: ...


@contextlib.asynccontextmanager
async def running(api: KubeApi, namespace: str, **more: Any) -> AsyncIterator[Operator]:
    """Run an operator for one namespace; what ends it early fails the test."""
    connect = more.pop("connect", QuietLink)
    settings = Settings(
        identity=more.pop("identity", "test"),
        namespaces=more.pop("namespaces", (namespace,)),
        lease_namespace=namespace,
        lease=more.pop("lease", False),
        address="127.0.0.1",
        http_port=more.pop("http_port", None) or free_port(),
        **more,
    )
    operator = Operator(settings, api, connect=connect)
    task = asyncio.create_task(operator.run())
    try:
        yield operator
        if task.done():
            task.result()
    finally:
        operator.stop()
        await task


async def until(
    check: Callable[[], Awaitable[bool]] | Callable[[], bool], *, timeout_s: float = 15.0
) -> None:
    """Wait until something is so."""
    end = asyncio.get_running_loop().time() + timeout_s
    while True:
        answer = await asyncio.to_thread(check)
        if asyncio.iscoroutine(answer):
            answer = await answer
        if answer:
            return
        assert asyncio.get_running_loop().time() < end, f"{check} is still not so"
        await asyncio.sleep(0.2)
