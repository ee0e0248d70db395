"""Tasks as a scheduler holds and sends them, without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cloudpickle
from distributed.protocol import core
from distributed.protocol.serialize import ToPickle

from dask_adaptive_agent import patching
from dask_adaptive_agent.patching import Patches
from dask_adaptive_agent.relief.pickling import PICKLES, TASK


def spec(function: Any, *args: Any, **kwargs: Any) -> Any:
    """A task in this release's shape, as `update_graph` leaves it in `ts.run_spec`."""
    return (function, args, kwargs) if TASK is None else TASK("key-1", function, *args, **kwargs)


def run(spec: Any) -> Any:
    """Call it, as a worker does."""
    return spec[0](*spec[1], **spec[2]) if TASK is None else spec({})


def frames(spec: Any) -> list[Any]:
    """What a scheduler writes of it."""
    return core.dumps([{"run_spec": ToPickle(spec)}])


def received(spec: Any) -> Any:
    """The task as a worker gets it."""
    data = [bytearray(frame) for frame in frames(spec)]
    return core.loads(data)[0]["run_spec"]


def sent(spec: Any, times: int = 3) -> list[Any]:
    """It, run at the other end, each time it is sent: new, come again, and known."""
    return [run(received(spec)) for _ in range(times)]


def as_on_scheduler(one: Any) -> Any:
    """A copy, as a scheduler in another process gets from a client's `__main__`."""
    return cloudpickle.loads(cloudpickle.dumps(one))


def in_main(source: str) -> dict[str, Any]:
    """What a script defines, of which a scheduler's `__main__` knows nothing."""
    names: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    exec(source, names)
    return names


class Told:
    """What a meter is told."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, float, int]] = []

    def add(self, function: Any, seconds: float, nbytes: int) -> None:
        self.rows.append((function, seconds, nbytes))


@contextmanager
def hooked() -> Iterator[Told]:
    """With the relief's place taken in this process."""
    told = Told()
    patches = Patches(None)  # type: ignore[arg-type]
    patches.put(patching.PICKLE_DUMPS, PICKLES.over)
    PICKLES.add(told)  # type: ignore[arg-type]
    try:
        yield told
    finally:
        patches.close()
        PICKLES.remove(told)  # type: ignore[arg-type]
