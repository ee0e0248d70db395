"""`dask-adaptive explain`: why a worker is still there, or why a cluster has the workers it has."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import click

from dask_adaptive import DOMAIN
from dask_adaptive.cli.access import (
    NOTHING,
    ask,
    default_namespace,
    fail,
    kube_options,
    output_option,
)
from dask_adaptive.cli.get import table
from dask_adaptive.cli.scheduler_cost import costs_of, facts_of_live, facts_of_status, merged
from dask_adaptive.kube.api import Json, KubeApi
from dask_adaptive.kube.errors import NotFound
from dask_adaptive.kube.objects import parse_pod
from dask_adaptive.kube.resources import EVENTS, PODS, POLICIES
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import ObservedScheduler
from dask_adaptive.model.reason import Reason

_EVENTS_SHOWN = 5

Facts = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What is known of a worker or a cluster."""

    about: str
    policy: str
    state: str
    reason: str
    message: str
    facts: Facts = ()
    conditions: tuple[tuple[str, str, str, str], ...] = ()  # type, status, reason, message
    workers: tuple[tuple[str, str, str, str], ...] = ()  # name, state, reason, message
    serialized: tuple[tuple[str, ...], ...] = ()  # function, tasks, seconds, bytes, largest
    events: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """What only a scheduler itself can say."""

    quotas: Facts = ()  # how far a worker has used up each of its quotas
    live: ObservedScheduler | None = None  # of a cluster: its scheduler


NOBODY = Asked()


@click.command("explain")
@click.argument("name", metavar="POD|CLUSTER")
@kube_options
@output_option
def command(name: str, namespace: str | None, context: str | None, output: str) -> None:
    """
    Say why a worker stays or leaves, or why a cluster has the workers it has.

    NAME is a worker's pod, a worker, a DaskCluster or an AdaptivePolicy.
    """
    where = namespace or default_namespace(context)

    async def question(api: KubeApi) -> tuple[list[Json], Json | None, list[Json], Asked]:
        policies = await api.list(POLICIES.path(where))
        try:
            pod: Json | None = await api.get(PODS.path(where, name))
        except NotFound:
            pod = None
        events = await api.list(EVENTS.path(where), field=f"involvedObject.name={name}")
        asked = Asked(await _quotas(api, policies, pod, context))
        if pod is None:
            asked = Asked(live=await _live(policies, name, where, context))
        return policies, pod, events, asked

    answer = explanation(name, *ask(question, context=context))
    if answer is None:
        fail(f"nothing in namespace {where} that is called {name} is under a policy", NOTHING)
    if output == "json":
        click.echo(json.dumps(asdict(answer), indent=2))
    else:
        click.echo(render(answer))


async def _live(
    policies: Iterable[Json], name: str, namespace: str, context: str | None
) -> ObservedScheduler | None:
    """What the scheduler of a cluster says; None if the name is not a cluster's or a policy's."""
    policy = next((p for p in policies if name in _names(p)), None)
    if policy is None:
        return None
    from dask_adaptive.cli.from_here import look_from_here

    return await look_from_here(ClusterKey(namespace, _names(policy)[1]), context)


def _names(policy: Json) -> tuple[str, str]:
    """A policy's own name, and its cluster's."""
    return policy["metadata"]["name"], policy["spec"]["clusterRef"]["name"]


async def _quotas(
    api: KubeApi, policies: Iterable[Json], pod: Json | None, context: str | None
) -> Facts:
    """How far the worker in a pod has used up its quotas; nothing for one that is ending."""
    if pod is None or "deletionTimestamp" in pod["metadata"]:
        return ()
    cluster = (pod["metadata"].get("labels") or {}).get("dask.org/cluster-name")
    policy = next((p for p in policies if p["spec"]["clusterRef"]["name"] == cluster), None)
    if policy is None:
        return ()
    from dask_adaptive.cli.quota_use import quota_facts

    return await quota_facts(api, policy, pod, parse_pod(pod), context=context)


def explanation(
    name: str, policies: Iterable[Json], pod: Json | None, events: Iterable[Json],
    asked: Asked = NOBODY,
) -> Answer | None:  # fmt: skip
    """Put together what the policies' status, the pod and its events say. Pure."""
    answer = _explanation(name, list(policies), pod, events)
    if answer is None:
        return None
    if asked.live is None:
        return replace(answer, facts=(*answer.facts, *asked.quotas))
    facts = merged(answer.facts, facts_of_live(asked.live))
    return replace(answer, facts=facts, serialized=costs_of(asked.live))


def _explanation(
    name: str, policies: list[Json], pod: Json | None, events: Iterable[Json]
) -> Answer | None:
    told = tuple(_event(e) for e in sorted(events, key=_when)[-_EVENTS_SHOWN:])
    for policy in policies:
        if name in (policy["metadata"]["name"], policy["spec"]["clusterRef"]["name"]):
            return _of_cluster(policy, told)
    cluster = (pod or {}).get("metadata", {}).get("labels", {}).get("dask.org/cluster-name")
    worker = parse_pod(pod).worker if pod else name
    is_ending = pod is not None and "deletionTimestamp" in pod["metadata"]
    for policy in policies:
        if is_ending and policy["spec"]["clusterRef"]["name"] == cluster:
            return _of_ending_pod(policy, worker, pod or {}, told)
        for row in (policy.get("status") or {}).get("workers") or []:
            if name in (row["name"], row.get("pod")):
                return _of_row(policy, row, pod, told)
        if pod is not None and policy["spec"]["clusterRef"]["name"] == cluster:
            return _of_quiet_worker(policy, worker, pod, told)
    return None


def _of_cluster(policy: Json, events: tuple[str, ...]) -> Answer:
    status = policy.get("status") or {}
    numbers = {
        "replicas": "replicas",
        "desired": "desiredReplicas",
        "wanted by the load": "wantedReplicas",
        "connected": "connected",
        "pending": "pending",
        "idle": "idle",
        "busy": "busy",
        "pinned": "pinned",
        "retiring": "retiring",
    }
    counted = [(what, str(status.get(field, "?"))) for what, field in numbers.items()]
    held = [(f"held by {p['source']}", str(p["workers"])) for p in status.get("pins") or []]
    stay = [(f"stay: {b['reason']}", str(b["workers"])) for b in status.get("blockers") or []]
    pending = status.get("pendingReasons") or []
    wait = [(f"pending: {p['reason']}", str(p["workers"])) for p in pending]
    recycled = status.get("recycled") or {}
    worn = [(f"recycled: {reason}", str(count)) for reason, count in sorted(recycled.items())]
    return Answer(
        about=f"DaskCluster {policy['spec']['clusterRef']['name']}",
        policy=policy["metadata"]["name"],
        state=policy["spec"].get("mode", "Auto"),
        reason=status.get("reason", "Unknown"),
        message=status.get("message", "the operator has not looked at it yet; is it running?"),
        facts=(*counted, *held, *stay, *wait, *worn, *facts_of_status(status)),
        conditions=tuple(
            (c["type"], c["status"], c.get("reason", ""), c.get("message", ""))
            for c in status.get("conditions") or []
        ),
        workers=tuple(
            (w["name"], w.get("state", ""), w.get("reason", ""), w.get("message", ""))
            for w in status.get("workers") or []
        ),
        events=events,
    )


def _of_row(policy: Json, row: Json, pod: Json | None, events: tuple[str, ...]) -> Answer:
    return Answer(
        about=f"worker {row['name']}",
        policy=policy["metadata"]["name"],
        state=row.get("state", ""),
        reason=row.get("reason", ""),
        message=row.get("message", ""),
        facts=(
            *_pod_facts(pod),
            *_holder_facts(policy, row["name"]),
            *_replacing_facts(policy, row["name"]),
        ),
        events=events,
    )


def _of_ending_pod(policy: Json, worker: str, pod: Json, events: tuple[str, ...]) -> Answer:
    """A pod that is being deleted; the worker's row, if any, is about its process or the next."""
    rows = (policy.get("status") or {}).get("workers") or []
    said = next((r["message"] for r in rows if r["name"] == worker and r.get("message")), "")
    return Answer(
        about=f"worker {worker}",
        policy=policy["metadata"]["name"],
        state="Going",
        reason=Reason.POD_ENDING.value,
        message=said or "its pod is being deleted, and nothing of its work is waited for",
        facts=_pod_facts(pod),
        events=events,
    )


def _holder_facts(policy: Json, worker: str) -> Facts:
    held = (policy.get("status") or {}).get("heldBy") or []
    return tuple(
        (f"held by {row['source']} {row.get('owner', '')}", _until(row))
        for row in held
        if worker in (row.get("workers") or ())
    )


def _replacing_facts(policy: Json, worker: str) -> Facts:
    rows = (policy.get("status") or {}).get("replacing") or []
    return tuple(
        ("is to be replaced", f"{row['state']}: {row['reason']}: {row.get('message', '')}")
        for row in rows
        if row["worker"] == worker
    )


def _until(row: Json) -> str:
    until = f"until {row['until']} at the latest" if row.get("until") else "until it is given up"
    return f"{until} ({row['reason']})" if row.get("reason") else until


def _of_quiet_worker(policy: Json, worker: str, pod: Json, events: tuple[str, ...]) -> Answer:
    waiting = parse_pod(pod).waiting
    return Answer(
        about=f"worker {worker}",
        policy=policy["metadata"]["name"],
        state="Pending" if waiting else "Active",
        reason="InService",
        message=waiting or "in service: busy, or idle for too short a time to be considered",
        facts=_pod_facts(pod),
        events=events,
    )


def _pod_facts(pod: Json | None) -> Facts:
    if pod is None:
        return ()
    notes = pod["metadata"].get("annotations") or {}
    ours = [(k, v) for k, v in sorted(notes.items()) if k.startswith(f"{DOMAIN}/")]
    phase = (pod.get("status") or {}).get("phase", "Unknown")
    return (("pod", f"{pod['metadata']['name']} ({phase})"), *ours)


def _when(event: Mapping[str, Any]) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")


def _event(event: Mapping[str, Any]) -> str:
    count = event.get("count") or 1
    times = f" ({count} times)" if count > 1 else ""
    return f"{_when(event)} {event.get('reason')}: {event.get('message')}{times}"


def render(answer: Answer) -> str:
    """For people."""
    lines = [
        f"{answer.about}, under AdaptivePolicy {answer.policy}: {answer.state}",
        f"  {answer.reason}: {answer.message}",
    ]
    lines += [f"  {name}: {value}" for name, value in answer.facts]
    if answer.conditions:
        rows = [list(c) for c in answer.conditions]
        lines += ["", table(("CONDITION", "STATUS", "REASON", "MESSAGE"), rows)]
    if answer.serialized:
        heads = ("FUNCTION", "TASKS", "SECONDS", "BYTES", "LARGEST")
        lines += ["", table(heads, [list(row) for row in answer.serialized])]
    if answer.workers:
        rows = [list(w) for w in answer.workers]
        lines += ["", table(("WORKER", "STATE", "REASON", "MESSAGE"), rows)]
    if answer.events:
        lines += ["", "Last events:", *(f"  {event}" for event in answer.events)]
    return "\n".join(lines)
