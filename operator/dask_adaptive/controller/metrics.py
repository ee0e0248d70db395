"""What Prometheus is told. Names start with `dask_adaptive_`; labels are few and bounded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from dask_adaptive.controller.scheduler_load import SchedulerLoad
from dask_adaptive.loop.held import pins_of
from dask_adaptive.loop.one_pass import PassResult
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import ObservedCluster
from dask_adaptive.model.plan import Outcome, Retire
from dask_adaptive.model.recycle import Quota, QuotaUse
from dask_adaptive_agent import wire

_CLUSTER = ["namespace", "cluster"]
_SOURCES = ("shuffle", "manual", "client")
_CAUSES = (wire.LOST, wire.FORCED, wire.ENDED)
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
        self._make_quotas(registry)
        self._make_others(registry)
        self._schedulers = SchedulerLoad()
        registry.register(self._schedulers)

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
        self._expired_before = _Before(self._expired, _SOURCES)

    def _make_quotas(self, registry: CollectorRegistry) -> None:
        self._recycles = Counter(
            "dask_adaptive_recycles",
            "Workers that began to leave in order to be replaced, by reason",
            [*_CLUSTER, "reason"],
            registry=registry,
        )
        self._used = Gauge(
            "dask_adaptive_quota_used_ratio",
            "Highest use of a quota by any worker of a group; 1: used up",
            [*_CLUSTER, "group", "quota"],
            registry=registry,
        )
        self._used_before: dict[ClusterKey, set[tuple[str, Quota]]] = {}
        self._redone = Counter(
            "dask_adaptive_tasks_redone",
            "Tasks and results lost with workers, by cause",
            [*_CLUSTER, "cause"],
            registry=registry,
        )
        self._redone_before = _Before(self._redone, _CAUSES)

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
        self._recycled(key, result.outcomes)
        self._quotas(key, result.plan.uses)
        scheduler = result.observed.scheduler
        self._redone_before.count(key, scheduler.session, scheduler.redone)
        self._schedulers.saw(key, scheduler)

    def _pinned(self, key: ClusterKey, observed: ObservedCluster) -> None:
        pins = pins_of(observed)
        for source in _SOURCES:
            ages = [held.for_s for claim, held in pins.items() if claim.source == source]
            self._claims.labels(*key, source).set(len(ages))
            self._oldest.labels(*key, source).set(max(ages, default=0.0))
        scheduler = observed.scheduler
        self._expired_before.count(key, scheduler.session, scheduler.pins_expired)

    def _recycled(self, key: ClusterKey, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            action = outcome.action
            if isinstance(action, Retire) and action.reason.replaces and outcome.done:
                self._recycles.labels(*key, action.reason.value).inc()

    def _quotas(self, key: ClusterKey, uses: Iterable[QuotaUse]) -> None:
        now = {(use.group, use.quota): use.ratio for use in uses}
        for group, quota in self._used_before.get(key, set()) - now.keys():
            self._used.remove(*key, group, quota.value)
        for (group, quota), ratio in now.items():
            self._used.labels(*key, group, quota.value).set(ratio)
        self._used_before[key] = set(now)

    def failed(self, outcome: str) -> None:
        """Count a pass that did not: `error`, `timeout` or `invalid`."""
        self._passes.labels(outcome).inc()

    def forget(self, key: ClusterKey) -> None:
        """Drop all series of a cluster that nobody scales any more."""
        labels = dict(zip(_CLUSTER, key, strict=True))
        gauges = (self._workers, self._replicas, self._pins, self._claims, self._oldest, self._used)
        for gauge in gauges:
            gauge.remove_by_labels(labels)
        for counter in (self._expired, self._recycles, self._redone):
            counter.remove_by_labels(labels)
        for before in (self._expired_before, self._redone_before):
            before.forget(key)
        self._used_before.pop(key, None)
        self._schedulers.forget(key)

    def render(self) -> bytes:
        return bytes(generate_latest(self.registry))


class _Before:
    """What an agent has counted in its session so far, so that a counter grows by what is new."""

    def __init__(self, counter: Counter, words: Sequence[str]) -> None:
        self._counter, self._words = counter, words
        self._last: dict[ClusterKey, tuple[str, dict[str, int]]] = {}

    def count(self, key: ClusterKey, session: str, counted: Iterable[tuple[str, int]]) -> None:
        if not session:
            return
        now = dict.fromkeys(self._words, 0) | dict(counted)
        # Of a scheduler that was there before us, what has happened so far was counted before us.
        last_session, before = self._last.get(key, (session, now))
        for word, count in now.items():
            since = before.get(word, 0) if session == last_session else 0
            self._counter.labels(*key, word).inc(max(0, count - since))
        self._last[key] = (session, now)

    def forget(self, key: ClusterKey) -> None:
        self._last.pop(key, None)
