"""Put the agent into a scheduler that runs already, through its stock RPC."""

from __future__ import annotations

import builtins
import pickle
from typing import Any

from dask_adaptive.loop.ports import LinkError
from dask_adaptive.scheduler.calls import SchedulerCalls
from dask_adaptive_agent import bootstrap


async def attach(calls: SchedulerCalls) -> None:
    """
    Send the agent's source to the scheduler and have it installed.

    `builtins.exec` and source text cross Python versions, where a pickled function does not.

    Raises:
        LinkError: The scheduler forbids it (`distributed.scheduler.pickle` is off) or it failed;
            the message says which. The scheduler is as it was.
    """
    identity = await calls.call("identity")
    text = bootstrap.render(bootstrap.sources(), identity["id"])
    # Protocol 4 is read by every Python that runs a supported distributed.
    answer = await calls.call(
        "run_function",
        function=pickle.dumps(builtins.exec, protocol=4),
        args=pickle.dumps((text, {"__name__": "dask_adaptive_bootstrap"}), protocol=4),
        wait=True,
    )
    _check(answer)


def _check(answer: Any) -> None:
    if isinstance(answer, dict) and answer.get("status") == "OK":
        return
    text = answer.get("exception_text", "") if isinstance(answer, dict) else repr(answer)
    raise LinkError(f"the agent could not be attached: {text}")
