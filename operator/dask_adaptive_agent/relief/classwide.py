"""
Attributes of upstream's classes that are replaced for a while, for all schedulers of the process.

A replacement has to be right for schedulers without the agent as well: it tells its own objects
from upstream's, and does for the latter what upstream does.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType
from typing import Any
from weakref import WeakSet

from dask_adaptive_agent.relief.base import Mismatch


class ClassWide:
    """One attribute of a class; replaced while anybody holds it."""

    def __init__(self, owner: type, name: str, ours: Any) -> None:
        self._owner, self._name, self._ours = owner, name, ours
        self._below: Any = None
        # A holder that dies with its scheduler, without letting go, does not hold it any more.
        self._holders: WeakSet[Any] = WeakSet()

    @property
    def is_in_place(self) -> bool:
        return self._owner.__dict__.get(self._name) is self._ours

    @property
    def stock(self) -> Any:
        """What is there but for ours: to be looked at by `expect` before anybody holds it."""
        return self._below if self.is_in_place else self._owner.__dict__.get(self._name)

    @property
    def below(self) -> Any:
        """What ours was put over, also after somebody has put theirs over ours."""
        return self._below

    def hold(self, holder: Any) -> None:
        if not self.is_in_place:
            self._below = self._owner.__dict__[self._name]
            setattr(self._owner, self._name, self._ours)
        self._holders.add(holder)

    def let_go(self, holder: Any) -> None:
        """Put back what was there, unless somebody has put theirs over ours since."""
        self._holders.discard(holder)
        if not self._holders and self.is_in_place:
            setattr(self._owner, self._name, self._below)


def expect(function: Any, name: str, *uses: str) -> None:
    """
    Look whether a function of distributed.scheduler is the one we know, by the names it uses.

    Raises:
        Mismatch: It was changed, by upstream or by another package.
    """
    code = getattr(function, "__code__", None)
    if code is None or getattr(function, "__module__", "") != "distributed.scheduler":
        raise Mismatch(f"{name} of distributed.scheduler is not upstream's")
    if set(_names(code)) != set(uses):
        raise Mismatch(f"{name} of distributed.scheduler is not the one that is known")


def _names(code: CodeType) -> Iterator[str]:
    # Comprehensions are functions of their own before Python 3.12.
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
