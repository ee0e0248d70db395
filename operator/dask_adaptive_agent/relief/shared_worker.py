"""
Callables that workers of this process hold for their schedulers, who decide what is held.

The text of this very module is sent to workers (see `shared_plugin`), so it imports what a worker
has anyway, and nothing of the package. A scheduler runs the same text: pickles name its functions.
"""

from __future__ import annotations

import itertools
import pickle
import sys
import weakref
from typing import Any

from distributed import Reschedule

#: Of the events by which a worker speaks to its scheduler (`Worker.log_event`): schedulers that
#: know nothing of us keep them like any event, where an unknown message would end the connection.
TOPIC = "dask-adaptive-shared"
READY, GONE, LACKS = "ready", "gone", "lacks"

_tokens = itertools.count(1)
_holds: dict[int, _Hold] = {}


class _Hold:
    """What one worker holds for the scheduler at which it is registered."""

    def __init__(self, worker: Any) -> None:
        self.callables: dict[int, Any] = {}
        self.is_lacking = False
        self.asked: set[int] = set()
        self._worker = weakref.ref(worker)

    def say(self, what: str, **more: Any) -> None:
        worker = self._worker()
        if worker is not None:
            worker.log_event(TOPIC, {"what": what, **more})


def begin(worker: Any) -> int:
    """Hold for a worker, and tell its scheduler that it can count on it. On the worker's loop."""
    token = next(_tokens)
    hold = _holds[token] = _Hold(worker)
    weakref.finalize(worker, _holds.pop, token, None)
    python = list(sys.version_info[:2])
    hold.say(READY, id=worker.id, token=token, module=__name__, python=python)
    return token


def end(worker: Any, token: int) -> None:
    """
    Tell the scheduler that it must not count on it any more. On the worker's loop.

    What is held stays until the scheduler answers (`drop`), in the order of its messages: tasks may
    be on their way that need it.
    """
    hold = _holds.get(token)
    if hold is None:
        return
    if worker.status.name in ("closing", "closed", "failed"):
        del _holds[token]
    else:
        hold.say(GONE, token=token)


def drop(token: int) -> tuple[()]:
    """The scheduler will not speak of these again."""
    _holds.pop(token, None)
    return ()


def put(token: int, number: int, pickled: Any, outdated: tuple[int, ...] = ()) -> Any:
    """
    Hold a callable from now on, under a number, and give others up.

    What can't be unpickled raises, as the task itself would: the connection ends, as upstream's
    does.
    """
    found = pickle.loads(pickled)
    hold = _holds.get(token)
    if hold is not None:
        for one in outdated:
            hold.callables.pop(one, None)
        hold.callables[number] = found
        hold.asked.discard(number)
    return found


def get(token: int, number: int) -> Any:
    """What is held under a number; a stand-in if nothing is, after asking for it."""
    hold = _holds.get(token)
    if hold is None:
        return _Lacking()
    try:
        return hold.callables[number]
    except KeyError:
        hold.is_lacking = True
        if number not in hold.asked:
            hold.asked.add(number)
            hold.say(LACKS, token=token)
        return _Lacking()


def task(token: int, run_spec: Any) -> Any:
    """A task that refers to callables deep inside; one that goes back if any of them is lacking."""
    hold = _holds.get(token)
    if hold is not None:
        if not hold.is_lacking:
            return run_spec
        hold.is_lacking = False
    if isinstance(run_spec, tuple):  # before distributed 2024.11.0
        return _Lacking(), (), {}
    return type(run_spec)(run_spec.key, _Lacking())


class _Lacking:
    """
    Stands in for a callable that is not here: its task goes back to the scheduler.

    The scheduler has heard by then that it is lacking (one stream, in order), and sends it along.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise Reschedule("this worker lacks the callable")
