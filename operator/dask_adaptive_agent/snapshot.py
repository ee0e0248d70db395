"""The scheduler at one instant, in columns. Reads only; 5,000 workers must stay under 15 ms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from distributed.core import Status

from dask_adaptive_agent import wire
from dask_adaptive_agent.closing import Delegate

if TYPE_CHECKING:
    from distributed.scheduler import WorkerState

    from dask_adaptive_agent.agent import Agent
    from dask_adaptive_agent.roster import Entry

STATUS_NUMBER = {
    Status[name]: number for number, name in enumerate(wire.STATUSES) if name != "other"
}
OTHER = wire.STATUSES.index("other")


def snapshot(
    agent: Agent, *, session: str, known: int, target_duration_s: float | None
) -> wire.Snapshot:
    """
    Args:
        agent: Whose scheduler is described.
        session, known: What the caller has names for; introductions start there.
        target_duration_s: Passed to `Scheduler.adaptive_target`; None: as it is configured.
    """
    entries = agent.roster.sync()
    agent.sole.refresh(entries.values())
    offered = agent.offered(entries)
    if session != agent.session:
        known = 0
    columns = _columns(agent, entries)
    return {
        "protocol": wire.PROTOCOL,
        "session": agent.session,
        "known": agent.roster.known,
        "introduced": _introduction([e for e in entries.values() if e.slot >= known]),
        "workers": columns,
        "target": _target(agent, offered, target_duration_s),
        "closable": [entries[ws.address].slot for ws in offered],
        "actors": [e.slot for e in entries.values() if e.ws.actors],
        "pins": pin_rows(agent, entries),
        "retirements": _retirements(agent, entries),
        "shuffles": _shuffles(agent),
        "totals": _totals(agent, processing=sum(columns["processing"])),
        "tally": agent.tally.answer() if agent.tally else None,
    }


def _introduction(entries: list[Entry]) -> wire.Introduction:
    names = [str(e.ws.name) for e in entries]
    return {
        "slot": [e.slot for e in entries],
        "name": names,
        "address": [
            "" if e.ws.address == name else e.ws.address for e, name in zip(entries, names)
        ],
        "nthreads": [e.ws.nthreads for e in entries],
        "memory_limit": [int(e.ws.memory_limit or 0) for e in entries],
    }


def _columns(agent: Agent, entries: dict[str, Entry]) -> wire.Columns:
    now = agent.clock()
    last = agent.activity.last
    number = STATUS_NUMBER
    running = Status.running
    status, processing, occupancy_ms, idle_ms, memory = [], [], [], [], []
    for address, entry in entries.items():
        ws = entry.ws
        # Enum hashes in Python code: most workers run, and are told by identity.
        status.append(0 if ws.status is running else number.get(ws.status, OTHER))
        tasks = len(ws.processing)
        processing.append(tasks)
        memory.append(ws.metrics.get("memory", 0))
        if tasks:
            entry.active_at = now
            occupancy_ms.append(int(ws.occupancy * 1000))
            idle_ms.append(0)
        else:
            at = last.get(address)
            if at is not None and at > entry.active_at:
                entry.active_at = at
            occupancy_ms.append(0)
            idle_ms.append(int((now - entry.active_at) * 1000))
    return {
        "slot": [e.slot for e in entries.values()],
        "status": status,
        "processing": processing,
        "occupancy_ms": occupancy_ms,
        "idle_ms": idle_ms,
        "sole_bytes": [e.sole_bytes for e in entries.values()],
        "memory": memory,
    }


def _target(agent: Agent, offered: list[WorkerState], duration_s: float | None) -> int:
    """
    `Scheduler.adaptive_target` as if draining workers, and the tasks they finish, were gone.

    The stock method runs on a stand-in, so each release keeps its own rule; it asks for
    workers_to_close(), which is `offered` already.
    """
    scheduler: Any = agent.scheduler
    workers = {address: entry.ws for address, entry in agent.roster.entries.items()}
    # A plain dict also saves milliseconds: the scheduler's own is sorted, and slow to walk.
    overrides: dict[str, Any] = {"workers_to_close": lambda: offered, "workers": workers}
    draining = agent.retirements.ongoing
    if draining:
        leaving_s = sum([workers[a].occupancy for a in draining if a in workers])
        overrides["workers"] = {a: ws for a, ws in workers.items() if a not in draining}
        overrides["total_occupancy"] = max(0.0, scheduler.total_occupancy - leaving_s)
    return int(type(scheduler).adaptive_target(Delegate(scheduler, **overrides), duration_s))


def pin_rows(agent: Agent, entries: dict[str, Entry]) -> list[wire.PinRow]:
    now = agent.clock()
    rows: list[wire.PinRow] = []
    claims = agent.pins.claims()
    if claims:
        slots: dict[str, list[int]] = {}
        for address, entry in entries.items():
            for name in {str(entry.ws.name), address}:
                slots.setdefault(name, []).append(entry.slot)
        for claim, names in claims.items():
            of_names = sorted({slot for name in names for slot in slots.get(name, ())})
            rows.append(_pin_row(claim.source, claim.owner, claim.reason, claim.until - now))
            rows[-1]["slots"] = of_names
    for run in agent.pinning_shuffles():
        left_s = run.since + agent.settings.shuffle_timeout_ms / 1000 - now
        rows.append(_pin_row(wire.SHUFFLE, run.id, "takes part in a P2P shuffle", left_s))
        rows[-1]["slots"] = sorted([entries[a].slot for a in run.participants if a in entries])
    return rows


def _pin_row(source: str, owner: str, reason: str, left_s: float) -> wire.PinRow:
    left_ms = max(0, int(left_s * 1000))
    return {"source": source, "owner": owner, "reason": reason, "left_ms": left_ms, "slots": []}


def _retirements(agent: Agent, entries: dict[str, Entry]) -> list[wire.RetirementRow]:
    now = agent.clock()
    return [
        {
            "slot": entries[address].slot,
            "state": one.state,
            "reason": one.order.reason,
            "for_ms": int((now - one.since) * 1000),
            "left_ms": int(one.left_s * 1000),
            "forced": one.forced,
            "message": one.message,
        }
        for address, one in agent.retirements.ongoing.items()
        if address in entries
    ]


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


def _totals(agent: Agent, *, processing: int) -> wire.Totals:
    scheduler = agent.scheduler
    return {
        "workers": len(scheduler.workers),
        "running": len(scheduler.running),
        "threads": scheduler.total_nthreads,
        "tasks": len(scheduler.tasks),
        "processing": processing,
        "queued": len(scheduler.queued),
        "unrunnable": len(scheduler.unrunnable),
        "occupancy_ms": int(scheduler.total_occupancy * 1000),
        "memory": sum([e.ws.nbytes for e in agent.roster.entries.values()]),
        # Futures that nobody waits for belong to a client of that name, which is none.
        "clients": len(scheduler.clients.keys() - {"fire-and-forget"}),
    }
