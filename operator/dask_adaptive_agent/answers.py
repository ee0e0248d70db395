"""What the agent answers of one scheduler: its snapshot."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import dask.config
from distributed.core import Status

from dask_adaptive_agent import wire
from dask_adaptive_agent.component import Component
from dask_adaptive_agent.protocol.changes import Signs
from dask_adaptive_agent.protocol.handlers import sendable, whole
from dask_adaptive_agent.quotas.roster import managed_bytes
from dask_adaptive_agent.relief.workers_to_close import Delegate
from dask_adaptive_agent.service.service import SHORT
from dask_adaptive_agent.worker_side import lifetime

if TYPE_CHECKING:
    from distributed.scheduler import WorkerState

    from dask_adaptive_agent.drain.drain import Drain
    from dask_adaptive_agent.quotas.cordons import Cordons
    from dask_adaptive_agent.quotas.roster import Entry
    from dask_adaptive_agent.shuffle.runs import Shuffles

STATUS_NUMBER = {
    Status[name]: number for number, name in enumerate(wire.STATUSES) if name != "other"
}
OTHER = wire.STATUSES.index("other")

#: Characters of one value. A policy's values are shorter, so one that is cut is unlike all of them.
LONGEST = 50_000

_ABSENT: Any = object()

_IN_USE: wire.QuietPart = {"no_task_ms": 0, "no_client_ms": 0}


class Answers(Component):
    """Reads what one scheduler is at. Changes nothing."""

    def snapshot(
        self, *, known: int, heard: int, target_s: float | None, meters: bool, demand: bool
    ) -> wire.Snapshot:
        """
        The scheduler at one instant, in columns: 5,000 workers must stay under 15 ms.

        Introductions start at `known`, notes behind `heard`; `target_s` None: as it is configured.
        """
        agent = self.agent
        entries, section, now = agent.roster.entries, agent.parts.section, agent.clock()
        section("data of workers", lambda: agent.sole.refresh(entries.values()), None)
        offered = agent.offered(entries)
        columns = self._columns(list(entries.values()), now)
        processing = sum(columns["processing"])
        actors = section("actors", lambda: [e.slot for e in entries.values() if e.ws.actors], None)
        pins = section("pins", lambda: agent.pins.rows(entries), None)
        wants = section("wants", lambda: agent.floors.rows() + agent.clients.rows(), None)
        of = agent.drains
        retirements = section("retirements", lambda: self._drains(of.retirements()), None)
        departures = section("departures", lambda: self._drains(agent.service.terminating()), None)
        # Fail closed: nobody may go while it is not known who must stay.
        is_known = None not in (actors, pins, wants, retirements, departures)
        return {
            "protocol": wire.PROTOCOL,
            "session": agent.session,
            "now_ms": int(now * 1000),
            "known": agent.roster.known,
            "lapses": agent.lease.lapses,
            "introduced": self._introduction([e for e in entries.values() if e.slot >= known], now),
            "workers": columns,
            # Where nobody can tell how many are wanted, all that are there are.
            "target": section("target", lambda: self._target(offered, target_s), len(entries)),
            "closable": [entries[ws.address].slot for ws in offered] if is_known else [],
            "actors": actors or [],
            "pins": pins or [],
            "pins_expired": dict(agent.pins.leases.expired),
            "retirements": retirements or [],
            "departures": departures or [],
            "notes": agent.notes.since(heard),
            "shuffles": section("shuffles", lambda: _shuffles(agent.shuffles), []),
            "stops": section("stops", lambda: _stops(agent.cordons, entries), []),
            "stuck": section("stuck threads", agent.stuck.rows, []),
            "meters": section("meters", self._meters, None) if meters else None,
            "has_lifetimes": section(
                "lifetimes",
                lambda: any([lifetime.METRIC in e.ws.metrics for e in entries.values()]),
                False,
            ),
            "redone": dict(agent.redone),
            "totals": self._totals(processing=processing),
            "relief": section("relief", agent.reliefs.rows, []),
            "config_in_force": section("config", lambda: in_force(agent.settings.config), None),
            "demand": section("demand", agent.demand.answer, None) if demand else None,
            "wants": wants or [],
            "quiet": section(
                "quiet", lambda: agent.demand.quiet.answer(processing=processing), _IN_USE
            ),
            "serialized": section("serialized", self._serialized, None),
        }

    def signs(self) -> Signs:
        """What tells of changes, in the time that a few tasks take: with 5,000 workers 0.1 ms."""
        agent = self.agent
        scheduler, drains = agent.scheduler, agent.drains.ongoing
        pins, wants = agent.pins.leases.revision(), agent.floors.leases.revision()
        return Signs(
            events=(
                frozenset(scheduler.running),
                (len(scheduler.workers), agent.roster.known, len(scheduler.clients)),
                (pins[0], wants[0], agent.lease.lapses, agent.notes.number),
                [(run.run_id, len(run.participants)) for run in agent.pins.shuffles()],
                [(address, its.phase, its.is_forced, its.terms) for address, its in drains.items()],
                frozenset(agent.cordons.ongoing),
                (agent.stuck.threads, agent.clients.is_sending, len(agent.clients.rows())),
            ),
            load=(len(scheduler.tasks), len(scheduler.queued), len(scheduler.unrunnable)),
            activity=(scheduler.transition_counter, pins[1], wants[1]),
            is_busy=scheduler.total_occupancy > 0,
        )

    def _drains(self, ongoing: Mapping[str, Drain]) -> list[Any]:
        entries = self.agent.roster.entries
        return [
            {
                "slot": entries[address].slot,
                "state": its.state,
                "reason": its.terms.reason,
                "left_ms": -1 if math.isinf(its.left_s) else int(its.left_s * 1000),
                "message": its.message,
                "name": str(its.name),
            }
            for address, its in ongoing.items()
            if address in entries
        ]

    def _introduction(self, entries: list[Entry], now: float) -> wire.Introduction:
        def name(ws: WorkerState) -> str:
            return self.agent.parts.section("names", lambda: str(ws.name), ws.address)

        names = [name(entry.ws) for entry in entries]
        column = self.agent.parts.column
        return {
            "slot": [e.slot for e in entries],
            "name": names,
            "address": [
                "" if e.ws.address == name else e.ws.address for e, name in zip(entries, names)
            ],
            "nthreads": column("threads", entries, lambda e: e.ws.nthreads),
            "memory_limit": column("memory limits", entries, lambda e: e.ws.memory_limit or 0),
            "joined_ms": [
                -1 if e.joined_at is None else int((now - e.joined_at) * 1000) for e in entries
            ],
        }

    def _columns(self, entries: list[Entry], now: float) -> wire.Columns:
        number, running, now_ms = STATUS_NUMBER, Status.running, int(now * 1000)
        status, processing, idle_ms = [], [], []
        for entry in entries:
            ws = entry.ws
            # Enum hashes in Python code: most workers run, and are told by identity.
            status.append(0 if ws.status is running else number.get(ws.status, OTHER))
            tasks = len(ws.processing)
            processing.append(tasks)
            if tasks:
                entry.active_at = now
                idle_ms.append(0)
            else:
                # Such that the instant is the same in each snapshot.
                idle_ms.append(now_ms - int(entry.active_at * 1000))
        column = self.agent.parts.column
        return {
            "slot": [e.slot for e in entries],
            "status": status,
            "processing": processing,
            "idle_ms": idle_ms,
            "sole_bytes": column("bytes of results", entries, lambda e: e.sole_bytes),
            "memory": column("memory", entries, lambda e: e.ws.metrics.get("memory", 0)),
        }

    def _target(self, offered: list[WorkerState], duration_s: float | None) -> int:
        """
        `Scheduler.adaptive_target` as if workers on their way out, and their tasks, were gone.

        The stock method runs on a stand-in, so each release keeps its own rule; it asks for
        workers_to_close(), which is `offered` already.
        """
        scheduler: Any = self.agent.scheduler
        workers = {address: entry.ws for address, entry in self.agent.roster.entries.items()}
        # A plain dict also saves milliseconds: the scheduler's own is sorted, and slow to walk.
        overrides: dict[str, Any] = {"workers_to_close": lambda: offered, "workers": workers}
        leaving = self.agent.service.out_of_service()
        if leaving:
            leaving_s = sum([workers[a].occupancy for a in leaving if a in workers])
            overrides["workers"] = {a: ws for a, ws in workers.items() if a not in leaving}
            overrides["total_occupancy"] = max(0.0, scheduler.total_occupancy - leaving_s)
        return whole(type(scheduler).adaptive_target(Delegate(scheduler, **overrides), duration_s))

    def _meters(self) -> wire.Meters:
        agent = self.agent
        cordons, entries = agent.cordons, agent.roster.entries
        short = [
            entries[address].slot
            for address, cordon in cordons.ongoing.items()
            if cordon.why.kind == SHORT and address in entries
        ]
        every = list(entries.values())
        parts = agent.parts
        return {
            "runs": [e.runs for e in every],
            "failures": [0 if e.record is None else agent.cordons.n_failures(e) for e in every],
            "managed": parts.column("managed memory", every, lambda e: managed_bytes(e.ws)),
            "matched": [
                (e.slot, e.record.match.text) for e in every if e.record and e.record.match
            ],
            "lifetimes": parts.rows(
                "lifetimes",
                [e for e in every if lifetime.METRIC in e.ws.metrics],
                lambda e: (e.slot, whole(lifetime.left_s(e.ws) * 1000)),
            ),
            "too_short": short,
            "held": len(agent.scheduler.queued) + len(agent.scheduler.unrunnable) if short else 0,
            "expected_ms": parts.section(
                "expected", lambda: whole(cordons.deadlines.expected_s() * 1000), 0
            ),
        }

    def _serialized(self) -> wire.SerializedPart | None:
        # Not an import: only the relief knows whether it measures.
        meter = getattr(self.agent.reliefs.get("pickling"), "meter", None)
        return None if meter is None else meter.answer()

    def _totals(self, *, processing: int) -> wire.Totals:
        scheduler, entries = self.agent.scheduler, self.agent.roster.entries
        return {
            "processing": processing,
            "queued": len(scheduler.queued),
            "unrunnable": len(scheduler.unrunnable),
            "memory": self.agent.parts.section(
                "bytes of results", lambda: whole(sum([e.ws.nbytes for e in entries.values()])), 0
            ),
        }


def _stops(cordons: Cordons, entries: dict[str, Entry]) -> list[wire.StopRow]:
    return [
        {"slot": entries[address].slot, "kind": cordon.why.kind, "message": cordon.why.message}
        for address, cordon in cordons.ongoing.items()
        if address in entries and cordon.why.kind != SHORT
    ]


def _shuffles(runs: Shuffles) -> list[wire.ShuffleRow]:
    return [
        {"id": run.id, "run_id": run.run_id, "workers": len(run.participants)}
        for run in runs.running()
    ]


def in_force(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """
    The values of Dask's configuration with which this process runs, for the keys that people want:
    plain ones by dotted key; a key without a value is left out. Nothing is set here: a running
    scheduler does not read again what it has read.

    Where a wanted value is a mapping, the names in it have dots, and only those are looked up.
    """
    found = {}
    for key, value in wanted.items():
        running = dask.config.get(_new_name(key), _ABSENT)
        if running is not _ABSENT:
            plain = sendable(_value(running, value))
            text = repr(plain)
            found[key] = plain if len(text) <= LONGEST else text[:LONGEST]
    return found


def _new_name(key: str) -> str:
    """The name under which this release has the key (dask.config.check_deprecations)."""
    renamed: Mapping[str, Any] = dask.config.deprecations
    return renamed.get(key.replace("_", "-")) or renamed.get(key) or key


def _value(running: Any, wanted: Any) -> Any:
    if isinstance(wanted, Mapping) and isinstance(running, Mapping):
        # The spelling that is there already: a hyphen or an underscore.
        canonical: Any = dask.config.canonical_name
        names = {name: canonical(name, running) for name in wanted}
        return {
            name: _value(running[own], wanted[name])
            for name, own in names.items()
            if own in running
        }
    return running
