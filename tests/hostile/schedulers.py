"""
Schedulers that answer anything. Each is made by a number: an honest one whose handshake, frames,
answers or pace are somebody's who wants to do harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import random
import struct
from collections.abc import Iterator
from typing import Any

import msgpack
from distributed.protocol import core
from distributed.protocol.serialize import Serialize, ToPickle

from bench.scale.simulated import SimulatedScheduler
from dask_adaptive_agent import wire

HANDSHAKE = {"compression": None, "python": (3, 11), "pickle-protocol": 5}

ESCAPES = "\x1b]0;owned\x07\x1b]52;c;b3duZWQ=\x07\x1b[2J\u202e"


class Evil:
    """Makes a file where it is unpickled."""

    def __init__(self, canary: str) -> None:
        self._canary = canary

    def __reduce__(self) -> Any:
        import os

        return os.system, (f"touch {self._canary}",)


def _deep(depth: int) -> bytes:
    return b"\x91" * depth + b"\xc0"


VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 7.5, 2**31, 2**63 - 1, -(2**63), 2**64 - 1, 1e308, -1e308,
    float("nan"), float("inf"), "", "x", ESCAPES, "x" * 100_000, b"\xff\xfe", [], {}, [[]],
    {1: 2}, {"": {}}, {"lost": "x"}, [-1] * 1000, ["a"] * 1000, [{}] * 1000,
    [2**63 - 1] * 3, {f"k{i}": i for i in range(1000)}, {ESCAPES: 1},
)  # fmt: skip


class Hostile:
    """
    One scheduler of this kind, on a port of this machine.

    Attributes:
        is_broken: Nothing that it says can be read.
    """

    def __init__(self, number: int, canary: str) -> None:
        self._dice, self._canary = random.Random(number), canary
        self._honest = SimulatedScheduler()
        self._honest.join([(f"w{i}", f"tcp://10.0.0.{i}:40000") for i in range(3)])
        self._honest.load(self._dice.randint(0, 5))
        self._handlers = self._honest.handlers()
        self.how = self._dice.choice(("handshake", "frames", "pace", *["answer"] * 6, "pickle"))
        self.is_broken = self.how != "answer"
        self.port = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    @contextlib.asynccontextmanager
    async def serving(self) -> Any:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._greet(writer)
            await _read(reader)
            while True:
                await self._send(writer, await self._answer(await _read(reader)))
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError, ValueError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _greet(self, writer: asyncio.StreamWriter) -> None:
        greeting = packed(msgpack.packb(HANDSHAKE))
        if self.how != "handshake":
            writer.write(greeting)
            return
        odd: list[bytes] = [
            b"", b"HTTP/1.1 400 Bad Request\r\n\r\n" * 10, self._dice.randbytes(5000),
            packed(msgpack.packb({**HANDSHAKE, "compression": "zlib"})) + self._dice.randbytes(99),
            packed(msgpack.packb([1] * 10_000)), b"\x16\x03\x01\x02" * 99,
            struct.pack("<QQ", 16, 2**63), struct.pack("<QQQ", 24, 1, 2**63 - 1), greeting[:20],
        ]  # fmt: skip
        writer.write(self._dice.choice(odd))
        if self._dice.random() < 0.5:
            writer.close()

    async def _send(self, writer: asyncio.StreamWriter, frames: list[bytes]) -> None:
        data = packed(*frames)
        if self.how == "frames":
            data = self._dice.choice(list(_broken_frames(self._dice, data)))
        if self.how == "pace":
            how = self._dice.choice(("silent", "slow", "closes", "stops"))
            if how == "slow":
                for byte in data:
                    writer.write(bytes([byte]))
                    await asyncio.sleep(1.0)
            elif how == "stops":
                writer.write(data[: len(data) // 2])
            elif how == "closes":
                raise ConnectionResetError
            await asyncio.sleep(60.0)
        writer.write(data)
        await writer.drain()

    async def _answer(self, request: dict[str, Any]) -> list[bytes]:
        op = request.pop("op")
        request.pop("reply", None)
        handler = self._handlers.get(op)
        answer = None if handler is None else await handler(**request)
        if self.how == "pickle":
            evil = self._dice.choice((ToPickle, Serialize))(Evil(self._canary))
            answer = self._dice.choice(({"agent": evil}, {**(answer or {}), "notes": evil}, evil))
            return [bytes(frame) for frame in core.dumps(answer)]
        if self.how == "answer" and (op == wire.OBSERVE or self._dice.random() < 0.05):
            answer = self._changed(answer)
        return [msgpack.packb(answer, default=str)]

    def _changed(self, answer: dict[str, Any]) -> dict[str, Any]:
        answer = copy.deepcopy(answer)
        for _ in range(self._dice.choice((1, 1, 2, 5))):
            if not (places := list(_places(answer))):
                break
            holder, key = self._dice.choice(places)
            alike = [value for value in VALUES if type(value) is type(holder[key])]
            value = self._dice.choice(alike if alike and self._dice.random() < 0.8 else VALUES)
            if isinstance(holder, dict) and self._dice.random() < 0.1:
                holder.pop(key, None)
            elif isinstance(holder, list) and self._dice.random() < 0.1:
                holder.extend([holder[key]] * 1000)
            else:
                _put(holder, key, value)
        return answer


def packed(*frames: bytes) -> bytes:
    sizes = [len(frame) for frame in frames]
    prelude = struct.pack(f"<Q{len(sizes)}Q", len(sizes), *sizes)
    return struct.pack("<Q", len(prelude) + sum(sizes)) + prelude + b"".join(frames)


async def _read(reader: asyncio.StreamReader) -> dict[str, Any]:
    (size,) = struct.unpack("<Q", await reader.readexactly(8))
    body = await reader.readexactly(size)
    count, *_ = struct.unpack_from("<Q", body)
    return dict(msgpack.unpackb(body[8 * (count + 1) :]))


def _broken_frames(dice: random.Random, data: bytes) -> Iterator[bytes]:
    body = data[24:]
    yield dice.randbytes(len(data))
    yield data[:24] + dice.randbytes(len(body))
    yield struct.pack("<QQ", 8, 0)
    yield struct.pack("<QQ", 2**62, 2**62)
    yield struct.pack("<QQQ", len(data), 1, 2**62)
    yield struct.pack("<QQ", len(data), 10**6) + data
    yield packed(_deep(900_000))
    yield packed(b"\x9a" + b"\x80" * 1_000_000)  # nested empty maps
    yield packed(b"\xdd" + struct.pack(">I", 900_000) + b"\x80" * 900_000)
    yield packed(b"\x81\xa6config" + b"\xdd" + struct.pack(">I", 900_000) + b"\x80" * 900_000)
    yield packed(bytes(10_000_000))
    yield packed(b"", body)
    yield packed(*[b"x"] * 900)
    at = dice.randrange(len(body))
    yield packed(body[:at] + bytes([body[at] ^ 1 << dice.randrange(8)]) + body[at + 1 :])


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """All dicts and lists in a value, with each of their keys."""
    keys: Any = value.keys() if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from _places(value[key])


def _put(holder: Any, key: Any, value: Any) -> None:
    holder[key] = copy.deepcopy(value)
