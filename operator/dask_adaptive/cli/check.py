"""
`dask-adaptive check`: checks the installation and the conditions of its policies, and suggests
fixes.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

import click
from rich.text import Text

from dask_adaptive.cli.access import Access, kube_options, output_option
from dask_adaptive.cli.errors import NOTHING
from dask_adaptive.cli.output import BAD, FAINT, GOOD, ODD, dump, show
from dask_adaptive.cli.status_view import PolicyView, list_policies
from dask_adaptive.controller.lease import LEASE_NAMESPACE, lease_name
from dask_adaptive.kube import api as kube
from dask_adaptive.kube.api import Json, KubeApi, KubeError
from dask_adaptive.kube.objects import ADOPT
from dask_adaptive.loop import status as st
from dask_adaptive.model.amounts import counted
from dask_adaptive.model.policy import DEFAULT_CONTROLLER
from dask_adaptive.model.reason import Reason
from dask_adaptive_agent import __version__

_INSTALL = "helm install dask-adaptive … (docs/howto/install.md)"
_INSTALL_UPSTREAM = "install dask-kubernetes if it is missing: without it nothing creates workers"

NAME_LABEL = "app.kubernetes.io/name"
OPERATOR, UPSTREAM = "dask-adaptive-operator", "dask-kubernetes-operator"

CRDS = kube.Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "")
_DEFINED = (kube.POLICIES, kube.CLUSTERS, kube.GROUPS, kube.AUTOSCALERS)
CRD_NAMES = tuple(f"{r.plural}.{r.group}" for r in _DEFINED)
T = TypeVar("T")


OK, WARNING, ERROR = "ok", "warning", "error"
_STYLES = {OK: GOOD, WARNING: ODD, ERROR: BAD}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    level: str  # `OK`, `WARNING` or `ERROR`
    what: str
    message: str
    fix: str = ""  # empty: nothing to fix


@click.command("check")
@click.argument("cluster", required=False)
@kube_options
@output_option
def command(cluster: str | None, access: Access, output: str) -> None:
    """
    Check the installation and the policies, and suggest fixes.

    CLUSTER is a DaskCluster or an AdaptivePolicy; by default all of the namespace are checked. Exit
    code 1 if there is an error; warnings do not count. To check files, use `validate`.

    \b
    Examples:
      kubectl dask-adaptive check -n team       # the installation, and the policies of team
      kubectl dask-adaptive check etl -o json   # for programs
    """
    where = access.namespace

    found = findings(access.ask(lambda api: gather(api, where, cluster)))
    if output != "table":
        dump({"items": [asdict(f) for f in found]}, output)
    else:
        show(lines_of(found))
    if any(f.level == ERROR for f in found):
        sys.exit(NOTHING)


def lines_of(found: Sequence[Finding]) -> list[Text]:
    """Render a line for each finding, and a second one for its fix."""
    lines = []
    for f in found:
        level = Text(f"{f.level:<8}", _STYLES[f.level])
        lines.append(Text.assemble(level, f"{f.what}: {f.message}"))
        if f.fix:
            lines.append(Text(f"        fix: {f.fix}", FAINT))
    ok, warnings, errors = (sum(f.level == level for f in found) for level in _STYLES)
    style = BAD if errors else ODD if warnings else GOOD
    total = f"{ok} ok, {counted(warnings, 'warning')}, {counted(errors, 'error')}"
    return [*lines, Text(total, style)]


# The facts.


@dataclass(frozen=True, slots=True)
class Missing:
    """A fact that could not be read, and why."""

    why: str
    is_absent: bool = False  # the object does not exist (it is not merely forbidden)


#: Facts, by their subject.
Facts: TypeAlias = "Mapping[str, Any | Missing]"


async def gather(api: KubeApi, namespace: str, cluster: str | None) -> Facts:
    """
    Gather all facts, in the order in which they depend on each other.

    Args:
        cluster: A DaskCluster or AdaptivePolicy; None: all policies of the namespace.

    Raises:
        KubeError: The API server can't be reached at all, or does not know us.
    """
    operators = await _try(api.list(kube.DEPLOYMENTS.path(), selector=f"{NAME_LABEL}={OPERATOR}"))
    return {
        **{f"CRD {name}": await _try(api.get(CRDS.path(name=name))) for name in CRD_NAMES},
        "operator": operators,
        "leader": await _try(api.get(_lease_path(operators))),
        "webhook": await _try(api.list(kube.WEBHOOKS.path(), selector=f"{NAME_LABEL}={OPERATOR}")),
        "dask-kubernetes": await _try(
            api.list(kube.DEPLOYMENTS.path(), selector=f"{NAME_LABEL}={UPSTREAM}")
        ),
        "policies": await _try(list_policies(api, namespace, cluster)),
    }


async def _try(question: Awaitable[T]) -> T | Missing:
    try:
        return await question
    except kube.NotFound as exc:
        return Missing(str(exc), is_absent=True)
    except (kube.ApiUnreachable, kube.Unauthorized):
        raise
    except KubeError as exc:
        return Missing(str(exc))


def _lease_path(operators: Sequence[Json] | Missing) -> str:
    """Return the path of the operator's Lease, by its settings."""
    settings = dict[str, str]()
    if not isinstance(operators, Missing) and operators:
        container = operators[0]["spec"]["template"]["spec"]["containers"][0]
        settings = {e["name"]: e.get("value", "") for e in container.get("env") or []}
    controller = settings.get("DASK_ADAPTIVE_CONTROLLER_NAME", DEFAULT_CONTROLLER)
    within = settings.get("DASK_ADAPTIVE_LEASE_NAMESPACE", LEASE_NAMESPACE)
    return kube.LEASES.path(within, lease_name(controller))


# The rules. Pure: facts in, findings out.


def findings(facts: Facts) -> list[Finding]:
    found: list[Finding] = []
    for what, fact in facts.items():
        if not isinstance(fact, Missing):
            found += _RULES.get(what, _crd)(what, fact)
        elif fact.is_absent:
            is_theirs = "dask.org" in what
            found.append(_error(what, "is missing", _INSTALL_UPSTREAM if is_theirs else _INSTALL))
        else:
            found.append(_warning(what, f"cannot be read: {fact.why}", "ask for that right"))
    return found


_ok = partial(Finding, OK)
_warning = partial(Finding, WARNING)
_error = partial(Finding, ERROR)


def _crd(what: str, crd: Json) -> Iterator[Finding]:
    served = (v["name"] for v in crd["spec"]["versions"] if v.get("served"))
    yield _ok(what, f"serves {', '.join(served)}")


def _operator(what: str, deployments: Sequence[Json]) -> Iterator[Finding]:
    if not deployments:
        yield _error(what, "is not installed", _INSTALL)
    for deployment in deployments:
        yield _readiness(what, deployment)
        version = _version(deployment)
        if version != __version__:
            message = f"is version {version}, this program {__version__}"
            yield _warning(what, message, "install the program of the operator's release")


def _leader(what: str, lease: Json) -> Iterator[Finding]:
    holder = (lease.get("spec") or {}).get("holderIdentity")
    if holder:
        yield _ok(what, str(holder))
    else:
        yield _error(what, "no replica is the leader", "wait 15 s, then read the operator's logs")


def _upstream(what: str, deployments: Sequence[Json]) -> Iterator[Finding]:
    if not deployments:
        yield _warning(what, "no operator with its label was found", _INSTALL_UPSTREAM)
    for deployment in deployments:
        yield _readiness(f"{what} {_version(deployment)}", deployment)


def _readiness(what: str, deployment: Json) -> Finding:
    ready = (deployment.get("status") or {}).get("readyReplicas", 0)
    wanted = deployment["spec"].get("replicas", 1)
    message = f"{_place(deployment)}: {ready} of {wanted} replicas ready"
    if ready:
        return _ok(what, message)
    namespace, _, name = _place(deployment).partition("/")
    fix = f"kubectl -n {namespace} describe deployment {name}; logs deployment/{name}"
    return _error(what, message, fix)


def _place(body: Json) -> str:
    return f"{body['metadata']['namespace']}/{body['metadata']['name']}"


def _version(body: Json) -> str:
    labels = body["metadata"].get("labels") or {}
    return str(labels.get("app.kubernetes.io/version", "of unknown version"))


def _webhook(what: str, configurations: Sequence[Json]) -> Iterator[Finding]:
    hooks = [hook for body in configurations for hook in body["webhooks"]]
    if not hooks:
        message = "is not registered: the agent is sent to running schedulers instead"
        yield _warning(what, message, "webhook.enabled=true in the chart's values")
    elif any(not hook["clientConfig"].get("caBundle") for hook in hooks):
        fix = "the operator fills it in; its log says what is wrong with the certificate"
        yield _error(what, "has no caBundle: the API server can't trust it", fix)
    else:
        yield _ok(what, "is registered")


def _policies(what: str, policies: Sequence[PolicyView]) -> Iterator[Finding]:
    if not policies:
        yield _warning(what, "the namespace has none", "apply one: docs/start.md")
    for policy in policies:
        what = f"policy {policy.name}"
        yield from _policy(what, policy.cluster, policy.status)


def _policy(what: str, cluster: str, status: st.Status | None) -> Iterator[Finding]:
    """Repeat what the operator reports in a policy's status, without judging again."""
    if status is None:
        fix = "check the operator, above, and that spec.controllerName is its name"
        yield _error(what, "the operator has not processed it", fix)
        return
    faults = {c.reason: c for c in status.conditions if _is_fault(c)}
    for reason, c in faults.items():
        # Nothing is broken if the policy's cluster does not exist yet.
        is_harmless = reason == Reason.CLUSTER_NOT_FOUND
        is_error = c.type in (st.READY, st.ABLE_TO_SCALE) and not is_harmless
        message = f"{c.type}={c.word}, {reason}: {c.message}"
        level = ERROR if is_error else WARNING
        yield Finding(level, what, message, _FIXES.get(reason, f"dask-adaptive explain {cluster}"))
    if not faults:
        yield _ok(what, f"{status.reason}: {status.message}")
    for row in status.workers:
        if row.reason == Reason.INVALID_ANNOTATION:
            fix = "correct that annotation with kubectl annotate --overwrite, or remove it"
            yield _error(f"worker {row.name}", row.message, fix)
    agent = status.scheduler.agent
    if agent and agent != __version__:
        message = f"its scheduler has agent {agent}, this program is {__version__}"
        yield _warning(what, message, "the scheduler's next pod gets the new agent")


def _is_fault(condition: st.Condition) -> bool:
    if condition.type in (st.SCALING_LIMITED, st.PAUSED):
        return condition.status is True and condition.reason in _FAULTS_WHEN_TRUE
    return condition.status is False


_FAULTS_WHEN_TRUE = frozenset(
    {
        Reason.QUOTA_EXCEEDED, Reason.ADMISSION_REFUSED, Reason.UNSCHEDULABLE,
        Reason.INVALID_ANNOTATION,
    }
)  # fmt: skip

#: Fixes by reason; `explain` covers all others.
_FIXES: Mapping[str, str] = {
    Reason.CLUSTER_NOT_FOUND: "create the DaskCluster, or correct clusterRef",
    Reason.OWNERSHIP_CONFLICT: f"delete the other policy or the DaskAutoscaler, or hand the latter"
    f" over: kubectl annotate daskautoscaler NAME {ADOPT}=true",
    Reason.AGENT_MISSING: "docs/howto/install.md#how-the-agent-gets-in;"
    " the next scheduler pod gets the agent",
    Reason.QUOTA_EXCEEDED: "free resources, or raise the ResourceQuota",
}

_RULES: Mapping[str, Callable[[str, Any], Iterator[Finding]]] = {
    "operator": _operator,
    "leader": _leader,
    "webhook": _webhook,
    "dask-kubernetes": _upstream,
    "policies": _policies,
}
