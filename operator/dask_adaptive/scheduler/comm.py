"""
One connection to a scheduler's port, as distributed's TCP comms talk (comm/tcp.py, comm/core.py and
protocol/utils.py there): a message is frames with their lengths before them, the first one msgpack.

What arrives is bytes of somebody who runs other people's code: it is bounded, never unpickled and
never decompressed, and frames but the first are dropped unread.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import Mapping
from typing import Any

import msgspec

#: What we offer: no compression, so that nobody sends any.
_HANDSHAKE = {"compression": None, "python": (3, 9), "pickle-protocol": 4}

#: Frames of one message; an answer has one, an error some more.
_MOST_FRAMES = 1_000

#: Bytes of a handshake.
_MOST_HANDSHAKE = 10_000


class Comm:
    """An open connection: one question and its answer at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, host: str, port: int, context: ssl.SSLContext | None) -> Comm:
        """
        Raises:
            OSError: Among them `ssl.SSLError`, and `ConnectionError` where somebody else listens.
        """
        comm = cls(*await asyncio.open_connection(host, port, ssl=context))
        try:
            comm._write(_HANDSHAKE)
            await comm.read(_MOST_HANDSHAKE, ConnectionError)
        except BaseException:
            comm.abort()
            raise
        return comm

    @property
    def is_open(self) -> bool:
        return not (self._writer.is_closing() or self._reader.at_eof())

    async def ask(self, message: Mapping[str, Any], most: int) -> bytes:
        """
        Send a message; returns the first frame of the answer, of at most so many bytes.

        Raises:
            OSError: It closed the connection.
            ValueError: What arrived is no message of distributed's, or larger than it may be.
        """
        self._write(message)
        await self._writer.drain()
        return await self.read(most)

    async def read(self, most: int, wrong: type[Exception] = ValueError) -> bytes:
        # The first number is what TCP comms read in one go: of no use here.
        _, count = struct.unpack("<QQ", await self._exactly(16))
        if not 0 < count <= _MOST_FRAMES:
            raise wrong(f"a message of {count} frames")
        sizes = struct.unpack(f"<{count}Q", await self._exactly(8 * count))
        if sum(sizes) > most:
            raise wrong(f"a message of {sum(sizes):,} bytes, which may have {most:,}")
        first = await self._exactly(sizes[0])
        await self._exactly(sum(sizes[1:]))
        return first

    def abort(self) -> None:
        self._writer.transport.abort()

    async def _exactly(self, count: int) -> bytes:
        try:
            return await self._reader.readexactly(count)
        except asyncio.IncompleteReadError as exc:
            raise ConnectionResetError("it closed the connection") from exc

    def _write(self, message: Mapping[str, Any]) -> None:
        frame = msgspec.msgpack.encode(message)
        self._writer.write(struct.pack("<QQQ", 16 + len(frame), 1, len(frame)) + frame)
