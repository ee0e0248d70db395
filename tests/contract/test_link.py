"""The operator's side of the wire, against a real scheduler that behaves or does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from distributed import Scheduler
from distributed.core import rpc
from distributed.protocol import to_serialize

from dask_adaptive.loop.ports import LinkError
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.scheduler.calls import SchedulerCalls
from dask_adaptive.scheduler.link import Link, connect
from dask_adaptive_agent import wire
from dask_adaptive_agent.attach import install, uninstall

POLICY = Policy("t", 3)


@pytest.fixture
async def s() -> AsyncIterator[Any]:
    async with Scheduler(port=0, dashboard=False, host="127.0.0.1") as scheduler:
        yield scheduler


@pytest.fixture
async def link(s: Any) -> AsyncIterator[Link]:
    made = connect(s.address, timeout_s=2.0, governs=True)
    yield made
    await made.close()


async def test_a_scheduler_without_the_agent_gets_it(s: Any, link: Link) -> None:
    seen = await link.observe(POLICY)

    assert seen.is_connected
    assert seen.agent
    assert wire.OBSERVE in s.handlers


async def test_an_agent_that_is_gone_is_put_back(s: Any, link: Link) -> None:
    await link.observe(POLICY)
    uninstall(s)

    assert (await link.observe(POLICY)).agent


async def test_another_protocol_is_a_problem_with_a_remedy(s: Any, link: Link) -> None:
    install(s)
    s.handlers[wire.HELLO] = lambda **_: {"protocol": 99}

    seen = await link.observe(POLICY)

    assert Reason.PROTOCOL_MISMATCH is seen.problem
    assert "speaks protocol 99" in seen.message
    assert "upgrade the older side" in seen.message


@pytest.mark.parametrize("nonsense", [{}, {"session": "x"}, [1], "text", 7])
async def test_a_senseless_snapshot_is_no_snapshot(s: Any, link: Link, nonsense: Any) -> None:
    install(s)
    await link.observe(POLICY)
    s.handlers[wire.OBSERVE] = lambda **_: nonsense

    seen = await link.observe(POLICY)

    assert Reason.SCHEDULER_UNREACHABLE is seen.problem
    assert () == seen.workers


async def test_a_scheduler_that_is_not_there() -> None:
    link = connect("tcp://127.0.0.1:9", timeout_s=0.5)
    seen = await link.observe(POLICY)
    await link.close()

    assert Reason.SCHEDULER_UNREACHABLE is seen.problem
    assert "tcp://127.0.0.1:9" in seen.message


async def test_what_does_not_speak_dask_is_not_waited_for() -> None:
    async def silent(reader: Any, writer: Any) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    link = connect(f"tcp://127.0.0.1:{port}", timeout_s=0.5)
    seen = await asyncio.wait_for(link.observe(POLICY), 5)
    await link.close()
    server.close()

    assert Reason.SCHEDULER_UNREACHABLE is seen.problem


class Trap:
    """Runs code where it is unpickled."""

    sprung = False

    def __reduce__(self) -> Any:
        return _spring, ()


def _spring() -> None:
    Trap.sprung = True


async def test_nothing_that_a_scheduler_sends_is_unpickled(s: Any) -> None:
    """A scheduler runs other people's code; it must not be able to run it in the operator."""
    s.handlers["trap"] = lambda: {"status": "OK", "result": to_serialize(Trap())}
    trusting, careful = rpc(s.address), SchedulerCalls(s.address, timeout_s=2.0)

    await trusting.trap()
    assert Trap.sprung
    Trap.sprung = False
    answer = await careful.call("trap")

    assert "OK" == answer["status"]
    assert not Trap.sprung
    await trusting.close_rpc()
    await careful.close()


async def test_the_error_of_a_handler_arrives_as_text(s: Any) -> None:
    def raises() -> None:
        raise ZeroDivisionError("of all things")

    s.handlers["fails"] = raises
    calls = SchedulerCalls(s.address, timeout_s=2.0)

    with pytest.raises(LinkError, match=r"fails failed on .*of all things"):
        await calls.call("fails")
    await calls.close()
