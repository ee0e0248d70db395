"""Why workers that are not needed stay, and what ends it. Pure: status and explanations in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask_adaptive.kube.api import Json
from dask_adaptive.model.duration import format_duration, parse_duration
from dask_adaptive.model.reason import Reason
from dask_adaptive_agent import wire

#: What ends what holds a whole group, or a whole cluster.
ENDS: Mapping[str, str] = {
    "ScaleDownStabilized": "once the load has been low for behavior.scaleDown.stabilizationWindow"
    " (by default idleTimeout)",
    "ScaleDownLimited": "when the period of behavior.scaleDown.policies is over",
    "DelayAfterScaleUp": "behavior.scaleDown.delayAfterScaleUp after the last rise",
    "WithinTolerance": "when the load asks for fewer than behavior.scaleDown.tolerance allows",
    "BudgetExhausted": "when one of those that leave is gone (retirement.maxConcurrent)",
    "TooFewReplicas": "with a lower minReplicas",
    "ScheduledMinimum": "when the schedule closes (schedules)",
    "ClientWants": "when the client's want() ends, or the client leaves",
    "ShuffleAhead": "when the shuffle is done",
    "Settling": "when dask-kubernetes is through with the last change",
    "Retiring": "when they have handed over what they hold",
    "ScaleInPaused": "when the annotation paused-scale-in ends or is removed",
    "ReplicasHeld": "when the annotation paused-replicas is removed",
    "InvalidPause": "when the annotation is mended or removed",
    "Paused": "with spec.mode Auto, and without the annotations paused and paused-until",
    "Advising": "with spec.mode Auto",
    "Fallback": "when the scheduler answers again",
    "TooManyUnready": "when the workers are back (maxUnready)",
    "SchedulerUnreachable": "when the scheduler answers again",
    "ProtocolMismatch": "with an operator and an agent of one release",
    "AgentMissing": "when the agent is in the scheduler",
    "OwnershipConflict": "when only one scales the cluster",
    "ClusterNotFound": "when there is such a DaskCluster",
    "InvalidPolicy": "when the policy is mended",
}

#: Reasons for which a cluster is not scaled at all, in words.
_NOT_SCALED = frozenset(
    ("Paused", "Advising", "SchedulerUnreachable", "ProtocolMismatch", "AgentMissing",
     "OwnershipConflict", "ClusterNotFound", "InvalidPolicy", "Fallback", "TooManyUnready")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stay:
    """One worker that stays."""

    worker: str
    reason: str
    message: str
    ends: str


@dataclass(frozen=True, slots=True)
class Hold:
    """What keeps a whole group from shrinking."""

    group: str
    reason: str
    message: str
    ends: str


@dataclass(frozen=True, slots=True)
class WhyNot:
    """The answer."""

    cluster: str
    policy: str
    answer: str  # in one sentence
    workers: int  # connected, or on their way
    desired: int
    holds: tuple[Hold, ...] = ()
    stays: tuple[Stay, ...] = ()
    unknown: str = ""  # why the scheduler itself was not asked; empty: it was


def why_not(
    policy: Json, explained: Sequence[wire.WorkerExplanation] | None, unknown: str = ""
) -> WhyNot:
    """
    Put the answer together.

    Args:
        explained: What the agent says of each worker; None: it was not asked, and `unknown` says
            why. Then only those workers are named that the status names.
    """
    status = policy.get("status") or {}
    spec, meta = policy["spec"], policy["metadata"]
    connected, pending = status.get("connected", 0), status.get("pending", 0)
    retiring = status.get("retiring", 0)
    workers = connected + pending - retiring
    desired = status.get("desiredReplicas", 0)
    holds = tuple(_holds(policy, status))
    if explained is None:
        stays = _stays_of_status(status)
    else:
        stays = tuple(_stay(row, status, _idle_timeout_s(spec)) for row in explained)
    stays = tuple(sorted(stays, key=lambda s: (s.reason, s.worker)))
    answer = _answer(status, workers, desired, holds, stays)
    return WhyNot(
        spec["clusterRef"]["name"], meta["name"], answer, workers, desired, holds, stays, unknown
    )


def _idle_timeout_s(spec: Mapping[str, Any]) -> float:
    try:
        return parse_duration(spec.get("idleTimeout", "60s"))
    except ValueError:
        return 60.0


def _answer(
    status: Mapping[str, Any], workers: int, desired: int, holds: Sequence[Hold],
    stays: Sequence[Stay],
) -> str:  # fmt: skip
    reason = status.get("reason", "")
    if not status:
        return "Nobody knows: the operator has not looked at this cluster yet; is it running?"
    if reason in _NOT_SCALED:
        return f"Nothing leaves, because of {reason}: {status.get('message', '')}."
    surplus = workers - desired
    leaving = status.get("retiring", 0)
    also = f" {leaving} {'is' if leaving == 1 else 'are'} leaving now." if leaving else ""
    if surplus > 0:
        counted = f" Those that are there: {said}." if (said := _counted(stays)) else ""
        return f"{surplus} of {workers} workers are not needed, and stay.{counted}{also}"
    if holds:
        return (
            f"No worker is too many: {desired} are desired and {workers} there, because"
            f" {holds[0].reason} holds what the load asks for ({status.get('wantedReplicas', 0)})."
            + also
        )
    return f"No worker is too many: the load asks for {desired}, and {workers} are there.{also}"


def _counted(stays: Iterable[Stay]) -> str:
    counts: dict[str, int] = {}
    for stay in stays:
        if stay.reason == "Retiring":
            continue
        counts[stay.reason] = counts.get(stay.reason, 0) + 1
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{n} {reason}" for reason, n in order)


def _holds(policy: Json, status: Mapping[str, Any]) -> Iterable[Hold]:
    """By group; of the cluster as a whole where its status speaks of no groups."""
    rows = status.get("groups") or [
        {"name": "", "reason": status.get("reason", ""), "message": status.get("message", "")}
    ]
    told = set()
    cluster = {"name": "", "reason": status.get("reason", ""), "message": status.get("message", "")}
    for row in (cluster, *rows) if cluster["reason"] in _NOT_SCALED else rows:
        reason = row.get("reason", "")
        if reason in ENDS and (row["name"], reason) not in told:
            told.add((row["name"], reason))
            yield Hold(row["name"], reason, row.get("message", ""), ENDS[reason])
    decision = status.get("lastDecision") or {}
    for step in decision.get("steps") or []:
        where = decision.get("group", "")
        reason = step.get("reason", "")
        is_news = (where, reason) not in told and ("", reason) not in told
        if reason in ENDS and is_news and step["replicas"] > decision.get("wanted", 0):
            told.add((where, reason))
            yield Hold(where, reason, step.get("message", ""), ENDS[reason])


def _stay(row: wire.WorkerExplanation, status: Mapping[str, Any], idle_timeout_s: float) -> Stay:
    name = row["name"]
    if row["retirement"]:
        return Stay(name, "Retiring", row["retirement"], ENDS["Retiring"])
    if row["pins"]:
        said = f"pinned by {', '.join(row['pins'])}"
        return Stay(name, "Pinned", said, _pin_end(name, status, row["pins"]))
    if row["n_processing"]:
        tasks = ", ".join(row["processing"][:2])
        more = row["n_processing"] - min(len(row["processing"]), 2)
        said = f"has {tasks}" + (f" and {more} more" if more > 0 else "")
        return Stay(name, "Busy", said, "when its tasks are done")
    sentence = row["sentence"].removeprefix("stays: ")
    if row["sentence"].startswith("stays:"):
        return Stay(name, *_obstacle(row, sentence))
    idle_s = row["idle_ms"] / 1000
    if idle_s < idle_timeout_s:
        left = format_duration(idle_timeout_s - idle_s)
        return Stay(name, "IdleGrace", f"idle for {format_duration(idle_s)}", f"in {left}")
    return Stay(name, "Free", sentence, "when it is not needed, and it is its turn")


def _obstacle(row: wire.WorkerExplanation, sentence: str) -> tuple[str, str, str]:
    if "actor" in sentence:
        return Reason.HOLDS_ACTORS.value, sentence, "when its actors are released"
    if not row["closable"]:
        return Reason.NOT_OFFERED.value, sentence, "when results are released, or memory is added"
    if row["n_sole"]:
        ends = "when another worker is there, or the results are released"
        return Reason.NO_RECIPIENT.value, sentence, ends
    return "Held", sentence, "when that ends"


def _pin_end(worker: str, status: Mapping[str, Any], pins: Sequence[str] | None = None) -> str:
    """
    When the last of a worker's pins ends, as far as the status says.

    Args:
        pins: The pins that hold it, in the agent's words; None: all that the status tells of it.
    """
    rows = status.get("heldBy") or []
    if pins is None:
        ends = {row.get("until") or "" for row in rows if worker in (row.get("workers") or ())}
    else:
        ends = {_end_of(pin, rows) for pin in pins}
    return f"at the latest {max(ends)}" if ends and "" not in ends else "when the pin ends"


def _end_of(pin: str, rows: Iterable[Mapping[str, Any]]) -> str:
    """The end of a pin that is told as `shuffle ab12`, or `client name (reason)`."""
    for row in rows:
        words = f"{row['source']} {row.get('owner', '')}"
        is_manual = row["source"] == "manual" and pin.startswith("annotation")
        if is_manual or pin == words or pin.startswith(f"{words} "):
            return row.get("until") or ""
    return ""


def _stays_of_status(status: Mapping[str, Any]) -> tuple[Stay, ...]:
    """Those that the status names; workers that are busy or in their grace are only counted."""
    named = [
        Stay(row["name"], row["reason"], row.get("message", ""), _ends_by_status(row, status))
        for row in status.get("workers") or []
        if row.get("state") in ("Active", "Stopped", "Draining", "Drained")
    ]
    counted = {row["reason"]: row["workers"] for row in status.get("blockers") or []}
    for stay in named:
        counted[stay.reason] = counted.get(stay.reason, 0) - 1
    unnamed = [
        Stay(f"({n} without a name)", reason, "", _USUAL_ENDS.get(reason, ""))
        for reason, n in counted.items()
        if n > 0
    ]
    return (*named, *unnamed)


_USUAL_ENDS = {
    "Busy": "when their tasks are done",
    "IdleGrace": "after idleTimeout without a task",
    "Pinned": "see: dask-adaptive pins",
}


def _ends_by_status(row: Mapping[str, Any], status: Mapping[str, Any]) -> str:
    if row["reason"] == Reason.PINNED.value:
        return _pin_end(row["name"], status)
    return ENDS.get(row["reason"], _USUAL_ENDS.get(row["reason"], ""))
