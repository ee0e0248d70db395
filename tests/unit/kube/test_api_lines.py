"""How a watch is cut into lines."""

from __future__ import annotations

from collections.abc import AsyncIterator

from dask_adaptive.kube.api import _lines

LONG = b"x" * 70_000  # aiohttp itself reads none longer than 64 KiB


async def chunks() -> AsyncIterator[bytes]:
    for chunk in (b"a\nb", b"\n\n", LONG, LONG, b"\nnot ended"):
        yield chunk


async def test_a_line_may_be_of_any_length_and_ends_with_its_newline() -> None:
    assert [b"a", b"b", LONG + LONG] == [line async for line in _lines(chunks())]
