"""Who answers: the agent's first message to the operator."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import distributed

from dask_adaptive_agent import __version__, wire
from dask_adaptive_agent.closing import HAS_HOOK
from dask_adaptive_agent.moving import stealing

if TYPE_CHECKING:
    from dask_adaptive_agent.agent import Agent


def hello(agent: Agent) -> wire.HelloAnswer:
    """Versions, and what is in place of all that the agent would have."""
    return {
        "protocol": wire.PROTOCOL,
        "agent": __version__,
        "distributed": distributed.__version__,  # type: ignore[attr-defined]
        "python": ".".join(map(str, sys.version_info[:3])),
        "session": agent.session,
        "scheduler_id": agent.scheduler.id,
        "uptime_ms": int((agent.clock() - agent.started_at) * 1000),
        "hooks": {
            "valid_workers_downscaling": HAS_HOOK,
            "shuffle": agent.shuffles.is_known,
            **{name: agent.has_feature(name) for name in agent.features},
            "stealing": stealing(agent.scheduler) is not None,
            "tally": agent.tally is not None,
            "exact": agent.cordons.assigned.is_possible,
            "page": agent.page.is_in_place,
        },
        "relief": agent.parts.section("relief", agent.reliefs.rows, []),
    }
