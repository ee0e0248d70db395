"""
The link to a scheduler without our agent: as far as stock RPC allows.

Less is known (no idle times, no last copies, no reasons), so more is left alone: a worker goes only
if `workers_to_close` offers it, which skips workers with tasks and, from 2024.4.2 on, those of P2P
shuffles. Before that release no connected worker goes at all. A worker that has begun to leave
cannot be called back.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dask_adaptive.loop.ports import LinkError, Retired, Told
from dask_adaptive.model.observed import Leaving, ObservedScheduler, SchedulerWorker
from dask_adaptive.model.plan import Arriving
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Limits
from dask_adaptive.scheduler.calls import SchedulerCalls
from dask_adaptive.scheduler.stock_leave import StockDepartures

#: First release whose workers_to_close leaves the participants of P2P shuffles out.
HOOKED = (2024, 4, 2)

#: Status that distributed gives to a worker that is being retired.
CLOSING = "closing_gracefully"


class StockLink:
    """Speaks plain `distributed` with one scheduler."""

    def __init__(
        self,
        calls: SchedulerCalls,
        long_calls: SchedulerCalls,
        *,
        degraded: Reason,
        message: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._calls, self._long_calls, self._clock = calls, long_calls, clock
        self._degraded, self._message = degraded, message
        self._version = ""
        self._busy_at: dict[str, float] = {}
        self._moves: dict[str, asyncio.Task[bool]] = {}
        self._departures = StockDepartures(calls, long_calls, clock)

    async def observe(self, policy: Policy, *, meters: bool = False) -> ObservedScheduler:
        """Ask what stock handlers know: nothing that quotas count. Raises `LinkError`."""
        if not self._version:
            self._version = _distributed(await self._calls.call("versions"))
        identity = await self._calls.call("identity")
        processing = await self._calls.call("processing")
        closable = await self._closable()
        target = await self._calls.call(
            "adaptive_target", target_duration=f"{policy.target_duration_s}s"
        )
        rows = identity["workers"].items()
        self._forget(row["name"] for _, row in rows)
        self._departures.forget(identity["workers"])
        return ObservedScheduler(
            session=identity["id"],
            distributed=self._version,
            degraded=self._degraded,
            degraded_message=self._message,
            target=target,
            workers=tuple(
                self._worker(address, row, len(processing.get(address, ())), closable)
                for address, row in rows
            ),
        )

    async def retire(
        self, names: Sequence[str], policy: Policy, reason: Reason, *, busy_ok: bool = False,
        over_pins: bool = False,
    ) -> list[Retired]:  # fmt: skip
        """
        Let workers go that `workers_to_close` offers now; their data moves in the background.

        One request at a time: upstream's RetireWorker counts a copy on another leaving worker as
        safe, so two that leave one after the other may each rely on the other's copy. `busy_ok` and
        `over_pins` change nothing: stock RPC does not know a pinned worker from a busy one.
        """
        identity = await self._calls.call("identity")
        rows = {str(row["name"]): (a, row["status"]) for a, row in identity["workers"].items()}
        closing = {name for name, (_, status) in rows.items() if status == CLOSING}
        present = [name for name in names if name in rows]
        new = [name for name in present if name not in closing]
        refusal = await self._refusal(new, closing - set(names))
        if new and refusal is None:
            self._move(new)
        return [
            Retired(name, "gone")
            if name not in rows
            else await self._answer(name, rows[name][0], refusal if name in new else None)
            for name in names
        ]

    async def leave(
        self, names: Sequence[str], *, left_s: float, reason: Reason, ending: bool = True
    ) -> list[Retired]:
        """Move the data of workers whose processes end; what is not certain is left alone."""
        if not ending:
            said = "stock RPC cannot put a worker back to service, so it is not taken out of it"
            return [Retired(name, "active", None, said) for name in names]
        identity = await self._calls.call("identity")
        rows = {str(row["name"]): address for address, row in identity["workers"].items()}
        rows |= {address: address for address in identity["workers"]}
        self._departures.begin([rows[n] for n in names if n in rows], left_s=left_s)
        return [
            Retired(name, "gone")
            if name not in rows
            else Retired(name, "drained" if self._departures.is_empty(rows[name]) else "draining")
            for name in names
        ]

    async def cancel(self, names: Sequence[str]) -> list[Retired]:
        # No stock handler puts a worker back to service: it goes on leaving, its data is safe.
        return [Retired(n, "draining", None, "cannot be called back by stock RPC") for n in names]

    async def limit(self, limits: Limits) -> None:
        """Nobody to tell: no stock handler keeps tasks from a worker and lets it go on."""

    async def announce(self, arriving: Sequence[Arriving], told: Told) -> None:
        """Nobody to tell: no shuffle waits there, and no page shows it."""

    async def pin(self, names: Sequence[str], *, ttl_s: float, note: str) -> None:
        """Nobody to tell: our own vetoes read the annotations themselves."""

    async def unpin(self, names: Sequence[str]) -> None:
        """See `pin`."""

    async def close(self) -> None:
        await self._departures.close()
        for task in self._moves.values():
            task.cancel()
        await asyncio.gather(*self._moves.values(), return_exceptions=True)

    async def _closable(self) -> frozenset[str]:
        if _release(self._version) < HOOKED:
            return frozenset()
        return frozenset(map(str, await self._calls.call("workers_to_close", attribute="name")))

    def _worker(
        self, address: str, row: Mapping[str, Any], processing: int, closable: frozenset[str]
    ) -> SchedulerWorker:
        name, now = str(row["name"]), self._clock()
        if processing:
            self._busy_at[name] = now
        leaving, is_departing = Leaving.NO, address in self._departures
        if row["status"] == CLOSING and not is_departing:
            is_done = self._is_moved(name) and not processing
            leaving = Leaving.DRAINED if is_done else Leaving.DRAINING
        return SchedulerWorker(
            name=name,
            address=address,
            status=row["status"],
            nthreads=row["nthreads"],
            processing=processing,
            # What it did between two looks is not known: idle counts from the first look on.
            idle_s=now - self._busy_at.setdefault(name, now),
            sole_bytes=int(row.get("metrics", {}).get("managed_bytes", 0)),  # an upper bound
            memory_limit=row["memory_limit"],
            closable=name in closable,
            leaving=leaving,
            leaving_message="" if leaving is Leaving.NO else "being retired by stock RPC",
            departing="its data is being moved by stock RPC" if is_departing else "",
            departing_left_s=self._departures.left_s(address) if is_departing else math.inf,
        )

    async def _refusal(self, new: Sequence[str], leaving: Collection[str]) -> Retired | None:
        if not new:
            return None
        if leaving:
            return Retired("", "active", Reason.RETIRING, "stock RPC lets one worker go at a time")
        if not set(new) <= await self._closable():
            return Retired("", "active", Reason.NOT_OFFERED, "the scheduler needs it after all")
        return None

    async def _answer(self, name: str, address: str, refusal: Retired | None) -> Retired:
        if refusal is not None:
            return replace(refusal, name=name)
        if self._is_moved(name):
            tasks = await self._calls.call("processing", workers=[address])
            if not any(tasks.values()):
                return Retired(name, "drained")
        # A task that ran to its end may have left a new result, a move may have failed, or an
        # operator before this one may have begun: move data (again).
        if name not in self._moves or self._moves[name].done():
            self._move([name])
        return Retired(name, "draining")

    def _move(self, names: Sequence[str]) -> None:
        task = asyncio.create_task(self._move_data(list(names)))
        self._moves.update(dict.fromkeys(names, task))

    async def _move_data(self, names: list[str]) -> bool:
        try:
            moved = await self._long_calls.call(
                "retire_workers", names=names, close_workers=False, remove=False
            )
        except LinkError:
            return False
        return len(moved) == len(names)

    def _is_moved(self, name: str) -> bool:
        task = self._moves.get(name)
        return task is not None and task.done() and not task.cancelled() and task.result()

    def _forget(self, present: Iterable[Any]) -> None:
        names = {str(n) for n in present}
        for table in (self._busy_at, self._moves):
            for name in table.keys() - names:
                table.pop(name)


def _distributed(versions: Mapping[str, Any]) -> str:
    packages = versions.get("packages", {})
    return str(dict(packages).get("distributed", ""))


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
