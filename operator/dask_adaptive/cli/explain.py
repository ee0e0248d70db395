"""`dask-adaptive explain`: why a worker is still there, or why a cluster has the workers it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from dask_adaptive import DOMAIN
from dask_adaptive.cli.access import (
    NOTHING,
    Access,
    fail,
    found,
    kube_options,
    output_option,
    workers_and_clusters,
)
from dask_adaptive.cli.output import Cell, aligned, dump, show
from dask_adaptive.cli.status_view import (
    NOT_LOOKED,
    PinView,
    PolicyView,
    RowView,
    StatusView,
    list_policies,
)
from dask_adaptive.kube.api import EVENTS, PODS, KubeError
from dask_adaptive.kube.objects import PodObject, parse_pod
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import (
    Clocks,
    ObservedScheduler,
    ObservedWorker,
    ReliefState,
    Serialized,
)
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Quota

if TYPE_CHECKING:
    from dask_adaptive.kube.api import Json, KubeApi

#: Last events, and functions whose serializing costs most.
_EVENTS_SHOWN = _FUNCTIONS_SHOWN = 5

Facts = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """All that is known of a worker or a cluster."""

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


@click.command("explain")
@click.argument("name", metavar="POD|CLUSTER", shell_complete=workers_and_clusters)
@kube_options
@output_option
def command(name: str, access: Access, output: str) -> None:
    """
    Say why a worker stays or leaves, or why a cluster has the workers it has.

    NAME is a worker's pod, a worker, a DaskCluster or an AdaptivePolicy.
    """

    async def question(api: KubeApi) -> Answer | None:
        policies = await list_policies(api, access.namespace)
        answer = await _explained(api, name, policies, access)
        path = EVENTS.path(access.namespace)
        events = await api.list(path, field=f"involvedObject.name={name}")
        last = sorted(events, key=_when)[-_EVENTS_SHOWN:]
        return answer and replace(answer, events=tuple(map(_event, last)))

    answer = access.ask(question)
    if answer is None:
        where = access.namespace
        fail(f"nothing in namespace {where} that is called {name} is under a policy", NOTHING)
    if output == "table":
        show(render(answer))
    else:
        dump(asdict(answer), output)


async def _explained(
    api: KubeApi, name: str, policies: list[PolicyView], access: Access
) -> Answer | None:
    from dask_adaptive.cli.cluster_now import observe_scheduler

    for policy in policies:
        if policy.is_of(name):
            key = ClusterKey(access.namespace, policy.cluster)
            return of_cluster(policy, await observe_scheduler(key, access))
    pod = await found(api.get(PODS.path(access.namespace, name)))
    if pod is None:
        rows = ((p, p.status.worker(name)) for p in policies if p.status)
        return next((of_worker(p, row) for p, row in rows if row), None)
    parsed = parse_pod(pod)
    for policy in policies:
        if policy.cluster == parsed.key.name:
            quotas = () if parsed.meta.deleting else await _quotas(api, policy, parsed, access)
            return of_pod(policy, parsed, _pod_facts(pod), quotas)
    return None


def of_cluster(policy: PolicyView, live: ObservedScheduler) -> Answer:
    """
    Put together what the status of a cluster says, and its scheduler.

    Args:
        live: What the scheduler says now; its message says why it says nothing.
    """
    status = policy.status or StatusView(reason="Unknown", message=NOT_LOOKED)
    idle = tuple((f"idleTimeout of {name}", str(time)) for name, time in policy.idle_times.items())
    facts, known = _live_facts(live), _cluster_facts(status) if policy.status else ()
    facts = (*idle, *facts)
    names = {name for name, _ in facts}  # what is live instead of what the status says of it
    return Answer(
        about=f"DaskCluster {policy.cluster}",
        policy=policy.name,
        state=policy.mode,
        reason=status.reason,
        message=status.message,
        facts=(*((name, said) for name, said in known if name not in names), *facts),
        conditions=tuple((c.name, c.state, c.reason, c.message) for c in status.conditions),
        workers=tuple((w.name, w.state, w.reason, w.message) for w in status.workers),
        serialized=_costs(live.serialized) if live.serialized else (),
    )


def _cluster_facts(status: StatusView) -> Facts:
    names = ("replicas", "desired", "wanted", "connected", "pending", "idle", "busy", "pinned",
             "retiring")  # fmt: skip
    said = {"wanted": "wanted by the load"}
    return (
        *((said.get(name, name), str(getattr(status, name))) for name in names),
        *((f"held by {row.source}", str(row.workers)) for row in status.pins),
        *((f"stay: {row.reason}", str(row.workers)) for row in status.blockers),
        *((f"pending: {row.reason}", str(row.workers)) for row in status.pending_reasons),
        *((f"recycled: {reason}", str(n)) for reason, n in sorted(status.recycled.items())),
        *((f"relief {row.name}", _state(row)) for row in status.scheduler.relief),
    )


def _live_facts(seen: ObservedScheduler) -> Facts:
    """The scheduler's own figures, as of now."""
    if not seen.agent:
        return (("what reliefs do", f"not known: {seen.message}"),)
    facts = []
    for relief in seen.relief:
        counts = ", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in relief.counts)
        state = _state(relief)
        facts.append((f"relief {relief.name}", f"{state} ({counts})" if counts else state))
    if cost := seen.serialized:
        total = f"{cost.seconds:.1f} s and {_size(cost.sent_bytes)} for {cost.calls:,} tasks"
        share = f"{cost.share:.0%} of the scheduler's CPU time in the last minute"
        facts.append(("serializing", f"{total}; {share}"))
    return tuple(facts)


def _costs(cost: Serialized) -> tuple[tuple[str, ...], ...]:
    """The cost of serializing by function, the dearest first, as rows of text."""
    return tuple(
        (row.function, f"{row.calls:,}", f"{row.seconds:.2f}", _size(row.sent_bytes),
         _size(row.largest_bytes))
        for row in cost.top[:_FUNCTIONS_SHOWN]
    )  # fmt: skip


def of_worker(policy: PolicyView, row: RowView, facts: Facts = ()) -> Answer:
    """Explain a worker that the status names."""
    status = policy.status
    assert status is not None
    pins = [pin for pin in status.held_by if row.name in pin.workers]
    held = [(f"held by {pin.source} {pin.owner}", _until(pin)) for pin in pins]
    replaced = [
        ("is to be replaced", f"{r.state}: {r.reason}: {r.message}")
        for r in status.replacing
        if r.name == row.name
    ]
    about = f"worker {row.name}"
    said = (*facts, *held, *replaced)
    return Answer(about, policy.name, row.state, row.reason, row.message, said)


def of_pod(policy: PolicyView, pod: PodObject, facts: Facts, quotas: Facts) -> Answer:
    """Explain a worker by its pod."""
    status = policy.status
    row = status and (status.worker(pod.meta.name) or status.worker(pod.worker))
    if pod.meta.deleting:
        # The row, if there is one, may be about the worker's next pod.
        said = row.message if row else ""
        message = said or "its pod is being deleted, and nothing waits for its work"
        row = RowView(pod.worker, state="Going", reason=str(Reason.POD_ENDING), message=message)
    elif row:
        answer = of_worker(policy, row, facts)
        return replace(answer, facts=(*answer.facts, *quotas))
    else:
        said = pod.waiting or "in service: busy, or idle for too short a time to be considered"
        state = "Pending" if pod.waiting else "Active"
        row = RowView(pod.worker, state=state, reason="InService", message=said)
    about = f"worker {pod.worker}"
    return Answer(about, policy.name, row.state, row.reason, row.message, (*facts, *quotas))


def _pod_facts(pod: Json) -> Facts:
    notes = pod["metadata"].get("annotations") or {}
    ours = [(k, v) for k, v in sorted(notes.items()) if k.startswith(f"{DOMAIN}/")]
    phase = (pod.get("status") or {}).get("phase", "Unknown")
    return (("pod", f"{pod['metadata']['name']} ({phase})"), *ours)


def _until(pin: PinView) -> str:
    until = f"until {pin.until} at the latest" if pin.until else "until it is released"
    return f"{until} ({pin.reason})" if pin.reason else until


async def _quotas(api: KubeApi, policy: PolicyView, pod: PodObject, access: Access) -> Facts:
    """
    How far a worker has used up its quotas, as its scheduler says.

    The status does not say it: a number that changes with every task would be written with every
    task.
    """
    from dask_adaptive.cli.cluster_now import observe_scheduler, platform_view
    from dask_adaptive.loop.join import join
    from dask_adaptive.planner.recycling.effective_quotas import with_walltimes

    if policy.rules is None:
        return (("quotas", "not known: the policy can't be read"),)
    try:
        seen = await platform_view(api, pod.key)
    except KubeError as exc:
        return (("quotas", f"not known: {exc}"),)
    scheduler = await observe_scheduler(pod.key, access)
    observed = with_walltimes(join(pod.key, seen, scheduler), policy.rules)
    workers = [w for g in observed.groups for w in g.workers if w.name == pod.worker]
    clocks, problem = observed.clocks, scheduler.message
    return quota_facts(workers[0], policy.rules, clocks, problem) if workers else ()


def quota_facts(worker: ObservedWorker, policy: Policy, clocks: Clocks, problem: str = "") -> Facts:
    """
    A worker's quotas.

    Args:
        problem: Why its scheduler did not say what it has used; empty: it did.
    """
    from dask_adaptive.planner.recycling.quotas import quota_lines

    lines = quota_lines(worker, policy.recycle_of(worker.group), clocks)
    facts = [
        (f"quota {line.quota.value}", f"{line.used}, of {line.limit} ({line.ratio:.0%})")
        for line in lines
        if not problem or line.quota is Quota.LIFETIME
    ]
    missing = f"the scheduler's counts are missing: {problem}" if problem else ""
    more = (
        ("gets no more tasks", worker.cordon.message if worker.cordon else ""),
        ("annotation", worker.quota_notes.problem if worker.quota_notes else ""),
        ("to be replaced", worker.recycle_asked),
        ("differs from its group", worker.drift),
        ("quotas", missing),
    )
    return (*facts, *((name, said) for name, said in more if said))


def _state(row: RowView | ReliefState) -> str:
    return f"{row.state}: {row.message}" if row.message else row.state


def _size(amount: float) -> str:
    """Bytes, for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000 or unit == "GB":
            break
        amount /= 1000
    return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"


def _when(event: Mapping[str, Any]) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")


def _event(event: Mapping[str, Any]) -> str:
    count = event.get("count") or 1
    times = f" ({count} times)" if count > 1 else ""
    return f"{_when(event)} {event.get('reason')}: {event.get('message')}{times}"


def render(answer: Answer) -> list[Cell]:
    """For people."""
    lines: list[Cell] = [
        f"{answer.about}, under AdaptivePolicy {answer.policy}: {answer.state}",
        f"  {answer.reason}: {answer.message}",
        *(f"  {name}: {value}" for name, value in answer.facts),
    ]
    tables = (
        (("CONDITION", "STATUS", "REASON", "MESSAGE"), answer.conditions),
        (("FUNCTION", "TASKS", "SECONDS", "BYTES", "LARGEST"), answer.serialized),
        (("WORKER", "STATE", "REASON", "MESSAGE"), answer.workers),
    )
    for heads, rows in tables:
        if rows:
            lines += ["", *aligned(heads, rows)]
    if answer.events:
        lines += ["", "Last events:", *(f"  {event}" for event in answer.events)]
    return lines
