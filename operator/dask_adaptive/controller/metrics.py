"""What Prometheus is told. Names start with `dask_adaptive_`; labels are few and bounded."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from dask_adaptive.loop.held import pins_of
from dask_adaptive.loop.one_pass import PassResult
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import ObservedCluster

_CLUSTER = ["namespace", "cluster"]
_SOURCES = ("shuffle", "manual", "client")
_STATES = ("connected", "pending", "idle", "busy", "pinned", "retiring")


class Metrics:
    """All metrics of one operator."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._passes = Counter(
            "dask_adaptive_passes",
            "Passes over clusters, by outcome",
            ["outcome"],
            registry=registry,
        )
        self._seconds = Histogram(
            "dask_adaptive_pass_seconds",
            "Duration of a pass over one cluster",
            buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
            registry=registry,
        )
        self._actions = Counter(
            "dask_adaptive_actions",
            "Actions on clusters, by kind and reason; done says whether it was carried out",
            ["action", "reason", "done"],
            registry=registry,
        )
        self._workers = Gauge(
            "dask_adaptive_workers", "Workers, by state", [*_CLUSTER, "state"], registry=registry
        )
        self._replicas = Gauge(
            "dask_adaptive_replicas",
            "Workers asked for (requested), decided (desired), called for by the load (wanted)",
            [*_CLUSTER, "what"],
            registry=registry,
        )
        self._make_pins(registry)
        self._expired_before: dict[ClusterKey, tuple[str, dict[str, int]]] = {}
        self._make_others(registry)

    def _make_pins(self, registry: CollectorRegistry) -> None:
        self._pins = Gauge(
            "dask_adaptive_pinned_workers",
            "Workers held by pins, by source",
            [*_CLUSTER, "source"],
            registry=registry,
        )
        self._claims = Gauge(
            "dask_adaptive_pins",
            "Pins that hold workers, by source; one pin may hold many workers",
            [*_CLUSTER, "source"],
            registry=registry,
        )
        self._oldest = Gauge(
            "dask_adaptive_pin_age_seconds_max",
            "Seconds since the oldest pin that holds a worker was set, by source; 0 without pins",
            [*_CLUSTER, "source"],
            registry=registry,
        )
        self._expired = Counter(
            "dask_adaptive_pin_expired",
            "Pins that ended by their time limit while their owner still held them, by source",
            [*_CLUSTER, "source"],
            registry=registry,
        )

    def _make_others(self, registry: CollectorRegistry) -> None:
        self.leader = Gauge(
            "dask_adaptive_leader", "1 in the replica that acts, else 0", registry=registry
        )
        self.watched = Gauge("dask_adaptive_policies", "AdaptivePolicies", registry=registry)
        self.injections = Counter(
            "dask_adaptive_injections",
            "Pods of schedulers and workers seen by the webhook, by result",
            ["result"],
            registry=registry,
        )
        self.evictions = Counter(
            "dask_adaptive_evictions",
            "Evictions seen by the webhook, by result; all but delayed are allowed",
            ["result"],
            registry=registry,
        )

    def passed(self, key: ClusterKey, result: PassResult, seconds: float) -> None:
        """Count a pass that came to its end."""
        self._passes.labels("done").inc()
        self._seconds.observe(seconds)
        for outcome in result.outcomes:
            kind, reason = type(outcome.action).__name__, str(outcome.reason)
            self._actions.labels(kind, reason, str(outcome.done).lower()).inc()
        status = result.status
        for state in _STATES:
            self._workers.labels(*key, state).set(getattr(status, state))
        numbers = {
            "requested": status.replicas,
            "desired": status.desired,
            "wanted": status.wanted,
        }
        for what, number in numbers.items():
            self._replicas.labels(*key, what).set(number)
        held = dict.fromkeys(_SOURCES, 0) | dict(status.pins)
        for source, workers in held.items():
            self._pins.labels(*key, source).set(workers)
        self._pinned(key, result.observed)

    def _pinned(self, key: ClusterKey, observed: ObservedCluster) -> None:
        pins = pins_of(observed)
        for source in _SOURCES:
            ages = [held.for_s for claim, held in pins.items() if claim.source == source]
            self._claims.labels(*key, source).set(len(ages))
            self._oldest.labels(*key, source).set(max(ages, default=0.0))
        scheduler = observed.scheduler
        if not scheduler.session:
            return
        now = dict.fromkeys(_SOURCES, 0) | dict(scheduler.pins_expired)
        # Of a scheduler that was there before us, what has happened so far was counted before us.
        session, before = self._expired_before.get(key, (scheduler.session, now))
        for source, count in now.items():
            since = before.get(source, 0) if session == scheduler.session else 0
            self._expired.labels(*key, source).inc(max(0, count - since))
        self._expired_before[key] = (scheduler.session, now)

    def failed(self, outcome: str) -> None:
        """Count a pass that did not: `error`, `timeout` or `invalid`."""
        self._passes.labels(outcome).inc()

    def forget(self, key: ClusterKey) -> None:
        """Drop all series of a cluster that nobody scales any more."""
        labels = dict(zip(_CLUSTER, key, strict=True))
        for gauge in (self._workers, self._replicas, self._pins, self._claims, self._oldest):
            gauge.remove_by_labels(labels)
        self._expired.remove_by_labels(labels)
        self._expired_before.pop(key, None)

    def render(self) -> bytes:
        return bytes(generate_latest(self.registry))
