"""
Plugins that the agent gives to all workers. The first makes `dask_adaptive_agent.pinned` importable
in them, whatever their image holds, and has them report their own `--lifetime`.

A plugin travels by value, as an expression of builtins and text: a worker's image need not hold
this package, and a plugin that can't be read would keep the worker from registering
(`Worker.plugin_add` unpickles it unguarded).
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import pickle
import zlib
from typing import TYPE_CHECKING, Any

from distributed.core import Status

from dask_adaptive_agent.failing import logged

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

logger = logging.getLogger(__name__)

NAME = "dask-adaptive"
PACKAGE = "dask_adaptive_agent"
IMPORTER = f"{PACKAGE}.loading.importer"
LIFETIME = f"{PACKAGE}.worker_side.lifetime"
#: What workers get: what `pinned` and `want` are made of.
LENT = tuple(
    f"{PACKAGE}{name}"
    for name in ("", ".wire", ".client", ".client.client_lease", ".client.pinned")
)

#: Runs in workers: text, so that only builtins are pickled, which every Python can read.
#: `given` is what `packed` gives.
IN_WORKERS = """
import logging, pickle, zlib
from distributed.diagnostics.plugin import WorkerPlugin

def attempt(problem, do, *args):
    try:
        do(*args)
    except Exception:
        logging.getLogger("dask_adaptive_agent").exception(problem)

def run(text, name):
    space = {"__name__": name}
    exec(text, space)
    return space

class Lender(WorkerPlugin):
    name = "dask-adaptive"

    def setup(self, worker):
        self.undo = []
        attempt("What the agent sent this worker can't be read", self.unpack, worker)

    def teardown(self, worker):
        for undo in self.undo:
            attempt("Failed to take away what the agent gave this worker", undo)
        self.undo = []

    def unpack(self, worker):
        importer, lifetime, sources = pickle.loads(zlib.decompress(given))
        attempt("Tasks can't import pinned here", self.lend, importer, sources)
        problem = "The scheduler is not told of this worker's lifetime"
        attempt(problem, self.report, lifetime, worker)

    def lend(self, importer, sources):
        space = run(importer, "dask_adaptive_bootstrap")
        lent = space["lend"](sources)
        self.undo.append(lambda: space["give_back"](lent))

    def report(self, lifetime, worker):
        space = run(lifetime, "dask_adaptive_lifetime")
        self.undo.append(lambda: space["be_silent"](worker))
        space["report"](worker)

plugin = Lender()
"""

#: In-flight broadcasts: asyncio keeps only weak references to tasks, and none must overtake an
#: earlier one.
_in_flight: set[asyncio.Task[None]] = set()


class Lender:
    """
    Gives the plugin to all workers of a scheduler, those to come included, and takes it back. Use
    it on the scheduler's loop. Never raises.

    Fails open: without it, tasks can't import `pinned` unless their image holds it.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler: Any = scheduler
        self._pickled = b""

    def give(self) -> None:
        with logged(logger, "Tasks can't import pinned"):
            self._pickled = pickled()
            # `Scheduler.add_worker` gives workers that join what is in `worker_plugins`.
            self._scheduler.worker_plugins[NAME] = self._pickled
            self._send(op="plugin-add", plugin=self._pickled, name=NAME)

    def take(self) -> None:
        """From all workers, unless somebody else has given it since."""
        with logged(logger, "Failed to take pinned away from tasks"):
            plugins = self._scheduler.worker_plugins
            if self._pickled and plugins.get(NAME) is self._pickled:
                del plugins[NAME]
                self._send(op="plugin-remove", name=NAME)

    def _send(self, **message: Any) -> None:
        workers = list(self._scheduler.workers)
        is_closing = self._scheduler.status in (Status.closing, Status.closed, Status.failed)
        if workers and not is_closing:
            task = asyncio.ensure_future(self._broadcast(workers, message, set(_in_flight)))
            _in_flight.add(task)
            task.add_done_callback(_in_flight.discard)

    async def _broadcast(
        self, workers: list[str], message: dict[str, Any], before: set[asyncio.Task[None]]
    ) -> None:
        if before:
            await asyncio.wait(before)
        is_wanted = NAME in self._scheduler.worker_plugins
        if is_wanted != (message["op"] == "plugin-add"):
            return  # the other message follows; plugin-add replaces what is there
        # Fail open: these workers go on as they do.
        with logged(logger, "Failed to send workers the plugin %s", NAME):
            still = [address for address in workers if address in self._scheduler.workers]
            # Scheduler.broadcast: a worker that does not answer is logged, the others get it.
            await self._scheduler.broadcast(msg=message, workers=still, on_error="ignore")


def pickled() -> bytes:
    """The plugin: an expression that makes it, of builtins and text only."""
    given = packed({name: text_of(name) for name in LENT})
    return pickle.dumps(PluginFromText(IN_WORKERS, given), protocol=4)


def packed(lent: dict[str, str]) -> bytes:
    """The texts of `importer` and `lifetime`, and those that are lent, compressed."""
    texts = (text_of(IMPORTER), text_of(LIFETIME), lent)
    return zlib.compress(pickle.dumps(texts, protocol=4), 9)


class PluginFromText:
    """Unpickles as what `text` calls `plugin`; the text may use `given`."""

    def __init__(self, text: str, given: bytes = b"") -> None:
        self._space = {"given": given, "__name__": "dask_adaptive_bootstrap"}
        self._text = text

    def __reduce__(self) -> tuple[Any, ...]:
        expression = "(exec(text, space), space['plugin'])[1]"
        return eval, (expression, {"text": self._text, "space": self._space})


def text_of(module: str) -> str:
    """From disk, out of a zip, or from `importer.SourcesFinder`: each of them knows its texts."""
    spec = importlib.util.find_spec(module)
    loader: Any = spec and spec.loader
    text = loader.get_source(module) if loader is not None else None
    if not isinstance(text, str):
        raise LookupError(f"there is no text of {module}")
    return text
