"""Reading a spec, JSON, field by field: each error names the field and how to mend it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from dask_adaptive.model.amounts import parse_amount, parse_percent, parse_quantity
from dask_adaptive.model.duration import parse_duration
from dask_adaptive.model.recycle import Amount

T = TypeVar("T")


class InvalidPolicy(ValueError):
    """The spec makes no sense; the message names the field and the way to mend it."""


class Reader:
    """Reads one JSON object and remembers its path, so that each error can name the field."""

    def __init__(self, node: Any, path: str) -> None:
        if not isinstance(node, Mapping):
            raise InvalidPolicy(f"{path} must be an object")
        self._node, self.path, self._known = node, path, set[str]()
        self._inner: dict[str, list[Reader]] = {}

    def get(self, key: str, default: Any = None) -> Any:
        """The value as it stands, from now on known."""
        self._known.add(key)
        return self._node.get(key, default)

    def error(self, key: str, problem: str) -> InvalidPolicy:
        return InvalidPolicy(f"{self.path}.{key}{problem}")

    def object(self, key: str) -> Reader:
        """The same reader each time, so that two may read an object between them."""
        if key not in self._inner:
            self._inner[key] = [Reader(self.get(key, {}), f"{self.path}.{key}")]
        return self._inner[key][0]

    def objects(self, key: str, *, most: int | None = None) -> list[Reader]:
        """The same readers each time; see `object`."""
        nodes = self._list(key)
        if most is not None and len(nodes) > most:
            raise self.error(key, f" has {len(nodes)} entries; {most} are allowed")
        if key not in self._inner:
            self._inner[key] = [
                Reader(node, f"{self.path}.{key}[{i}]") for i, node in enumerate(nodes)
            ]
        return list(self._inner[key])

    def texts(self, key: str) -> list[str]:
        """A list of texts, none twice."""
        values = self._list(key)
        for i, value in enumerate(values):
            if not isinstance(value, str):
                raise self.error(f"{key}[{i}]", " must be a text")
            if value in values[:i]:
                raise self.error(f"{key}[{i}]", f" stands there twice: {value}")
        return list(values)

    def count(self, key: str, default: int | None, *, least: int = 0) -> int:
        """A whole number; without a default it is required."""
        value = self.get(key, default)
        if value is None:
            raise self.error(key, " is required: a whole number")
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(key, f" must be a whole number of at least {least}")
        return value

    def whole(self, key: str, default: int, *, least: int, most: int) -> int:
        """A whole number, which may be negative."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.error(key, f" must be a whole number from {least} to {most}")
        return value

    def number(self, key: str, default: float, *, most: int = 10) -> float:
        value = self.get(key, default)
        # Written so that NaN, which YAML can say, is refused too.
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
            raise self.error(key, f" must be a number from 0 to {most}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, " must be true or false")
        return value

    def text(self, key: str, what: str) -> str:
        value = self.get(key)
        if not isinstance(value, str) or not value:
            raise self.error(key, f" is required: {what}")
        return value

    def one_of(self, key: str, choices: Sequence[str], default: str) -> str:
        value = self.get(key, default)
        if value not in choices:
            raise self.error(key, f" must be one of {', '.join(choices)}")
        return str(value)

    def seconds(self, key: str, default: str | float, *, positive: bool = False) -> float:
        """
        Args:
            default: A duration, or seconds.
            positive: Whether 0s is refused.
        """
        if isinstance(default, float) and self.get(key) is None:
            return default
        seconds = self._parsed(key, parse_duration, default)
        if positive and seconds <= 0:
            raise self.error(key, " must be longer than 0s")
        return seconds

    def percent(self, key: str, default: float) -> float:
        """A part, 0..1; the default is one, too."""
        return default if self.get(key) is None else self._parsed(key, parse_percent)

    def amount(self, key: str, default: Amount | None) -> Amount:
        """A number, or a percentage; without a default it is required."""
        if self.get(key) is None:
            if default is None:
                raise self.error(key, " is required: a number such as 2, or a percentage as 10%")
            return default
        return self._parsed(key, parse_amount)

    def size(self, key: str, default: float) -> float:
        """Bytes."""
        return default if self.get(key) is None else self._parsed(key, parse_quantity)

    def refuse_unknown(self) -> None:
        """Refuse what has not been read by now, here and in all objects within."""
        unknown = sorted(set(self._node) - self._known)
        if unknown:
            known = f"known here: {', '.join(sorted(self._known))}"
            raise self.error(unknown[0], f" is not a known field; {known}")
        for inner in self._inner.values():
            for reader in inner:
                reader.refuse_unknown()

    def _list(self, key: str) -> list[Any]:
        value = self.get(key, [])
        if not isinstance(value, list):
            raise self.error(key, " must be a list")
        return value

    def _parsed(self, key: str, parse: Callable[[Any], T], default: Any = None) -> T:
        try:
            return parse(self.get(key, default))
        except ValueError as exc:
            raise self.error(key, f": {exc}") from exc
