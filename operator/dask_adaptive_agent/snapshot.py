"""The scheduler at one instant, in columns. Reads only; 5,000 workers must stay under 15 ms."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from distributed.core import Status

from dask_adaptive_agent import dask_settings, lifespan, wire
from dask_adaptive_agent.answering import whole
from dask_adaptive_agent.claims import name_of
from dask_adaptive_agent.closing import Delegate
from dask_adaptive_agent.cordons import SHORT
from dask_adaptive_agent.lifespan import METRIC
from dask_adaptive_agent.meters import GPU, gpu_bytes, managed_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from distributed.scheduler import WorkerState

    from dask_adaptive_agent.agent import Agent
    from dask_adaptive_agent.roster import Entry
    from dask_adaptive_agent.shuffles import ShuffleRun

STATUS_NUMBER = {
    Status[name]: number for number, name in enumerate(wire.STATUSES) if name != "other"
}
OTHER = wire.STATUSES.index("other")

_IN_USE: wire.Quiet = {"no_task_ms": 0, "no_client_ms": 0}


def snapshot(
    agent: Agent,
    *,
    session: str,
    known: int,
    heard: int = 0,
    target_duration_s: float | None,
    meters: bool = False,
    demand: bool = False,
) -> wire.Snapshot:
    """
    Args:
        agent: Whose scheduler is described. Its roster is in step.
        session, known, heard: What the caller has names for, and has been told; introductions and
            notes start there.
        target_duration_s: Passed to `Scheduler.adaptive_target`; None: as it is configured.
        meters: Whether to say what quotas are measured by.
        demand: Whether to say what asks for workers.
    """
    entries = agent.roster.entries
    section = agent.parts.section
    section("data of workers", lambda: agent.sole.refresh(entries.values()), None)
    offered = agent.offered(entries)
    if session != agent.session:
        known = heard = 0
    columns = _columns(agent, list(entries.values()))
    processing = sum(columns["processing"])
    actors = section("actors", lambda: [e.slot for e in entries.values() if e.ws.actors], None)
    pins = section("pins", lambda: pin_rows(agent, entries), None)
    wants = section("wants", agent.demand.wants.rows, None)
    retirements = section("retirements", lambda: _retirements(agent, entries), None)
    departures = section("departures", lambda: _departures(agent, entries), None)
    # Fail closed: nobody may go while it is not known who must stay.
    is_known = None not in (actors, pins, wants, retirements, departures)
    return {
        "protocol": wire.PROTOCOL,
        "session": agent.session,
        "known": agent.roster.known,
        "lapses": agent.lapses,
        "introduced": _introduction(agent, [e for e in entries.values() if e.slot >= known]),
        "workers": columns,
        # Where nobody can tell how many are wanted, all that are there are.
        "target": section(
            "target", lambda: _target(agent, offered, target_duration_s), len(entries)
        ),
        "closable": [entries[ws.address].slot for ws in offered] if is_known else [],
        "actors": actors or [],
        "pins": pins or [],
        "pins_expired": dict(agent.pins.expired),
        "retirements": retirements or [],
        "departures": departures or [],
        "notes": agent.notes.since(heard),
        "shuffles": section("shuffles", lambda: _shuffles(agent), []),
        "stops": section("stops", lambda: _stops(agent, entries), []),
        "meters": section("meters", lambda: _meters(agent, entries), None) if meters else None,
        "redone": dict(agent.redone.counts),
        "totals": _totals(agent, processing=processing),
        "tally": section("tally", agent.tally.answer, None) if agent.tally else None,
        "relief": section("relief", agent.reliefs.rows, []),
        "config": section("config", lambda: dask_settings.rows(agent.settings.config), []),
        "demand": section("demand", agent.demand.answer, None) if demand else None,
        "wants": wants or [],
        "quiet": section(
            "quiet", lambda: agent.demand.quiet.answer(processing=processing), _IN_USE
        ),
        "serialized": section("serialized", lambda: _serialized(agent), None),
    }


def _introduction(agent: Agent, entries: list[Entry]) -> wire.Introduction:
    def name(entry: Entry) -> str:
        ws = entry.ws
        return agent.parts.section("names", lambda: str(ws.name), ws.address)

    names = list(map(name, entries))
    column = agent.parts.column
    return {
        "slot": [e.slot for e in entries],
        "name": names,
        "address": [
            "" if e.ws.address == name else e.ws.address for e, name in zip(entries, names)
        ],
        "nthreads": column("threads", entries, lambda e: e.ws.nthreads),
        "memory_limit": column("memory limits", entries, lambda e: e.ws.memory_limit or 0),
    }


def _columns(agent: Agent, entries: list[Entry]) -> wire.Columns:
    now = agent.clock()
    number = STATUS_NUMBER
    running = Status.running
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
            idle_ms.append(int((now - entry.active_at) * 1000))
    column = agent.parts.column
    return {
        "slot": [e.slot for e in entries],
        "status": status,
        "processing": processing,
        "occupancy_ms": column(
            "occupancy", entries, lambda e: e.ws.occupancy * 1000 if e.ws.processing else 0
        ),
        "idle_ms": idle_ms,
        "sole_bytes": column("bytes of results", entries, lambda e: e.sole_bytes),
        "memory": column("memory", entries, lambda e: e.ws.metrics.get("memory", 0)),
    }


def _target(agent: Agent, offered: list[WorkerState], duration_s: float | None) -> int:
    """
    `Scheduler.adaptive_target` as if workers on their way out, and their tasks, were gone.

    The stock method runs on a stand-in, so each release keeps its own rule; it asks for
    workers_to_close(), which is `offered` already.
    """
    scheduler: Any = agent.scheduler
    workers = {address: entry.ws for address, entry in agent.roster.entries.items()}
    # A plain dict also saves milliseconds: the scheduler's own is sorted, and slow to walk.
    overrides: dict[str, Any] = {"workers_to_close": lambda: offered, "workers": workers}
    leaving = agent.leaving()
    if leaving:
        leaving_s = sum([workers[a].occupancy for a in leaving if a in workers])
        overrides["workers"] = {a: ws for a, ws in workers.items() if a not in leaving}
        overrides["total_occupancy"] = max(0.0, scheduler.total_occupancy - leaving_s)
    return whole(type(scheduler).adaptive_target(Delegate(scheduler, **overrides), duration_s))


def pin_rows(agent: Agent, entries: dict[str, Entry]) -> list[wire.PinRow]:
    now = agent.clock()
    rows: list[wire.PinRow] = []
    claims = agent.pins.claims()
    if claims:
        slots: dict[str, list[int]] = {}
        for address, entry in entries.items():
            for name in {name_of(agent, entry.ws), address}:
                slots.setdefault(name, []).append(entry.slot)
        for claim, names in claims.items():
            of_names = sorted({slot for name in names for slot in slots.get(name, ())})
            latest = claim.until if math.isinf(claim.latest) else claim.latest
            rows.append(
                {
                    "source": claim.source,
                    "owner": claim.owner,
                    "reason": claim.reason,
                    "left_ms": _ms(claim.until - now),
                    "latest_ms": _ms(latest - now),
                    "for_ms": _ms(now - claim.since),
                    "slots": of_names,
                }
            )
    rows += [_shuffle_pin_row(agent, entries, run) for run in agent.pinning_shuffles()]
    return rows


def _shuffle_pin_row(agent: Agent, entries: dict[str, Entry], run: ShuffleRun) -> wire.PinRow:
    for_s = agent.clock() - run.since
    left_ms = _ms(agent.settings.shuffle_timeout_ms / 1000 - for_s)
    return {
        "source": wire.SHUFFLE,
        "owner": run.id,
        "reason": "takes part in a P2P shuffle",
        "left_ms": left_ms,
        "latest_ms": left_ms,
        "for_ms": _ms(for_s),
        "slots": sorted([entries[a].slot for a in run.participants if a in entries]),
    }


def _ms(seconds: float) -> int:
    return whole(seconds * 1000)


def _retirements(agent: Agent, entries: dict[str, Entry]) -> list[wire.RetirementRow]:
    now = agent.clock()
    return [
        {
            "slot": entries[address].slot,
            "state": one.state,
            "reason": one.terms.reason,
            "for_ms": int((now - one.since) * 1000),
            "left_ms": int(one.left_s * 1000),
            "forced": one.is_forced,
            "message": one.message,
        }
        for address, one in agent.drains.retirements().items()
        if address in entries
    ]


def _departures(agent: Agent, entries: dict[str, Entry]) -> list[wire.DepartureRow]:
    now = agent.clock()
    return [
        {
            "slot": entries[address].slot,
            "name": str(one.name),
            "state": one.state,
            "reason": one.terms.reason,
            "for_ms": int((now - one.since) * 1000),
            "left_ms": -1 if math.isinf(one.ends_at) else int(one.left_s * 1000),
            "message": one.message,
        }
        for address, one in agent.drains.departures().items()
        if address in entries
    ]


def _stops(agent: Agent, entries: dict[str, Entry]) -> list[wire.StopRow]:
    now = agent.clock()
    return [
        {
            "slot": entries[address].slot,
            "kind": stop.why.kind,
            "message": stop.why.message,
            "for_ms": int((now - stop.since) * 1000),
        }
        for address, stop in agent.cordons.ongoing.items()
        if address in entries and stop.why.kind != SHORT
    ]


def _meters(agent: Agent, entries: dict[str, Entry]) -> wire.Meters:
    cordons = agent.cordons
    short = [
        entries[address].slot
        for address, cordon in cordons.ongoing.items()
        if cordon.why.kind == SHORT and address in entries
    ]
    every = list(entries.values())
    failed = [e for e in every if e.record is not None]
    parts = agent.parts
    return {
        "runs": [e.runs for e in every],
        "failures": [0 if e.record is None else agent.cordons.n_failures(e) for e in every],
        "managed": parts.column("managed memory", every, lambda e: managed_bytes(e.ws)),
        "mean_ms": cordons.durations.means_ms(entries),
        "matched": [(e.slot, e.record.match.text) for e in failed if e.record and e.record.match],
        "gpu": _gpus(agent, every),
        "lifetimes": parts.rows(
            "lifetimes",
            [e for e in every if METRIC in e.ws.metrics],
            lambda e: (e.slot, _ms(lifespan.left_s(e.ws))),
        ),
        "too_short": short,
        "held": len(agent.scheduler.queued) + len(agent.scheduler.unrunnable) if short else 0,
        "expected_ms": parts.section(
            "expected", lambda: whole(cordons.deadlines.expected_s() * 1000), 0
        ),
    }


def _gpus(agent: Agent, entries: list[Entry]) -> list[tuple[int, int, int]]:
    with_gpu = [e for e in entries if GPU in e.ws.metrics]
    used = agent.parts.rows("GPUs", with_gpu, lambda e: (e.slot, gpu_bytes(e.ws)))
    return [(slot, *of_gpu) for slot, of_gpu in used if of_gpu is not None]


def _shuffles(agent: Agent) -> list[wire.ShuffleRow]:
    now = agent.clock()
    return [
        {
            "id": run.id,
            "run_id": run.run_id,
            "workers": len(run.participants),
            "for_ms": int((now - run.since) * 1000),
        }
        for run in agent.shuffles.running()
    ]


def _serialized(agent: Agent) -> wire.Serialized | None:
    # Not an import: only the relief knows whether it measures.
    meter = getattr(agent.reliefs.get("pickling"), "meter", None)
    return None if meter is None else meter.answer()


def _totals(agent: Agent, *, processing: int) -> wire.Totals:
    scheduler, entries = agent.scheduler, agent.roster.entries

    def total(name: str, number: Callable[[], float]) -> int:
        return agent.parts.section(name, lambda: whole(number()), 0)

    return {
        "workers": len(scheduler.workers),
        "running": len(scheduler.running),
        "threads": scheduler.total_nthreads,
        "tasks": len(scheduler.tasks),
        "processing": processing,
        "queued": len(scheduler.queued),
        "unrunnable": len(scheduler.unrunnable),
        "occupancy_ms": total("occupancy", lambda: scheduler.total_occupancy * 1000),
        "memory": total("bytes of results", lambda: sum([e.ws.nbytes for e in entries.values()])),
        # Futures that nobody waits for belong to a client of that name, which is none.
        "clients": len(scheduler.clients.keys() - {"fire-and-forget"}),
    }
