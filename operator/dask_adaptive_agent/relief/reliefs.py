"""All reliefs of one scheduler: applied, taken out, and reported."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from dask_adaptive_agent import wire
from dask_adaptive_agent.relief.base import Mismatch, Place, Relief
from dask_adaptive_agent.relief.choices import choice_of

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler

logger = logging.getLogger(__name__)


#: All reliefs, by name, in the order in which they are applied.
KINDS = {
    "prefixes": "dask_adaptive_agent.relief.prefixes:Prefixes",
    "idle": "dask_adaptive_agent.relief.idle:Idle",
    "pickling": "dask_adaptive_agent.relief.pickling:Pickling",
    "host": "dask_adaptive_agent.relief.host:Host",
    "identity": "dask_adaptive_agent.relief.identity:Identity",
    "clientInfo": "dask_adaptive_agent.relief.client_info:ClientInfo",
}


class _State(NamedTuple):
    state: str  # one of wire.R_*
    message: str


class Reliefs:
    """
    Applies what people want of each relief. Nothing here raises.

    One that has failed stays out until people disable it and enable it again, or choose another
    way: what failed once fails again, and each try costs the scheduler time.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        clock: Callable[[], float],
        tell: Callable[[str, str], None],
        kinds: Mapping[str, str] = KINDS,
    ) -> None:
        self._scheduler, self._clock, self._tell = scheduler, clock, tell
        #: Called with the key of each task that has got to `waiting`.
        self.waiting: list[Callable[[Any], None]] = []
        self._kinds = kinds
        self._states: dict[str, _State] = {}
        self._choices: dict[str, str] = {}
        self._active: dict[str, Relief] = {}

    def configure(self, choices: Mapping[str, str]) -> None:
        """Bring every relief to what is wanted; who is not named is wanted as a rule."""
        for name in self._kinds:
            choice = choice_of(name, choices)
            if self._choices.get(name) != choice:
                self._choices[name] = choice
                self._take_out(name)
                self._states[name] = self._apply(name, choice)

    def close(self) -> None:
        """Take all out, the last one first."""
        for name in reversed(list(self._active)):
            self._take_out(name)
        self._choices.clear()
        self._states.clear()

    def in_force(self) -> dict[str, bool]:
        """What they have changed of upstream's code; see `Patches.in_force`."""
        out: dict[str, bool] = {}
        for relief in self._active.values():
            out.update(relief.patches.in_force())
        return out

    def get(self, name: str) -> Relief | None:
        """The relief of that name, if it is active."""
        return self._active.get(name)

    def rows(self) -> list[wire.ReliefRow]:
        return [
            {"name": name, "state": at.state, "message": at.message, "counts": self._counts(name)}
            for name, at in self._states.items()
        ]

    def _apply(self, name: str, choice: str) -> _State:
        if choice == wire.DISABLED:
            return _State(wire.R_DISABLED, f"spec.scheduler.relief.{name} says so")
        try:
            # Imported here: what it imports may be gone from a newer release, and only it with it.
            module, _, attribute = self._kinds[name].partition(":")
            kind: type[Relief] = getattr(import_module(module), attribute)
            why = kind.needless()
            if why:
                return _State(wire.R_NOT_NEEDED, why)
            give_up = partial(self._failed, name)
            place = Place(self._scheduler, self._clock, self._tell, give_up, self.waiting)
            relief = kind(place, choice)
        except Exception as error:
            logger.exception("Relief %s can't be made", name)
            return self._told(name, f"it can't be made: {error!r:.200}")
        self._active[name] = relief
        try:
            relief.install()
            relief.check()
        except Mismatch as error:
            self._take_out(name)
            return self._told(name, str(error))
        except Exception as error:
            logger.exception("Relief %s can't be applied", name)
            self._take_out(name)
            return self._told(name, f"it can't be applied: {error!r:.200}")
        return _State(wire.R_ACTIVE, "" if choice == wire.AUTO else choice)

    def _failed(self, name: str, message: str) -> None:
        """A relief gives up at work."""
        if name in self._active:
            self._take_out(name)
            self._states[name] = self._told(name, message)

    def _told(self, name: str, message: str) -> _State:
        logger.warning("Relief %s is off, stock code serves: %s", name, message)
        self._tell(wire.N_RELIEF_FAILED, f"{name} is off, stock code serves: {message}")
        return _State(wire.R_FAILED, message)

    def _take_out(self, name: str) -> None:
        relief = self._active.pop(name, None)
        if relief is None:
            return
        try:
            relief.uninstall()
        except Exception:
            logger.exception("Cannot take relief %s out", name)

    def _counts(self, name: str) -> dict[str, int]:
        relief = self._active.get(name)
        try:
            return {} if relief is None else relief.counts()
        except Exception:
            logger.exception("Cannot count what relief %s has done", name)
            return {}
