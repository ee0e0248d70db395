"""
Gives workers the text of `shared_worker`, and takes it back.

As a WorkerPlugin in bytes, which each worker gets when it registers; of builtins and text only, so
that every Python can read it. Nothing it does may fail: a plugin that can't be read would keep the
worker from registering (`Worker.plugin_add` unpickles it unguarded).
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import zlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

from distributed.core import Status

from dask_adaptive_agent.worker import Made, text_of

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

logger = logging.getLogger(__name__)

NAME = "dask-adaptive-shared"
WORKERS_HALF = "dask_adaptive_agent.relief.shared_worker"

#: Runs in workers; `given` is the compressed text. Two versions in one process don't meet: the
#: module's name says which text it is. It stays for good: it is small, and pickles may name it.
IN_WORKERS = """
import logging, sys, types, zlib
from distributed.diagnostics.plugin import WorkerPlugin

def module_of(text):
    name = "_dask_adaptive_shared_%08x" % zlib.crc32(text.encode())
    if name not in sys.modules:
        module = types.ModuleType(name)
        exec(compile(text, "<%s>" % name, "exec"), module.__dict__)
        sys.modules[name] = module
    return sys.modules[name]

class Shared(WorkerPlugin):
    name = "dask-adaptive-shared"
    token = None

    def setup(self, worker):
        try:
            self.module = module_of(zlib.decompress(given).decode())
            self.token = self.module.begin(worker)
        except Exception:
            log = logging.getLogger("dask_adaptive_agent")
            log.exception("This worker gets its callables with every task")

    def teardown(self, worker):
        try:
            if self.token is not None:
                self.module.end(worker, self.token)
        except Exception:
            log = logging.getLogger("dask_adaptive_agent")
            log.exception("Cannot stop to hold callables")

plugin = Shared()
"""

#: Messages to workers that are still on their way: asyncio keeps no task by itself, and one must
#: not overtake another, also not that of an earlier `Lent`.
_under_way: set[asyncio.Task[None]] = set()


def workers_half() -> ModuleType:
    """The module that pickles name, as workers have it: made here as it is made there."""
    space: dict[str, Any] = {"__name__": "dask_adaptive_bootstrap"}
    exec(IN_WORKERS, space)
    module: ModuleType = space["module_of"](text_of(WORKERS_HALF))
    return module


def pickled() -> bytes:
    """The plugin: an expression that makes it, of builtins and text only."""
    given = zlib.compress(text_of(WORKERS_HALF).encode(), 9)
    return pickle.dumps(Made(IN_WORKERS, given), protocol=4)


class Lent:
    """The plugin in one scheduler's workers."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._pickled = pickled()

    def lend(self) -> None:
        """To all workers, those to come included."""
        books: Any = self._scheduler.worker_plugins
        books[NAME] = self._pickled
        self._tell(op="plugin-add", plugin=self._pickled, name=NAME)

    def take_back(self) -> None:
        """From all workers, unless somebody else has lent it since."""
        books: Any = self._scheduler.worker_plugins
        if books.get(NAME) is self._pickled:
            del books[NAME]
            self._tell(op="plugin-remove", name=NAME)

    def _tell(self, **message: Any) -> None:
        workers = list(self._scheduler.workers)
        over = (Status.closing, Status.closed, Status.failed)
        if workers and self._scheduler.status not in over:
            before = set(_under_way)
            task = asyncio.ensure_future(self._broadcast(workers, message, before))
            _under_way.add(task)
            task.add_done_callback(_under_way.discard)

    async def _broadcast(
        self, workers: list[str], message: dict[str, Any], before: set[asyncio.Task[None]]
    ) -> None:
        scheduler = self._scheduler
        if before:
            await asyncio.wait(before)
        if (NAME in scheduler.worker_plugins) != (message["op"] == "plugin-add"):
            return  # the other message follows; plugin-add replaces what is there
        try:
            still = [address for address in workers if address in scheduler.workers]
            # Scheduler.broadcast: a worker that does not answer is logged, the others are told.
            await scheduler.broadcast(msg=message, workers=still, on_error="ignore")
        except Exception:
            # Fail open: workers that don't say they are ready get stock messages.
            logger.exception("Cannot give workers the plugin %s", NAME)
