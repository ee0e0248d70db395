"""Whether what a worker drains for still holds: the rule, not how far it is used."""

from __future__ import annotations

import math

from dask_adaptive.model.observed import ObservedWorker
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import QuotaNotes, Recycle

_NO_NOTES = QuotaNotes()


def still_asked(worker: ObservedWorker, recycle: Recycle, policy: Policy) -> bool:
    """
    Whether a worker would still be replaced for the reason for which it drains.

    Its use of the quota does not count: memory falls, and failures are forgotten, as it drains.
    """
    match worker.leaving_reason:
        case Reason.RECYCLE_REQUESTED:
            return bool(worker.recycle_asked)
        case Reason.RESTART_REQUESTED:
            return policy.restart_at is not None
        case Reason.DRIFTED:
            return recycle.drift and bool(worker.drift)
        case Reason.OUTLIER:
            return bool(recycle.selection.traits)
        case Reason.GPU_MEMORY:
            return min(recycle.gpu.soft, recycle.gpu.hard) < math.inf
        case Reason.LIFETIME | Reason.TASK_QUOTA:
            return _is_spent(worker, recycle)
    return _is_harmful(worker, recycle)


def _is_spent(worker: ObservedWorker, recycle: Recycle) -> bool:
    notes = worker.quota_notes or _NO_NOTES
    if worker.leaving_reason is Reason.LIFETIME:
        limit_s = recycle.lifetime.maximum_s if notes.lifetime_s is None else notes.lifetime_s
        return min(limit_s, worker.ends_in_s) < math.inf
    return recycle.tasks.from_walltime or bool(
        recycle.tasks.maximum if notes.tasks is None else notes.tasks
    )


def _is_harmful(worker: ObservedWorker, recycle: Recycle) -> bool:
    notes, memory = worker.quota_notes or _NO_NOTES, recycle.memory
    match worker.leaving_reason:
        case Reason.MEMORY_SOFT:
            return (memory.soft if notes.memory_soft is None else notes.memory_soft) < math.inf
        case Reason.MEMORY_HARD:
            return (memory.hard if notes.memory_hard is None else notes.memory_hard) < math.inf
        case Reason.MEMORY_LEAK:
            return memory.leak_rate < math.inf
    failures = recycle.failures.maximum if notes.failures is None else notes.failures
    return bool(failures or recycle.failures.patterns)
