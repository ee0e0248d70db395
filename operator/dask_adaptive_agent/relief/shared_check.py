"""Whether shared callables may be tried with the distributed that is installed."""

from __future__ import annotations

import functools
import inspect
from types import ModuleType
from typing import Any

from distributed.batched import BatchedSend
from distributed.protocol import core
from distributed.worker_state_machine import FreeKeysEvent

from dask_adaptive_agent.relief.base import Mismatch
from dask_adaptive_agent.relief.memo import Memo
from dask_adaptive_agent.relief.shared_books import Held
from dask_adaptive_agent.relief.shared_known import Known
from dask_adaptive_agent.relief.shared_pickle import ALONE, Link, dropping

try:
    from dask._task_spec import Task

    task: Any = Task
except ImportError:
    task = None


def upstream(scheduler: Any) -> None:
    """Raises `Mismatch` when something is not where it is looked for."""
    handler = scheduler.stream_handlers.get("log-event")
    if not callable(handler):
        raise Mismatch("workers have no way to say that they hold callables")
    if "msgs" not in inspect.signature(BatchedSend.send).parameters:
        raise Mismatch("messages to workers are not sent as they used to be")
    if "keys" not in getattr(FreeKeysEvent, "__annotations__", {}):
        raise Mismatch("workers can't be told to drop what they hold")


def round_trip(half: ModuleType, memo: Memo) -> None:
    """Send tasks to nobody and read them as a worker does. Raises `Mismatch`."""
    worker = _Nobody()
    token = half.begin(worker)
    try:
        link = Link(token, half, Known(memo), Held())
        secret = object.__hash__(worker)  # a closure, which only crosses by value
        plain = functools.partial(lambda a, b: (a, b, secret), [1])
        often = [plain] * (2 * ALONE)
        direct, again = _crossed(link, plain, "x"), _crossed(link, plain, "x")
        deep = _crossed(link, sorted, [often[0]])
        if _function(direct)("y") != plain("y") or _function(direct) is not _function(again):
            raise Mismatch("a task does not arrive as it was sent")
        if _function(deep) is not sorted or _argument(deep)[0] is not _function(direct):
            raise Mismatch("a task does not arrive as it was sent, if it has callables deep inside")
        if link.known.library.definitions != 1:
            raise Mismatch("callables do not cross once")
    finally:
        (drop,) = _read([dropping(half.__name__, token)])
    if drop["keys"] != () or token in half._holds:
        raise Mismatch("a worker does not drop what it holds")


class _Nobody:
    """Stands for a worker in which nothing runs."""

    id = "nobody"

    def log_event(self, topic: str, message: Any) -> None:
        """Nobody hears it."""


def _crossed(link: Link, function: Any, argument: Any) -> Any:
    # As before distributed 2024.11.0, and since.
    spec: Any = (function, (argument,), {}) if task is None else task("key", function, argument)
    (message,) = _read([{"run_spec": link.pickled(spec)[0]}])
    return message["run_spec"]


def _read(messages: list[dict[str, Any]]) -> Any:
    protocol: Any = core
    return protocol.loads(protocol.dumps(messages))


def _function(run_spec: Any) -> Any:
    return run_spec[0] if type(run_spec) is tuple else run_spec.func


def _argument(run_spec: Any) -> Any:
    return (run_spec[1] if type(run_spec) is tuple else run_spec.args)[0]
