"""What a scheduler's agent says, as far as it may leave a cluster: no key, no address. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from dask_adaptive.cli.report_redact import scrubbed
from dask_adaptive.kube.api import Json
from dask_adaptive.loop.tracing import hashed
from dask_adaptive.model.observed import ObservedScheduler, SchedulerWorker


def snapshot(seen: ObservedScheduler, known: Collection[str]) -> Json:
    """
    One look at a scheduler.

    Args:
        known: Names of workers that Kubernetes knows, which the report has anyway. Any other name
            is hashed: it may be an address, or what people like.
    """
    if not seen.is_connected or not seen.agent:
        return {"problem": str(seen.problem or ""), "message": scrubbed(seen.message)}
    demand = seen.demand
    return {
        "distributed": seen.distributed,
        "agent": seen.agent,
        "target": seen.target,
        "queued": seen.queued,
        "processing": seen.processing,
        "held": seen.held,
        "expected_s": seen.expected_s,
        "workers": [_worker(w, known) for w in seen.workers],
        "shuffles": [{"run": s.run_id, "workers": s.workers} for s in seen.shuffles],
        "pins_expired": dict(seen.pins_expired),
        "redone": dict(seen.redone),
        "notes": dict(Counter(str(note.kind) for note in seen.notes)),
        "relief": [
            {"name": r.name, "state": r.state, "message": scrubbed(r.message)} for r in seen.relief
        ],
        "prefixes": [
            {"name": hashed(p.name), "mean_s": p.mean_s, "running": p.running, "ready": p.ready,
             "waiting": p.waiting, "longest_s": p.longest_s, "done": p.done}
            for p in (demand.prefixes if demand else ())
        ],
        "wants": [
            {"workers": w.workers, "left_s": w.left_s, "owner": hashed(w.owner)}
            for w in seen.wants
        ],
        "quiet": {"no_task_s": seen.quiet.no_task_s, "no_client_s": seen.quiet.no_client_s},
    }  # fmt: skip


def _worker(worker: SchedulerWorker, known: Collection[str]) -> Json:
    return {
        "name": worker.name if worker.name in known else hashed(worker.name),
        "status": worker.status,
        "nthreads": worker.nthreads,
        "processing": worker.processing,
        "idle_s": round(worker.idle_s, 1),
        "sole_bytes": worker.sole_bytes,
        "memory": worker.memory,
        "memory_limit": worker.memory_limit,
        "closable": worker.closable,
        "actors": worker.actors,
        "leaving": worker.leaving.value,
        "leaving_reason": str(worker.leaving_reason or ""),
        "stopped": bool(worker.stopped),
        "pins": [
            {"source": p.source, "owner": hashed(p.owner), "left_s": round(p.left_s, 1)}
            for p in worker.pins
        ],
    }
