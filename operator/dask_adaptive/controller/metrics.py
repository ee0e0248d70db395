"""What Prometheus is told. Names start with `dask_adaptive_`; labels are few and bounded."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from dask_adaptive.loop.one_pass import PassResult
from dask_adaptive.model.keys import ClusterKey

_CLUSTER = ["namespace", "cluster"]
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
        self._pins = Gauge(
            "dask_adaptive_pinned_workers",
            "Workers held by pins, by source",
            [*_CLUSTER, "source"],
            registry=registry,
        )
        self.leader = Gauge(
            "dask_adaptive_leader", "1 in the replica that acts, else 0", registry=registry
        )
        self.watched = Gauge("dask_adaptive_policies", "AdaptivePolicies", registry=registry)
        self.injections = Counter(
            "dask_adaptive_injections",
            "Scheduler pods seen by the webhook, by result",
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
        held = {"shuffle": 0, "manual": 0, "client": 0} | dict(status.pins)
        for source, workers in held.items():
            self._pins.labels(*key, source).set(workers)

    def failed(self, outcome: str) -> None:
        """Count a pass that did not: `error`, `timeout` or `invalid`."""
        self._passes.labels(outcome).inc()

    def forget(self, key: ClusterKey) -> None:
        """Drop all series of a cluster that nobody scales any more."""
        for gauge in (self._workers, self._replicas, self._pins):
            gauge.remove_by_labels(dict(zip(_CLUSTER, key, strict=True)))

    def render(self) -> bytes:
        return bytes(generate_latest(self.registry))
