"""What the user asked for: the spec of an AdaptivePolicy, parsed once."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dask_adaptive.model.duration import parse_duration


class InvalidPolicy(ValueError):
    """The spec makes no sense; the message names the field and the way to mend it."""


class Mode(str, enum.Enum):
    AUTO = "Auto"  # decide and act
    ADVISE = "Advise"  # decide and report; do nothing
    PAUSED = "Paused"  # observe and report; decide nothing


class OnTimeout(str, enum.Enum):
    ABORT = "Abort"  # the worker goes back to service
    FORCE = "Force"  # its data is moved, its running tasks are given up


@dataclass(frozen=True, slots=True)
class Pins:
    """Which pins count, and the longest that each may last. Times in seconds."""

    shuffle: bool = True
    shuffle_timeout_s: float = 3600.0
    manual_max_s: float = 24 * 3600.0
    client: bool = True  # whether code may pin
    client_max_s: float = 4 * 3600.0


@dataclass(frozen=True, slots=True)
class EvictionGuard:
    """Whether evictions of a worker's pod are put off until it has drained."""

    enabled: bool = False
    max_delay_s: float = 10 * 60.0  # from the first eviction that was put off


@dataclass(frozen=True, slots=True)
class Disruption:
    """What is made of news about machines, and told to those who take them away."""

    node_signals: bool = True  # drain workers whose node is about to go
    hints: bool = True  # annotate pods of pinned and busy workers: not to be evicted


@dataclass(frozen=True, slots=True)
class Retirement:
    """How a worker leaves."""

    grace_s: float = 15 * 60.0  # from the first request to the deadline
    on_timeout: OnTimeout = OnTimeout.ABORT
    max_concurrent: int = 5  # workers on their way out at once


@dataclass(frozen=True, slots=True)
class Policy:
    """One AdaptivePolicy. Bounds are Deployments of the default worker group."""

    cluster: str
    maximum: int
    minimum: int = 0
    mode: Mode = Mode.AUTO
    idle_timeout_s: float = 60.0
    target_duration_s: float = 5.0
    pins: Pins = field(default_factory=Pins)
    retirement: Retirement = field(default_factory=Retirement)
    eviction_guard: EvictionGuard = field(default_factory=EvictionGuard)
    disruption: Disruption = field(default_factory=Disruption)

    def __post_init__(self) -> None:
        if not 0 <= self.minimum <= self.maximum:
            raise InvalidPolicy(
                "spec.minReplicas must lie between 0 and spec.maxReplicas,"
                f" got {self.minimum} and {self.maximum}"
            )
        if self.target_duration_s <= 0:
            raise InvalidPolicy("spec.target.duration must be longer than 0s")
        if self.retirement.max_concurrent < 1:
            raise InvalidPolicy("spec.retirement.maxConcurrent must be at least 1")


def parse_policy(spec: Mapping[str, Any]) -> Policy:
    """
    Read the spec of an AdaptivePolicy, defaults filled in as the CRD's schema does.

    Args:
        spec: `spec` of the object, as JSON. Unknown keys are refused: a rehearsal must not accept
            what the API server would not.

    Raises:
        InvalidPolicy: The user can mend it by editing the field that the message names.
    """
    return _Reader(spec, "spec").policy()


class _Reader:
    """Reads one JSON object and remembers its path, so that each error can name the field."""

    def __init__(self, node: Any, path: str) -> None:
        if not isinstance(node, Mapping):
            raise InvalidPolicy(f"{path} must be an object")
        self._node, self._path, self._known = node, path, set[str]()

    def policy(self) -> Policy:
        cluster = self._object("clusterRef")
        target, pins, leave = (self._object(k) for k in ("target", "pins", "retirement"))
        guard, disruption = self._object("evictionGuard"), self._object("disruption")
        name = cluster._get("name", None)
        if not isinstance(name, str) or not name:
            raise InvalidPolicy("spec.clusterRef.name is required: the name of the DaskCluster")
        policy = Policy(
            cluster=name,
            maximum=self._count("maxReplicas", None),
            minimum=self._count("minReplicas", 0),
            mode=Mode(self._one_of("mode", [m.value for m in Mode], "Auto")),
            idle_timeout_s=self._seconds("idleTimeout", "60s"),
            target_duration_s=target._seconds("duration", "5s"),
            pins=pins._pins(),
            retirement=Retirement(
                grace_s=leave._seconds("gracePeriod", "15m"),
                on_timeout=OnTimeout(
                    leave._one_of("onTimeout", [o.value for o in OnTimeout], "Abort")
                ),
                max_concurrent=leave._count("maxConcurrent", 5),
            ),
            eviction_guard=EvictionGuard(
                enabled=guard._flag("enabled", False),
                max_delay_s=guard._seconds("maxDelay", "10m"),
            ),
            disruption=Disruption(
                node_signals=disruption._one_of("nodeSignals", ["Drain", "Ignore"], "Drain")
                == "Drain",
                hints=disruption._flag("hints", True),
            ),
        )
        for reader in (self, cluster, target, leave, guard, disruption):
            reader._refuse_unknown()
        return policy

    def _pins(self) -> Pins:
        shuffle, manual, client = (self._object(k) for k in ("shuffle", "manual", "client"))
        pins = Pins(
            shuffle=shuffle._flag("enabled", True),
            shuffle_timeout_s=shuffle._seconds("timeout", "1h"),
            manual_max_s=manual._seconds("maxDuration", "24h"),
            client=client._flag("enabled", True),
            client_max_s=client._seconds("maxDuration", "4h"),
        )
        for reader in (self, shuffle, manual, client):
            reader._refuse_unknown()
        return pins

    def _get(self, key: str, default: Any) -> Any:
        self._known.add(key)
        return self._node.get(key, default)

    def _object(self, key: str) -> _Reader:
        return _Reader(self._get(key, {}), f"{self._path}.{key}")

    def _count(self, key: str, default: int | None) -> int:
        value = self._get(key, default)
        if value is None:
            raise InvalidPolicy(f"{self._path}.{key} is required: a whole number")
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InvalidPolicy(f"{self._path}.{key} must be a whole number of at least 0")
        return value

    def _flag(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise InvalidPolicy(f"{self._path}.{key} must be true or false")
        return value

    def _seconds(self, key: str, default: str) -> float:
        try:
            return parse_duration(self._get(key, default))
        except ValueError as exc:
            raise InvalidPolicy(f"{self._path}.{key}: {exc}") from exc

    def _one_of(self, key: str, choices: list[str], default: str) -> str:
        value = self._get(key, default)
        if value not in choices:
            raise InvalidPolicy(f"{self._path}.{key} must be one of {', '.join(choices)}")
        return str(value)

    def _refuse_unknown(self) -> None:
        unknown = sorted(set(self._node) - self._known)
        if unknown:
            raise InvalidPolicy(
                f"{self._path}.{unknown[0]} is not a known field;"
                f" known here: {', '.join(sorted(self._known))}"
            )
