"""Schedulers that take TLS only: the link, what it says of certificates, and pins from code."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from distributed import Client, Scheduler, Worker

from dask_adaptive.loop.ports import Tls, TlsFailed
from dask_adaptive.model.policy import ClusterRef, Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Limit, Limits, Profile
from dask_adaptive.scheduler.calls import LinkError
from dask_adaptive.scheduler.link import ReadOnlyLink, connect
from dask_adaptive_agent import pinned
from support.agent_work import until
from support.certificates import Authority, security
from support.tables import table

POLICY = Policy(ClusterRef("t"), 3)
OURS, OTHERS = Authority(), Authority()


@contextlib.asynccontextmanager
async def scheduler(tls: Tls) -> AsyncIterator[Any]:
    async with Scheduler(
        protocol="tls", security=security(tls), port=0, dashboard=False, host="127.0.0.1"
    ) as made:
        yield made


async def seen_from(address: str, tls: Tls | None) -> Any:
    link = connect(address, tls=tls, timeout_s=5.0)
    try:
        return await link.observe(POLICY)
    finally:
        await link.close()


async def test_all_that_we_say_is_said_over_tls() -> None:
    async with (
        scheduler(OURS.tls()) as s,
        Worker(s.address, name="a", security=security(OURS.tls())),
        Client(s.address, security=security(OURS.tls()), asynchronous=True) as client,
    ):
        link = connect(s.address, tls=OURS.tls(), governs=True)
        seen = await link.observe(POLICY)
        assert seen.agent, "attached live"
        assert ["a"] == [w.name for w in seen.workers]
        await link.pin(["a"], ttl_s=60, note="by hand")
        await link.unpin(["a"])
        await link.limit(Limits({"a": Limit(runs=100)}, (Profile(),)))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(link.changed(), 1.0)

        running = client.submit(_holds_a_pin, 2.0)
        await until(lambda: s.workers[next(iter(s.workers))].processing)
        reader = ReadOnlyLink(s.address, tls=OURS.tls())
        await _until_pinned(reader)
        assert "done" == await running
        (outcome,) = await link.retire(["a"], POLICY, Reason.IDLE_GRACE)
        assert ("a", Reason.NO_RECIPIENT) == (outcome.name, outcome.veto), "it holds the result"
        await link.close()
        await reader.close()


def _holds_a_pin(seconds: float) -> str:
    with pinned(reason="a test"):
        time.sleep(seconds)
    return "done"


async def _until_pinned(reader: ReadOnlyLink) -> None:
    for _ in range(100):
        (row,) = (await reader.observe()).workers
        if row.pins:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("the pin never came")


@pytest.mark.parametrize("protocol", ["ws", "wss"])
def test_websockets_are_refused_with_what_to_do(protocol: str) -> None:
    with pytest.raises(LinkError, match="only tcp:// and tls:// are supported"):
        connect(f"{protocol}://10.0.0.7:8786")


WRONG = {
    "its certificate is not valid": (OURS.tls(), OTHERS.tls()),
    "certificate has expired": (OURS.tls(expired=True), OURS.tls()),
    "it rejects the Secret's certificate": (OURS.tls(), OTHERS.tls(trusted=OURS)),
    "certificate expired": (OURS.tls(), OURS.tls(expired=True)),
}


@pytest.mark.parametrize("words", WRONG)
async def test_what_is_wrong_with_certificates_is_said(words: str) -> None:
    theirs, ours = WRONG[words]
    async with scheduler(theirs) as s:
        seen = await seen_from(s.address, ours)

    assert Reason.SCHEDULER_UNREACHABLE is seen.problem
    assert words in seen.message


@table(
    "broken",
    another_key=replace(OURS.tls(), key=OURS.tls().key),
    no_authority=replace(OURS.tls(), ca="-----BEGIN\nnothing\n"),
)
def test_what_can_not_be_used_is_refused_before_anything_is_sent(broken: Tls) -> None:
    with pytest.raises(TlsFailed, match=r"tls\.key must be .* tls\.crt"):
        connect("tls://127.0.0.1:9", tls=broken)


async def test_a_scheduler_that_takes_tls_only_is_not_reached_without() -> None:
    async with scheduler(OURS.tls()) as s:
        seen = await seen_from(s.address.replace("tls://", "tcp://"), None)

    assert Reason.SCHEDULER_UNREACHABLE is seen.problem
    # Older releases of Dask wait for a handshake, as a scheduler does that is busy.
    is_silent = "did not answer adaptive_hello within 5 s" in seen.message
    assert is_silent or "only TLS, set spec.scheduler.tls.secretName" in seen.message


async def test_a_scheduler_without_tls_is_told_from_a_bad_certificate() -> None:
    async def closes(reader: Any, writer: Any) -> None:
        await reader.read(100)
        writer.write(b"\x08\x00\x00\x00\x00\x00\x00\x00 plain, as Dask begins")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(closes, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    seen = await seen_from(f"tls://127.0.0.1:{port}", OURS.tls())
    server.close()
    await server.wait_closed()

    assert Reason.SCHEDULER_UNREACHABLE is seen.problem
    assert "set spec.scheduler.protocol to tcp" in seen.message
