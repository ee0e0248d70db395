"""
Defines the metrics for Prometheus. Names start with `dask_adaptive_`. Labels are few and bounded:
unknown words of schedulers are counted together as `other`.
"""

from __future__ import annotations

import logging
from collections import Counter as Counts
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from dask_adaptive.budget.board import Row
from dask_adaptive.loop.one_pass import PassResult
from dask_adaptive.loop.summary import pins_of
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.plan import Retire
from dask_adaptive_agent import wire

logger = logging.getLogger(__name__)

_PREFIX = "dask_adaptive"
_CLUSTER = ("namespace", "cluster")


class _Metric(NamedTuple):
    text: str
    labels: tuple[str, ...] = ()


#: Metrics by their names, without the prefix, and without the `_total` of counters.
_GAUGES = {
    "leader": _Metric("1 in the replica that leads, else 0"),
    "policies": _Metric("AdaptivePolicies"),
    "overdue_policies": _Metric("AdaptivePolicies whose next pass is overdue"),
    "budget_workers": _Metric(
        "Workers under an AdaptiveBudget: present or requested (held), needed (wanted), allowed",
        ("budget", "what"),
    ),
    "budget_waiting": _Metric(
        "Worker groups that need more than an AdaptiveBudget allows", ("budget",)
    ),
    "unreadable_objects": _Metric("Kubernetes objects that can't be read, by kind", ("kind",)),
    "webhook_certificate_expiration_timestamp_seconds": _Metric(
        "When the webhook's certificate expires; 0 while it can't be used or renewed",
        ("secret",),
    ),
}
_COUNTERS = {
    "passes": _Metric("Passes over clusters, by outcome", ("outcome",)),
    "actions": _Metric(
        "Actions on clusters, by kind, reason and whether they were carried out (done)",
        ("action", "reason", "done"),
    ),
    "recycles": _Metric(
        "Workers that began to leave because they are replaced, by reason", (*_CLUSTER, "reason")
    ),
    "tasks_redone": _Metric("Tasks and results lost with workers, by cause", (*_CLUSTER, "cause")),
    "pin_expired": _Metric(
        "Pins that ended by their time limit while their owner still held them, by source",
        (*_CLUSTER, "source"),
    ),
    "injections": _Metric(
        "Pods of schedulers and workers seen by the webhook, by result", ("result",)
    ),
}
_SOURCES = (wire.SHUFFLE, wire.MANUAL, wire.CLIENT)
_CAUSES = (wire.LOST, wire.FORCED, wire.ENDED)
_RELIEF_STATES = (wire.R_ACTIVE, wire.R_NOT_NEEDED, wire.R_DISABLED, wire.R_FAILED)
_OTHER = "other"
_STATES = ("connected", "pending", "idle", "busy", "pinned", "retiring")

#: Values by the labels after the cluster's.
_Series: TypeAlias = Mapping[tuple[str, ...], float]


def _known(word: str, words: Container[str]) -> str:
    """Bound a label: schedulers run other people's code and may send any word."""
    return word if word in words else _OTHER


class Metrics(Collector):
    """
    All metrics of one operator.

    Gauges show the result of the last pass over each cluster, and nothing of schedulers that do not
    answer. They are computed at each scrape, so a pass pays nothing for them.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._gauges = gauges = {
            name: Gauge(name, *metric, _PREFIX, registry=self.registry)
            for name, metric in _GAUGES.items()
        }
        self._counters = counters = {
            name: Counter(name, *metric, _PREFIX, registry=self.registry)
            for name, metric in _COUNTERS.items()
        }
        self._seconds = Histogram(
            f"{_PREFIX}_pass_seconds",
            "Duration of a pass over one cluster",
            registry=self.registry,
            buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
        )
        self.leader, self.watched = gauges["leader"], gauges["policies"]
        self.overdue = gauges["overdue_policies"]
        self.certificate = gauges["webhook_certificate_expiration_timestamp_seconds"]
        self.injections = counters["injections"]
        self._expired = _Before(counters["pin_expired"], _SOURCES)
        self._redone = _Before(counters["tasks_redone"], _CAUSES)
        self._last: dict[ClusterKey, PassResult] = {}
        self.registry.register(self)

    def passed(self, key: ClusterKey, result: PassResult, seconds: float) -> None:
        """Count a completed pass."""
        self._counters["passes"].labels("done").inc()
        self._seconds.observe(seconds)
        for outcome in result.outcomes:
            action, reason = outcome.action, outcome.reason
            labels = (type(action).__name__, str(reason), str(outcome.done).lower())
            self._counters["actions"].labels(*labels).inc()
            if isinstance(action, Retire) and action.reason.replaces and outcome.done:
                self._counters["recycles"].labels(*key, action.reason.value).inc()
        scheduler = result.observed.scheduler
        self._expired.count(key, scheduler.session, scheduler.pins_expired)
        self._redone.count(key, scheduler.session, scheduler.redone)
        self._last[key] = result

    def unreadable(self, kind: str, count: Callable[[], int]) -> None:
        """Register the number of unreadable objects of a kind, counted at each scrape."""
        self._gauges["unreadable_objects"].labels(kind).set_function(count)

    def budgets(self, rows: Mapping[str, Sequence[Row]]) -> None:
        """Set how each AdaptiveBudget is divided."""
        workers, waiting = self._gauges["budget_workers"], self._gauges["budget_waiting"]
        workers.clear()
        waiting.clear()
        for budget, groups in rows.items():
            waiting.labels(budget).set(sum(row.waits for row in groups))
            for what in ("held", "wanted", "allowed"):
                workers.labels(budget, what).set(sum(getattr(row, what) for row in groups))

    def failed(self, outcome: str) -> None:
        """Count a failed pass: `error`, `timeout`, `invalid`, `unread` or `overdue`."""
        self._counters["passes"].labels(outcome).inc()

    def forget_all(self) -> None:
        """Drop all series of clusters; one by one, a thousand stop the loop for two seconds."""
        for name in ("pin_expired", "recycles", "tasks_redone"):
            self._counters[name].clear()
        for kept in (self._expired.last, self._redone.last, self._last):
            kept.clear()

    def forget(self, key: ClusterKey) -> None:
        """Drop all series of a cluster that is no longer scaled."""
        for name in ("pin_expired", "recycles", "tasks_redone"):
            self._counters[name].remove_by_labels(dict(zip(_CLUSTER, key, strict=True)))
        for kept in (self._expired.last, self._redone.last, self._last):
            kept.pop(key, None)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        rows = sorted(list(self._last.items()), key=itemgetter(0))  # a copy: passes go on
        # One at a time, to save memory.
        for name, (text, labels, series) in _OF_CLUSTERS.items():
            full = f"{_PREFIX}_{name}"
            gauge = GaugeMetricFamily(full, text, labels=(*_CLUSTER, *labels))
            for key, result in rows:
                try:
                    values = [(labels, float(value)) for labels, value in series(result).items()]
                except Exception:  # one cluster's error must not hide others' figures
                    logger.exception("Can't compute %s of %s", full, key)
                    continue
                for labels, value in values:
                    gauge.add_metric([*key, *labels], value)
            yield gauge

    def render(self) -> bytes:
        """Render the text for Prometheus. Slow with 1,000 clusters; may run in a thread."""
        return bytes(generate_latest(self.registry))


class _Before:
    """Increments a counter by the growth of an agent's counts in its session."""

    def __init__(self, counter: Counter, words: Sequence[str]) -> None:
        self._counter, self._words = counter, words
        self.last: dict[ClusterKey, tuple[str, Mapping[str, int]]] = {}

    def count(self, key: ClusterKey, session: str, counted: Mapping[str, int]) -> None:
        if not session:
            return
        now = Counts(dict.fromkeys(self._words, 0))
        for word, count in counted.items():
            now[_known(word, self._words)] += count
        # Counts of a scheduler that is older than this process were counted by an earlier one.
        last_session, before = self.last.get(key, (session, now))
        for word, count in now.items():
            since = before.get(word, 0) if session == last_session else 0
            self._counter.labels(*key, word).inc(max(0, count - since))
        self.last[key] = (session, now)


def _replicas(result: PassResult) -> _Series:
    status = result.status
    return {
        ("requested",): status.replicas, ("desired",): status.desired, ("wanted",): status.wanted
    }  # fmt: skip


def _conditions(result: PassResult) -> _Series:
    words = {None: "unknown", True: "true", False: "false"}
    return {(c.type, words[c.status], str(c.reason)): 1 for c in result.status.conditions}


def _group_replicas(result: PassResult) -> _Series:
    whats = ("serving", "desired", "wanted")
    return {(p.group, what): getattr(p, what) for p in result.plan.groups for what in whats}


def _arrivals(result: PassResult) -> _Series:
    groups = (p for p in result.plan.groups if "arrival_s" in p.inputs)
    return {(p.group,): p.inputs["arrival_s"] for p in groups}


def _pinned(result: PassResult) -> _Series:
    workers = result.observed.workers
    held = Counts(s for w in workers for s in {_known(p.source, _SOURCES) for p in w.process.pins})
    return {(source,): held[source] for source in (*_SOURCES, *held)}


def _pin_ages(result: PassResult) -> _Series:
    ages: dict[tuple[str, ...], float] = {(source,): 0.0 for source in _SOURCES}
    for pin in pins_of(result.observed, now=0.0):
        source = _known(pin.source, _SOURCES)
        ages[source,] = max(ages.get((source,), 0.0), pin.for_s)
    return ages


def _reliefs(result: PassResult) -> _Series:
    rows = result.observed.scheduler.relief
    return {(_known(r.name, wire.RELIEFS), _known(r.state, _RELIEF_STATES)): 1 for r in rows}


class _OfClusters(NamedTuple):
    text: str
    labels: tuple[str, ...]  # after the cluster's
    series: Callable[[PassResult], _Series]


#: Gauges of the last pass over each cluster.
_OF_CLUSTERS = {
    "workers": _OfClusters(
        "Workers, by state",
        ("state",),
        lambda r: {(state,): getattr(r.status, state) for state in _STATES},
    ),
    "replicas": _OfClusters(
        "Workers set in replicas (requested), decided (desired), needed by the load (wanted)",
        ("what",),
        _replicas,
    ),
    "condition": _OfClusters(
        "1 for the status (true, false, unknown) and reason of each condition of a policy",
        ("type", "status", "reason"),
        _conditions,
    ),
    "group_replicas": _OfClusters(
        "Workers of one group: present (serving), decided (desired), needed by the load (wanted)",
        ("group", "what"),
        _group_replicas,
    ),
    "worker_arrival_seconds": _OfClusters(
        "Time that a worker of a group takes from its request to its connection",
        ("group",),
        _arrivals,
    ),
    "quota_used_ratio": _OfClusters(
        "Highest use of a quota by any worker of a group; 1: used up",
        ("group", "quota"),
        lambda r: {(u.group, u.quota.value): u.ratio for u in r.plan.uses},
    ),
    "pinned_workers": _OfClusters("Workers held by pins, by source", ("source",), _pinned),
    "pin_age_seconds_max": _OfClusters(
        "Seconds since the oldest pin that holds a worker was set; 0 without pins",
        ("source",),
        _pin_ages,
    ),
    "relief_state": _OfClusters(
        "1 for the current state of each relief of a scheduler", ("relief", "state"), _reliefs
    ),
    "serialize_share": _OfClusters(
        "Fraction of a scheduler's CPU time spent serializing tasks in the last minute",
        (),
        lambda r: {(): cost.share} if (cost := r.observed.scheduler.serialized) else {},
    ),
}
