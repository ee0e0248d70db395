"""
The plugin that the agent gives to all workers and nannies. It has them hand over at SIGTERM, makes
`dask_adaptive_agent.pinned` importable in workers, whatever their image holds, and has these report
their own `--lifetime`.

A plugin travels by value, as an expression of builtins and text: a worker's image need not hold
this package, and a plugin that can't be read would keep the worker from registering, or its nanny
from starting (`plugin_add` of both unpickles it unguarded).
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import pickle
import zlib
from time import monotonic
from typing import Any

from distributed.core import Status
from distributed.scheduler import Scheduler

from dask_adaptive_agent.guard import logged

logger = logging.getLogger(__name__)

NAME = "dask-adaptive"
PACKAGE = "dask_adaptive_agent"
IMPORTER = f"{PACKAGE}.importer"
LIFETIME = f"{PACKAGE}.worker_side.lifetime"
HANDOVER = f"{PACKAGE}.worker_side.handover"
#: A nanny that registered before the agent came may take so long to start its worker, in seconds.
STARTING_S = 60.0
#: What workers get: what `pinned` and `want` are made of.
LENT = tuple(
    f"{PACKAGE}{name}"
    for name in ("", ".wire", ".client", ".client.client_lease", ".client.pinned")
)

#: Runs in workers and nannies: text, so that only builtins are pickled, which every Python can
#: read. `given` is what `packed` gives.
IN_WORKERS = """
import logging, pickle, zlib
from distributed.diagnostics.plugin import NannyPlugin, WorkerPlugin

def attempt(problem, do, *args):
    try:
        do(*args)
    except Exception:
        logging.getLogger("dask_adaptive_agent").exception(problem)

def run(text, name):
    space = {"__name__": name}
    exec(text, space)
    return space

class Lender(WorkerPlugin, NannyPlugin):
    name = "dask-adaptive"

    def setup(self, worker=None, nanny=None):
        self.undo = []
        attempt("What the agent sent can't be read", self.unpack, worker, nanny)

    def teardown(self, worker=None, nanny=None):
        for undo in self.undo:
            attempt("Failed to remove what the agent installed", undo)
        self.undo = []

    def unpack(self, worker, nanny):
        importer, lifetime, handover, sources = pickle.loads(zlib.decompress(given))
        problem = "SIGTERM ends this process as it would without the agent"
        attempt(problem, self.begin, handover, "dask_adaptive_handover", worker or nanny)
        if worker:
            attempt("Tasks can't import pinned here", self.lend, importer, sources)
            problem = "The scheduler is not told of this worker's lifetime"
            attempt(problem, self.begin, lifetime, "dask_adaptive_lifetime", worker)

    def begin(self, text, name, server):
        undo = run(text, name)["begin"](server)
        self.undo.append(undo or (lambda: None))

    def lend(self, importer, sources):
        space = run(importer, "dask_adaptive_bootstrap")
        lent = space["lend"](sources)
        self.undo.append(lambda: space["give_back"](lent))

plugin = Lender()
"""

#: In-flight broadcasts: asyncio keeps only weak references to tasks, and none must overtake an
#: earlier one.
_in_flight: set[asyncio.Task[None]] = set()


class Lender:
    """
    Gives the plugin to all workers and nannies of a scheduler, those to come included, and takes it
    back. Use it on the scheduler's loop. Never raises.

    Fails open: without it, tasks can't import `pinned` unless their image holds it, and SIGTERM
    ends workers as in stock.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler: Any = scheduler
        self._given = b""
        self._late_until = 0.0  # on a live scheduler

    def give(self) -> None:
        with logged(logger, "Workers get no plugin"):
            self._given = pickled()
            for plugins in self._plugins():  # whoever registers is given what is in these
                plugins[NAME] = self._given
            if self._scheduler.status == Status.running:
                self._late_until = monotonic() + STARTING_S
            self._send("add", list(self._scheduler.workers))

    def joined(self, address: str) -> None:
        """Its nanny may have registered before the agent came."""
        if monotonic() < self._late_until and self._scheduler.workers[address].nanny:
            # The worker has it already, and may be importing from it just now.
            self._send("add", [address], (True,))

    def take(self) -> None:
        """From all of them, unless somebody else has given it since."""
        with logged(logger, "Failed to take the plugin of workers away"):
            held = [one for one in self._plugins() if self._given and one.get(NAME) is self._given]
            for plugins in held:
                del plugins[NAME]
            if held:
                self._send("remove", list(self._scheduler.workers))

    def _plugins(self) -> tuple[dict[str, bytes], ...]:
        return self._scheduler.nanny_plugins, self._scheduler.worker_plugins

    def _send(
        self, what: str, workers: list[str], to_nannies: tuple[bool, ...] = (True, False)
    ) -> None:
        is_closing = self._scheduler.status in (Status.closing, Status.closed, Status.failed)
        if workers and not is_closing:
            task = asyncio.ensure_future(
                self._broadcast(what, workers, to_nannies, set(_in_flight))
            )
            _in_flight.add(task)
            task.add_done_callback(_in_flight.discard)

    async def _broadcast(
        self, what: str, workers: list[str], to_nannies: tuple[bool, ...],
        before: set[asyncio.Task[None]],
    ) -> None:  # fmt: skip
        if before:
            await asyncio.wait(before)
        plugin = self._scheduler.worker_plugins.get(NAME)
        if (plugin is None) == (what == "add"):
            return  # the other message follows; to add replaces what is there
        message = {"name": NAME, **({"plugin": plugin} if what == "add" else {})}
        for is_nanny in to_nannies:
            op = f"plugin_{what}" if is_nanny else f"plugin-{what}"
            known = self._scheduler.workers
            still = [a for a in workers if a in known and (known[a].nanny or not is_nanny)]
            # Fail open: these go on as they do.
            with logged(logger, "Failed to send workers the plugin %s", NAME):
                # Scheduler.broadcast: one that does not answer is logged, the others get it.
                await self._scheduler.broadcast(
                    msg={"op": op, **message}, workers=still, nanny=is_nanny, on_error="ignore"
                )


def pickled() -> bytes:
    """The plugin: an expression that makes it, of builtins and text only."""
    given = packed({name: text_of(name) for name in LENT})
    return pickle.dumps(PluginFromText(IN_WORKERS, given), protocol=4)


def packed(lent: dict[str, str]) -> bytes:
    """The texts of `importer`, `lifetime` and `handover`, and those that are lent, compressed."""
    texts = (text_of(IMPORTER), text_of(LIFETIME), text_of(HANDOVER), lent)
    return zlib.compress(pickle.dumps(texts, protocol=4))


class PluginFromText:
    """Unpickles as what `text` calls `plugin`; the text may use `given`."""

    def __init__(self, text: str, given: bytes = b"") -> None:
        self._space = {"given": given, "__name__": "dask_adaptive_bootstrap"}
        self._text = text

    def __reduce__(self) -> tuple[Any, ...]:
        expression = "(exec(text, space), space['plugin'])[1]"
        return eval, (expression, {"text": self._text, "space": self._space})


def text_of(module: str) -> str:
    """From disk, or from `importer.SourcesFinder`: each of them knows its texts."""
    spec = importlib.util.find_spec(module)
    loader: Any = spec and spec.loader
    text = loader.get_source(module) if loader is not None else None
    if not isinstance(text, str):
        raise LookupError(f"there is no text of {module}")
    return text
