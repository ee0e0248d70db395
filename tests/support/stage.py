"""A rehearsal with a client and eyes: what the loop's tests are written in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import fields, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from distributed import Client

from dask_adaptive.loop.one_pass import PassResult
from dask_adaptive.loop.ports import Event
from dask_adaptive.loop.status import Status
from dask_adaptive.model.observed import PlatformView, PlatformWorker, TerminatingPod
from dask_adaptive.model.policy import parse_policy
from dask_adaptive_lab.local import Machine
from dask_adaptive_lab.rehearse.rehearsal import Rehearsal
from dask_adaptive_lab.rehearse.views import Watcher
from dask_adaptive_lab.tally import Tally
from support.tasks import slow

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
            terminating=tuple(
                TerminatingPod(name, f"{name}-old", (), until - now)
                for name, until in self.ends_at.items()
            ),
        )

    def _seen(self, worker: PlatformWorker) -> PlatformWorker:
        going = "node n1: cordoned" if worker.name in self.going else ""
        waiting = "Pending: its next pod" if worker.name in self.ends_at else worker.waiting
        return replace(worker, node_terminating=going, waiting=waiting)


class Killer:
    """
    Wraps a port; ends the loop's task right before or after the first call of one method, as if the
    operator had been killed there.
    """

    def __init__(self, port: Any, method: str, when: str) -> None:
        self._port, self._method, self._when = port, method, when
        self.has_struck = False

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._port, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            if self._when == "after":
                await real(*args, **kwargs)
            self.has_struck = True
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(3600)  # never returns: the process is gone

        return call if name == self._method else real


class Watched(Watcher):
    """One rehearsal; `last` is the newest pass, `events` all that happened, `peak` most workers."""

    def __init__(
        self, directory: Path, *, spec: dict[str, Any] | None = None,
        wrap_ports: Callable[[Any, Any], tuple[Any, Any]] | None = None, **options: Any,
    ):  # fmt: skip
        self.spec = {
            "clusterRef": {"name": "t"}, "maxReplicas": 3, "idleTimeout": "1s",
            "target": {"duration": "1s"}, **(spec or {}),
        }  # fmt: skip
        machine = {f.name: options.pop(f.name) for f in fields(Machine) if f.name in options}
        self.rehearsal = Rehearsal(
            parse_policy(self.spec), directory, Machine(**machine), watchers=(self,), **options
        )
        self._wrap_ports = wrap_ports or self.rehearsal.wrap_ports
        self.rehearsal.wrap_ports = self._wrap_ports
        self.last: PassResult | None = None
        self._tally: Tally | None = None
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

    def counted(self, tally: Tally) -> None:
        self._tally = tally

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
        assert self._tally is not None
        return self._tally

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

    def recycled(self) -> dict[str, int]:
        return dict(self.status.recycled)

    def go_on(self) -> None:
        """A fresh operator takes over, which knows what the policy's status says."""
        self.rehearsal.start_loop(self.status)

    async def stop(self) -> None:
        """The operator is gone; what it saw last is no longer so."""
        await self.rehearsal.stop_loop()
        self.last = None

    async def dies_at(self, port: str, *methods: str) -> None:
        """
        The next operator dies before its first call of a method of a port, "link" or "platform";
        the one after it right after that call. And so for each method.
        """
        await self.stop()
        for method in methods:
            for when in ("before", "after"):
                await self._dies(port, method, when)
        self.rehearsal.wrap_ports = self._wrap_ports

    async def _dies(self, port: str, method: str, when: str) -> None:
        killers: list[Killer] = []

        def wrap(platform: Any, link: Any) -> tuple[Any, Any]:
            ports = dict(zip(("platform", "link"), self._wrap_ports(platform, link), strict=True))
            killers.append(Killer(ports[port], method, when))
            ports[port] = killers[0]
            return ports["platform"], ports["link"]

        self.rehearsal.wrap_ports = wrap
        self.go_on()
        began = time.monotonic()
        while not killers[0].has_struck:
            if time.monotonic() - began > PATIENCE_S:
                raise TimeoutError(f"{port}.{method} is not called: last seen {self.status}")
            await asyncio.sleep(0.02)
        await self.stop()

    async def until(self, holds: Callable[[], bool], what: str = "") -> None:
        """Wait until the passes show something; raises `TimeoutError` with what was seen last."""
        began = time.monotonic()
        while not (self.last is not None and holds()):
            self.rehearsal.raise_if_broken()
            if time.monotonic() - began > PATIENCE_S:
                raise TimeoutError(f"{what}: last seen {self.status}")
            await asyncio.sleep(0.05)

    @property
    def replacing(self) -> bool:
        """Tells whether a worker is to be replaced, or leaves."""
        return any(row.state in {"Due", "Surging", "Draining"} for row in self.status.workers)

    async def connected(self, workers: int) -> None:
        await self.until(lambda: self.status.connected == workers, f"{workers} workers")

    async def settled(self, workers: int) -> None:
        """As many are connected as are asked for, and nobody is being replaced."""

        def is_settled() -> bool:
            numbers = {self.status.connected, self.status.replicas}
            return numbers == {workers} and not self.replacing

        await self.until(is_settled, f"settled at {workers}")

    async def gone(self) -> None:
        await self.until(lambda: not self.names(), "no worker is left")

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

    async def counts(self) -> tuple[int, int, int]:
        """Tasks, runs, and how many of them were redone, once all that ran has been counted."""
        tally = await self.final_tally()
        return tally.tasks, tally.runs, tally.redone

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

    async def work(self, count: int, seconds: float) -> Any:
        """Run tasks to their end; their futures, which hold the results."""
        futures = self.client.map(slow, range(count), seconds=seconds, pure=False)
        assert count == sum(await self.client.gather(futures))
        return futures

    async def check(self, futures: Any) -> None:
        """All results are there; none was computed twice."""
        assert len(futures) == sum(await self.client.gather(futures))
        tasks, runs, redone = await self.counts()
        assert (tasks, 0) == (runs, redone)


#: What the fixture `stage` is: takes a policy's fields and a rehearsal's options.
Start = Callable[..., Awaitable[Stage]]
