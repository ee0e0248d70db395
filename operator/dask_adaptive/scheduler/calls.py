"""RPC to one scheduler with a deadline on every call."""

from __future__ import annotations

import asyncio
import contextlib
from contextvars import ContextVar
from typing import Any

from distributed.core import rpc
from distributed.protocol import core
from distributed.security import Security

from dask_adaptive.loop.ports import LinkError, Tls, TlsFailed

#: Set while one of our calls is under way. `distributed.protocol.core.loads` unpickles `ToPickle`
#: whatever `deserialize` is, because a scheduler has to; whoever calls from here must not.
_refuses_pickles: ContextVar[bool] = ContextVar("refuses_pickles", default=False)
_core: Any = core
_pickle = _core.pickle


class _Pickle:
    """`distributed.protocol.pickle` as it is, but for whom it opens pickles."""

    def loads(self, data: Any, **buffers: Any) -> Any:
        if _refuses_pickles.get():
            raise ValueError("its answer contains a pickle, which is not opened")
        return _pickle.loads(data, **buffers)

    def __getattr__(self, name: str) -> Any:
        return getattr(_pickle, name)


_core.pickle = _Pickle()


class SchedulerCalls:
    """
    One scheduler's RPC port.

    A scheduler runs other people's code and must not be able to run it here, so no pickle is
    opened: what was serialized arrives closed (`deserialize=False`), and an answer with a pickled
    part is an error. Plain msgpack values arrive as usual, with tuples for lists.

    Args:
        address: As Dask writes it, e.g. `tcp://10.0.0.7:8786`.
        tls: What a scheduler with a `tls://` or `wss://` address is shown.
        timeout_s: For each call, connecting included.

    Raises:
        TlsFailed: `tls` can't be used.
    """

    def __init__(self, address: str, *, tls: Tls | None = None, timeout_s: float = 5.0) -> None:
        self.address, self._timeout_s = address, timeout_s
        arguments = _security(tls) if tls else {}
        make_rpc: Any = rpc
        self._rpc: Any = make_rpc(
            address, deserialize=False, timeout=timeout_s, connection_args=arguments
        )

    async def call(self, op: str, *, longer_s: float = 0.0, **arguments: Any) -> Any:
        """
        Call one handler; None is what a scheduler answers that has no such handler.

        Args:
            longer_s: The handler itself takes up to so much more time.

        Raises:
            LinkError: No answer in time, connection refused, or the handler raised.
        """
        timeout_s = self._timeout_s + longer_s
        refused = _refuses_pickles.set(True)
        try:
            async with asyncio.timeout(timeout_s):
                return await getattr(self._rpc, op)(**arguments)
        except TimeoutError as exc:
            limit = f"{timeout_s:g} s"
            raise LinkError(f"{self.address} did not answer {op} within {limit}") from exc
        except OSError as exc:  # CommClosedError is one
            raise _unreached(self.address, exc) from exc
        except Exception as exc:  # the remote handler's own error, which arrives as text only
            raise LinkError(f"{op} failed on {self.address}: {exc}") from exc
        finally:
            _refuses_pickles.reset(refused)

    async def close(self) -> None:
        with contextlib.suppress(OSError):
            await self._rpc.close_rpc()


def _security(tls: Tls) -> dict[str, Any]:
    make: Any = Security
    try:
        security = make(
            tls_ca_file=tls.ca, tls_client_cert=tls.certificate, tls_client_key=tls.key,
            require_encryption=True,
        )  # fmt: skip
        return dict(security.get_connection_args("client"))
    except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError
        raise TlsFailed(
            f"the Secret's certificate can't be used ({exc}): tls.key must be the key of tls.crt,"
            " without a password, and ca.crt hold certificates"
        ) from exc


#: What OpenSSL says, by either side, and what to do. A scheduler's refusal of our certificate comes
#: as an alert after the handshake (TLS 1.3).
_TLS_ERRORS = (
    ("WRONG_VERSION_NUMBER", "it speaks no TLS: let it, or set spec.scheduler.protocol to tcp"),
    ("CERTIFICATE_VERIFY_FAILED", "its certificate is no good: {}; renew it, or mend ca.crt"),
    ("ALERT", "it refuses the Secret's certificate: {}; its authority must have signed that"),
)


def _unreached(address: str, exc: BaseException) -> LinkError:
    """What kept a scheduler from being reached, and what to do where that is known."""
    causes = [exc]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    said = " ".join(map(str, causes))
    if "SSL" in said:
        for sign, words in _TLS_ERRORS:
            if sign in said:
                detail = said[said.index(sign) :].split("(_ssl")[0].replace("_", " ").strip(" :")
                return TlsFailed(f"{address}: {words.format(detail[:120].lower())}")
    innermost = str(causes[-1]) or type(causes[-1]).__name__
    hint = ""
    if isinstance(causes[-1], ConnectionResetError) and address.startswith("tcp://"):
        hint = "; if it takes TLS only, set spec.scheduler.tls.secretName"
    return LinkError(f"{address} cannot be reached: {innermost}{hint}")
