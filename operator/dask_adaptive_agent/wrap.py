"""Methods of one instance that are replaced for a while, also where others replace them as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Call = Callable[..., Any]


class Wrap:
    """A method of one instance, replaced; put back only if nobody has wrapped ours since."""

    def __init__(self, owner: Any, name: str, wrap: Callable[[Call], Call]) -> None:
        self._owner = owner
        self._name = name
        self._stock: Call = getattr(owner, name)
        self._is_on = True
        ours = wrap(self._stock)

        def call(*args: Any, **kwargs: Any) -> Any:
            return ours(*args, **kwargs) if self._is_on else self._stock(*args, **kwargs)

        call.__wrapped__ = self._stock  # type: ignore[attr-defined]
        call.wrap = self  # type: ignore[attr-defined]
        self._call = call
        self._before = owner.__dict__.get(name)
        setattr(owner, name, call)

    @property
    def is_called(self) -> bool:
        """Whether a call still comes to ours, through whatever others have put over it."""
        call: Any = getattr(self._owner, self._name)
        while call is not None and call is not self._call:
            call = getattr(call, "__wrapped__", None)
        return call is not None

    def undo(self) -> None:
        self._is_on = False
        if self._owner.__dict__.get(self._name) is not self._call:
            return  # somebody's wrapper calls ours, which passes on from now on
        before = self._before
        while (below := getattr(before, "wrap", None)) is not None and not below._is_on:
            before = below._before  # was undone while this one lay over it
        if before is None:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, before)
