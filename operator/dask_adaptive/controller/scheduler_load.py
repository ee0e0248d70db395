"""What Prometheus is told of schedulers: the state of each relief, and what serializing costs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from dask_adaptive.controller.stability import stable
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import ObservedScheduler, ReliefState, Serialized

_CLUSTER = ["namespace", "cluster"]


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
        family = GaugeMetricFamily(
            "dask_adaptive_relief_state",
            stable(
                "dask_adaptive_relief_state",
                "1 for the state that each relief of a scheduler is in",
            ),
            labels=[*_CLUSTER, "relief", "state"],
        )
        for key, reliefs in rows:
            for relief in reliefs:
                family.add_metric([*key, relief.name, relief.state], 1)
        return family

    def _serialized(self, rows: list[tuple[ClusterKey, Serialized]]) -> Iterator[Metric]:
        share = GaugeMetricFamily(
            "dask_adaptive_serialize_share",
            stable(
                "dask_adaptive_serialize_share",
                "Part of a scheduler's CPU time spent serializing tasks in the last minute",
            ),
            labels=_CLUSTER,
        )
        labels = [*_CLUSTER, "function"]
        seconds = CounterMetricFamily(
            "dask_adaptive_serialize_seconds",
            stable(
                "dask_adaptive_serialize_seconds",
                "Seconds spent serializing tasks, by function; the ten dearest",
            ),
            labels=labels,
        )
        sent = CounterMetricFamily(
            "dask_adaptive_serialize_bytes",
            stable(
                "dask_adaptive_serialize_bytes",
                "Bytes of serialized tasks, by function; the ten dearest",
            ),
            labels=labels,
        )
        for key, cost in rows:
            share.add_metric([*key], cost.share)
            for row in cost.top:
                seconds.add_metric([*key, row.function], row.seconds)
                sent.add_metric([*key, row.function], row.sent_bytes)
        yield from (share, seconds, sent)
