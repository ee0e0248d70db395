"""
A scheduler loads this module by DASK_DISTRIBUTED__SCHEDULER__PRELOAD=dask_adaptive_agent.preload.

An error at import would end the scheduler (exit 1), so this module imports nothing that can fail.
"""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger(__name__)


async def dask_setup(scheduler: Any) -> None:
    """
    Start the agent, which ends as a plugin does. Does nothing in a worker; a failure is logged, and
    the scheduler goes on.
    """
    try:
        from distributed import Scheduler

        if isinstance(scheduler, Scheduler):
            from dask_adaptive_agent.agent import install

            install(scheduler)
    except Exception:
        logger.exception("The scheduler goes on without dask-adaptive")
