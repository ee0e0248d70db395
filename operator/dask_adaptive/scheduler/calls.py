"""RPC to one scheduler with a deadline on every call."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from distributed.core import rpc
from distributed.security import Security

from dask_adaptive.deadline import timeout
from dask_adaptive.loop.ports import LinkError


class SchedulerCalls:
    """
    One scheduler's RPC port.

    `deserialize=False` keeps pickles shut: a scheduler runs other people's code and must not be
    able to run it here. Plain msgpack values arrive as usual, with tuples for lists.

    Args:
        address: As Dask writes it, e.g. `tcp://10.0.0.7:8786`.
        timeout_s: For each call, connecting included.
    """

    def __init__(
        self, address: str, *, security: Security | None = None, timeout_s: float = 5.0
    ) -> None:
        self.address, self._timeout_s = address, timeout_s
        untyped: Any = security
        arguments = untyped.get_connection_args("scheduler") if security else {}
        make_rpc: Any = rpc
        self._rpc: Any = make_rpc(
            address, deserialize=False, timeout=timeout_s, connection_args=arguments
        )

    async def call(self, op: str, **arguments: Any) -> Any:
        """
        Call one handler; None is what a scheduler answers that has no such handler.

        Raises:
            LinkError: No answer in time, connection refused, or the handler raised.
        """
        try:
            async with timeout(self._timeout_s):
                return await getattr(self._rpc, op)(**arguments)
        except asyncio.TimeoutError as exc:
            limit = f"{self._timeout_s:g} s"
            raise LinkError(f"{self.address} did not answer {op} within {limit}") from exc
        except OSError as exc:  # CommClosedError is one
            raise LinkError(f"{self.address} cannot be reached: {_innermost(exc)}") from exc
        except Exception as exc:  # the remote handler's own error, which arrives as text only
            raise LinkError(f"{op} failed on {self.address}: {exc}") from exc

    async def close(self) -> None:
        with contextlib.suppress(OSError):
            await self._rpc.close_rpc()


def _innermost(exc: BaseException) -> str:
    while exc.__cause__ is not None:
        exc = exc.__cause__
    return str(exc) or type(exc).__name__
