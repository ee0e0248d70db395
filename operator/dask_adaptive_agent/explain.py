"""Says in words why a worker may or may not go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dask_adaptive_agent import wire
from dask_adaptive_agent.answering import whole
from dask_adaptive_agent.copying import last_copies
from dask_adaptive_agent.words import duration, plural, size_of

if TYPE_CHECKING:
    from distributed.scheduler import WorkerState

    from dask_adaptive_agent.agent import Agent

#: Keys shown of the tasks of one worker.
KEYS = 10


def explain(agent: Agent, names: list[str] | None) -> wire.ExplainAnswer:
    """All about some workers, or about all; a name without a worker is left out."""
    entries = agent.roster.sync()
    offered = {ws.address for ws in agent.offered(entries)}
    if names is None:
        asked = list(agent.scheduler.workers.values())
    else:
        by_name = agent.roster.by_name()
        asked = [ws for name in names for ws in by_name.get(name, ())]
    shuffles = agent.pinning_shuffles()

    def row(ws: WorkerState) -> wire.WorkerExplanation:
        return _explanation(
            agent,
            ws,
            idle_s=agent.idle_s(entries[ws.address]),
            is_offered=ws.address in offered,
            pins=agent.pinned_by(ws, shuffles),
        )

    return {"protocol": wire.PROTOCOL, "workers": agent.parts.rows("explanations", asked, row)}


def _explanation(
    agent: Agent, ws: WorkerState, *, idle_s: float, is_offered: bool, pins: list[str]
) -> wire.WorkerExplanation:
    sole = [ts for ts in ws.has_what if len(ts.who_has or ()) == 1]
    sole_bytes = sum([ts.nbytes for ts in sole])
    going = agent.drains.ongoing.get(ws.address)
    return {
        "name": str(ws.name),
        "address": ws.address,
        "status": ws.status.name,
        "idle_ms": int(idle_s * 1000),
        "processing": [str(ts.key) for ts, _ in zip(ws.processing, range(KEYS))],
        "n_processing": len(ws.processing),
        "sole_bytes": agent.parts.section("bytes of results", lambda: whole(sole_bytes), 0),
        "n_sole": len(sole),
        "pins": pins,
        "retirement": f"{going.state}: {going.message}" if going else "",
        "stopped": agent.cordons.message_of(ws.address),
        "runs": agent.roster.entries[ws.address].runs,
        "closable": is_offered,
        "sentence": sentence(agent, ws, idle_s=idle_s, is_offered=is_offered, pins=pins),
    }


def sentence(
    agent: Agent, ws: WorkerState, *, idle_s: float, is_offered: bool, pins: list[str]
) -> str:
    """The first thing that decides, and only that."""
    held = objection(agent, ws, idle_s=idle_s, is_offered=is_offered, pins=pins)
    if held:
        return held
    idle = f"idle for {duration(idle_s)}"
    copies = last_copies(ws, agent.cordons)
    if not copies:
        return f"may go: {idle}, no last copies"
    size = size_of(sum([ts.nbytes for ts in copies]))
    return f"may go: {idle}, {plural(len(copies), 'last copy', 'last copies')} ({size}) to move"


def objection(
    agent: Agent, ws: WorkerState, *, idle_s: float, is_offered: bool, pins: list[str]
) -> str:
    """Why a worker stays, or that it is leaving already; empty: it may go."""
    going = _going(agent, ws)
    if going:
        return going
    if pins:
        return f"stays: pinned by {', '.join(pins)}"
    obstacle = agent.drains.obstacle_to(ws)
    if obstacle is not None:
        return f"stays: {obstacle.message}"
    if ws.status.name not in ("running", "paused"):
        return f"is leaving, but not because of us: its status is {ws.status.name}"
    if not is_offered:
        idle = f"idle for {duration(idle_s)}"
        return f"stays: {idle}, but without it results would fill over half of the memory"
    return ""


def _going(agent: Agent, ws: WorkerState) -> str:
    """What we do with a worker already; empty: nothing."""
    drain = agent.drains.ongoing.get(ws.address)
    if drain is not None:
        way = "is on its way out" if drain.terms.is_refusable else "its process is about to end"
        return f"{way} ({drain.terms.reason}): {drain.message}"
    stopped = agent.cordons.message_of(ws.address)
    return f"gets no more tasks: {stopped}" if stopped else ""
