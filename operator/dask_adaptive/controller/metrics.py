"""
What Prometheus is told. Names start with `dask_adaptive_`; labels are few and bounded.

Each help text begins with the metric's stability, as those of Kubernetes do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from dask_adaptive.controller.scheduler_load import SchedulerLoad
from dask_adaptive.controller.stability import stable
from dask_adaptive.loop.held import pins_of
from dask_adaptive.loop.one_pass import PassResult
from dask_adaptive.loop.status import Condition
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import ObservedCluster
from dask_adaptive.model.plan import GroupPlan, Outcome, Retire
from dask_adaptive.model.recycle import QuotaUse
from dask_adaptive_agent import wire

_CLUSTER = ["namespace", "cluster"]
_SOURCES = ("shuffle", "manual", "client")
_CAUSES = (wire.LOST, wire.FORCED, wire.ENDED)
_STATES = ("connected", "pending", "idle", "busy", "pinned", "retiring")

#: Values by what follows the cluster's labels.
_Series: TypeAlias = Mapping[tuple[str, ...], float]


class Metrics:
    """All metrics of one operator."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._set_before: dict[tuple[Gauge, ClusterKey], frozenset[tuple[str, ...]]] = {}
        self._passes = self._counter(
            "dask_adaptive_passes", "Passes over clusters, by outcome", ["outcome"]
        )
        self._seconds = Histogram(
            "dask_adaptive_pass_seconds",
            stable("dask_adaptive_pass_seconds", "Duration of a pass over one cluster"),
            registry=self.registry,
            buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
        )
        self._actions = self._counter(
            "dask_adaptive_actions",
            "Actions on clusters, by kind and reason; done says whether it was carried out",
            ["action", "reason", "done"],
        )
        self._workers = self._gauge(
            "dask_adaptive_workers", "Workers, by state", [*_CLUSTER, "state"]
        )
        self._replicas = self._gauge(
            "dask_adaptive_replicas",
            "Workers asked for (requested), decided (desired), called for by the load (wanted)",
            [*_CLUSTER, "what"],
        )
        self._make_groups()
        self._make_pins()
        self._make_quotas()
        self._make_others()
        self._schedulers = SchedulerLoad()
        self.registry.register(self._schedulers)

    def _make_groups(self) -> None:
        self._groups = self._gauge(
            "dask_adaptive_group_replicas",
            "Workers of one group: there (serving), decided (desired), called for (wanted)",
            [*_CLUSTER, "group", "what"],
        )
        self._arrival = self._gauge(
            "dask_adaptive_worker_arrival_seconds",
            "How long a worker of a group takes from being asked for to being connected",
            [*_CLUSTER, "group"],
        )
        self._conditions = self._gauge(
            "dask_adaptive_condition",
            "1 for the status (true, false, unknown) and reason of each condition of a policy",
            [*_CLUSTER, "type", "status", "reason"],
        )

    def _make_pins(self) -> None:
        self._pins = self._gauge(
            "dask_adaptive_pinned_workers", "Workers held by pins, by source", [*_CLUSTER, "source"]
        )
        self._claims = self._gauge(
            "dask_adaptive_pins",
            "Pins that hold workers, by source; one pin may hold many workers",
            [*_CLUSTER, "source"],
        )
        self._oldest = self._gauge(
            "dask_adaptive_pin_age_seconds_max",
            "Seconds since the oldest pin that holds a worker was set; 0 without pins",
            [*_CLUSTER, "source"],
        )
        self._expired = self._counter(
            "dask_adaptive_pin_expired",
            "Pins that ended by their time limit while their owner still held them, by source",
            [*_CLUSTER, "source"],
        )
        self._expired_before = _Before(self._expired, _SOURCES)

    def _make_quotas(self) -> None:
        self._recycles = self._counter(
            "dask_adaptive_recycles",
            "Workers that began to leave in order to be replaced, by reason",
            [*_CLUSTER, "reason"],
        )
        self._used = self._gauge(
            "dask_adaptive_quota_used_ratio",
            "Highest use of a quota by any worker of a group; 1: used up",
            [*_CLUSTER, "group", "quota"],
        )
        self._redone = self._counter(
            "dask_adaptive_tasks_redone",
            "Tasks and results lost with workers, by cause",
            [*_CLUSTER, "cause"],
        )
        self._redone_before = _Before(self._redone, _CAUSES)

    def _make_others(self) -> None:
        self.leader = self._gauge("dask_adaptive_leader", "1 in the replica that acts, else 0")
        self.watched = self._gauge("dask_adaptive_policies", "AdaptivePolicies")
        self.injections = self._counter(
            "dask_adaptive_injections",
            "Pods of schedulers and workers seen by the webhook, by result",
            ["result"],
        )
        self.evictions = self._counter(
            "dask_adaptive_evictions",
            "Evictions seen by the webhook, by result; all but delayed are allowed",
            ["result"],
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
        self._grouped(key, result.plan.groups)
        self._conditioned(key, status.conditions)
        self._pinned(key, result.observed)
        self._recycled(key, result.outcomes)
        self._quotas(key, result.plan.uses)
        scheduler = result.observed.scheduler
        self._redone_before.count(key, scheduler.session, scheduler.redone)
        self._schedulers.saw(key, scheduler)

    def _grouped(self, key: ClusterKey, plans: Sequence[GroupPlan]) -> None:
        numbers: _Series = {
            (plan.group, what): float(getattr(plan, what))
            for plan in plans
            for what in ("serving", "desired", "wanted")
        }
        self._set_all(self._groups, key, numbers)
        arrival: _Series = {
            (p.group,): p.inputs["arrival_s"] for p in plans if "arrival_s" in p.inputs
        }
        self._set_all(self._arrival, key, arrival)

    def _conditioned(self, key: ClusterKey, conditions: Iterable[Condition]) -> None:
        words = {None: "unknown", True: "true", False: "false"}
        now: _Series = {(c.type, words[c.status], c.reason.value): 1.0 for c in conditions}
        self._set_all(self._conditions, key, now)

    def _set_all(self, gauge: Gauge, key: ClusterKey, values: _Series) -> None:
        """These are a cluster's series now; what it had besides is gone."""
        # Not remove_by_labels, which walks the series of all clusters, in each pass of each.
        for gone in self._set_before.get((gauge, key), frozenset()) - values.keys():
            gauge.remove(*key, *gone)
        for labels, value in values.items():
            gauge.labels(*key, *labels).set(value)
        self._set_before[gauge, key] = frozenset(values)

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
        now: _Series = {(use.group, use.quota.value): use.ratio for use in uses}
        self._set_all(self._used, key, now)

    def failed(self, outcome: str) -> None:
        """Count a pass that did not: `error`, `timeout` or `invalid`."""
        self._passes.labels(outcome).inc()

    def forget(self, key: ClusterKey) -> None:
        """Drop all series of a cluster that nobody scales any more."""
        labels = dict(zip(_CLUSTER, key, strict=True))
        for gauge in (
            self._workers, self._replicas, self._pins, self._claims, self._oldest, self._used,
            self._groups, self._arrival, self._conditions,
        ):  # fmt: skip
            gauge.remove_by_labels(labels)
            self._set_before.pop((gauge, key), None)
        for counter in (self._expired, self._recycles, self._redone):
            counter.remove_by_labels(labels)
        for before in (self._expired_before, self._redone_before):
            before.forget(key)
        self._schedulers.forget(key)

    def _counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        return Counter(name, stable(name, text), labels, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(name, stable(name, text), labels, registry=self.registry)

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
