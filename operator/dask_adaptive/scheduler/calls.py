"""
Calls one scheduler, with a deadline and a size limit for each call, in the protocol of
distributed's TCP comms (comm/tcp.py, comm/core.py, protocol/utils.py): a message is a list of
frames, preceded by their lengths; the first one is msgpack.

Schedulers run other people's code: an answer is bounded, never unpickled and never decompressed,
and all frames but the first are discarded unread.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
import tempfile
from collections.abc import Callable, Mapping
from typing import Any, TypedDict, TypeVar, get_type_hints
from urllib.parse import urlsplit

import msgspec

from dask_adaptive.loop.ports import AgentInvalid, LinkError, Tls, TlsFailed
from dask_adaptive_agent import wire

A = TypeVar("A")

#: Maximum bytes of an answer, and additional bytes for each worker.
MOST_BYTES, MOST_BYTES_EACH = 2**20, 4096

#: Errors while reading an answer; text that is not UTF-8 raises `UnicodeDecodeError`.
BAD_DATA = msgspec.MsgspecError, ArithmeticError, LookupError, RecursionError, TypeError, ValueError

#: Characters kept of a scheduler's error message.
LONGEST = 500


#: Our handshake: offers no compression.
_HANDSHAKE = {"compression": None, "python": (3, 9), "pickle-protocol": 4}

#: Maximum frames of a message; an answer has one, an error some more.
_MOST_FRAMES = 1_000

#: Maximum bytes of a handshake.
_MOST_HANDSHAKE = 10_000


class Comm:
    """An open connection for one request and its answer at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, host: str, port: int, context: ssl.SSLContext | None) -> Comm:
        """
        Raises:
            OSError: Includes `ssl.SSLError`; `ConnectionError` if another kind of server listens.
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
        Send a message; return the first frame of the answer, which has at most `most` bytes.

        Raises:
            OSError: It closed the connection.
            ValueError: What arrived is no message of distributed's, or larger than it may be.
        """
        self._write(message)
        await self._writer.drain()
        return await self.read(most)

    async def read(self, most: int, wrong: type[Exception] = ValueError) -> bytes:
        # The first number is the total length, which is not needed here.
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


class _Failure(TypedDict, total=False):
    """An error instead of an answer: `distributed.core.error_message`, or `wire.ErrorAnswer`."""

    status: str
    exception_text: str
    error: str
    message: str


def lenient(*messages: Any) -> Any:
    """
    Make a type with the keys of these messages, none of them required: agents of other versions
    send other keys, and readers check the ones they need.
    """
    keys = {key: of for one in messages for key, of in get_type_hints(one).items()}
    make: Any = TypedDict  # at run time, which type checkers do not know
    return make("Answer", keys, total=False)


class SchedulerCalls:
    """
    One scheduler's RPC port.

    A scheduler runs other people's code and must not be able to run it here, or to stop us: answers
    are decoded into their expected types and never unpickled; oversized or other data is an error.

    Args:
        address: As Dask writes it, e.g. `tcp://10.0.0.7:8786`.
        tls: Certificates for a `tls://` address.
        timeout_s: Deadline of each call, connecting included.
        workers: Returns the number of workers, which bounds the size of answers.

    Raises:
        TlsFailed: `tls` can't be used.
        LinkError: The address has an unsupported protocol.
    """

    def __init__(
        self, address: str, *, tls: Tls | None = None, timeout_s: float = 5.0,
        workers: Callable[[], int] = lambda: 0,
    ) -> None:  # fmt: skip
        self.address, self._timeout_s, self._workers = address, timeout_s, workers
        way = urlsplit(address)
        if way.scheme not in ("tcp", "tls") or not way.hostname or not way.port:
            raise LinkError(
                f"{address}: only tcp:// and tls:// are supported; let it listen on one of them"
            )
        self._host, self._port = way.hostname, way.port
        self._context = _context(tls) if tls else None
        self._idle: list[Comm] = []

    async def call(
        self, op: str, answer: type[A], *, longer_s: float = 0.0, **arguments: Any
    ) -> A | None:
        """
        Call one handler; returns None if the scheduler has no such handler.

        Args:
            answer: Type of the answer; undeclared keys are skipped.
            longer_s: Additional time that the handler itself may take.

        Raises:
            AgentInvalid: The answer has another type, or is too large.
            LinkError: No answer in time, connection refused, or the handler raised.
        """
        timeout_s = self._timeout_s + longer_s
        try:
            async with asyncio.timeout(timeout_s):
                frame = await self._ask({"op": op, "reply": True, **arguments})
        except TimeoutError as exc:
            raise LinkError(f"{self.address} did not answer {op} within {timeout_s:g} s") from exc
        except OSError as exc:
            raise _unreached(self.address, exc) from exc
        except ValueError as exc:
            raise AgentInvalid(f"{self.address} answers {op} with {exc}") from exc
        return self._read(op, frame, answer)

    async def close(self) -> None:
        while self._idle:
            self._idle.pop().abort()

    async def _ask(self, message: dict[str, Any]) -> bytes:
        while self._idle and not self._idle[-1].is_open:
            self._idle.pop().abort()
        if self._idle:
            comm = self._idle.pop()
        else:
            comm = await Comm.connect(self._host, self._port, self._context)
        try:
            frame = await comm.ask(message, MOST_BYTES + MOST_BYTES_EACH * self._workers())
        except BaseException:
            comm.abort()  # a late answer would be taken for the next one
            raise
        self._idle.append(comm)
        return frame

    def _read(self, op: str, frame: bytes, answer: type[A]) -> A | None:
        try:
            failure = msgspec.msgpack.decode(frame, type=_Failure | None)
            if failure is None:
                return None
            if failure.get("status") == "uncaught-error":
                said = failure.get("exception_text", "")[:LONGEST]
                raise LinkError(f"{op} failed on {self.address}: {said or 'no message'}")
            if "error" in failure:
                said = failure.get("message", "")[:LONGEST]
                raise LinkError(said if failure["error"] == wire.E_REFUSED else f"{op}: {said}")
            return msgspec.msgpack.decode(frame, type=answer)
        except BAD_DATA as exc:
            raise AgentInvalid(f"{self.address} answers {op} as no agent does: {exc}") from exc


def _context(tls: Tls) -> ssl.SSLContext:
    """Make a context as Dask's own clients do: it trusts any certificate of the authority."""
    try:
        context = ssl.create_default_context(cadata=tls.ca)
        context.check_hostname = False
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        with tempfile.NamedTemporaryFile("w") as file:  # the ssl module reads only files
            file.write(f"{tls.certificate}\n{tls.key}")
            file.flush()
            context.load_cert_chain(file.name, password="")
    except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError
        raise TlsFailed(
            f"the Secret's certificate can't be used ({exc}): tls.key must be the key of tls.crt,"
            " without a password, and ca.crt hold certificates"
        ) from exc
    return context


#: Errors of OpenSSL on either side, with a fix. A scheduler that refuses our certificate sends an
#: alert after the handshake (TLS 1.3).
_TLS_ERRORS = (
    ("WRONG_VERSION_NUMBER", "it has no TLS: enable it, or set spec.scheduler.protocol to tcp"),
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is not valid: {}; renew it, or correct ca.crt"),
    ("ALERT", "it rejects the Secret's certificate: {}; its authority must have signed that"),
)


def _unreached(address: str, exc: OSError) -> LinkError:
    """Explain why a scheduler was not reached, with a fix if one is known."""
    said = str(exc) or type(exc).__name__
    for sign, words in _TLS_ERRORS if isinstance(exc, ssl.SSLError) else ():
        if sign in said:
            detail = said[said.index(sign) :].split("(_ssl")[0].replace("_", " ").strip(" :")
            return TlsFailed(f"{address}: {words.format(detail[:120].lower())}")
    hint = ""
    if isinstance(exc, ConnectionResetError) and address.startswith("tcp://"):
        hint = "; if it accepts only TLS, set spec.scheduler.tls.secretName"
    return LinkError(f"{address} cannot be reached: {said}{hint}")
