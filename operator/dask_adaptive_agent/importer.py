"""
Sends this package as text, and runs it in a process that has no copy of it, or another version.

The operator renders a text that attaches the package to a live scheduler. That text begins with
this very module, which therefore imports the standard library and `distributed` only, and nothing
of the package before its finder is in place.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator
from importlib import resources
from typing import Any

PACKAGE = "dask_adaptive_agent"

#: What people's code imports. Nothing of the agent does, so it stays as a process has loaded it:
#: `except PinRefused` catches what the class of that name was when it was imported.
FOR_PEOPLE = f"{PACKAGE}.client"


def sources() -> dict[str, str]:
    """The text of each module of this package, by its full name."""
    return dict(sorted(_texts(resources.files(PACKAGE), PACKAGE)))


def render(sources: dict[str, str], scheduler_id: str) -> str:
    """
    A text to execute in the scheduler's process; it raises there when attaching fails.

    Send it through the stock RPC, which works across releases because only a builtin is pickled:
    `run_function(function=pickle.dumps(exec), args=pickle.dumps((text, {})))`. The answer's status
    is "error" when it failed; a scheduler with `distributed.scheduler.pickle` off answers so too.
    `scheduler_id`: as in the answer of the RPC `identity`, key "id".
    """
    body = f"{sources[f'{PACKAGE}.importer']}\n\nattach({sources!r}, {scheduler_id!r})\n"
    # exec() without globals would run in those of distributed.worker.run: bring our own.
    return f"exec({body!r}, {{'__name__': '{PACKAGE}_bootstrap'}})\n"


class SourcesFinder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Finds and loads modules out of a dict of texts; nothing touches a disk."""

    def __init__(self, sources: dict[str, str]) -> None:
        self.sources = sources
        self.borrowers = 0  # see `lend`

    def find_spec(
        self, fullname: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self.sources:
            return None
        if fullname != PACKAGE and not self.has_loaded(PACKAGE):
            return None  # no modules of ours in a real copy of the package, which lacks them
        return importlib.util.spec_from_loader(fullname, self, origin=self._origin(fullname))

    def is_package(self, fullname: str) -> bool:
        return any(name.startswith(f"{fullname}.") for name in self.sources)

    def get_source(self, fullname: str) -> str:
        """So that tracebacks show lines."""
        return self.sources[fullname]

    def exec_module(self, module: Any) -> None:
        name = module.__name__
        exec(compile(self.sources[name], self._origin(name), "exec"), module.__dict__)

    def has_loaded(self, name: str) -> bool:
        return getattr(getattr(sys.modules.get(name), "__spec__", None), "loader", None) is self

    def _origin(self, fullname: str) -> str:
        return f"<dask-adaptive {fullname}>"


def find(scheduler_id: str) -> Any:
    """The scheduler of this process that has the id."""
    from distributed import Scheduler

    for scheduler in list(Scheduler._instances):
        if scheduler.id == scheduler_id:
            return scheduler
    raise LookupError(f"no scheduler {scheduler_id} in this process")


def attach(sources: dict[str, str], scheduler_id: str) -> None:
    """
    Install the agent of `sources` in a scheduler of this process. `Scheduler.run_function` calls
    what is no coroutine on the scheduler's event loop.

    Harmless when that version runs there. Where it fails, the process finds modules as before.
    """
    scheduler = find(scheduler_id)
    space: dict[str, Any] = {}
    exec(sources[PACKAGE], space)
    wanted = space["__version__"]
    if getattr(scheduler.plugins.get("dask-adaptive"), "version", None) == wanted:
        return
    loaded = sys.modules.get(PACKAGE)
    if getattr(loaded, "__version__", None) != wanted:
        _replace(sources)
    importlib.import_module(f"{PACKAGE}.agent").install(scheduler)


def lend(sources: dict[str, str]) -> SourcesFinder:
    """
    Make the package importable where there is none; a copy that is installed comes first.

    Workers that share a process share the finder. Each call is undone by one of `give_back`.
    """
    for finder in sys.meta_path:
        # By name: the class came with another message, and is not this one.
        if type(finder).__name__ == SourcesFinder.__name__:
            lent: Any = finder
            if getattr(lent, "sources", None) == sources:
                break
    else:
        lent = SourcesFinder(sources)
        sys.meta_path.append(lent)
    lent.borrowers += 1
    return lent  # type: ignore[no-any-return]


def give_back(lent: SourcesFinder) -> None:
    """Undo `lend`. What was imported goes on where it is in use."""
    lent.borrowers -= 1
    if lent.borrowers > 0:
        return
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not lent]
    for name in [name for name in sys.modules if _is_ours(name) and lent.has_loaded(name)]:
        del sys.modules[name]


def _replace(sources: dict[str, str]) -> None:
    """Make this process find the package in `sources`, also where it has another copy."""
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_ours(name)}
    finders = list(sys.meta_path)
    # By name: the class of an earlier attachment is not this one.
    sys.meta_path[:] = [f for f in finders if type(f).__name__ != SourcesFinder.__name__]
    sys.meta_path.insert(0, SourcesFinder(sources))
    kept = [name for name in before if name.startswith(f"{FOR_PEOPLE}.")]  # none of 0.1.0's
    sys.modules.update({name: before[name] for name in (kept and [FOR_PEOPLE, *kept])})
    try:
        importlib.import_module(f"{PACKAGE}.agent")
    except BaseException:
        sys.meta_path[:] = finders
        for name in [name for name in sys.modules if _is_ours(name)]:
            del sys.modules[name]
        sys.modules.update(before)
        raise


def _is_ours(name: str) -> bool:
    return name == PACKAGE or name.startswith(f"{PACKAGE}.")


def _texts(folder: Any, name: str) -> Iterator[tuple[str, str]]:
    for item in folder.iterdir():
        if item.is_dir():
            if item.joinpath("__init__.py").is_file():
                yield from _texts(item, f"{name}.{item.name}")
        elif item.name == "__init__.py":
            yield name, item.read_text(encoding="utf-8")
        elif item.name.endswith(".py"):
            yield f"{name}.{item.name[:-3]}", item.read_text(encoding="utf-8")
