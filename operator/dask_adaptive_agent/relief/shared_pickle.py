"""
One worker's messages: tasks whose callables are put down by number, as plain pickle.

Each is pickled when it enters the worker's stream, not when the stream is written: so what a
message refers to is what the messages before it have brought, whatever happens in between.
"""

from __future__ import annotations

import functools
import io
import pickle
import sys
from types import FunctionType, ModuleType
from typing import Any

from distributed.protocol.serialize import Pickled
from distributed.utils import ensure_memoryview

from dask_adaptive_agent.relief.callables import TASK
from dask_adaptive_agent.relief.light import LEAVES
from dask_adaptive_agent.relief.shared_books import Definition, Held
from dask_adaptive_agent.relief.shared_known import CALLABLES, Known

_ready: Any = Pickled  # upstream's have no types
PROTOCOL = 5
_HEAD = b"\x80\x05"
#: Partials and methods that are kept by identity, and their most bytes.
MOST_SMALL = 256
LARGEST_SMALL = 10_000
_HEAD = b"\x80\x05"
#: References that a callable of a single task has at most: the task's, the memo's, and those of the
#: call that asks. One that has more comes again.
ALONE = 10


class Link:
    """What one worker is sent, as far as it is about callables."""

    def __init__(self, token: int, half: ModuleType, known: Known, held: Held) -> None:
        """
        Args:
            token: Under which the worker holds for us.
            half: The worker's half, as this process has it.
            held: What it holds: nothing yet.
        """
        self.token = token
        self.held = held
        self.known = known
        self.get, self.put = half.get, half.put
        at = token.to_bytes(4, "little")
        #: The beginning of a pickle that calls `task(token, run_spec)`.
        self._task = _HEAD + _global(half.__name__, "task") + pickle.BININT + at
        #: The same of one that keeps `get(token, number)` in the unpickler's memo, as its first.
        self._get = _HEAD + _global(half.__name__, "get") + pickle.BININT + at + pickle.BININT

    def pickled(self, run_spec: Any) -> tuple[Any, int]:
        """
        What stands for a run_spec in a message, and its size.

        Raises whatever pickling raises, and `pickle.PicklingError` for what stock code must do.
        """
        buffers: list[Any] = []
        body = self._directly(run_spec, buffers)
        if body is None:
            buffers.clear()
            body = self._thoroughly(run_spec, buffers)
        frames = [ensure_memoryview(buffer) for buffer in buffers]
        return _ready({"pickled-obj": body}, frames), len(body) + sum([f.nbytes for f in frames])

    def _directly(self, run_spec: Any, buffers: list[Any]) -> bytes | None:
        """
        What the worker has as a whole, with plain arguments: no search for callables is needed.

        The pickler's memo says that the callable, and the class Task, have been written already;
        what has written them are the opcodes in front.
        """
        fn, args, kwargs = _parts(run_spec)
        if kwargs or not LEAVES.issuperset(map(type, args)):
            return None
        known = self.known
        pickled = known.pickled(fn) if type(fn) in CALLABLES else None
        pickler = pickle.Pickler(file := io.BytesIO(), PROTOCOL, buffer_callback=buffers.append)
        head = b""
        if pickled is not None:
            number = known.library.find(pickled)
            if number is None or not self.held.use(number):
                return None
            head = self._get + number.to_bytes(4, "little") + _KEPT
            pickler.memo = {id(fn): (0, fn), **_WRITTEN}
        pickler.dump(run_spec)
        body = file.getvalue()
        if b"__main__" in body:
            return None
        known.library.uses += bool(head)
        return head + body

    def _thoroughly(self, run_spec: Any, buffers: list[Any]) -> bytes:
        """With callables at any depth, whether the worker has them or not."""
        file = io.BytesIO()
        pickler = _Pickler(file, PROTOCOL, buffer_callback=buffers.append)
        pickler.link = self
        definitions: list[Definition] = []
        pickler.definitions = definitions
        pickler.n_uses = 0
        try:
            pickler.dump(run_spec)
        except BaseException:
            self.held.take_back(definitions)
            raise
        body = file.getvalue()
        uses = pickler.n_uses
        self.known.library.uses += uses
        self.known.library.definitions += len(definitions)
        if uses > 1 or (uses and type(_parts(run_spec)[0]) not in CALLABLES):
            body = self._task + body[2:-1] + pickle.TUPLE2 + pickle.REDUCE + pickle.STOP
        return body


def _parts(run_spec: Any) -> Any:
    """What is called, with what."""
    if type(run_spec) is tuple:  # before distributed 2024.11.0
        return run_spec
    if TASK is None or not isinstance(run_spec, TASK):
        return None, (run_spec,), {}
    return run_spec.func, run_spec.args, run_spec.kwargs


def _global(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()  # GLOBAL


class _Pickler(pickle.Pickler):
    """Callables by number, the rest as it is; makes no copy of a callable's bytes."""

    link: Link
    definitions: list[Definition]
    n_uses: int

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind in CALLABLES:
            n_references = sys.getrefcount(obj)  # before others keep it
            pickled = self.link.known.pickled(obj)
            if pickled is not None:
                return self._reference(pickled, comes_again=n_references > ALONE)
        if (kind is type or kind is FunctionType or issubclass(kind, type)) and (
            obj.__module__ == "__main__"
        ):
            # By name it would be found in the worker's own __main__, or not at all. Stock code
            # looks for the name in the result, where it may be a callable's own business.
            raise pickle.PicklingError("of __main__")
        return NotImplemented

    def _reference(self, pickled: bytes, *, comes_again: bool) -> tuple[Any, ...]:
        link = self.link
        number = link.known.library.number(pickled, comes_again=comes_again)
        if number is None:
            return pickle.loads, (pickled,)
        if link.held.use(number):
            self.n_uses += 1
            return link.get, (link.token, number)
        definition = link.held.define(number, len(pickled))
        if definition is None:
            return pickle.loads, (pickled,)
        self.definitions.append(definition)
        self.n_uses += 1
        data = pickle.PickleBuffer(pickled)
        return link.put, (link.token, number, data, definition.outdated)


class _Counting(pickle.Pickler):
    n_references = 0

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is functools.partial:
            n_references = sys.getrefcount(obj)
            self.n_references = n_references
        return NotImplemented


def _alone() -> int:
    """
    References to a callable that is in one task only, when `_Pickler` counts them.

    A graph's callable is one object that all its tasks refer to. How many references the count
    itself takes depends on the interpreter.
    """
    pickler = _Counting(io.BytesIO(), PROTOCOL)
    pickler.dump((functools.partial(int),))
    return pickler.n_references


ALONE = _alone()

_KEEP = pickle.MEMOIZE + pickle.POP
_KEPT = pickle.TUPLE2 + pickle.REDUCE + _KEEP
_WRITTEN: dict[int, tuple[int, Any]] = {}
if TASK is not None:
    _WRITTEN[id(TASK)] = 1, TASK
    _KEPT += _global(TASK.__module__, TASK.__qualname__) + _KEEP


def dropping(half: str, token: int) -> dict[str, Any]:
    """
    A message by which a worker drops what it holds, in the order of its stream.

    To upstream it is that the worker may free no key at all (`FreeKeysEvent`); what the worker does
    on reading which keys that are is ours. A worker that lacks our half has nothing to drop.
    """
    text = f"(lambda half: half.drop({token}) if half else ())(modules.get({half!r}))"
    keys = pickle.dumps(_Evaluated(text), PROTOCOL)
    return {
        "op": "free-keys",
        "keys": _ready({"pickled-obj": keys}, []),
        "stimulus_id": "dask-adaptive-shared",
    }


class _Evaluated:
    """Unpickles as the value of a text, in which `modules` is what its reader has imported."""

    def __init__(self, text: str) -> None:
        self._text = f"(lambda modules: {text})(__import__('sys').modules)"

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, (self._text,)
