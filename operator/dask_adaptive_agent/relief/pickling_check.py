"""Samples that must come through a scheduler's messages as they went in."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

from distributed.protocol import core
from distributed.protocol.serialize import ToPickle

from dask_adaptive_agent.relief.base import Mismatch
from dask_adaptive_agent.relief.callables import TASK
from dask_adaptive_agent.relief.pickle_hook import HOOK


def check() -> None:
    """Raises `Mismatch` if a sample's value is another one at the other end."""
    before = HOOK.light.hits
    for function, args in _samples():
        expected = function(*args)
        spec = (function, args, {}) if TASK is None else TASK("sample", function, *args)
        for _ in range(3):  # as it is pickled at first, when it comes again, and from then on
            frames = core.dumps([{"run_spec": ToPickle(spec)}])
            got = core.loads(frames)[0]["run_spec"]  # type: ignore[no-untyped-call]
            value = got[0](*got[1], **got[2]) if TASK is None else got({})
            if value != expected:
                raise Mismatch(f"a sample gives {value!r:.80} instead of {expected!r:.80}")
    HOOK.memo.clear()
    if HOOK.light.hits == before:
        raise Mismatch("distributed does not pickle tasks where it was expected to")


def _samples() -> list[tuple[Callable[..., Any], tuple[Any, ...]]]:
    factor, both = 3, [1]

    def scaled(x: int) -> int:
        return x * factor

    def is_same(one: object, other: object) -> bool:
        return one is other

    return [
        (operator.add, (1, 2)),
        (lambda x: x + 1, (1,)),
        (scaled, (2,)),
        (functools.partial(scaled, 5), ()),
        (functools.partial(max, *range(2000)), (7,)),
        (functools.partial(is_same, both), (both,)),
        (both.count, (1,)),
    ]
