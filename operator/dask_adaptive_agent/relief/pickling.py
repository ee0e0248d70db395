"""
What a scheduler pickles for each task, pickled once: relief `pickling`.

Tasks are told from all else that `distributed.protocol.pickle.dumps` is called for. The schedulers
of a process share what is here, and so do those without an agent: what comes out means the same to
whoever reads it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any, ClassVar

import cloudpickle  # type: ignore[import-untyped]
from distributed import worker as distributed_worker
from distributed.protocol import core
from distributed.protocol.serialize import ToPickle

from dask_adaptive_agent import patching, wire
from dask_adaptive_agent.relief.base import Mismatch, Place, Relief
from dask_adaptive_agent.relief.kept import PROTOCOL
from dask_adaptive_agent.relief.one_pass import TASK, Tasks, callable_of, is_task
from dask_adaptive_agent.relief.serialization import SerializationMeter
from dask_adaptive_agent.relief.sharing import Sharing

#: What was not asked for so long is dropped after as long again at most.
AGE_S = 60.0

Dumps = Callable[..., bytes]


class Hook:
    """Over `distributed.protocol.pickle.dumps`; at work while it has meters to tell."""

    def __init__(self) -> None:
        self.tasks = Tasks()
        self._meters: tuple[SerializationMeter, ...] = ()

    def add(self, meter: SerializationMeter) -> None:
        self._meters += (meter,)

    def remove(self, meter: SerializationMeter) -> None:
        """Harmless if it was not added."""
        self._meters = tuple(one for one in self._meters if one is not meter)
        if not self._meters:
            self.tasks.cache.clear()

    def over(self, stock: Dumps) -> Dumps:
        def dumps(x: Any, *, buffer_callback: Any = None, protocol: int | None = PROTOCOL) -> bytes:
            if (
                buffer_callback is not None
                and is_task(x)
                and self._meters
                and protocol == PROTOCOL
                # Modules that were registered to go by value concern what has a name as well.
                and not cloudpickle.list_registry_pickle_by_value()
            ):
                return self._task(x, buffer_callback, stock)
            return stock(x, buffer_callback=buffer_callback, protocol=protocol)

        return dumps

    def _task(self, task: Any, take: Callable[[Any], object], stock: Dumps) -> bytes:
        started = perf_counter()
        buffers: list[Any] = []
        try:
            data = self.tasks.pickled(task, buffers)
        except Exception:
            self.tasks.n_left += 1
            buffers.clear()
            data = stock(task, buffer_callback=buffers.append)
        spent, size = perf_counter() - started, len(data)
        for buffer in buffers:
            take(buffer)
            size += buffer.raw().nbytes
        for meter in self._meters:
            meter.add(callable_of(task), spent, size)
        return data


HOOK = Hook()


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
        self._sharing = Sharing(place, self.patches, HOOK.tasks, self.meter) if is_shared else None
        self._timer: object | None = None

    @classmethod
    def needless(cls) -> str:
        # Before 2023.8.1 the scheduler calls `dumps_task` when a graph arrives, which keeps
        # the bytes of the last 100 functions (`dumps_function`), and sends bytes.
        if hasattr(distributed_worker, "dumps_task"):
            return "this release pickles functions once by itself, when a graph arrives"
        return ""

    def install(self) -> None:
        self.patches.put(patching.PICKLE_DUMPS, HOOK.over)
        HOOK.add(self._unheard)
        self._age()
        if self._sharing is not None:
            self._sharing.install()

    def check(self) -> None:
        _compare()
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
            self.patches.close()
            HOOK.remove(self._unheard)
            HOOK.remove(self.meter)

    def counts(self) -> dict[str, int]:
        """Of the process: schedulers in it share what they keep."""
        shared = {} if self._sharing is None else self._sharing.counts()
        return {**HOOK.tasks.counts(), **shared}

    def _age(self) -> None:
        HOOK.tasks.cache.age()
        self.meter.fold()  # nobody may observe, and what waits there lives on
        self._timer = self.place.scheduler.loop.call_later(AGE_S, self._age)


def samples() -> list[Any]:
    """Tasks that must come through a scheduler's messages as they went in."""
    factor, both = 3, [1]

    def scaled(x: int) -> int:
        return x * factor

    def is_same(one: object, other: object) -> bool:
        return one is other

    calls: list[tuple[Callable[..., Any], Any]] = [
        (operator.add, (1, 2)),
        (lambda x: x + 1, (1,)),
        (scaled, (2,)),
        (partial(scaled, 5), ()),
        (partial(max, *range(2000)), (7,)),
        (partial(is_same, both), (both,)),
        (both.count, (1,)),
    ]
    return [(f, args, {}) if TASK is None else TASK("sample", f, *args) for f, args in calls]


def value_of(task: Any) -> Any:
    """What it gives when it is run, as a worker does."""
    return task[0](*task[1], **task[2]) if TASK is None else task({})


def _compare() -> None:
    """Raises `Mismatch` if a sample's value is another one at the other end."""
    protocol: Any = core
    before = HOOK.tasks.cache.n_used
    for task in samples():
        expected = value_of(task)
        for _ in range(3):  # as it is pickled at first, when it comes again, and from then on
            frames = protocol.dumps([{"run_spec": ToPickle(task)}])
            value = value_of(protocol.loads(frames)[0]["run_spec"])
            if value != expected:
                raise Mismatch(f"a sample gives {value!r:.80} instead of {expected!r:.80}")
    if HOOK.tasks.cache.n_used == before:
        raise Mismatch("distributed does not pickle tasks where it was expected to")
