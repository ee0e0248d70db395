"""Reaches a scheduler from a laptop as kubectl does: through the API server."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from dask_adaptive.deadline import timeout
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import ObservedScheduler

if TYPE_CHECKING:
    from dask_adaptive.scheduler.look import Lookout

#: For all of it, and of that for the scheduler's answer.
PATIENCE_S, ANSWER_S = 10.0, 3.0

#: What kubectl says when it forwards: `Forwarding from 127.0.0.1:40123 -> 8786`.
_FORWARDING = re.compile(rb"Forwarding from 127\.0\.0\.1:(\d+)")


async def look_from_here(key: ClusterKey, context: str | None) -> ObservedScheduler:
    """What the agent in a cluster's scheduler says; why it says nothing is part of the answer."""
    from dask_adaptive.scheduler.look import look

    try:
        async with timeout(PATIENCE_S), _forwarded(key, context) as port:
            return await look(f"tcp://127.0.0.1:{port}", timeout_s=ANSWER_S)
    except FileNotFoundError:
        return ObservedScheduler(message="kubectl is not on the PATH")
    except asyncio.TimeoutError:
        return ObservedScheduler(message=f"no answer within {PATIENCE_S:g} s")
    except ConnectionError as exc:
        return ObservedScheduler(message=str(exc))


@contextlib.asynccontextmanager
async def lookout(key: ClusterKey, context: str | None) -> AsyncIterator[Lookout]:
    """
    A scheduler that can be asked again and again.

    Raises:
        ConnectionError: There is no way to it from here; the message says why.
    """
    from dask_adaptive.scheduler.look import Lookout

    try:
        async with contextlib.AsyncExitStack() as stack:
            async with timeout(PATIENCE_S):
                port = await stack.enter_async_context(_forwarded(key, context))
            there = Lookout(f"tcp://127.0.0.1:{port}", timeout_s=ANSWER_S)
            stack.push_async_callback(there.close)
            yield there
    except FileNotFoundError as exc:
        raise ConnectionError("kubectl is not on the PATH") from exc
    except asyncio.TimeoutError as exc:
        raise ConnectionError(f"no answer within {PATIENCE_S:g} s") from exc


@contextlib.asynccontextmanager
async def _forwarded(key: ClusterKey, context: str | None) -> AsyncIterator[int]:
    """A port of this machine that leads to the scheduler's."""
    chosen = ["--context", context] if context else []
    process = await asyncio.create_subprocess_exec(
        "kubectl", "--namespace", key.namespace, *chosen,
        "port-forward", f"service/{key.name}-scheduler", ":8786",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        said = _FORWARDING.search(await process.stdout.readline())
        if said is None:
            why = (await process.stderr.read()).decode(errors="replace").strip()
            raise ConnectionError(why or "kubectl port-forward ended without a word")
        yield int(said[1])
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
