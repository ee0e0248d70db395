"""Parts of the controller that end by an error are begun anew; those that should end do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dask_adaptive.backoff import begun_anew, end
from dask_adaptive.kube.api import ApiUnreachable
from support.tables import table


def failing(*errors: BaseException) -> tuple[Any, list[BaseException]]:
    """A part that raises each of these, and then returns; and what it has still to raise."""
    left = list(errors)

    async def run() -> None:
        if left:
            raise left.pop(0)

    return run, left


@table(
    "error, traceback",
    bug=(ValueError("a bug"), True),
    cancelled_by_nobody=(asyncio.CancelledError(), True),
    known=(ApiUnreachable("no answer"), False),
)
async def test_it_is_logged_and_begun_anew(
    error: BaseException, traceback: bool, caplog: pytest.LogCaptureFixture
) -> None:
    run, left = failing(error, error)
    await begun_anew("the part", run, first_s=0.01, longest_s=0.01)

    assert [] == left
    assert 2 == len(caplog.records)
    assert "restarts in 0.0 s" in caplog.text
    assert traceback == ("Traceback" in caplog.text)


async def test_waits_grow_and_the_api_server_may_ask_for_more() -> None:
    run, left = failing(ApiUnreachable("busy", retry_after_s=60.0), ValueError())
    task = asyncio.create_task(begun_anew("the part", run, first_s=0.01, longest_s=0.01))
    await asyncio.sleep(0.1)
    assert 1 == len(left)
    await end([task])


@pytest.mark.parametrize("raised", [None, ValueError("at its end")])
async def test_who_is_cancelled_ends(raised: Exception | None) -> None:
    async def run() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            if raised:
                raise raised

    task = asyncio.create_task(begun_anew("the part", run))
    await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=1.0)

    assert {task} == done
    assert task.cancelled() or raised is task.exception()
