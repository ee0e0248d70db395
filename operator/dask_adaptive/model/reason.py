"""The one word that says why: in plan, condition, event, metric, log and docs."""

from __future__ import annotations

import enum


class Reason(str, enum.Enum):
    """The reason of a decision. Shown to users: append only, never rename."""

    # why a number of replicas is what it is
    LOAD_INCREASED = "LoadIncreased"
    REPLICAS_CORRECTED = "ReplicasCorrected"
    DESIRED_WITHIN_RANGE = "DesiredWithinRange"
    TOO_MANY_REPLICAS = "TooManyReplicas"
    TOO_FEW_REPLICAS = "TooFewReplicas"

    # why a worker leaves, or comes back
    UNDERUTILIZED = "Underutilized"
    NEVER_CONNECTED = "NeverConnected"
    DRAINED = "Drained"
    WANTED_AGAIN = "WantedAgain"
    NODE_GOING = "NodeGoing"
    POD_ENDING = "PodEnding"
    WORKER_LEFT = "WorkerLeft"
    TASKS_GIVEN_BACK = "TasksGivenBack"

    # why a worker is replaced
    TASK_QUOTA = "TaskQuota"
    LIFETIME = "Lifetime"
    MEMORY_SOFT = "MemorySoft"
    MEMORY_HARD = "MemoryHard"
    FAILURES = "Failures"
    RECYCLE_REQUESTED = "RecycleRequested"
    DRIFTED = "Drifted"

    # how its replacement goes
    RECYCLING = "Recycling"
    RECYCLE_ABORTED = "RecycleAborted"
    RECYCLE_STORM = "RecycleStorm"
    NOT_YET = "NotYet"
    QUOTA_REACHED = "QuotaReached"
    TASK_TOO_LONG = "TaskTooLong"

    # why nothing leaves
    SCALE_DOWN_STABILIZED = "ScaleDownStabilized"
    NO_CANDIDATES = "NoCandidates"
    BUDGET_EXHAUSTED = "BudgetExhausted"
    SETTLING = "Settling"
    RETIRING = "Retiring"

    # a veto on one worker
    PINNED = "Pinned"
    BUSY = "Busy"
    IDLE_GRACE = "IdleGrace"
    HOLDS_ACTORS = "HoldsActors"
    NO_RECIPIENT = "NoRecipient"
    HOLDS_UNCOPYABLE = "HoldsUncopyable"

    # what stands in the way of the whole pass
    PAUSED = "Paused"
    ADVISING = "Advising"
    CLUSTER_NOT_FOUND = "ClusterNotFound"
    OWNERSHIP_CONFLICT = "OwnershipConflict"
    SCHEDULER_UNREACHABLE = "SchedulerUnreachable"
    AGENT_INVALID = "AgentInvalid"
    AGENT_MISSING = "AgentMissing"
    INJECTION_REFUSED = "InjectionRefused"
    INVALID_SPEC = "InvalidSpec"

    # the scheduler's load and its configuration
    RELIEF_FAILED = "ReliefFailed"
    SERIALIZATION_HEAVY = "SerializationHeavy"
    PENDING_RESTART = "PendingRestart"

    # pins
    PIN_CHANGED = "PinChanged"
    INVALID_ANNOTATION = "InvalidAnnotation"
    PIN_EXPIRED = "PinExpired"
    PINS_OVERRIDDEN = "PinsOverridden"

    # what makes or bounds a number of replicas
    SCHEDULED_MINIMUM = "ScheduledMinimum"
    CLIENT_WANTS = "ClientWants"
    SHUFFLE_AHEAD = "ShuffleAhead"
    WITHIN_TOLERANCE = "WithinTolerance"
    SCALE_UP_STABILIZED = "ScaleUpStabilized"
    SCALE_UP_LIMITED = "ScaleUpLimited"
    SCALE_DOWN_LIMITED = "ScaleDownLimited"
    UNSCHEDULABLE = "Unschedulable"
    QUOTA_EXCEEDED = "QuotaExceeded"
    BUDGET_SHARED = "BudgetShared"
    ADMISSION_REFUSED = "AdmissionRefused"
    ADMISSION_GATED = "AdmissionGated"
    CLUSTER_IDLE = "ClusterIdle"

    # who holds it
    SCALING_PAUSED = "ScalingPaused"
    FALLBACK = "Fallback"
    TOO_MANY_UNREADY = "TooManyUnready"
    WORKERS_PAUSED = "WorkersPaused"

    # adoption of a DaskAutoscaler
    ADOPTED = "Adopted"
    RELEASED = "Released"

    # outcomes
    RETIREMENT_REFUSED = "RetirementRefused"
    ACTION_FAILED = "ActionFailed"
    UNREADABLE = "Unreadable"
    RECONCILED = "Reconciled"

    @property
    def replaces(self) -> bool:
        """A worker that leaves for this reason is replaced by another."""
        return self in _REPLACING

    def __str__(self) -> str:
        return self.value


_REPLACING = frozenset(
    {
        Reason.TASK_QUOTA, Reason.LIFETIME, Reason.MEMORY_SOFT, Reason.MEMORY_HARD,
        Reason.FAILURES, Reason.RECYCLE_REQUESTED, Reason.DRIFTED,
    }
)  # fmt: skip

#: A worker that leaves for such a reason is one too many.
SURPLUS = frozenset(
    {Reason.UNDERUTILIZED, Reason.BUDGET_SHARED, Reason.NEVER_CONNECTED, Reason.ADMISSION_GATED}
)
