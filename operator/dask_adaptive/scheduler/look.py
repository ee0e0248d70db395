"""Looks at a scheduler that somebody else governs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dask_adaptive.loop.ports import LinkError
from dask_adaptive.model.observed import ObservedScheduler
from dask_adaptive.model.reason import Reason
from dask_adaptive.scheduler.calls import SchedulerCalls
from dask_adaptive.scheduler.notes import NoteReader
from dask_adaptive.scheduler.snapshot import SnapshotReader
from dask_adaptive_agent import wire


async def look(address: str, *, timeout_s: float = 5.0) -> ObservedScheduler:
    """One look, meters included; see `Lookout`."""
    lookout = Lookout(address, timeout_s=timeout_s)
    try:
        return await lookout.look(meters=True)
    finally:
        await lookout.close()


class Lookout:
    """
    Asks the agent in one scheduler again and again; a problem is part of the answer.

    Neither attaches an agent nor configures one, and renews no lease: it changes nothing.
    """

    def __init__(self, address: str, *, timeout_s: float = 5.0) -> None:
        self._address, self._timeout_s = address, timeout_s
        self._calls = SchedulerCalls(address, timeout_s=timeout_s)
        self._reader = SnapshotReader(NoteReader())
        self._hello: dict[str, Any] | None = None

    async def look(self, *, meters: bool = False, demand: bool = False) -> ObservedScheduler:
        """What the agent says now."""
        try:
            hello = self._hello or await self._calls.call(wire.HELLO, protocol=wire.PROTOCOL)
            if hello is None:
                return ObservedScheduler(
                    problem=Reason.AGENT_MISSING, message="the scheduler runs without the agent"
                )
            if hello["protocol"] != wire.PROTOCOL:
                theirs = f"its agent speaks protocol {hello['protocol']}"
                ours = f"this program {wire.PROTOCOL}"
                return ObservedScheduler(
                    problem=Reason.PROTOCOL_MISMATCH, message=f"{theirs}, {ours}"
                )
            asked = {"meters": meters, "demand": demand, **self._reader.request}
            answer = await self._calls.call(wire.OBSERVE, protocol=wire.PROTOCOL, **asked)
            seen = self._reader.read(answer, agent=hello["agent"], version=hello["distributed"])
            self._hello = hello
            return seen
        except LinkError as exc:
            self._hello = None  # the next may be another
            return ObservedScheduler(problem=Reason.SCHEDULER_UNREACHABLE, message=str(exc))
        except (KeyError, TypeError) as exc:
            self._hello = None
            odd = f"{self._address} does not answer like a scheduler: {exc!r}"
            return ObservedScheduler(problem=Reason.SCHEDULER_UNREACHABLE, message=odd)

    async def explain(self, names: Sequence[str] | None = None) -> list[wire.WorkerExplanation]:
        """
        Why each worker may or may not go, in the agent's words.

        Raises:
            LinkError: No answer, or none that can be read.
        """
        asked = {} if names is None else {"names": list(names)}
        answer = await self._calls.call(wire.EXPLAIN, protocol=wire.PROTOCOL, **asked)
        try:
            rows = list(answer["workers"])
            return [row for row in rows if row["name"] and row["sentence"]]
        except (KeyError, TypeError) as exc:
            raise LinkError(f"{self._address} explains nothing that can be read: {exc!r}") from exc

    async def close(self) -> None:
        await self._calls.close()
