"""
Pins as people and code ask for them: what the policy allows, and whom a name means.

Those of the operator (annotations) go by name, so that they hold a worker that is about to join;
those of code go by address, because code means the workers that it sees.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dask_adaptive_agent import wire
from dask_adaptive_agent.settings import (
    Invalid,
    Refused,
    Request,
    millis,
    names,
    one_of,
    optional_names,
    text,
)
from dask_adaptive_agent.words import duration, plural

if TYPE_CHECKING:
    from distributed.scheduler import WorkerState

    from dask_adaptive_agent.agent import Agent

#: Seconds that the pins of a Dask client go on after it has left: it may be back, and it renews
#: every 20 s at least.
CLIENT_AWAY_S = 60.0


def pin(agent: Agent, request: Request) -> wire.PinAnswer:
    source = one_of(request, "source", (wire.MANUAL, wire.CLIENT))
    return (_pin_for_client if source == wire.CLIENT else _pin_by_hand)(agent, request)


def unpin(agent: Agent, request: Request) -> wire.PinAnswer:
    source = one_of(request, "source", (wire.MANUAL, wire.CLIENT))
    asked = optional_names(request)
    if asked is not None and source == wire.CLIENT:
        asked = [ws.address for name in asked for ws in _meant(agent, name)]
    given_up = agent.pins.unpin(source=source, owner=text(request, "owner"), names=asked)
    message = f"{plural(len(given_up), 'pin')} given up"
    return {"protocol": wire.PROTOCOL, "pinned": [], "message": message}


def name_of(agent: Agent, ws: WorkerState) -> str:
    """By which name a worker is pinned: one that departs keeps its own until another takes it."""
    name = agent.drains.name_of(ws)
    owner = agent.scheduler.aliases.get(name, ws.address)
    return name if owner == ws.address else str(ws.name)


def client_left(agent: Agent, client: str) -> None:
    agent.pins.cut(client, CLIENT_AWAY_S)
    agent.demand.client_left(client)


def worker_joined(agent: Agent, ws: WorkerState) -> None:
    """If it takes the name of one that departs, the pins by that name stay with the other."""
    for drain in agent.drains.departures().values():
        if drain.ws is not ws and str(drain.name) == str(ws.name):
            agent.pins.move(str(ws.name), drain.ws.address)


def worker_left(agent: Agent, ws: WorkerState) -> None:
    """All pins end with their worker, unless another has taken its name."""
    agent.pins.drop(ws.address)
    for name in {str(ws.name), agent.drains.name_of(ws)} & agent.pins.names():
        others = agent.scheduler.workers.values()
        if not any(str(other.name) == name for other in others if other is not ws):
            agent.pins.drop(name)


def _pin_by_hand(agent: Agent, request: Request) -> wire.PinAnswer:
    asked = names(request)
    ttl_s = millis(request, "ttl_ms", 0) / 1000
    granted_s = agent.pins.pin(
        asked,
        source=wire.MANUAL,
        owner=text(request, "owner"),
        reason=text(request, "reason", ""),
        ttl_s=min(ttl_s, agent.settings.manual_max_ms / 1000),
    )
    cut = f"cut from {duration(ttl_s)} to {duration(granted_s)}" if granted_s < ttl_s else ""
    return _granted(asked, granted_s, cut)


def _pin_for_client(agent: Agent, request: Request) -> wire.PinAnswer:
    asked = names(request)
    ttl_s = millis(request, "ttl_ms", 0) / 1000
    cap_s = agent.settings.client_max_ms / 1000
    claimant: dict[str, Any] = {"source": wire.CLIENT, "owner": text(request, "owner")}
    reason, client = text(request, "reason", ""), text(request, "client", "")
    _refuse_unless_allowed(agent, ttl_s, cap_s)
    meant = [(name, _meant(agent, name)) for name in asked]
    unknown = [name for name, workers in meant if not workers]
    if unknown:
        raise Invalid(f"no worker has the name or address {', '.join(unknown[:10])}")
    workers = {ws.address: ws for _, each in meant for ws in each}
    if agent.pins.is_spent(workers, total_s=cap_s, **claimant):
        message = (
            f"pinned for {duration(cap_s)}, renewals included: the longest that the policy allows "
            "(spec.pins.client.maxDuration)"
        )
        if agent.pins.refuse(**claimant):
            held = [str(ws.name) for ws in workers.values()]
            told = f"{_claimed(reason)} has {message}; its caller still asks for it"
            agent.notes.add(wire.N_CLIENT_PIN_EXPIRED, told, held)
        raise Refused(message)
    granted_s = agent.pins.pin(
        workers, reason=reason, ttl_s=ttl_s, total_s=cap_s, client=client, **claimant
    )
    short = granted_s < ttl_s
    return _granted(asked, granted_s, f"ends in {duration(granted_s)} for good" if short else "")


def _refuse_unless_allowed(agent: Agent, ttl_s: float, cap_s: float) -> None:
    if not agent.settings.client_pins:
        raise Refused("the policy allows no pins from code (spec.pins.client.enabled is false)")
    if ttl_s > cap_s:
        raise Refused(
            f"a pin of {duration(ttl_s)} is longer than the {duration(cap_s)} that the policy "
            "allows (spec.pins.client.maxDuration)"
        )


def _claimed(reason: str) -> str:
    return f"a pin from code ({reason})" if reason else "a pin from code"


def _granted(asked: list[str], granted_s: float, message: str) -> wire.PinAnswer:
    # Rounded up: a lease of less than a millisecond is one.
    pinned = [(name, math.ceil(granted_s * 1000)) for name in asked]
    return {"protocol": wire.PROTOCOL, "pinned": pinned, "message": message}


def _meant(agent: Agent, name: str) -> list[WorkerState]:
    """Workers with that name or address. Names may be any hashable; on the wire they are text."""
    scheduler: Any = agent.scheduler
    address = name if name in scheduler.workers else scheduler.aliases.get(name)
    if address in scheduler.workers:
        return [scheduler.workers[address]]
    return [ws for ws in scheduler.workers.values() if str(ws.name) == name]
