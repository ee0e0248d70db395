"""
The reliefs of one scheduler: what a relief is, and what applies, removes and reports them.

A relief replaces a known piece of upstream's code with something cheaper. It first checks that
upstream's code is what it expects, proves itself once on a real answer, and can be removed at any
moment with nothing left behind. It never raises into the scheduler: where it fails, stock code
answers.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from importlib import import_module
from typing import ClassVar

import distributed

from dask_adaptive_agent import patching, wire
from dask_adaptive_agent.component import Component, Context
from dask_adaptive_agent.guard import logged
from dask_adaptive_agent.patching import Mismatch as Mismatch
from dask_adaptive_agent.patching import Patches

logger = logging.getLogger(__name__)

#: Set in a scheduler's pod, so that what is disabled never begins: `pickling=Shared,host=Disabled`.
VARIABLE = "DASK_ADAPTIVE_RELIEF"

#: All reliefs by name, in the order in which they are applied. A module is imported only when its
#: relief is applied: what it imports may be gone from a newer release, and only it with it. Modules
#: that are named for a release go when no older one is supported.
KINDS = {
    "prefixes": "dask_adaptive_agent.relief.before_2025_4:PrefixesRelief",
    "pickling": "dask_adaptive_agent.relief.pickling:PicklingRelief",
    "host": "dask_adaptive_agent.relief.before_2025_4:HostRelief",
    "identity": "dask_adaptive_agent.relief.before_2026_7:IdentityRelief",
    "clientInfo": "dask_adaptive_agent.relief.before_2026_7:ClientInfoRelief",
}
#: Those that another choice than `Auto` is made by.
OF_CHOICE = {wire.SHARED: "dask_adaptive_agent.relief.sharing:SharedPicklingRelief"}

#: The releases of distributed that have each relief's load.
RELEASES = {
    name: next(t.releases for t in patching.TARGETS if t.way_out == patching.relief(name))
    for name in KINDS
}


_VERSION: str = distributed.__version__  # type: ignore[attr-defined]


def is_needed(name: str) -> bool:
    """Tells whether this release of distributed has the load."""
    return _VERSION in RELEASES[name]


def at_start(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The choices in the environment. Anything odd in it is logged and left out."""
    choices = {}
    for word in filter(None, (w.strip() for w in environ.get(VARIABLE, "").split(","))):
        name, _, choice = word.partition("=")
        if choice in wire.RELIEFS.get(name, ()):
            choices[name] = choice
        else:
            logger.warning("%s: %.80r is not known here, and ignored", VARIABLE, word)
    return choices


class Relief(Component):
    """
    One load taken off one scheduler.

    All methods run on the scheduler's event loop. `install` is called once, on an idle or a busy
    scheduler; `uninstall` may be called at any time after, also after an `install` that raised half
    way, and must then leave nothing behind.
    """

    #: As in `wire.RELIEFS`.
    name: ClassVar[str]

    def __init__(self, reliefs: Reliefs, choice: str = wire.AUTO) -> None:
        """`choice`: one of `wire.RELIEFS[name]`, never `wire.DISABLED`."""
        super().__init__(reliefs.context)
        self.reliefs = reliefs
        #: Its changes of upstream's code; `uninstall` puts them back.
        self.patches = Patches(self.scheduler)
        self._counts: dict[str, int] = {}

    def install(self) -> None:
        """
        Take the load off, and prove that answers are as before.

        Raises `Mismatch` where upstream's code, or an answer of ours, is not as expected.
        """
        raise NotImplementedError

    def uninstall(self) -> None:
        """Put everything back, unless somebody else has replaced ours since: pass on then."""
        self.patches.close()

    def counts(self) -> dict[str, int]:
        """Counts of its work so far, by snake_case names: calls, hits, bytes. Cheap."""
        return dict(self._counts)


#: One of `wire.R_*`, and a sentence.
State = tuple[str, str]


class Reliefs(Component):
    """
    Applies what people want of each relief. Nothing here raises.

    One that has failed stays out until people disable it and enable it again, or choose another
    way: what failed once fails again, and each try costs the scheduler time.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._states: dict[str, State] = {}
        self._choices: dict[str, str] = {}
        self._active: dict[str, Relief] = {}

    def configure(self, choices: Mapping[str, str]) -> None:
        """Apply the choices. A relief that is not named, or a choice unknown here, is `Auto`."""
        for name in KINDS:
            choice = choices.get(name, wire.AUTO)
            choice = choice if choice in wire.RELIEFS[name] else wire.AUTO
            if self._choices.get(name) != choice:
                self._choices[name] = choice
                self._remove(name)
                self._states[name] = self._apply(name, choice)

    def close(self) -> None:
        """Remove all, the last one first."""
        for name in reversed(list(self._active)):
            self._remove(name)
        self._choices.clear()
        self._states.clear()

    def get(self, name: str) -> Relief | None:
        """The relief of that name, if it is active."""
        return self._active.get(name)

    def rows(self) -> list[wire.ReliefRow]:
        active = self._active
        return [
            {
                "name": name,
                "state": state,
                "message": message,
                "counts": active[name].counts() if name in active else {},
            }
            for name, (state, message) in self._states.items()
        ]

    def _apply(self, name: str, choice: str) -> State:
        if choice == wire.DISABLED:
            return wire.R_DISABLED, f"spec.scheduler.relief.{name} says so"
        if not is_needed(name):
            why = f"distributed {RELEASES[name]} has this load; this is {_VERSION}"
            return wire.R_NOT_NEEDED, why
        if why := self.context.problem_of(name, self._install, name, choice):
            self._remove(name)
            self.context.stock_serves(name, why)
            return wire.R_FAILED, why
        return wire.R_ACTIVE, "" if choice == wire.AUTO else choice

    def _install(self, name: str, choice: str) -> None:
        module, _, attribute = OF_CHOICE.get(choice, KINDS[name]).partition(":")
        kind: type[Relief] = getattr(import_module(module), attribute)
        self._active[name] = kind(self, choice)
        self._active[name].install()

    def give_up(self, name: str, message: str) -> None:
        """Remove a relief that reports an error; stock code runs from then on."""
        if name in self._active:
            self._remove(name)
            self.context.stock_serves(name, message)
            self._states[name] = wire.R_FAILED, message

    def _remove(self, name: str) -> None:
        relief = self._active.pop(name, None)
        if relief is not None:
            with logged(logger, "Failed to remove relief %s", name):
                relief.uninstall()
