"""
Kept pickles that cross to each worker once: `pickling: Shared`.

A task is pickled when it enters its worker's stream, so the order of messages decides what the
worker has. It comes within a call of `task` (`IN_WORKERS`), with digests of the pickles that it
needs, and with those that the worker lacks, which holds what they load to from then on. Should a
worker lack one all the same, it gets a task instead that goes back to the scheduler, which then
sends everything again. So it does if a name in what a worker holds means something else by now: a
module may have been reloaded there (`Client.upload_file`). Workers need nothing of this package.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import pickle
import sys
import uuid
import zlib
from collections import Counter
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
from distributed.core import Status
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.protocol import core
from distributed.protocol.serialize import Pickled, ToPickle
from distributed.utils import ensure_memoryview

from dask_adaptive_agent import patching, wire
from dask_adaptive_agent.guard import logged
from dask_adaptive_agent.patching import Patch
from dask_adaptive_agent.relief.pickle_cache import PROTOCOL, KeptPickle
from dask_adaptive_agent.relief.pickling import (
    PICKLES,
    TASK,
    PicklingRelief,
    TaskPickles,
    callable_of,
    is_task,
    prove,
    whole,
)
from dask_adaptive_agent.relief.registry import Mismatch, Reliefs

logger = logging.getLogger(__name__)

#: The most that one worker holds, as pickled, and the part of its memory that this may be; it
#: forgets all of it then.
MOST_HELD_BYTES = 64 * 2**20
PART_OF_MEMORY = 0.05
#: Tasks that a worker may send back; after that, each task brings everything.
MOST_LACKS = 3
#: The code that workers run: it comes with the first task. `held` is by scheduler and worker.
IN_WORKERS = """
import pickle, sys
from distributed import Reschedule

held = {}

def load(line, digest):
    return held[line][digest][0]

def found(module, name):
    one = sys.modules.get(module)
    for part in name.split(".") if name else ():
        one = getattr(one, part, None)
    return one

def is_current(names):
    return all(found(*name) is one for name, one in names)

def again(*args, **kwargs):
    raise Reschedule("this worker lacks what the task calls")

def task(line, key, forget, needs, brings, data, buffers):
    mine = held.setdefault(line, {})
    if forget:
        mine.clear()
    for digest, pickled, names in brings:
        mine[digest] = pickle.loads(pickled), [(name, found(*name)) for name in names]
    if all(digest in mine and is_current(mine[digest][1]) for digest in needs):
        return pickle.loads(data, buffers=buffers)
    held.pop(line)  # what is sent anew is sent whole
    if key is None:
        return again, (), {}
    from dask._task_spec import Task
    return Task(key, again)

def drop(prefix):
    for line in [line for line in held if line.startswith(prefix)]:
        del held[line]
"""
NAME = f"_dask_adaptive_shared_{zlib.crc32(IN_WORKERS.encode()):08x}"
#: Two versions in one process don't meet: the module's name says which text it is.
_MAKE = f"""
import sys, types
if {NAME!r} not in sys.modules:
    module = types.ModuleType({NAME!r})
    exec({IN_WORKERS!r}, vars(module))
    sys.modules[{NAME!r}] = module
"""
_FIRST = f"(exec(make, {{}}), __import__({NAME!r}).task(*args))[1]"

#: The name of the relief as a plugin.
PLUGIN = "dask-adaptive-shared"

_numbers = itertools.count()
_dropping: set[asyncio.Task[None]] = set()  # asyncio keeps no task by itself


def workers_half() -> Any:
    """The module that pickles name, as workers have it."""
    exec(_MAKE, {})
    return sys.modules[NAME]


class WorkerLine:
    """The pickles that one worker holds, once it has read its stream up to here."""

    def __init__(self, name: str, pickles: TaskPickles, most_bytes: int = MOST_HELD_BYTES) -> None:
        self.name = name
        self.counts: Counter[str] = Counter()
        self._pickles = pickles
        self._most_bytes = most_bytes
        self._half = workers_half()
        self._held: dict[bytes, int] = {}  # sizes by digest
        self._is_new = self._must_forget = True

    def pickled(self, task: Any) -> tuple[Any, int]:
        """
        The substitute of a task in a message, and its size.

        Raises whatever pickling raises: nothing has changed then.
        """
        frames: list[Any] = []
        needs: dict[bytes, KeptPickle] = {}
        data, is_one_pass = self._pickles.pickled(task, frames, partial(self._put_in, needs))
        if is_one_pass and needs:
            call = self._call(task, needs, data, frames)
            frames = []
            data = pickle.dumps(call, PROTOCOL, buffer_callback=frames.append)
            # It is what goes into the stream.
            self.counts["uses"] += len(needs)
            self.counts["definitions"] += len(needs.keys() - self._held.keys())
            self._held.update((digest, len(kept.data)) for digest, kept in needs.items())
            self._is_new = self._must_forget = False
        views = [ensure_memoryview(frame) for frame in frames]
        sent: Any = Pickled  # upstream's have no types
        return sent({"pickled-obj": data}, views), len(data) + sum(v.nbytes for v in views)

    def lacks(self) -> bool:
        """A task has come back: everything is sent again. False: not for this worker."""
        self.counts["lacks"] += bool(self._held)
        self._held.clear()
        self._must_forget = True
        return self.counts["lacks"] <= MOST_LACKS

    def _put_in(self, needs: dict[bytes, KeptPickle], kept: KeptPickle) -> tuple[Any, ...]:
        # Of a class there is one in a process, and each pickle sets its attributes anew.
        # Of two that are equal in one task, the other one stays another object.
        if kept.has_classes or needs.setdefault(kept.digest, kept) is not kept:
            return whole(kept)
        return self._half.load, (self.name, kept.digest)

    def _call(self, task: Any, needs: dict[bytes, KeptPickle], data: bytes, buffers: Any) -> _Call:
        if sum(self._held.values()) > self._most_bytes:
            self._held.clear()
            self._must_forget = True
        lacks = [(digest, kept) for digest, kept in needs.items() if digest not in self._held]
        brings = [(digest, kept.data, kept.by_name) for digest, kept in lacks]
        key = None if TASK is None else task.key
        args = (self.name, key, self._must_forget, list(needs), brings, data, buffers)
        if self._is_new:
            return _Call(eval, (_FIRST, {"make": _MAKE, "args": args}))
        return _Call(self._half.task, args)


class _Call:
    """Unpickles as what a function returns."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._reduced = function, args

    def __reduce__(self) -> Any:
        return self._reduced


class SharedPicklingRelief(PicklingRelief, SchedulerPlugin):
    """
    Callables are pickled once, and cross to each worker once. Nothing raises into the scheduler.

    It is a plugin because workers come and go.
    """

    def __init__(self, reliefs: Reliefs, choice: str = wire.SHARED) -> None:
        super().__init__(reliefs, choice)
        self._prefix = f"{uuid.uuid4().hex}-"
        self._lines: dict[str, tuple[WorkerLine, Patch]] = {}  # by the worker's address
        self._gone: Counter[str] = Counter()  # counts of those that have gone

    def install(self) -> None:
        super().install()
        self._prove()
        self.patches.listen(patching.RESCHEDULE, self._returned)
        self.scheduler.add_plugin(self, name=PLUGIN)
        for worker in list(self.scheduler.workers):
            self._begin(worker)

    def uninstall(self) -> None:
        """Stop. Tasks on their way that lack something come back, and are sent as ever."""
        super().uninstall()
        if self.scheduler.plugins.get(PLUGIN) is self:
            self.scheduler.remove_plugin(name=PLUGIN)
        workers = [worker for worker in self._lines if worker in self.scheduler.workers]
        for worker in list(self._lines):
            self._end(worker)
        if workers and self.scheduler.status is Status.running:
            dropping = asyncio.ensure_future(self._drop(workers))
            _dropping.add(dropping)
            dropping.add_done_callback(_dropping.discard)

    def counts(self) -> dict[str, int]:
        counts = sum((line.counts for line, _ in self._lines.values()), self._gone)
        known = {f"shared_{name}": counts[name] for name in ("uses", "definitions", "lacks")}
        return {**super().counts(), "shared_workers": len(self._lines), **known}

    def add_worker(self, scheduler: Any, worker: str) -> None:
        # Fail open: it is sent everything with each task.
        with logged(logger, "Failed to share callables with worker %s", worker):
            self._begin(worker)

    def remove_worker(self, scheduler: Any, worker: str, **kwargs: Any) -> None:
        self._end(worker)

    def _prove(self) -> None:
        """Prove that a task arrives as it was, or comes back. Raises `Mismatch`."""
        protocol: Any = core
        line, half = WorkerLine(f"{self._prefix}check", TaskPickles()), workers_half()
        try:
            task = prove(lambda task: line.pickled(task)[0])
            half.drop(self._prefix)  # so that it is lacking
            frames = protocol.dumps([{"run_spec": line.pickled(task)[0]}])
            came = callable_of(protocol.loads(frames)[0]["run_spec"])
        finally:
            half.drop(self._prefix)
        if came is not half.again or line.counts["uses"] <= line.counts["definitions"]:
            raise Mismatch("callables do not cross once")

    def _begin(self, worker: str) -> None:
        self._end(worker)
        if worker.startswith("inproc://"):
            return  # nothing is pickled on the way to it
        memory_limit = self.scheduler.workers[worker].memory_limit or sys.maxsize
        most_bytes = min(int(memory_limit * PART_OF_MEMORY), MOST_HELD_BYTES)
        line = WorkerLine(f"{self._prefix}{next(_numbers)}-", PICKLES, most_bytes)
        # The order of messages is decided there, whoever sends.
        stream = self.scheduler.stream_comms[worker]
        patch = self.patches.put(patching.STREAM_SEND, partial(self._sending, line), stream)
        self._lines[worker] = line, patch

    def _end(self, worker: str) -> None:
        if worker not in self._lines:
            return
        line, patch = self._lines.pop(worker)
        patch.remove()
        workers_half().drop(line.name)  # where the worker is in this process
        self._gone += line.counts

    def _sending(self, line: WorkerLine, stock: Callable[..., Any]) -> Callable[..., Any]:
        def send(*messages: Any) -> Any:
            for message in messages:
                if message.get("op") == "compute-task":
                    self._replace(line, message)
            return stock(*messages)

        return send

    def _replace(self, line: WorkerLine, message: dict[str, Any]) -> None:
        spec = message.get("run_spec")
        # An actor is made once, and holds what it was made of.
        if type(spec) is not ToPickle or not is_task(spec.data) or message.get("actor"):
            return
        if cloudpickle.list_registry_pickle_by_value():
            return
        started = perf_counter()
        try:
            message["run_spec"], nbytes = line.pickled(spec.data)
        except Exception:
            return  # stock code knows what to do, or how to fail
        self.meter.add(callable_of(spec.data), perf_counter() - started, nbytes)

    def _returned(self, message: dict[str, Any]) -> None:
        """A task has come back; it may have raised `Reschedule` itself."""
        worker = message.get("worker", "")
        if worker in self._lines and not self._lines[worker][0].lacks():
            logger.warning("Worker %s sends tasks back: it gets callables with each task", worker)
            self._end(worker)

    async def _drop(self, workers: list[str]) -> None:
        text = f"(lambda half: half and half.drop({self._prefix!r}))(sys.modules.get({NAME!r}))"
        function = partial(eval, text.replace("sys", "__import__('sys')"))
        message = {"op": "run", "function": pickle.dumps(function, PROTOCOL)}
        # Fail open: they hold it until they end.
        with logged(logger, "Failed to have workers drop callables"):
            await self.scheduler.broadcast(msg=message, workers=workers, on_error="ignore")
