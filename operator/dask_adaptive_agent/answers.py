"""Takes the snapshot of one scheduler, and cheap signs of changes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import compress
from operator import attrgetter
from typing import Any

import dask.config
from distributed.core import Status
from distributed.scheduler import WorkerState

from dask_adaptive_agent import wire
from dask_adaptive_agent.drain.drain import Drain
from dask_adaptive_agent.guard import sendable, whole
from dask_adaptive_agent.parts import Parts
from dask_adaptive_agent.patching import Delegate
from dask_adaptive_agent.protocol.changes import Signs
from dask_adaptive_agent.quotas.cordons import Cordons
from dask_adaptive_agent.quotas.roster import Entry
from dask_adaptive_agent.service.service import SHORT
from dask_adaptive_agent.shuffle.runs import Shuffles
from dask_adaptive_agent.worker_side import lifetime

STATUS_NUMBER = {
    Status[name]: number for number, name in enumerate(wire.STATUSES) if name != "other"
}
OTHER = wire.STATUSES.index("other")

#: Characters of one value. A policy's values are shorter, so one that is cut is unlike all of them.
LONGEST = 50_000

_slot, _active_at, _runs, _record = map(attrgetter, ("slot", "active_at", "runs", "record"))
_memory, _on_disk, _has_lifetime = map(attrgetter, ("memory", "on_disk", "has_lifetime"))
_status, _processing, _nbytes, _actors = [
    attrgetter(f"ws.{name}") for name in ("status", "processing", "nbytes", "actors")
]

_ABSENT: Any = object()

_IN_USE: wire.QuietPart = {"no_task_ms": 0, "no_client_ms": 0}


class Answers:
    """Reads the state of one scheduler. Changes nothing."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    def snapshot(
        self, *, known: int, heard: int, target_s: float | None, meters: bool, demand: bool
    ) -> wire.Snapshot:
        """
        The scheduler at one instant, in columns: 5,000 workers must stay under 15 ms.

        Introductions start at `known`, notes behind `heard`; `target_s` None: as it is configured.
        """
        of = self.parts
        entries, section, now = of.roster.entries, of.guard.section, of.clock()
        every = entries.values()
        of.roster.read_reports(of.guard)
        offered = of.closing.offered()
        columns = self._columns(list(entries.values()), now)
        processing = sum(columns["processing"])
        actors = section(
            "actors", lambda: [e.slot for e in compress(every, map(_actors, every))], None
        )
        pins = section("pins", lambda: of.pins.rows(entries), None)
        wants = section("wants", lambda: of.floors.rows() + of.clients.rows(), None)
        retirements = section("retirements", lambda: self._drains(of.drains.retirements()), None)
        departures = section("departures", lambda: self._drains(of.service.terminating()), None)
        # Not an import: only the relief knows whether it measures.
        meter = getattr(of.reliefs.get("pickling"), "meter", None)
        # Fail closed: no worker may leave while it is unknown which must stay.
        is_known = None not in (actors, pins, wants, retirements, departures)
        return {
            "protocol": wire.PROTOCOL,
            "session": of.session,
            "now_ms": int(now * 1000),
            "known": of.roster.known,
            "lapses": of.lease.lapses,
            "introduced": self._introduction(
                [e for e in every if e.slot >= known] if known < of.roster.known else [], now
            ),
            "workers": columns,
            # If the number of wanted workers is unknown, all present ones are wanted.
            "target": section("target", lambda: self._target(offered, target_s), len(entries)),
            "closable": [entries[ws.address].slot for ws in offered] if is_known else [],
            "actors": actors or [],
            "pins": pins or [],
            "pins_expired": of.pins.expired(),
            "retirements": retirements or [],
            "departures": departures or [],
            "notes": of.notes.since(heard),
            "shuffles": section("shuffles", lambda: _shuffles(of.shuffles), []),
            "stops": section("stops", lambda: _cordons(of.cordons, entries), []),
            "stuck": section("stuck threads", of.stuck.rows, []),
            "meters": section("meters", self._meters, None) if meters else None,
            "has_lifetimes": any(map(_has_lifetime, every)),
            "redone": dict(of.drains.redone),
            "totals": {
                "processing": processing,
                "queued": len(of.scheduler.queued),
                "unrunnable": len(of.scheduler.unrunnable),
                "memory": section(
                    "bytes of results",
                    lambda: whole(sum(map(_nbytes, every))),
                    0,
                ),
            },
            "relief": section("relief", of.reliefs.rows, []),
            "config_in_force": section("config", lambda: in_force(of.settings.config), None),
            "demand": section("demand", of.demand.answer, None) if demand else None,
            "wants": wants or [],
            "quiet": section("quiet", lambda: of.demand.idleness(processing=processing), _IN_USE),
            "serialized": section("serialized", lambda: meter and meter.answer(), None),
        }

    def signs(self) -> Signs:
        """Signs of changes, in the time that a few tasks take: with 5,000 workers 0.1 ms."""
        of = self.parts
        scheduler, drains = of.scheduler, of.drains.ongoing
        pins, wants = of.pins.leases.revision(), of.floors.leases.revision()
        return Signs(
            events=(
                frozenset(scheduler.running),
                (len(scheduler.workers), of.roster.known, len(scheduler.clients)),
                (pins[0], wants[0], of.lease.lapses, of.notes.number),
                [(run.run_id, len(run.participants)) for run in of.pins.shuffles()],
                [(address, its.phase, its.is_forced, its.terms) for address, its in drains.items()],
                frozenset(of.cordons.ongoing),
                (of.stuck.threads, of.clients.is_sending, len(of.clients.rows())),
            ),
            load=(len(scheduler.tasks), len(scheduler.queued), len(scheduler.unrunnable)),
            activity=(scheduler.transition_counter, pins[1], wants[1]),
            is_busy=scheduler.total_occupancy > 0,
        )

    def _drains(self, ongoing: Mapping[str, Drain]) -> list[Any]:
        entries = self.parts.roster.entries
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
            return self.parts.guard.section("names", lambda: str(ws.name), ws.address)

        names = [name(entry.ws) for entry in entries]
        column = self.parts.guard.column
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
        processing = list(map(len, map(_processing, entries)))
        for entry in compress(entries, processing):
            entry.active_at = now
        of, column = self.parts.roster, self.parts.guard.column
        sole = self.parts.guard.section("data of workers", of.sole_bytes, [0] * len(entries))
        return {
            "slot": list(map(_slot, entries)),
            # Enum hashes in Python code: most workers run, and are told by identity.
            "status": [0 if s is running else number.get(s, OTHER) for s in map(_status, entries)],
            "processing": processing,
            # Such that the instant is the same in each snapshot.
            "idle_ms": [
                0 if tasks else now_ms - int(since * 1000)
                for tasks, since in zip(processing, map(_active_at, entries))
            ],
            "sole_bytes": column("bytes of results", sole, int),
            "memory": list(map(_memory, entries)),
        }

    def _target(self, offered: list[WorkerState], duration_s: float | None) -> int:
        """
        `Scheduler.adaptive_target` as if workers on their way out, and their tasks, were gone.

        The stock method runs on a stand-in, so each release keeps its own rule; it asks for
        workers_to_close(), which is `offered` already.
        """
        scheduler: Any = self.parts.scheduler
        workers = self.parts.roster.workers
        overrides: dict[str, Any] = {"workers_to_close": lambda: offered, "workers": workers}
        leaving = self.parts.service.out_of_service()
        if leaving:
            leaving_s = sum([workers[a].occupancy for a in leaving if a in workers])
            overrides["workers"] = {a: ws for a, ws in workers.items() if a not in leaving}
            overrides["total_occupancy"] = max(0.0, scheduler.total_occupancy - leaving_s)
        return whole(type(scheduler).adaptive_target(Delegate(scheduler, **overrides), duration_s))

    def _meters(self) -> wire.Meters:
        of = self.parts
        cordons, entries = of.cordons, of.roster.entries
        short = [
            entries[address].slot
            for address, cordon in cordons.ongoing.items()
            if cordon.why.kind == SHORT and address in entries
        ]
        every = list(entries.values())
        guard = of.guard
        return {
            "runs": list(map(_runs, every)),
            "failures": [0 if e.record is None else of.cordons.n_failures(e) for e in every],
            # In memory, not on disk. `WorkerState.memory` says the same, slowly.
            "managed": guard.column(
                "managed memory",
                every,
                (lambda e: max(0, e.ws.nbytes - e.on_disk) if e.on_disk else e.ws.nbytes)
                if any(map(_on_disk, every))
                else _nbytes,
            ),
            "matched": [
                (e.slot, e.record.match.text)
                for e in compress(every, map(_record, every))
                if e.record and e.record.match
            ],
            "lifetimes": guard.rows(
                "lifetimes",
                list(compress(every, map(_has_lifetime, every))),
                lambda e: (e.slot, whole(lifetime.left_s(e.ws) * 1000)),
            ),
            "too_short": short,
            "held": len(of.scheduler.queued) + len(of.scheduler.unrunnable) if short else 0,
            "expected_ms": guard.section(
                "expected", lambda: whole(cordons.deadlines.expected_s() * 1000), 0
            ),
        }


def _cordons(cordons: Cordons, entries: dict[str, Entry]) -> list[wire.CordonRow]:
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
    renamed: Mapping[str, Any] = dask.config.deprecations
    for key, value in wanted.items():
        # The name under which this release has the key (dask.config.check_deprecations).
        name = renamed.get(key.replace("_", "-")) or renamed.get(key) or key
        running = dask.config.get(name, _ABSENT)
        if running is not _ABSENT:
            plain = sendable(_value(running, value))
            text = repr(plain)
            found[key] = plain if len(text) <= LONGEST else text[:LONGEST]
    return found


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
