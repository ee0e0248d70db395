"""
Sends this package as text, and runs it in a process that has no copy of it, or another version.

The operator sends it packed, in a text that attaches it to a live scheduler, or in a file that a
scheduler preloads. This very module is executed first there: it imports the standard library and
`distributed` only, and nothing of the package before its finder is in place.
"""

from __future__ import annotations

import base64
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any

PACKAGE = "dask_adaptive_agent"

#: What people's code imports. Nothing of the agent does, so it stays as a process has loaded it:
#: `except PinRefused` catches what the class of that name was when it was imported.
FOR_PEOPLE = f"{PACKAGE}.client"


def sources() -> dict[str, str]:
    """The text of each module of this package, by its full name."""
    top = Path(__file__).parent
    texts = {}
    for file in sorted(top.rglob("*.py")):
        name = ".".join(file.relative_to(top.parent).with_suffix("").parts)
        texts[name.removesuffix(".__init__")] = file.read_text(encoding="utf-8")
    return texts


@lru_cache(maxsize=1)
def packed() -> bytes:
    """`sources` as they are sent. Each Python that has tornado has zlib."""
    return zlib.compress(json.dumps(sources()).encode())


#: Brings this very module into a process that has `given`, which is `packed()`.
UNPACK = f"""\
import json, zlib
sources = json.loads(zlib.decompress(given))
importer = {{"__name__": "{PACKAGE}_bootstrap"}}
exec(sources["{PACKAGE}.importer"], importer)
"""


def render(packed: bytes, scheduler_id: str) -> str:
    """
    A text to execute in the scheduler's process; it raises there when attaching fails.

    Send it through the stock RPC, which works across releases because only a builtin is pickled:
    `run_function(function=pickle.dumps(exec), args=pickle.dumps((text, {})))`; without the dict,
    exec() would run in the globals of distributed.worker.run. The answer's status is "error" when
    it failed; a scheduler with `distributed.scheduler.pickle` off answers so too.
    `scheduler_id`: as in the answer of the RPC `identity`, key "id".
    """
    given = f"import base64\ngiven = base64.b64decode({base64.b64encode(packed)!r})\n"
    return f"{given}{UNPACK}importer['attach'](sources, {scheduler_id!r})\n"


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
    lent = next((one for one in _finders() if one.sources == sources), None)
    if lent is None:
        lent = SourcesFinder(sources)
        sys.meta_path.append(lent)
    lent.borrowers += 1
    return lent


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
    others = [one for one in finders if one not in _finders()]
    sys.meta_path[:] = [SourcesFinder(sources), *others]
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


def _finders() -> list[Any]:
    """Those of ours. By name: the class of an earlier message is not this one."""
    return [one for one in sys.meta_path if type(one).__name__ == SourcesFinder.__name__]


def _is_ours(name: str) -> bool:
    return name == PACKAGE or name.startswith(f"{PACKAGE}.")
