"""
What brings the text of `shared_worker` to workers, by an `Errand`.

As a WorkerPlugin in bytes, which each worker gets when it registers; of builtins and text only, so
that every Python can read it. Nothing it does may fail: a plugin that can't be read would keep the
worker from registering (`Worker.plugin_add` unpickles it unguarded).
"""

from __future__ import annotations

import pickle
import zlib
from types import ModuleType
from typing import Any

from dask_adaptive_agent.worker import Made, text_of

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
