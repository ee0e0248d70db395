"""What the operator may set, and how a request becomes values. No clock, no `distributed`."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import msgpack  # type: ignore[import-untyped]

from dask_adaptive_agent import wire

Request = dict[str, Any]

#: Upper bound of every duration in a request: ten years. Beyond it, somebody mixed up units.
LONGEST_MS = 10 * 365 * 24 * 3600 * 1000


class Invalid(ValueError):
    """The request makes no sense; only its sender can mend it."""


class Refused(Exception):
    """The request makes sense, and the policy does not allow it."""


@dataclass(frozen=True)
class Settings:
    """Settings of one agent; the names and units are those of `wire.ConfigureRequest`."""

    shuffle_pins: bool = True
    shuffle_timeout_ms: int = 3_600_000
    manual_max_ms: int = 24 * 3_600_000
    client_pins: bool = True
    client_max_ms: int = 4 * 3_600_000
    lease_ms: int = 300_000
    on_lifetime: str = wire.LIFETIME_DRAIN
    lifetime_ms: int = 15 * 60_000
    shuffle_wait_ms: int = 60_000
    tally: bool = False
    relief: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)

    def updated(self, request: Request) -> Settings:
        """These settings with what `request` names; what it does not name stays."""
        return replace(
            self,
            shuffle_pins=flag(request, "shuffle_pins", self.shuffle_pins),
            shuffle_timeout_ms=millis(request, "shuffle_timeout_ms", self.shuffle_timeout_ms),
            manual_max_ms=millis(request, "manual_max_ms", self.manual_max_ms),
            client_pins=flag(request, "client_pins", self.client_pins),
            client_max_ms=millis(request, "client_max_ms", self.client_max_ms),
            lease_ms=millis(request, "lease_ms", self.lease_ms),
            on_lifetime=one_of(
                request, "on_lifetime", (wire.LIFETIME_DRAIN, wire.LIFETIME_STOCK), self.on_lifetime
            ),
            lifetime_ms=millis(request, "lifetime_ms", self.lifetime_ms),
            shuffle_wait_ms=number(
                request, "shuffle_wait_ms", self.shuffle_wait_ms, high=LONGEST_MS
            ),
            tally=flag(request, "tally", self.tally),
            relief=mapping(request, "relief", self.relief, of=str),
            config=mapping(request, "config", self.config),
        )

    def lapsed(self) -> Settings:
        """These settings once nobody stands for them: no relief, and no shuffle waits."""
        return replace(self, relief=dict.fromkeys(wire.RELIEFS, wire.DISABLED), shuffle_wait_ms=0)

    def answer(self) -> Request:
        return {
            "protocol": wire.PROTOCOL,
            "shuffle_pins": self.shuffle_pins,
            "shuffle_timeout_ms": self.shuffle_timeout_ms,
            "manual_max_ms": self.manual_max_ms,
            "client_pins": self.client_pins,
            "client_max_ms": self.client_max_ms,
            "lease_ms": self.lease_ms,
            "on_lifetime": self.on_lifetime,
            "lifetime_ms": self.lifetime_ms,
            "shuffle_wait_ms": self.shuffle_wait_ms,
            "tally": self.tally,
            "relief": dict(self.relief),
            "config": dict(self.config),
        }


def shown(value: Any) -> str:
    """A value as messages show it, however large it is, and whether or not it can be shown."""
    try:
        return reprlib.repr(value)[:80]
    except Exception:
        return f"a {type(value).__name__}"


def bounded(key: str, count: int, most: int, what: str) -> None:
    """Raises `Invalid` where there is more of something than a request may hold."""
    if count > most:
        raise Invalid(f"{key} must have at most {most} {what}, not {count}")


def flag(request: Request, key: str, default: bool) -> bool:
    value = request.get(key, default)
    if not isinstance(value, bool):
        raise Invalid(f"{key} must be true or false, not {shown(value)}")
    return value


def number(request: Request, key: str, default: int, *, low: int = 0, high: int = 2**53) -> int:
    value = request.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise Invalid(f"{key} must be a whole number from {low} to {high}, not {shown(value)}")
    return value


def millis(request: Request, key: str, default: int) -> int:
    """A duration of at least 1 ms."""
    return number(request, key, default, low=1, high=LONGEST_MS)


def mapping(
    request: Request, key: str, default: Mapping[str, Any], *, of: type = object
) -> Mapping[str, Any]:
    """Values of one type by text."""
    value = request.get(key, default)
    if not isinstance(value, Mapping) or not all(
        isinstance(k, str) and isinstance(v, of) for k, v in value.items()
    ):
        raise Invalid(f"{key} must be values by text, not {shown(value)}")
    try:
        size = len(msgpack.packb(value, use_bin_type=True))
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise Invalid(f"{key} must hold plain values, not {shown(value)}") from None
    bounded(key, size, wire.MOST_BYTES, "bytes")
    return value


def text(request: Request, key: str, default: str | None = None) -> str:
    value = request.get(key, default)
    if not isinstance(value, str):
        raise Invalid(f"{key} must be text, not {shown(value)}")
    bounded(key, len(value), wire.MOST_LETTERS, "characters")
    return value


def one_of(request: Request, key: str, allowed: tuple[str, ...], default: str | None = None) -> str:
    value = text(request, key, default)
    if value not in allowed:
        raise Invalid(f"{key} must be one of {', '.join(allowed)}, not {shown(value)}")
    return value


def names(request: Request, key: str = "names") -> list[str]:
    """The names asked about, each once, in order. msgpack gives tuples as well as lists."""
    value = request.get(key)
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) for name in value):
        raise Invalid(f"{key} must be a list of text, not {shown(value)}")
    bounded(key, len(value), wire.MOST_ENTRIES, "entries")
    bounded(key, max(map(len, value), default=0), wire.MOST_LETTERS, "characters in an entry")
    return list(dict.fromkeys(cast("list[str]", value)))


def optional_names(request: Request, key: str = "names") -> list[str] | None:
    return None if request.get(key) is None else names(request, key)
