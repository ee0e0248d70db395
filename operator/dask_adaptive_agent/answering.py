"""RPC handlers as the scheduler calls them: they never raise, and they speak one protocol."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from dask_adaptive_agent import __version__, wire
from dask_adaptive_agent.settings import Invalid, Refused, Request

logger = logging.getLogger(__name__)


def guarded(handler: Callable[[Request], Any], *, any_protocol: bool = False) -> Callable[..., Any]:
    """
    The handler with the keyword arguments of its request, answering whatever goes wrong.

    Args:
        handler: Of one message.
        any_protocol: Whether it answers to those who speak another protocol, too.
    """

    def answer(**request: Any) -> Any:
        protocol = request.get("protocol", wire.PROTOCOL)
        if protocol != wire.PROTOCOL and not any_protocol:
            spoken = f"this agent ({__version__}) speaks protocol {wire.PROTOCOL}, not {protocol}"
            return error(wire.E_PROTOCOL, spoken)
        try:
            return handler(request)
        except Invalid as invalid:
            return error(wire.E_INVALID, str(invalid))
        except Refused as refused:
            return error(wire.E_REFUSED, str(refused))
        except Exception as unexpected:
            logger.exception("Cannot answer")
            return error(wire.E_INTERNAL, repr(unexpected))

    return answer


def error(code: str, message: str) -> wire.ErrorAnswer:
    return {"error": code, "message": message, "protocol": wire.PROTOCOL}
