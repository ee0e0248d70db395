"""
Runs this package from text, in a process that has no copy of it, or another version.

The text of this very module is sent first (see `bootstrap`), so it imports the standard library and
`distributed` only, and nothing of the package before its finder is in place.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from typing import Any

PACKAGE = "dask_adaptive_agent"

#: What people's code imports. Nothing of the agent does, so it stays as a process has loaded it:
#: `except PinRefused` catches what the class of that name was when it was imported.
FOR_PEOPLE = tuple(f"{PACKAGE}.{name}" for name in ("client", "lease", "line", "span", "wish"))


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
    Install the agent of `sources` in a scheduler of this process.

    Harmless when that version runs there. Where it fails, the process finds modules as before.
    """
    wanted = version_of(sources)
    running = find(scheduler_id).plugins.get("dask-adaptive")
    if getattr(running, "version", None) == wanted:
        return
    loaded = sys.modules.get(PACKAGE)
    if getattr(loaded, "__version__", None) != wanted:
        _replace(sources)
    importlib.import_module(f"{PACKAGE}.attach").install_from_exec(scheduler_id)


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


def version_of(sources: dict[str, str]) -> str:
    namespace: dict[str, Any] = {}
    exec(sources[PACKAGE], namespace)
    return str(namespace["__version__"])


def _replace(sources: dict[str, str]) -> None:
    """Make this process find the package in `sources`, also where it has another copy."""
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if _is_ours(name)}
    finders = list(sys.meta_path)
    # By name: the class of an earlier attachment is not this one.
    sys.meta_path[:] = [f for f in finders if type(f).__name__ != SourcesFinder.__name__]
    sys.meta_path.insert(0, SourcesFinder(sources))
    sys.modules.update({name: before[name] for name in FOR_PEOPLE if name in before})
    try:
        importlib.import_module(f"{PACKAGE}.attach")
    except BaseException:
        sys.meta_path[:] = finders
        for name in [name for name in sys.modules if _is_ours(name)]:
            del sys.modules[name]
        sys.modules.update(before)
        raise


def _is_ours(name: str) -> bool:
    return name == PACKAGE or name.startswith(f"{PACKAGE}.")
