"""
Makes `dask_adaptive_agent.pinned` importable in workers, whatever their image holds, and has them
report their own `--lifetime`.

A WorkerPlugin is put into the scheduler as bytes, which each worker gets when it registers. They
need nothing of this package to be read, and nothing they do may fail: a plugin that can't be read
would keep the worker from registering (`Worker.plugin_add` unpickles it unguarded).
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import pickle
import zlib
from typing import TYPE_CHECKING, Any

from distributed.core import Status

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

logger = logging.getLogger(__name__)

NAME = "dask-adaptive"
PACKAGE = "dask_adaptive_agent"
INMEMORY = f"{PACKAGE}.inmemory"
LIFESPAN = f"{PACKAGE}.lifespan"
#: What workers get: what `pinned` and `want` are made of.
LENT = (PACKAGE, *(f"{PACKAGE}.{n}" for n in ("client", "lease", "line", "span", "wire", "wish")))

#: Runs in workers: text, so that only builtins are pickled, which every Python can read.
#: `given` is what `packed` gives.
IN_WORKERS = """
import logging, pickle, zlib
from distributed.diagnostics.plugin import WorkerPlugin

class Lender(WorkerPlugin):
    name = "dask-adaptive"
    lent = None
    lifespan = {}

    def setup(self, worker):
        log = logging.getLogger("dask_adaptive_agent")
        try:
            inmemory, lifespan, sources = pickle.loads(zlib.decompress(given))
        except Exception:
            log.exception("Tasks can't import pinned here")
            return
        try:
            self.space = {"__name__": "dask_adaptive_bootstrap"}
            exec(inmemory, self.space)
            self.lent = self.space["lend"](sources)
        except Exception:
            log.exception("Tasks can't import pinned here")
        try:
            self.lifespan = {"__name__": "dask_adaptive_lifespan"}
            exec(lifespan, self.lifespan)
            self.lifespan["report"](worker)
        except Exception:
            log.exception("The scheduler is not told of this worker's lifetime")

    def teardown(self, worker):
        try:
            if self.lent is not None:
                self.space["give_back"](self.lent)
                self.lent = None
        except Exception:
            logging.getLogger("dask_adaptive_agent").exception("Cannot take pinned away")
        try:
            if "be_silent" in self.lifespan:
                self.lifespan["be_silent"](worker)
        except Exception:
            logging.getLogger("dask_adaptive_agent").exception("Cannot stop reporting a lifetime")

plugin = Lender()
"""

#: Messages to workers that are still on their way, by nobody's wish but that asyncio keeps no task.
_under_way: set[asyncio.Task[None]] = set()


def register(scheduler: Scheduler) -> None:
    """
    Give the plugin to all workers, those to come included. Call it on the scheduler's loop.

    Fails open: without it, tasks can't import `pinned` unless their image holds it.
    """
    try:
        books: Any = scheduler.worker_plugins
        books[NAME] = pickled()
        _tell(scheduler, op="plugin-add", plugin=books[NAME], name=NAME)
    except Exception:
        logger.exception("Tasks can't import pinned")


def unregister(scheduler: Scheduler) -> None:
    """Take the plugin from all workers; never raises. Call it on the scheduler's loop."""
    try:
        books: Any = scheduler.worker_plugins
        if books.pop(NAME, None) is not None:
            _tell(scheduler, op="plugin-remove", name=NAME)
    except Exception:
        logger.exception("Cannot take pinned away from tasks")


def pickled() -> bytes:
    """The plugin: an expression that makes it, of builtins and text only."""
    given = packed({name: text_of(name) for name in LENT})
    return pickle.dumps(Made(IN_WORKERS, given), protocol=4)


def packed(lent: dict[str, str]) -> bytes:
    """The texts of `inmemory` and `lifespan`, and those that are lent, compressed."""
    texts = (text_of(INMEMORY), text_of(LIFESPAN), lent)
    return zlib.compress(pickle.dumps(texts, protocol=4), 9)


class Made:
    """Unpickles as what `text` calls `plugin`; the text may use `given`."""

    def __init__(self, text: str, given: bytes = b"") -> None:
        self._space = {"given": given, "__name__": "dask_adaptive_bootstrap"}
        self._text = text

    def __reduce__(self) -> tuple[Any, ...]:
        expression = "(exec(text, space), space['plugin'])[1]"
        return eval, (expression, {"text": self._text, "space": self._space})


def text_of(module: str) -> str:
    """From disk, out of a zip, or from `inmemory.SourcesFinder`: each of them knows its texts."""
    spec = importlib.util.find_spec(module)
    loader: Any = spec and spec.loader
    text = loader.get_source(module) if loader is not None else None
    if not isinstance(text, str):
        raise LookupError(f"there is no text of {module}")
    return text


def _tell(scheduler: Scheduler, **message: Any) -> None:
    """Tell the workers that are connected now; those to come are told by `add_worker`."""
    workers = list(scheduler.workers)
    if not workers or scheduler.status in (Status.closing, Status.closed, Status.failed):
        return
    before = set(_under_way)
    task = asyncio.ensure_future(_broadcast(scheduler, workers, message, before))
    _under_way.add(task)
    task.add_done_callback(_under_way.discard)


async def _broadcast(
    scheduler: Scheduler,
    workers: list[str],
    message: dict[str, Any],
    before: set[asyncio.Task[None]],
) -> None:
    if before:  # else a removal might overtake what came before, or be overtaken
        await asyncio.wait(before)
    is_registered = NAME in scheduler.worker_plugins
    if is_registered != (message["op"] == "plugin-add"):
        return  # the other message follows; plugin-add replaces what is there
    try:
        still = [address for address in workers if address in scheduler.workers]
        # Scheduler.broadcast: a worker that does not answer is logged, the others are told.
        await scheduler.broadcast(msg=message, workers=still, on_error="ignore")
    except Exception:
        # Fail open: without it, tasks can't import `pinned`, and say so.
        logger.exception("Cannot give workers the plugin %s", NAME)
