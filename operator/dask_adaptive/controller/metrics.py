"""
What Prometheus is told. Names start with `dask_adaptive_`; labels are few and bounded.

Each help text begins with the metric's stability, as those of Kubernetes do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dask_adaptive.loop.one_pass import PassResult
from dask_adaptive.loop.summary import pins_of
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import ObservedScheduler, ReliefState, Serialized
from dask_adaptive.model.plan import Retire
from dask_adaptive_agent import wire

M = TypeVar("M", GaugeMetricFamily, CounterMetricFamily)

#: Stays as it is, name, labels and meaning, until it has been deprecated for a minor release.
STABLE = "STABLE"

#: May get more labels or values, with a line in the changelog.
BETA = "BETA"

#: May change or go with any release.
ALPHA = "ALPHA"

_CLUSTER = ("namespace", "cluster")


class _Metric(NamedTuple):
    stability: str
    text: str
    labels: tuple[str, ...] = ()


#: Metrics by their names, without the prefix, and without the `_total` of counters.
_HISTOGRAMS = {"pass_seconds": _Metric(STABLE, "Duration of a pass over one cluster")}
_GAUGES = {
    "workers": _Metric(STABLE, "Workers, by state", (*_CLUSTER, "state")),
    "replicas": _Metric(
        STABLE,
        "Workers asked for (requested), decided (desired), needed by the load (wanted)",
        (*_CLUSTER, "what"),
    ),
    "leader": _Metric(STABLE, "1 in the replica that acts, else 0"),
    "policies": _Metric(STABLE, "AdaptivePolicies"),
    "condition": _Metric(
        BETA,
        "1 for the status (true, false, unknown) and reason of each condition of a policy",
        (*_CLUSTER, "type", "status", "reason"),
    ),
    "group_replicas": _Metric(
        BETA,
        "Workers of one group: there (serving), decided (desired), called for (wanted)",
        (*_CLUSTER, "group", "what"),
    ),
    "pinned_workers": _Metric(BETA, "Workers held by pins, by source", (*_CLUSTER, "source")),
    "pins": _Metric(
        BETA,
        "Pins that hold workers, by source; one pin may hold many workers",
        (*_CLUSTER, "source"),
    ),
    "pin_age_seconds_max": _Metric(
        BETA,
        "Seconds since the oldest pin that holds a worker was set; 0 without pins",
        (*_CLUSTER, "source"),
    ),
    "quota_used_ratio": _Metric(
        BETA,
        "Highest use of a quota by any worker of a group; 1: used up",
        (*_CLUSTER, "group", "quota"),
    ),
    "worker_arrival_seconds": _Metric(
        ALPHA,
        "How long a worker of a group takes from being asked for to being connected",
        (*_CLUSTER, "group"),
    ),
}
_COUNTERS = {
    "passes": _Metric(STABLE, "Passes over clusters, by outcome", ("outcome",)),
    "actions": _Metric(
        STABLE,
        "Actions on clusters, by kind and reason; done says whether it was carried out",
        ("action", "reason", "done"),
    ),
    "recycles": _Metric(
        STABLE,
        "Workers that began to leave in order to be replaced, by reason",
        (*_CLUSTER, "reason"),
    ),
    "tasks_redone": _Metric(
        STABLE, "Tasks and results lost with workers, by cause", (*_CLUSTER, "cause")
    ),
    "pin_expired": _Metric(
        BETA,
        "Pins that ended by their time limit while their owner still held them, by source",
        (*_CLUSTER, "source"),
    ),
    "injections": _Metric(
        BETA, "Pods of schedulers and workers seen by the webhook, by result", ("result",)
    ),
    "evictions": _Metric(
        BETA, "Evictions seen by the webhook, by result; all but delayed are allowed", ("result",)
    ),
}
_OF_SCHEDULERS = {
    "relief_state": _Metric(
        BETA,
        "1 for the state that each relief of a scheduler is in",
        (*_CLUSTER, "relief", "state"),
    ),
    "serialize_share": _Metric(
        ALPHA, "Part of a scheduler's CPU time spent serializing tasks in the last minute", _CLUSTER
    ),
    "serialize_seconds": _Metric(
        ALPHA,
        "Seconds spent serializing tasks, by function; the ten dearest",
        (*_CLUSTER, "function"),
    ),
    "serialize_bytes": _Metric(
        ALPHA, "Bytes of serialized tasks, by function; the ten dearest", (*_CLUSTER, "function")
    ),
}

STABILITY = {
    f"dask_adaptive_{name}": metric.stability
    for name, metric in (_HISTOGRAMS | _GAUGES | _COUNTERS | _OF_SCHEDULERS).items()
}

_SOURCES = ("shuffle", "manual", "client")
_CAUSES = (wire.LOST, wire.FORCED, wire.ENDED)
_STATES = ("connected", "pending", "idle", "busy", "pinned", "retiring")

#: Values by what follows the cluster's labels.
_Series: TypeAlias = Mapping[tuple[str, ...], float]


def _named(name: str, metric: _Metric) -> tuple[str, str, tuple[str, ...]]:
    return f"dask_adaptive_{name}", f"[{metric.stability}] {metric.text}", metric.labels


class Metrics:
    """All metrics of one operator."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        gauges = {
            name: Gauge(*_named(name, metric), registry=self.registry)
            for name, metric in _GAUGES.items()
        }
        counters = {
            name: Counter(*_named(name, metric), registry=self.registry)
            for name, metric in _COUNTERS.items()
        }
        self._gauges, self._counters = gauges, counters
        self._seconds = Histogram(
            *_named("pass_seconds", _HISTOGRAMS["pass_seconds"]),
            registry=self.registry,
            buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
        )
        self.leader, self.watched = gauges["leader"], gauges["policies"]
        self.injections, self.evictions = counters["injections"], counters["evictions"]
        self._expired = _Before(counters["pin_expired"], _SOURCES)
        self._redone = _Before(counters["tasks_redone"], _CAUSES)
        self._shown: dict[ClusterKey, dict[str, frozenset[tuple[str, ...]]]] = defaultdict(dict)
        self._schedulers = SchedulerLoad()
        self.registry.register(self._schedulers)

    def passed(self, key: ClusterKey, result: PassResult, seconds: float) -> None:
        """Count a pass that came to its end."""
        self._counters["passes"].labels("done").inc()
        self._seconds.observe(seconds)
        for outcome in result.outcomes:
            action, reason = outcome.action, outcome.reason
            labels = (type(action).__name__, str(reason), str(outcome.done).lower())
            self._counters["actions"].labels(*labels).inc()
            if isinstance(action, Retire) and action.reason.replaces and outcome.done:
                self._counters["recycles"].labels(*key, action.reason.value).inc()
        for name, series in self._series(result):
            self._show(name, key, series)
        scheduler = result.observed.scheduler
        self._expired.count(key, scheduler.session, scheduler.pins_expired)
        self._redone.count(key, scheduler.session, scheduler.redone)
        self._schedulers.saw(key, scheduler)

    @staticmethod
    def _series(result: PassResult) -> Iterator[tuple[str, _Series]]:
        """What gauges say of a cluster now."""
        status, decided = result.status, result.plan
        yield "workers", {(state,): getattr(status, state) for state in _STATES}
        yield (
            "replicas",
            {
                ("requested",): status.replicas,
                ("desired",): status.desired,
                ("wanted",): status.wanted,
            },
        )
        words = {None: "unknown", True: "true", False: "false"}
        yield "condition", {(c.type, words[c.status], c.reason.value): 1 for c in status.conditions}
        yield (
            "group_replicas",
            {
                (plan.group, what): getattr(plan, what)
                for plan in decided.groups
                for what in ("serving", "desired", "wanted")
            },
        )
        yield (
            "worker_arrival_seconds",
            {(p.group,): p.inputs["arrival_s"] for p in decided.groups if "arrival_s" in p.inputs},
        )
        yield "quota_used_ratio", {(u.group, u.quota.value): u.ratio for u in decided.uses}
        held = dict.fromkeys(_SOURCES, 0) | dict(status.pins)
        yield "pinned_workers", {(source,): workers for source, workers in held.items()}
        ages: dict[str, list[float]] = {source: [] for source in _SOURCES}
        for claim, pin in pins_of(result.observed).items():
            ages.setdefault(claim.source, []).append(pin.for_s)
        yield "pins", {(source,): len(ages[source]) for source in _SOURCES}
        yield "pin_age_seconds_max", {(s,): max(ages[s], default=0.0) for s in _SOURCES}

    def _show(self, name: str, key: ClusterKey, series: _Series) -> None:
        """These are a cluster's series now; what it had besides is gone."""
        gauge, shown = self._gauges[name], self._shown[key]
        # Not remove_by_labels, which walks the series of all clusters, in each pass of each.
        for gone in shown.get(name, frozenset()) - series.keys():
            gauge.remove(*key, *gone)
        for labels, value in series.items():
            gauge.labels(*key, *labels).set(value)
        shown[name] = frozenset(series)

    def failed(self, outcome: str) -> None:
        """Count a pass that did not: `error`, `timeout` or `invalid`."""
        self._counters["passes"].labels(outcome).inc()

    def forget(self, key: ClusterKey) -> None:
        """Drop all series of a cluster that nobody scales any more."""
        for name in tuple(self._shown[key]):
            self._show(name, key, {})
        del self._shown[key]
        for name in ("pin_expired", "recycles", "tasks_redone"):
            self._counters[name].remove_by_labels(dict(zip(_CLUSTER, key, strict=True)))
        for before in (self._expired, self._redone):
            before.forget(key)
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


class SchedulerLoad(Collector):
    """
    Shows what was seen last of each scheduler, and nothing of one that does not answer.

    The counters are the agent's own: they begin anew with it, which Prometheus takes for what it
    is. So a function that is among the dearest no more leaves no series behind, and when it is
    again, its series goes on.
    """

    def __init__(self) -> None:
        self._seen: dict[ClusterKey, tuple[tuple[ReliefState, ...], Serialized | None]] = {}

    def saw(self, key: ClusterKey, scheduler: ObservedScheduler) -> None:
        self._seen[key] = (scheduler.relief, scheduler.serialized)

    def forget(self, key: ClusterKey) -> None:
        self._seen.pop(key, None)

    def collect(self) -> Iterable[Metric]:
        seen = sorted(self._seen.items())  # a copy: scrapes and passes share one thread or not
        yield self._reliefs((key, reliefs) for key, (reliefs, _) in seen)
        yield from self._serialized([(key, cost) for key, (_, cost) in seen if cost is not None])

    def _reliefs(self, rows: Iterable[tuple[ClusterKey, tuple[ReliefState, ...]]]) -> Metric:
        family = _family(GaugeMetricFamily, "relief_state")
        for key, reliefs in rows:
            for relief in reliefs:
                family.add_metric([*key, relief.name, relief.state], 1)
        return family

    def _serialized(self, rows: list[tuple[ClusterKey, Serialized]]) -> Iterator[Metric]:
        share = _family(GaugeMetricFamily, "serialize_share")
        seconds = _family(CounterMetricFamily, "serialize_seconds")
        sent = _family(CounterMetricFamily, "serialize_bytes")
        for key, cost in rows:
            share.add_metric([*key], cost.share)
            for row in cost.top:
                seconds.add_metric([*key, row.function], row.seconds)
                sent.add_metric([*key, row.function], row.sent_bytes)
        yield from (share, seconds, sent)


def _family(kind: type[M], name: str) -> M:
    full, text, labels = _named(name, _OF_SCHEDULERS[name])
    return kind(full, text, labels=labels)
