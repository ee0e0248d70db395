"""How far people may build on each metric: the words and promises of Kubernetes' metrics."""

from __future__ import annotations

#: Stays as it is, name, labels and meaning, until it has been deprecated for a minor release.
STABLE = "STABLE"
#: May get more labels or values, with a line in the changelog.
BETA = "BETA"
#: May change or go with any release.
ALPHA = "ALPHA"

STABILITY = {
    "dask_adaptive_passes": STABLE,
    "dask_adaptive_pass_seconds": STABLE,
    "dask_adaptive_actions": STABLE,
    "dask_adaptive_workers": STABLE,
    "dask_adaptive_replicas": STABLE,
    "dask_adaptive_leader": STABLE,
    "dask_adaptive_policies": STABLE,
    "dask_adaptive_tasks_redone": STABLE,
    "dask_adaptive_recycles": STABLE,
    "dask_adaptive_condition": BETA,
    "dask_adaptive_group_replicas": BETA,
    "dask_adaptive_pinned_workers": BETA,
    "dask_adaptive_pins": BETA,
    "dask_adaptive_pin_age_seconds_max": BETA,
    "dask_adaptive_pin_expired": BETA,
    "dask_adaptive_quota_used_ratio": BETA,
    "dask_adaptive_injections": BETA,
    "dask_adaptive_evictions": BETA,
    "dask_adaptive_relief_state": BETA,
    "dask_adaptive_worker_arrival_seconds": ALPHA,
    "dask_adaptive_serialize_share": ALPHA,
    "dask_adaptive_serialize_seconds": ALPHA,
    "dask_adaptive_serialize_bytes": ALPHA,
}


def stable(name: str, text: str) -> str:
    """
    The help text of a metric.

    Args:
        name: Without the `_total` of counters.

    Raises:
        KeyError: Nobody has said how stable it is.
    """
    return f"[{STABILITY[name]}] {text}"
