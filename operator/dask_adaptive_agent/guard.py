"""
Keeps errors, ours and those of other people's values, out of schedulers and answers.

RPC handlers never raise, and speak one protocol. A value that cannot be reported costs an answer
only the part that it belongs to.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from logging import Logger
from typing import Any, TypeVar

import msgpack  # type: ignore[import-untyped]

from dask_adaptive_agent import __version__, wire
from dask_adaptive_agent.protocol.requests import Malformed, Refused, Request

logger = logging.getLogger(__name__)

#: The highest number in an answer: every reader takes it exactly, as a float too.
MOST = 2**53

T = TypeVar("T")
Row = TypeVar("Row")


@contextmanager
def logged(logger: Logger, message: str, *args: Any) -> Iterator[None]:
    """
    An error ends this block, and reaches no scheduler; `message` and `args` are as for
    `Logger.error`.
    """
    try:
        yield
    except Exception:
        logger.exception(message, *args)


def guarded(handler: Callable[[Request], Any], *, any_protocol: bool = False) -> Callable[..., Any]:
    """
    The handler with the keyword arguments of its request, answering whatever goes wrong, and
    `wire.Message` where it returns None; with `any_protocol` also those who speak another one.
    """

    def answer(**request: Any) -> Any:
        protocol = request.get("protocol", wire.PROTOCOL)
        if protocol != wire.PROTOCOL and not any_protocol:
            spoken = (
                f"this agent ({__version__}) speaks protocol {wire.PROTOCOL}, not {protocol!r:.80}"
            )
            return error(wire.E_PROTOCOL, spoken)
        try:
            result = handler(Request(request))
            if result is None:
                return {"protocol": wire.PROTOCOL}
            return _later(result) if inspect.iscoroutine(result) else sendable(result)
        except Exception as problem:
            return _answer_to(problem)

    return answer


async def _later(result: Coroutine[Any, Any, Any]) -> Any:
    """A scheduler that closes cancels its handlers: that is not an error."""
    try:
        return sendable(await result)
    except Exception as problem:
        return _answer_to(problem)


def _answer_to(problem: Exception) -> Any:
    if isinstance(problem, Malformed):
        return sendable(error(wire.E_INVALID, str(problem)))
    if isinstance(problem, Refused):
        return sendable(error(wire.E_REFUSED, str(problem)))
    logger.error("Failed to answer", exc_info=problem)
    return error(wire.E_INTERNAL, ascii(problem))


def error(code: str, message: str) -> wire.ErrorAnswer:
    return {"error": code, "message": message, "protocol": wire.PROTOCOL}


def sendable(answer: Any) -> Any:
    """
    The answer, or a copy without numbers and text that msgpack cannot encode. Clients in the
    scheduler's own process send names and keys that were never encoded before.
    """
    try:
        msgpack.packb(answer, use_bin_type=True)
    except (ValueError, TypeError, OverflowError):
        return _replaced(answer)
    return answer


def _replaced(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_replaced(key): _replaced(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replaced(one) for one in value]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, (int, float)):
        return value if abs(value) <= MOST else 0
    return str(value).encode("utf-8", "backslashreplace").decode("utf-8")


class Guard:
    """
    Builds answers part by part. What cannot be reported is left out, and logged once a part.

    Metrics, names and sizes are made by other people's code, so each part is guarded, and not only
    those that are known to fail.
    """

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def section(self, name: str, build: Callable[[], T], empty: T) -> T:
        """Returns what `build` returns, or `empty` where it fails."""
        try:
            return build()
        except Exception as problem:
            self._failed(name, problem)
            return empty

    def rows(self, name: str, items: Iterable[Row], row: Callable[[Row], T]) -> list[T]:
        """A row for each item; items whose row fails have none."""
        made = [self.section(name, partial(row, item), None) for item in items]
        return [one for one in made if one is not None]

    def column(self, name: str, items: Sequence[Row], number: Callable[[Row], Any]) -> list[int]:
        """A whole number from 0 to `MOST` for each item; 0 where there is none."""
        try:
            numbers = list(map(number, items))
            if {*map(type, numbers)} != {int}:
                numbers = list(map(int, numbers))
            if not numbers or (min(numbers) >= 0 and max(numbers) <= MOST):
                return numbers
            raise ValueError(f"from {min(numbers)} to {max(numbers)}")
        except Exception as problem:
            self._failed(name, problem)
        return [self.section(name, partial(lambda one: whole(number(one)), i), 0) for i in items]

    def _failed(self, name: str, problem: Exception) -> None:
        # Logged once: answers are given every few seconds.
        if name not in self._logged:
            self._logged.add(name)
            logger.warning("Answers are incomplete: %s", name, exc_info=problem)


def whole(value: Any) -> int:
    """The nearest whole number from 0 to `MOST`; raises for anything else, NaN included."""
    return max(0, min(MOST, int(value)))


def amount(value: Any) -> float:
    """A number that readers can compute with; raises for any other, NaN included."""
    number = float(value)
    if not abs(number) <= MOST:
        raise ValueError(f"{number} is not a valid amount")
    return number
