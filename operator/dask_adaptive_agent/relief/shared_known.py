"""Which callables a scheduler shares, and what it knows of them, whoever they are sent to."""

from __future__ import annotations

import contextlib
import functools
import pickle
import weakref
from collections import OrderedDict
from types import FunctionType, MethodType
from typing import Any

import dask.optimization

from dask_adaptive_agent.relief.memo import PROTOCOL, Memo
from dask_adaptive_agent.relief.shared_books import Library

#: What is looked up; the exact types, as subclasses may carry more than they pickle. The last one
#: is what tasks of Blockwise call in dask's older releases.
CALLABLES = frozenset(
    {
        FunctionType,
        functools.partial,
        MethodType,
        getattr(dask.optimization, "SubgraphCallable", FunctionType),
    }
)

#: Partials and methods that are kept by identity, and their most bytes.
MOST_SMALL = 256
LARGEST_SMALL = 10_000


class Known:
    """What a scheduler knows of callables, whoever they are sent to."""

    def __init__(self, memo: Memo) -> None:
        self.memo, self.library, self.small = memo, Library(), Small()

    def pickled(self, obj: Any) -> bytes | None:
        """Bytes of a callable; None: it is not worth sharing, or can't be."""
        return self.memo.get(obj) or self.small.get(obj)


class Small:
    """
    Bytes of what a memo leaves alone because it is small: partials and methods, by reference.

    It saves little. But what is shared must not depend on its size.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[int, tuple[Any, bytes]] = OrderedDict()
        self._unfit: dict[int, weakref.ref[Any]] = {}  # maybe huge: not kept alive

    def get(self, obj: Any) -> bytes | None:
        if type(obj) is FunctionType:
            return None
        key = id(obj)
        kept = self._kept.get(key)
        if kept is not None:
            return kept[1]
        unfit = self._unfit.get(key)
        if unfit is not None and unfit() is obj:
            return None
        pickled = _by_reference(obj)
        if pickled is None:
            self._note_unfit(key, obj)
        else:
            self._kept[key] = obj, pickled
            if len(self._kept) > MOST_SMALL:
                self._kept.popitem(last=False)
        return pickled

    def _note_unfit(self, key: int, obj: Any) -> None:
        if len(self._unfit) > MOST_SMALL:
            self._unfit.clear()
        with contextlib.suppress(TypeError):  # some can't be referred to weakly
            self._unfit[key] = weakref.ref(obj)


def _by_reference(obj: Any) -> bytes | None:
    try:
        pickled = pickle.dumps(obj, PROTOCOL)
    except Exception:
        return None
    is_small = len(pickled) <= LARGEST_SMALL and b"__main__" not in pickled
    return pickled if is_small else None
