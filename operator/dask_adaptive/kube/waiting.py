"""Why a worker's pod does not run, in the words of Kubernetes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

_LONGEST = 200  # characters of a message that are of use in a status


def pod_waiting(pod: Mapping[str, Any]) -> str:
    """What a pod waits for; empty if its containers run."""
    status = pod.get("status") or {}
    phase = status.get("phase", "Pending")
    if phase in ("Failed", "Succeeded"):
        return _said(status.get("reason") or phase, status.get("message"))
    containers = [
        *(status.get("initContainerStatuses") or []),
        *(status.get("containerStatuses") or []),
    ]
    stuck = next(filter(None, map(_container_waiting, containers)), "")
    if stuck:
        return stuck
    if phase != "Pending":
        return ""
    return _unscheduled(status.get("conditions") or []) or "Pending"


def unscheduled_since(pod: Mapping[str, Any]) -> str:
    """The instant since which the scheduler finds no node for a pod; empty if it has one."""
    for condition in (pod.get("status") or {}).get("conditions") or []:
        # Not SchedulingGated: there nobody has looked for a node yet.
        said = (condition.get("type"), condition.get("status"), condition.get("reason"))
        if said == ("PodScheduled", "False", "Unschedulable"):
            return str(condition.get("lastTransitionTime") or "")
    return ""


def _unscheduled(conditions: Iterable[Mapping[str, Any]]) -> str:
    for condition in conditions:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return _said(condition.get("reason") or "Unschedulable", condition.get("message"))
    return ""


def _container_waiting(container: Mapping[str, Any]) -> str:
    state = container.get("state") or {}
    if "waiting" in state:
        waiting = state["waiting"] or {}
        reason = str(waiting.get("reason") or "Waiting")
        last = (container.get("lastState") or {}).get("terminated") or {}
        message = waiting.get("message")
        if reason == "CrashLoopBackOff" and last:
            message = f"{last.get('reason', 'Error')}, exit code {last.get('exitCode')}"
        return _said(reason, message)
    ended = state.get("terminated")
    if ended and ended.get("exitCode", 0) != 0:
        return _said(ended.get("reason") or "Error", f"exit code {ended['exitCode']}")
    return ""


def deployment_waiting(deployment: Mapping[str, Any]) -> str:
    """Why a Deployment has no pod: refused by a quota or a webhook, or none asked for."""
    if (deployment.get("spec") or {}).get("replicas") == 0:
        return "ScaledToZero: spec.replicas of the worker's Deployment is 0"
    return deployment_refused(deployment)


def deployment_refused(deployment: Mapping[str, Any]) -> str:
    """
    Who refuses to let a Deployment's pod be made, and why; empty if nobody does.

    The ReplicaSet controller goes on trying, less and less often.
    """
    for condition in (deployment.get("status") or {}).get("conditions") or []:
        if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True":
            return _said(condition.get("reason") or "ReplicaFailure", condition.get("message"))
    return ""


def _said(reason: str, message: str | None) -> str:
    text = " ".join((message or "").split())
    if len(text) > _LONGEST:
        text = text[: _LONGEST - 1] + "…"
    return f"{reason}: {text}" if text else reason
