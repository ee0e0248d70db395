"""A rehearsal with a client and eyes: what the loop's tests are written in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from distributed import Client
from typing_extensions import Self

from dask_adaptive.loop.one_pass import PassResult
from dask_adaptive.loop.ports import Event
from dask_adaptive.loop.status import Status
from dask_adaptive.model.observed import Ending, PlatformView, PlatformWorker, Tally
from dask_adaptive.model.policy import parse_policy
from dask_adaptive.rehearse.rehearsal import Rehearsal

#: No single wait of a test may take longer; a machine under load is slow, a hang is a failure.
PATIENCE_S = 60.0


class Machines:
    """
    A platform of machines and pods that come to an end, over the processes of this machine.

    `going` names workers whose machine is about to go; `ends_at` those whose pod is being deleted,
    with the time at which it ends. Their processes are for the test to kill.
    """

    def __init__(self) -> None:
        self.going = set[str]()
        self.ends_at = dict[str, float]()
        self._platform: Any = None

    def wrap(self, platform: Any, link: Any) -> tuple[Any, Any]:
        """As `Watched` takes it for `wrap_ports`."""
        self._platform = platform
        return self, link

    def __getattr__(self, name: str) -> Any:
        return getattr(self._platform, name)

    async def look(self) -> PlatformView:
        view: PlatformView = await self._platform.look()
        now = time.monotonic()
        return replace(
            view,
            workers=tuple(self._seen(w) for w in view.workers),
            ending=tuple(
                Ending(name, f"{name}-old", (), until - now) for name, until in self.ends_at.items()
            ),
        )

    def _seen(self, worker: PlatformWorker) -> PlatformWorker:
        going = "node n1: cordoned" if worker.name in self.going else ""
        waiting = "Pending: its next pod" if worker.name in self.ends_at else worker.waiting
        return replace(worker, node_going=going, waiting=waiting)


class Watched:
    """One rehearsal; `last` is the newest pass, `events` all that happened, `peak` most workers."""

    def __init__(
        self,
        directory: Path,
        *,
        spec: dict[str, Any] | None = None,
        wrap_ports: Callable[[Any, Any], tuple[Any, Any]] | None = None,
        **options: Any,
    ):
        self.spec = {
            "clusterRef": {"name": "t"}, "maxReplicas": 3, "idleTimeout": "1s",
            "target": {"duration": "1s"}, **(spec or {}),
        }  # fmt: skip
        self.rehearsal = Rehearsal(parse_policy(self.spec), directory, watchers=(self,), **options)
        if wrap_ports is not None:
            self.rehearsal.wrap_ports = wrap_ports
        self.last: PassResult | None = None
        self._status = Status()
        self.events: list[Event] = []
        self.peak = 0

    async def __aenter__(self) -> Self:
        await self.rehearsal.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.rehearsal.__aexit__(kind, exc, tb)

    def saw(self, result: PassResult) -> None:
        self.last, self._status = result, result.status
        self.peak = max(self.peak, result.status.connected)

    def happened(self, event: Event) -> None:
        self.events.append(event)

    @property
    def status(self) -> Status:
        return self._status

    @property
    def tally(self) -> Tally:
        assert self.last is not None
        assert self.last.observed.scheduler.tally is not None
        return self.last.observed.scheduler.tally

    def names(self) -> set[str]:
        """Workers that exist, connected or not."""
        assert self.last is not None
        return {w.name for g in self.last.observed.groups for w in g.workers}

    def reasons(self) -> set[str]:
        return {event.reason.value for event in self.events}

    def condition(self, kind: str) -> bool | None:
        return next((c.status for c in self.status.conditions if c.type == kind), None)

    def message(self, kind: str) -> str:
        return next((c.message for c in self.status.conditions if c.type == kind), "")

    def leaving(self) -> list[str]:
        """What the policy's status tells a fresh operator."""
        return [r.name for r in self.status.workers if r.state in {"Draining", "Drained", "Going"}]

    def recycled(self) -> dict[str, int]:
        return {reason.value: count for reason, count in self.status.recycled}

    def go_on(self) -> None:
        """A fresh operator takes over, which knows what the policy's status says."""
        self.rehearsal.wrap_ports = lambda platform, link: (platform, link)
        self.rehearsal.start_loop(self.leaving(), dict(self.status.recycled), self.status.recent)

    async def until_killed(self, has_struck: Callable[[], bool]) -> None:
        """Wait until the loop has been ended by a test's own doing, and clear it away."""
        began = time.monotonic()
        while not has_struck():
            if time.monotonic() - began > PATIENCE_S:
                raise TimeoutError(f"the step was not reached: last seen {self.status}")
            await asyncio.sleep(0.02)
        await self.rehearsal.stop_loop()
        self.last = None

    async def until(self, holds: Callable[[], bool], what: str = "") -> None:
        """Wait until the passes show something; raises `TimeoutError` with what was seen last."""
        began = time.monotonic()
        while not (self.last is not None and holds()):
            self.rehearsal.raise_if_broken()
            if time.monotonic() - began > PATIENCE_S:
                raise TimeoutError(f"{what}: last seen {self.status}")
            await asyncio.sleep(0.05)

    async def fresh_pass(self) -> PassResult:
        """The result of a pass that begins after this call."""
        for _ in range(2):  # the first may have begun before
            self.last = None
            await self.until(lambda: True)
        assert self.last is not None
        return self.last

    async def final_tally(self) -> Tally:
        """The tally once everything that was running has been counted."""
        await self.fresh_pass()
        return self.tally

    def edit(self, **spec: Any) -> None:
        """Edit the policy, as `kubectl apply` would."""
        self.spec.update(spec)
        self.rehearsal.policy = parse_policy(self.spec)

    async def change(self, **spec: Any) -> None:
        """Edit the policy and wait until a pass has obeyed it."""
        self.edit(**spec)
        await self.fresh_pass()


class Stage(Watched):
    """A rehearsal with a client of the same release."""

    client: Any

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.client = await Client(self.rehearsal.address, asynchronous=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.client.close()
        await super().__aexit__(kind, exc, tb)
