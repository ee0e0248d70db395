"""Reads requests as values, and holds the operator's settings. No clock, no `distributed`."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import msgpack  # type: ignore[import-untyped]

from dask_adaptive_agent import wire

#: Upper bound of every duration in a request: ten years. Beyond it, somebody mixed up units.
LONGEST_MS = 10 * 365 * 24 * 3600 * 1000


class Malformed(ValueError):
    """The request makes no sense; only its sender can fix it."""


class Refused(Exception):
    """The request makes sense, and the policy does not allow it."""


def shown(value: Any) -> str:
    """A value as messages show it, however large it is, and whether or not it can be shown."""
    try:
        return reprlib.repr(value)[:80]
    except Exception:
        return f"a {type(value).__name__}"


def bounded(key: str, count: int, most: int, what: str) -> None:
    """Raises `Malformed` if a request holds more of something than it may."""
    if count > most:
        raise Malformed(f"{key} must have at most {most} {what}, not {count}")


class Request(dict[str, Any]):
    """The arguments of one message; who reads one that makes no sense gets `Malformed`."""

    def flag(self, key: str, default: bool | None = None) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise Malformed(f"{key} must be true or false, not {shown(value)}")
        return value

    def number(
        self, key: str, default: int | None = None, *, low: int = 0, high: int = 2**53
    ) -> int:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise Malformed(
                f"{key} must be a whole number from {low} to {high}, not {shown(value)}"
            )
        return value

    def millis(self, key: str, default: int | None = None) -> int:
        """A duration of at least 1 ms."""
        return self.number(key, default, low=1, high=LONGEST_MS)

    def mapping(self, key: str, *, of: type = object) -> Mapping[str, Any]:
        """Values of one type by text."""
        value = self.get(key)
        if not isinstance(value, Mapping) or not all(
            isinstance(k, str) and isinstance(v, of) for k, v in value.items()
        ):
            raise Malformed(f"{key} must be values by text, not {shown(value)}")
        try:
            size = len(msgpack.packb(value, use_bin_type=True))
        except (ValueError, TypeError, OverflowError, RecursionError):
            raise Malformed(f"{key} must hold plain values, not {shown(value)}") from None
        bounded(key, size, wire.MOST_BYTES, "bytes")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self.get(key, default)
        if not isinstance(value, str):
            raise Malformed(f"{key} must be text, not {shown(value)}")
        bounded(key, len(value), wire.MOST_LETTERS, "characters")
        return value

    def one_of(self, key: str, allowed: tuple[str, ...], default: str | None = None) -> str:
        value = self.text(key, default)
        if value not in allowed:
            raise Malformed(f"{key} must be one of {', '.join(allowed)}, not {shown(value)}")
        return value

    def column(self, key: str, kind: type, default: Any = None) -> Sequence[Any]:
        """A list of text, or of whole numbers. msgpack gives tuples as well as lists."""
        value = self.get(key, default)
        if not isinstance(value, (list, tuple)) or any(
            # True is no number of runs.
            [isinstance(one, bool) or not isinstance(one, kind) for one in value]
        ):
            what = "text" if kind is str else "whole numbers"
            raise Malformed(f"{key} must be a list of {what}, not {shown(value)}")
        bounded(key, len(value), wire.MOST_ENTRIES, "entries")
        if kind is str:
            bounded(
                key, max(map(len, value), default=0), wire.MOST_LETTERS, "characters in an entry"
            )
        return value

    def names(self, key: str = "names") -> list[str]:
        """The names of a request, each once, in order."""
        return list(dict.fromkeys(self.column(key, str)))

    def optional_names(self, key: str = "names") -> list[str] | None:
        return None if self.get(key) is None else self.names(key)


def _setting(read: Callable[[Request, str], Any], default: Any) -> Any:
    """A field of `AgentSettings`: how a request's value is read, and its value before any."""
    return field(default_factory=lambda: default, metadata={"read": read})


@dataclass
class AgentSettings:
    """Settings of one agent, as they are now; names and units are those of `ConfigureRequest`."""

    shuffle_pins: bool = _setting(Request.flag, True)
    shuffle_timeout_ms: int = _setting(Request.millis, 3_600_000)
    manual_max_ms: int = _setting(Request.millis, 24 * 3_600_000)
    client_pins: bool = _setting(Request.flag, True)
    client_max_ms: int = _setting(Request.millis, 4 * 3_600_000)
    lease_ms: int = _setting(Request.millis, 300_000)
    on_lifetime: str = _setting(
        partial(Request.one_of, allowed=(wire.LIFETIME_DRAIN, wire.LIFETIME_STOCK)),
        wire.LIFETIME_STOCK,
    )
    lifetime_ms: int = _setting(Request.millis, 15 * 60_000)
    shuffle_wait_ms: int = _setting(partial(Request.number, high=LONGEST_MS), 60_000)
    relief: Mapping[str, str] = _setting(partial(Request.mapping, of=str), {})
    config: Mapping[str, Any] = _setting(Request.mapping, {})

    @property
    def shuffle_timeout_s(self) -> float:
        """The longest that a shuffle pins its workers; infinite: it pins none."""
        return self.shuffle_timeout_ms / 1000 if self.shuffle_pins else math.inf

    @property
    def lease_s(self) -> float:
        return self.lease_ms / 1000

    @property
    def lifetime_s(self) -> float:
        """The longest that a worker drains whose own lifetime is over; 0: as in stock."""
        return self.lifetime_ms / 1000 if self.on_lifetime == wire.LIFETIME_DRAIN else 0.0

    @classmethod
    def read(cls, request: Request) -> dict[str, Any]:
        """The settings that a `wire.ConfigureRequest` names, to be given to `update`."""
        named = [one for one in fields(cls) if one.name in request]
        return {one.name: one.metadata["read"](request, one.name) for one in named}

    def update(self, changes: Mapping[str, Any]) -> None:
        """Take over what `read` has read; what is not named stays."""
        vars(self).update(changes)

    def lapse(self) -> None:
        """The operator's lease has ended: no reliefs, and no shuffle waits."""
        self.update({"relief": dict.fromkeys(wire.RELIEFS, wire.DISABLED), "shuffle_wait_ms": 0})
        self.on_lifetime = wire.LIFETIME_STOCK
