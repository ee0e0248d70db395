"""One look at a scheduler that somebody else governs."""

from __future__ import annotations

from dask_adaptive.loop.ports import LinkError
from dask_adaptive.model.observed import ObservedScheduler
from dask_adaptive.model.reason import Reason
from dask_adaptive.scheduler.calls import SchedulerCalls
from dask_adaptive.scheduler.notes import NoteReader
from dask_adaptive.scheduler.snapshot import SnapshotReader
from dask_adaptive_agent import wire


async def look(address: str, *, timeout_s: float = 5.0) -> ObservedScheduler:
    """
    What the agent in a scheduler says, meters included; a problem is part of the answer.

    Neither attaches an agent nor configures one, unlike a `Link`. Like any question it renews the
    leases of what is under way.
    """
    calls = SchedulerCalls(address, timeout_s=timeout_s)
    try:
        hello = await calls.call(wire.HELLO, protocol=wire.PROTOCOL)
        if hello is None:
            return ObservedScheduler(
                problem=Reason.AGENT_MISSING, message="the scheduler runs without the agent"
            )
        if hello["protocol"] != wire.PROTOCOL:
            theirs = f"its agent speaks protocol {hello['protocol']}, this program {wire.PROTOCOL}"
            return ObservedScheduler(problem=Reason.PROTOCOL_MISMATCH, message=theirs)
        answer = await calls.call(wire.OBSERVE, protocol=wire.PROTOCOL, meters=True)
        reader = SnapshotReader(NoteReader())
        return reader.read(answer, agent=hello["agent"], version=hello["distributed"])
    except LinkError as exc:
        return ObservedScheduler(problem=Reason.SCHEDULER_UNREACHABLE, message=str(exc))
    except (KeyError, TypeError) as exc:
        odd = f"{address} does not answer like a scheduler: {exc!r}"
        return ObservedScheduler(problem=Reason.SCHEDULER_UNREACHABLE, message=odd)
    finally:
        await calls.close()
