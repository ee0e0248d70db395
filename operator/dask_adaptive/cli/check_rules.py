"""Rules of `check` about one namespace, and all rules in their order. Pure: facts in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from dask_adaptive.cli import check_install
from dask_adaptive.cli.check_facts import Facts, Missing, of_cluster_pods
from dask_adaptive.cli.check_finding import Finding, error, ok, unseen, warning
from dask_adaptive.kube.api import Json
from dask_adaptive.kube.objects import ADOPT, INJECTED
from dask_adaptive.kube.pins import PIN
from dask_adaptive.model.observed import ObservedScheduler
from dask_adaptive.model.pins import lifts, pin_end
from dask_adaptive.model.policy import InvalidPolicy, parse_policy
from dask_adaptive.model.reason import Reason
from dask_adaptive_agent import __version__


def policies(facts: Facts) -> Iterator[Finding]:
    if isinstance(facts.policies, Missing):
        yield unseen("policies", facts.policies)
        return
    if not facts.policies:
        yield warning(
            "policies",
            f"there is none in namespace {facts.namespace}",
            "apply one: docs/tutorial.md",
        )
    several: dict[str, list[str]] = defaultdict(list)
    for policy in facts.policies:
        several[policy["spec"]["clusterRef"]["name"]].append(policy["metadata"]["name"])
        yield from _policy(facts, policy)
    for cluster, found in sorted(several.items()):
        if len(found) > 1:
            yield error(
                f"cluster {cluster}",
                f"has several policies: {', '.join(sorted(found))}",
                "delete all but one; until then nothing is touched",
            )


def _policy(facts: Facts, policy: Json) -> Iterator[Finding]:
    name, status = policy["metadata"]["name"], policy.get("status") or {}
    what = f"policy {name}"
    try:
        parse_policy(policy["spec"])
    except InvalidPolicy as exc:
        yield error(what, str(exc), f"kubectl -n {facts.namespace} edit dap {name}")
        return
    cluster = policy["spec"]["clusterRef"]["name"]
    if not isinstance(facts.clusters, Missing) and not any(
        c["metadata"]["name"] == cluster for c in facts.clusters
    ):
        yield warning(what, f"there is no DaskCluster {cluster}", "make it, or mend clusterRef")
        return
    if not status:
        yield error(what, "the operator has not looked at it", "see the operator, above")
        return
    wrong = [c for c in status.get("conditions") or [] if _is_wrong(c)]
    for c in wrong:
        yield error(
            what,
            f"{c['type']}={c['status']}, {c.get('reason')}: {c.get('message')}",
            f"dask-adaptive explain {cluster}",
        )
    if not wrong:
        yield ok(what, f"{status.get('reason')}: {status.get('message')}")


def _is_wrong(condition: Json) -> bool:
    return condition["status"] == "False" and condition["type"] in ("Ready", "AbleToScale")


def autoscalers(facts: Facts) -> Iterator[Finding]:
    if isinstance(facts.autoscalers, Missing) or isinstance(facts.policies, Missing):
        return
    governed = {p["spec"]["clusterRef"]["name"]: p for p in facts.policies}
    for autoscaler in facts.autoscalers:
        name, cluster = autoscaler["metadata"]["name"], autoscaler["spec"].get("cluster", "")
        conditions = (governed.get(cluster, {}).get("status") or {}).get("conditions") or []
        is_conflict = any(c.get("reason") == Reason.OWNERSHIP_CONFLICT.value for c in conditions)
        if is_conflict:
            yield error(
                f"DaskAutoscaler {name}",
                f"scales {cluster} next to its policy",
                f"kubectl annotate daskautoscaler {name} {ADOPT}=true, or delete it",
            )


def schedulers(facts: Facts) -> Iterator[Finding]:
    for cluster, seen in sorted(facts.schedulers.items()):
        pods = of_cluster_pods(facts, cluster, "scheduler")
        what = f"scheduler of {cluster}"
        if any(_wants_tls(pod) for pod in pods):
            yield error(
                what,
                "wants TLS, which the operator does not speak",
                "start it without, inside your cluster's network",
            )
            continue
        yield _scheduler(what, seen, pods)


def _scheduler(what: str, seen: ObservedScheduler, pods: Sequence[Json]) -> Finding:
    if seen.problem is Reason.AGENT_MISSING:
        return warning(
            what,
            "runs without the agent: served by stock RPC, without pins of code",
            "docs/howto/without-the-agent.md; a scheduler that is made anew gets it",
        )
    if seen.problem is Reason.PROTOCOL_MISMATCH:
        return error(what, seen.message, "use the program and the agent of one release")
    if not seen.agent:
        return warning(what, seen.message or "does not answer", "see its policy's conditions")
    injected = any(INJECTED in (p["metadata"].get("annotations") or {}) for p in pods)
    how = "injected" if injected else "attached"
    message = f"distributed {seen.distributed}, agent {seen.agent}, {how}"
    if seen.agent != __version__:
        return warning(
            what,
            message,
            f"of another release than {__version__}: it is renewed with the scheduler's next pod",
        )
    return ok(what, message)


def _wants_tls(pod: Json) -> bool:
    words = [
        word
        for c in (pod.get("spec") or {}).get("containers") or []
        for word in (*(c.get("command") or ()), *(c.get("args") or ()))
    ]
    text = " ".join(words)
    return "--tls-" in text or "--protocol tls" in text or "--protocol=tls" in text


def pins(facts: Facts) -> Iterator[Finding]:
    holders = [
        ("pod", facts.workers),
        ("DaskWorkerGroup", facts.groups),
        ("DaskCluster", facts.clusters),
    ]
    for kind, bodies in holders:
        for body in () if isinstance(bodies, Missing) else bodies:
            value = (body["metadata"].get("annotations") or {}).get(PIN)
            if value is None or lifts(value):
                continue
            _, problem = pin_end(value, 0.0)
            if problem:
                name = body["metadata"]["name"]
                yield error(
                    f"pin of {kind} {name}",
                    problem,
                    f"kubectl annotate --overwrite {kind.lower()} {name} {PIN}=4h",
                )


def quotas(facts: Facts) -> Iterator[Finding]:
    if isinstance(facts.quotas, Missing):
        yield unseen("quota", facts.quotas)
        return
    for quota in facts.quotas:
        status = quota.get("status") or {}
        hard, used = status.get("hard") or {}, status.get("used") or {}
        full = [
            f"{name} {used[name]} of {limit}"
            for name, limit in sorted(hard.items())
            if name in used and _number(used[name]) >= _number(limit)
        ]
        what = f"ResourceQuota {quota['metadata']['name']}"
        if full:
            yield warning(
                what,
                f"is used up: {', '.join(full)}",
                "no more workers come until something is freed, or the quota is raised",
            )
        else:
            yield ok(what, "has room")


def _number(quantity: Any) -> Any:
    return parse_quantity(quantity)  # type: ignore[no-untyped-call]


#: In the order in which things depend on each other.
RULES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    check_install.crds, check_install.operator, check_install.webhook, check_install.upstream,
    check_install.rights, policies, autoscalers, schedulers, pins, quotas,
)  # fmt: skip


def findings(facts: Facts) -> list[Finding]:
    return [finding for rule in RULES for finding in rule(facts)]
