"""
The number of workers that dask-kubernetes has acted on last, as its kopf notes it. Pure.

kopf notes the object that its handlers have seen, as JSON, when they have all succeeded
(`AnnotationsDiffBaseStorage.store` in `process_changing_cause`); a change is a difference to that.
Changes that come while one is being handled wait, and the note is behind meanwhile: down and up
again, the number that is noted may be the one asked for although the handler still acts on the one
between. Down and up while nobody listens is no change, and nothing is done for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

#: kopf's default, which dask-kubernetes keeps.
ANNOTATION = "kopf.zalando.org/last-handled-configuration"


def handled_replicas(metadata: Mapping[str, Any]) -> int | None:
    """`spec.worker.replicas` of a DaskWorkerGroup as handled last; None: nobody knows."""
    text = (metadata.get("annotations") or {}).get(ANNOTATION)
    if not text:
        return None
    try:
        replicas = json.loads(text)["spec"]["worker"]["replicas"]
    except (ValueError, KeyError, TypeError):
        return None
    return replicas if isinstance(replicas, int) and not isinstance(replicas, bool) else None
