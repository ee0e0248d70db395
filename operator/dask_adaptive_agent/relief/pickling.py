"""What a scheduler pickles for each task, pickled once: relief `pickling`."""

from __future__ import annotations

from typing import ClassVar

from distributed import worker as distributed_worker

from dask_adaptive_agent import wire
from dask_adaptive_agent.relief import pickling_check
from dask_adaptive_agent.relief.base import Place, Relief
from dask_adaptive_agent.relief.pickle_hook import HOOK
from dask_adaptive_agent.relief.serialization import SerializationMeter
from dask_adaptive_agent.relief.sharing import Sharing

#: What nobody has asked for so long is dropped after as long again at most.
AGE_S = 60.0


class Pickling(Relief):
    """
    Callables are pickled once, not for each task, from 2023.8.1 on.

    `Shared`: their bytes cross to each worker once as well.
    """

    name: ClassVar[str] = "pickling"

    def __init__(self, place: Place, choice: str = wire.AUTO) -> None:
        super().__init__(place, choice)
        is_shared = choice == wire.SHARED
        #: What serializing costs, by function; whoever observes asks it.
        self.meter = SerializationMeter(place.clock, place.tell, is_shared=is_shared)
        self._unheard = SerializationMeter(place.clock, lambda *_: None)  # of what is tried only
        self._sharing = Sharing(place, HOOK.memo, self.meter) if is_shared else None
        self._timer: object | None = None

    @classmethod
    def needless(cls) -> str:
        # Before 2023.8.1 the scheduler calls `dumps_task` when a graph arrives, which keeps
        # the bytes of the last 100 functions (`dumps_function`), and sends bytes.
        if hasattr(distributed_worker, "dumps_task"):
            return "this release pickles functions once by itself, when a graph arrives"
        return ""

    def install(self) -> None:
        HOOK.add(self._unheard)
        self._age()
        if self._sharing is not None:
            self._sharing.install()

    def check(self) -> None:
        pickling_check.check()
        if self._sharing is not None:
            self._sharing.check()
        HOOK.add(self.meter)
        HOOK.remove(self._unheard)

    def uninstall(self) -> None:
        if self._timer is not None:
            self.place.scheduler.loop.remove_timeout(self._timer)
            self._timer = None
        try:
            if self._sharing is not None:
                self._sharing.uninstall()
        finally:
            HOOK.remove(self._unheard)
            HOOK.remove(self.meter)

    def counts(self) -> dict[str, int]:
        """Of the process: schedulers in it share what they keep."""
        shared = {} if self._sharing is None else self._sharing.counts()
        return {**HOOK.counts(), **shared}

    def _age(self) -> None:
        HOOK.memo.age()
        self._timer = self.place.scheduler.loop.call_later(AGE_S, self._age)
