"""`dask-adaptive explain`: explains what a cluster, a worker or a budget does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import click
from rich.text import Text

from dask_adaptive.cli.access import Access, found, kube_options, output_option
from dask_adaptive.cli.errors import NOTHING, USAGE, fail
from dask_adaptive.cli.output import HEAD, Cell, aligned, dump, show
from dask_adaptive.cli.status_view import NOT_LOOKED, PolicyView, fail_without_policy, list_policies
from dask_adaptive.cli.why import Live, Stay, answer, holds
from dask_adaptive.kube.api import BUDGETS, CONFIG_MAPS, DEPLOYMENTS, PODS
from dask_adaptive.kube.objects import CLUSTER_LABEL, parse_pod
from dask_adaptive.kube.shared_budgets import BudgetStatus
from dask_adaptive.kube.status_json import history_name, history_of, merged
from dask_adaptive.loop.status import HeldBy, Status
from dask_adaptive.model.amounts import LAST, counted, format_bytes, instant
from dask_adaptive.model.codec import encode, recover
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.plan import Decision
from dask_adaptive.model.reason import Reason
from dask_adaptive.model.recycle import Quota

if TYPE_CHECKING:
    from dask_adaptive.kube.api import Json, KubeApi
    from dask_adaptive.model.observed import ObservedWorker

#: Rows shown: last decisions, and functions by cost of serializing.
_DECISIONS, _FUNCTIONS = 10, 5

_PINS = ("SOURCE", "OWNER", "UNTIL", "WORKERS", "REASON")


class Section(NamedTuple):
    """A table with name, columns and rows."""

    name: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Answer:
    """The explanation of one object."""

    about: str
    summary: str  # in one line
    facts: Mapping[str, str]
    sections: tuple[Section, ...]

    def as_json(self) -> Json:
        """Render it for programs: sections by name, rows by column."""
        tables = {
            s.name: [dict(zip(map(str.lower, s.columns), row, strict=True)) for row in s.rows]
            for s in self.sections
        }
        return {"about": self.about, "answer": self.summary, "facts": dict(self.facts), **tables}

    def lines(self) -> list[Cell]:
        """Render it for people."""
        facts = [f"  {name}: {fact}" for name, fact in self.facts.items()]
        lines: list[Cell] = [Text(self.about, HEAD), f"  {self.summary}", *facts]
        for section in self.sections:
            if section.rows:
                table = aligned(section.columns, section.rows, indent="  ")
                lines += ["", f"{section.name.capitalize()}:", *table]
        return lines


@click.command("explain")
@click.argument("subject", metavar="KIND/NAME")
@kube_options
@output_option
def command(subject: str, access: Access, output: str) -> None:
    """
    Explain what a cluster, a worker or a budget does.

    \b
    cluster/NAME  a DaskCluster or an AdaptivePolicy: how its number was decided, why workers that
                  are not needed stay, who pins them, the last decisions; `cluster/` is optional
    worker/NAME   a worker or its pod: why it stays or leaves, its quotas and pins
    budget/NAME   an AdaptiveBudget: its holders, and the groups that wait

    kubectl's names of kinds work, too, such as pod/NAME. Schedulers are reached through kubectl
    port-forward; if that fails, the policy's status is shown. Exit code 1 if none is found.

    \b
    Examples:
      kubectl dask-adaptive explain etl                        # a cluster
      kubectl dask-adaptive explain pod/etl-default-worker-1   # one of its workers
    """
    kind, _, name = subject.rpartition("/")
    kind = kind.partition(".")[0].lower() or "cluster"
    if kind not in _ANSWERS:
        fail(f"{kind} is none of cluster, worker, budget", USAGE)
    answer = access.ask(lambda api: _ANSWERS[kind](api, name, access))
    if output == "table":
        show(answer.lines())
    else:
        dump(answer.as_json(), output)


async def _cluster(api: KubeApi, name: str, access: Access) -> Answer:
    where = access.namespace
    policies = await list_policies(api, where, name)
    if not policies:
        fail_without_policy(where, name)
    policy = policies[0]
    kept = await found(api.get(CONFIG_MAPS.path(where, history_name(policy.name))))
    return of_cluster(await _live(api, policy, access), history_of(kept or {}))


async def _worker(api: KubeApi, name: str, access: Access) -> Answer:
    where = access.namespace
    pod = await found(api.get(PODS.path(where, name)))
    body = pod or await found(api.get(DEPLOYMENTS.path(where, name))) or {"metadata": {}}
    cluster = (body["metadata"].get("labels") or {}).get(CLUSTER_LABEL)
    policy = next((p for p in await list_policies(api, where) if p.cluster == cluster), None)
    if policy is None:
        fail(f"no worker {name} under an AdaptivePolicy in namespace {where}", NOTHING)
    ends = pod is not None and "deletionTimestamp" in pod["metadata"]
    live = await _live(api, policy, access)
    return of_worker(parse_pod(pod).worker if pod else name, live, ends=ends)


async def _budget(api: KubeApi, name: str, access: Access) -> Answer:
    # Depending on the installation, budgets are cluster-scoped or namespaced.
    for path in (BUDGETS.path(access.namespace, name), BUDGETS.path(name=name)):
        if budget := await found(api.get(path)):
            return of_budget(budget)
    fail(f"there is no AdaptiveBudget {name}", NOTHING)


#: By kubectl's names of kinds, and ours.
_ANSWERS: Mapping[str, Callable[[KubeApi, str, Access], Awaitable[Answer]]] = {
    **dict.fromkeys(("cluster", "daskcluster", "daskclusters"), _cluster),
    **dict.fromkeys(("policy", "dap", "adaptivepolicy", "adaptivepolicies"), _cluster),
    **dict.fromkeys(("worker", "pod", "pods", "po"), _worker),
    **dict.fromkeys(("budget", "dab", "adaptivebudget", "adaptivebudgets"), _budget),
}


async def _live(api: KubeApi, policy: PolicyView, access: Access) -> Live:
    from dask_adaptive.cli import cluster_now
    from dask_adaptive.loop.join import join
    from dask_adaptive.planner.quotas import walltimes

    key = ClusterKey(access.namespace, policy.cluster)
    scheduler = await cluster_now.observe_scheduler(api, key, access)
    view = await cluster_now.platform_view(api, key)
    ends = walltimes(view.groups, policy.rules) if policy.rules else {}
    observed = join(key, view, scheduler, walltimes=ends)
    unknown = "" if scheduler.agent else scheduler.message
    return Live(policy, observed, unknown)


def of_cluster(live: Live, kept: Sequence[Decision]) -> Answer:
    """
    Compose the explanation of a cluster.

    Args:
        kept: Its decisions, but perhaps the last one: that is in the status.
    """
    policy, status = live.policy, live.policy.status or Status()
    last = status.last_decision
    facts = {f"idleTimeout of {group}": str(time) for group, time in status.idle_times.items()}
    if last and last.inputs:
        figures = (f"{name} {value:g}" for name, value in sorted(last.inputs.items()))
        facts["inputs of the decision"] = ", ".join(figures)
    if live.unknown:
        facts["the scheduler was not asked"] = live.unknown
    cost = live.observed.scheduler.serialized
    if cost:
        total = f"{cost.seconds:.1f} s and {format_bytes(cost.sent_bytes)}"
        share = f"{cost.share:.0%} of the scheduler's CPU time in the last minute"
        facts["serializing"] = f"{total} for {counted(cost.calls, 'task')}; {share}"
    functions = cost.top[:_FUNCTIONS] if cost else ()
    serialized = [
        (row.function, f"{row.calls:,}", f"{row.seconds:.2f}", format_bytes(row.sent_bytes),
         format_bytes(row.largest_bytes))
        for row in functions
    ]  # fmt: skip
    cluster = f"DaskCluster {policy.cluster} in {policy.namespace}"
    about = f"{cluster}, under AdaptivePolicy {policy.name}: {policy.mode}"
    sections = (
        _stages(status.last_decision),
        Section("holds", ("GROUP", "REASON", "ENDS", "MESSAGE"), list(holds(status))),
        Section("pins", _PINS, [_pin(pin) for pin in live.pins()]),
        _decisions(merged(kept, [last] if last else [])[-_DECISIONS:]),
        Section("reliefs", ("NAME", "STATE", "MESSAGE"), _reliefs(live, status)),
        Section("serialized", ("FUNCTION", "TASKS", "SECONDS", "BYTES", "LARGEST"), serialized),
        Section("workers", ("REASON", "WORKER", "STATE", "ENDS", "MESSAGE"), live.stays()),
    )
    return Answer(about, answer(policy.status), facts, sections)


def of_worker(name: str, live: Live, *, ends: bool) -> Answer:
    """
    Compose the explanation of a worker.

    Args:
        ends: The pod that was asked about is being deleted, whatever becomes of the worker.
    """
    policy, status = live.policy, live.policy.status or Status()
    worker = next((w for w in live.observed.workers if w.name == name), None)
    if ends:
        row = status.worker(name)
        summary = row.message if row else "its pod is being deleted, and nothing waits for its work"
        stay = Stay(Reason.POD_ENDING.value, name, "Going", "", summary)
    elif worker:
        stay = live.stay(worker)
    else:
        stay = Stay(Reason.RETIRING.value, name, "Going", "", "its Deployment is gone")
    facts = {"ends": stay.ends} if stay.ends else {}
    if replaced := next((r for r in status.replaced if r.name == name), None):
        facts["being replaced"] = f"{replaced.state}: {replaced.reason}: {replaced.message}"
    facts |= _worker_facts(worker, live) if worker and not ends else {}
    pins = [pin for pin in live.pins() if name in pin.workers]
    quotas = _quotas(worker, live) if worker and not ends else []
    about = f"worker {name}, under AdaptivePolicy {policy.name}: {stay.state}"
    sections = (
        Section("quotas", ("QUOTA", "USED", "LIMIT", "PART"), quotas),
        Section("pins", _PINS, [_pin(pin) for pin in pins]),
    )
    return Answer(about, f"{stay.reason}: {stay.message}", facts, sections)


def of_budget(budget: Json) -> Answer:
    """Compose the explanation of an AdaptiveBudget: who holds what of it."""
    meta, status = budget["metadata"], recover(BudgetStatus, budget.get("status")) or BudgetStatus()
    ready = next((c.message for c in status.conditions if c.type == "Ready"), "")
    facts = {
        resource: f"{status.held.get(resource, '?')} of {limit}"
        for resource, limit in budget["spec"]["limits"].items()
    }
    rows = [
        (g.namespace, g.cluster, g.name, str(g.held), str(g.wanted), str(g.allowed),
         encode(g).get("waitingSince", ""))
        for g in status.groups
    ]  # fmt: skip
    columns = ("NAMESPACE", "CLUSTER", "GROUP", "HELD", "WANTED", "ALLOWED", "WAITING")
    name = "/".join(filter(None, (meta.get("namespace"), meta["name"])))
    summary = ready or NOT_LOOKED
    return Answer(f"AdaptiveBudget {name}", summary, facts, (Section("groups", columns, rows),))


def _stages(decision: Decision | None) -> Section:
    steps = decision.steps if decision else ()
    rows = [(s.stage, str(s.replicas), s.reason.value, s.message) for s in steps]
    return Section("stages", ("STAGE", "WORKERS", "REASON", "MESSAGE"), rows)


def _decisions(decisions: Iterable[Decision]) -> Section:
    columns = ("WHEN", "GROUP", "FROM", "WANTED", "TO", "BY", "OUTCOME", "REASON", "MESSAGE")
    rows = [
        (instant(d.at), d.group, str(d.before), str(d.wanted), str(d.desired), d.asked_by,
         d.outcome or "?", d.reason.value, d.message)
        for d in decisions
    ]  # fmt: skip
    return Section("decisions", columns, rows)


def _pin(pin: HeldBy) -> Sequence[str]:
    until = instant(pin.until) if pin.until <= LAST else ""
    return pin.source, pin.owner, until or "until it is released", pin.names(), pin.reason


def _reliefs(live: Live, status: Status) -> list[Sequence[str]]:
    """Render the reliefs of a scheduler, current ones if it answered."""
    rows: list[Sequence[str]] = []
    for relief in live.observed.scheduler.relief:
        done = sorted(relief.counts.items())
        counts = ", ".join(f"{name.replace('_', ' ')} {n:,}" for name, n in done)
        rows.append((relief.name, relief.state, relief.message or counts))
    return rows or [(name, state, "") for name, state in status.scheduler.relief.items()]


def _worker_facts(worker: ObservedWorker, live: Live) -> dict[str, str]:
    facts = {
        "pod": worker.platform.pod,
        "node": worker.platform.node,
        "gets no more tasks": worker.process.cordon.message if worker.process.cordon else "",
        "to be replaced": worker.platform.recycle_request,
        "differs from its group": worker.platform.drift,
        "the scheduler was not asked": live.unknown,
    }
    if not live.unknown:
        facts["tasks"] = f"{worker.process.processing} assigned, {worker.use.runs} run"
        facts["results that no other worker holds"] = format_bytes(worker.process.sole_bytes)
    return {name: fact for name, fact in facts.items() if fact}


def _quotas(worker: ObservedWorker, live: Live) -> list[Sequence[str]]:
    """
    Render how far a worker has used up its quotas. The status omits this: every task would change
    it.
    """
    from dask_adaptive.planner.quotas import quota_lines

    if (rules := live.policy.rules) is None:
        return []
    recycle = rules.recycle_of(worker.platform.group)
    return [
        (line.quota.value, line.used, line.limit, f"{line.ratio:.0%}")
        for line in quota_lines(worker, recycle, live.observed.clocks)
        if not live.unknown or line.quota is Quota.LIFETIME
    ]
