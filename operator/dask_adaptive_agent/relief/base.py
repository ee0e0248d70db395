"""
What every relief is: something that a scheduler does more cheaply than upstream, for a while.

A relief replaces a known piece of upstream's code. It looks first whether that is what it expects,
proves itself once on a real answer, and can be taken out again at any moment, with the scheduler as
if it had never been there. It never raises into the scheduler: where it fails, the stock code
answers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from dask_adaptive_agent import wire
from dask_adaptive_agent.patching import Mismatch as Mismatch
from dask_adaptive_agent.patching import Patches

if TYPE_CHECKING:
    from distributed.scheduler import Scheduler


@dataclass(frozen=True)
class Place:
    """Where a relief is at work, and whom it may speak to."""

    scheduler: Scheduler
    clock: Callable[[], float]
    #: Tells people something, once: a kind of `wire.NOTES`, and a sentence.
    tell: Callable[[str, str], None]
    #: Says that it can't go on, and why: it is taken out, and the stock code serves.
    give_up: Callable[[str], None]
    #: Called with the key of each task that has got to `waiting`; must not raise.
    waiting: list[Callable[[Any], None]] = field(default_factory=list)


class Relief:
    """
    One load taken off one scheduler.

    All methods run on the scheduler's event loop. `install` is called once, on an idle or on a busy
    scheduler; `uninstall` may be called at any time after, also after an `install` that raised half
    way, and must then leave nothing behind.
    """

    #: As in `wire.RELIEFS`.
    name: ClassVar[str]

    def __init__(self, place: Place, choice: str = wire.AUTO) -> None:
        """
        Args:
            choice: One of `wire.RELIEFS[name]`, never `wire.DISABLED`.
        """
        self.place = place
        self.choice = choice
        #: What it has changed of upstream's code; `uninstall` puts it back.
        self.patches = Patches(place.scheduler)

    @classmethod
    def needless(cls) -> str:
        """Why there is nothing to do on this release of distributed; empty: there is."""
        return ""

    def install(self) -> None:
        """Take the load off. Raises `Mismatch` when upstream is not as expected."""
        raise NotImplementedError

    def check(self) -> None:
        """Prove once, right after `install`, that answers are as before. Raises `Mismatch`."""

    def uninstall(self) -> None:
        """Put everything back, unless somebody else has replaced ours since: pass on then."""
        self.patches.close()

    def counts(self) -> dict[str, int]:
        """What it has done so far, by snake_case names: calls, hits, bytes. Cheap."""
        return {}
