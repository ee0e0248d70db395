"""Shuffles that have not begun, as the operator is told: more workers would be of use to them."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dask_adaptive_agent import wire
    from dask_adaptive_agent.agent import Agent

#: As many are told of.
MOST = 50


def upcoming(agent: Agent) -> list[wire.UpcomingShuffle]:
    """
    Shuffles whose outputs are yet to be given to workers, the oldest first, `MOST` of them.

    Cheap however many tasks there are: barriers are noted as they pass, and what is told of each is
    kept by the scheduler.
    """
    now = agent.clock()
    waits = agent.shuffle_wait.ongoing
    rows: list[wire.UpcomingShuffle] = []
    for one in islice(agent.barriers.upcoming(), MOST):
        wait = waits.get(one.id)
        rows.append(
            {
                "id": one.id,
                "inputs": len(one.barrier.waiting_on or ()),
                "outputs": len(one.barrier.dependents),
                "waiting": wait is not None,
                "for_ms": 0 if wait is None else max(0, int((now - wait.since) * 1000)),
            }
        )
    return rows
