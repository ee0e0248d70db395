"""The workers as columns of a table: state, tasks, quotas, and why each stays or leaves."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from distributed.core import Status

from dask_adaptive_agent.claims import name_of
from dask_adaptive_agent.explain import objection
from dask_adaptive_agent.limits import NEVER
from dask_adaptive_agent.words import duration, plural, size_of

if TYPE_CHECKING:
    from dask_adaptive_agent.agent import Agent
    from dask_adaptive_agent.roster import Entry

#: Of the table, in its order.
COLUMNS = ("name", "state", "tasks", "idle", "memory", "runs", "quota", "why")

ACTIVE, PINNED, STOPPED, ENDING = "active", "pinned", "stopped", "ending"


def worker_columns(agent: Agent, entries: dict[str, Entry]) -> dict[str, list[Any]]:
    """A row for each worker, by name."""
    agent.sole.refresh(entries.values())
    offered = {ws.address for ws in agent.offered(entries)}
    said = agent.announced.workers
    shuffles = agent.pinning_shuffles()
    held = _held(agent)
    rows = []
    for address, entry in entries.items():
        ws = entry.ws
        name = name_of(agent, ws)
        pins = agent.pinned_by(ws, shuffles) if address in held or name in held else []
        idle_s = agent.idle_s(entry)
        own = objection(agent, ws, idle_s=idle_s, is_offered=address in offered, pins=pins)
        state = _state(agent, entry, is_pinned=bool(pins))
        # The operator knows more (windows, budgets), but what has happened since knows better.
        why = (said.get(name) if state == ACTIVE else "") or own or _may_go(entry, idle_s)
        rows.append(
            (
                name,
                state,
                len(ws.processing),
                round(idle_s),
                ws.metrics.get("memory", 0),
                entry.runs,
                _quota(agent, entry),
                why,
            )
        )
    if not rows:
        return {name: [] for name in COLUMNS}
    rows.sort(key=lambda row: row[0])
    return {name: list(column) for name, column in zip(COLUMNS, zip(*rows))}


def _held(agent: Agent) -> set[str]:
    """Names and addresses of workers that somebody claims."""
    shuffled = agent.shuffles.pinned() if agent.settings.shuffle_pins else ()
    return {*agent.pins.names(), *shuffled}


def _state(agent: Agent, entry: Entry, *, is_pinned: bool) -> str:
    """The first of these that is true: what we do with it, what it is, that it is claimed."""
    address = entry.ws.address
    drain = agent.drains.ongoing.get(address)
    if drain is not None:
        return drain.state if drain.terms.is_refusable else ENDING
    if address in agent.cordons.ongoing:
        return STOPPED
    if entry.ws.status is not Status.running:
        return entry.ws.status.name
    return PINNED if is_pinned else ACTIVE


def _quota(agent: Agent, entry: Entry) -> str:
    """How much of what it may do is used; empty: nobody has set it a limit."""
    limit = agent.limits.of_worker(entry.ws)
    said = []
    if limit.runs != NEVER:
        said.append(f"{entry.runs} of {plural(limit.runs, 'run')}")
    if limit.profile.failures and entry.record is not None:
        said.append(f"{agent.cordons.n_failures(entry)} of {limit.profile.failures} failures")
    if not math.isinf(entry.ends_at):
        said.append(f"ends in {duration(max(0.0, entry.ends_at - agent.clock()))}")
    return ", ".join(said)


def _may_go(entry: Entry, idle_s: float) -> str:
    # The exact last copies (`copying.last_copies`) would cost a look at each of its results.
    move = f"{size_of(entry.sole_bytes)} to move" if entry.sole_bytes else "no last copies"
    return f"may go: idle for {duration(idle_s)}, {move}"
