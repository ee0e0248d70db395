"""What `check` looks at, gathered once. Asks and does not judge: what was refused is told so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dask_adaptive.cli.from_here import lookout
from dask_adaptive.kube.api import Json, KubeApi
from dask_adaptive.kube.errors import ApiUnreachable, KubeError, NotFound, Unauthorized
from dask_adaptive.kube.objects import CLUSTER_LABEL, COMPONENT_LABEL
from dask_adaptive.kube.resources import (
    AUTOSCALERS,
    CLUSTERS,
    DEPLOYMENTS,
    GROUPS,
    LEASES,
    PODS,
    POLICIES,
    QUOTAS,
    Resource,
)
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import ObservedScheduler

NAME_LABEL = "app.kubernetes.io/name"
OPERATOR, UPSTREAM = "dask-adaptive-operator", "dask-kubernetes-operator"

CRDS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "")
MUTATING = Resource("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations", "")
ENDPOINTS = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice")
REVIEWS = "/apis/authorization.k8s.io/v1"

#: The name of our Lease; see `controller.lease`.
LEASE = "dask-adaptive-operator"

#: Schedulers that are asked at most; each takes a port-forward.
SCHEDULERS = 20

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Right:
    """One thing that somebody must be allowed to do in a namespace."""

    verb: str
    resource: Resource
    subresource: str = ""

    def __str__(self) -> str:
        kind = self.resource.plural + (f"/{self.subresource}" if self.subresource else "")
        return f"{self.verb} {kind}"


#: What this program needs, of its user.
OURS = (
    Right("list", POLICIES), Right("get", PODS), Right("create", PODS, "portforward"),
    Right("patch", PODS),
)  # fmt: skip

#: What the operator can't do without, of its service account.
THEIRS = (
    Right("list", POLICIES), Right("patch", POLICIES, "status"), Right("list", CLUSTERS),
    Right("list", GROUPS), Right("patch", GROUPS, "scale"), Right("list", PODS),
    Right("list", DEPLOYMENTS), Right("delete", DEPLOYMENTS),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Missing:
    """What was not told, and why."""

    why: str
    is_absent: bool = False  # it does not exist, rather than we may not see it


@dataclass(frozen=True, slots=True)
class Facts:
    """All that was gathered. A value of type `Missing` could not be."""

    namespace: str
    crds: Mapping[str, Json | Missing]  # by name
    operators: Sequence[Json] | Missing  # Deployments
    upstream: Sequence[Json] | Missing
    lease: Json | Missing
    webhooks: Sequence[Json] | Missing
    webhook_ready: int | Missing  # endpoints that are ready
    policies: Sequence[Json] | Missing
    clusters: Sequence[Json] | Missing
    groups: Sequence[Json] | Missing
    autoscalers: Sequence[Json] | Missing
    quotas: Sequence[Json] | Missing
    workers: Sequence[Json] | Missing  # pods, and those of schedulers
    our_rights: Mapping[Right, bool | None] = field(default_factory=dict)  # None: nobody says
    their_rights: Mapping[Right, bool | None] = field(default_factory=dict)
    schedulers: Mapping[str, ObservedScheduler] = field(default_factory=dict)  # by cluster


async def gather(api: KubeApi, namespace: str, cluster: str | None, context: str | None) -> Facts:
    """
    Ask for everything.

    Args:
        cluster: Only this one is looked at closely; None: all of the namespace.

    Raises:
        KubeError: The API server can't be reached at all, or does not know us.
    """
    selector = f"{COMPONENT_LABEL} in (worker,scheduler)"
    operators = await _labelled(api, OPERATOR)
    where, account = _home(operators)
    webhooks = await _webhooks(api)
    policies = await _try(api.list(POLICIES.path(namespace)))
    return Facts(
        namespace=namespace,
        crds={name: await _try(api.get(CRDS.path(name=name))) for name in crd_names()},
        operators=operators,
        upstream=await _labelled(api, UPSTREAM),
        lease=await _try(api.get(LEASES.path(where, LEASE))) if where else _NO_OPERATOR,
        webhooks=webhooks,
        webhook_ready=await _ready_endpoints(api, webhooks),
        policies=_only(policies, cluster),
        clusters=await _try(api.list(CLUSTERS.path(namespace))),
        groups=await _try(api.list(GROUPS.path(namespace))),
        autoscalers=await _try(api.list(AUTOSCALERS.path(namespace))),
        quotas=await _try(api.list(QUOTAS.path(namespace))),
        workers=await _try(api.list(PODS.path(namespace), selector=selector)),
        our_rights={right: await _may(api, namespace, right, "") for right in OURS},
        their_rights={
            right: await _may(api, namespace, right, account) for right in THEIRS if account
        },
        schedulers=await _schedulers(_only(policies, cluster), namespace, context),
    )


def crd_names() -> tuple[str, ...]:
    return tuple(f"{r.plural}.{r.group}" for r in (POLICIES, CLUSTERS, GROUPS, AUTOSCALERS))


_NO_OPERATOR = Missing("the operator was not found", is_absent=True)


async def _try(question: Awaitable[T]) -> T | Missing:
    try:
        return await question
    except NotFound as exc:
        return Missing(str(exc), is_absent=True)
    except (ApiUnreachable, Unauthorized):
        raise
    except KubeError as exc:
        return Missing(str(exc))


async def _labelled(api: KubeApi, name: str) -> Sequence[Json] | Missing:
    return await _try(api.list(DEPLOYMENTS.path(), selector=f"{NAME_LABEL}={name}"))


def _home(operators: Sequence[Json] | Missing) -> tuple[str, str]:
    """The namespace of the operator, and the user name of its service account."""
    if isinstance(operators, Missing) or not operators:
        return "", ""
    where = operators[0]["metadata"]["namespace"]
    account = operators[0]["spec"]["template"]["spec"].get("serviceAccountName", "default")
    return where, f"system:serviceaccount:{where}:{account}"


async def _webhooks(api: KubeApi) -> Sequence[Json] | Missing:
    return await _try(api.list(MUTATING.path(), selector=f"{NAME_LABEL}={OPERATOR}"))


async def _ready_endpoints(api: KubeApi, webhooks: Sequence[Json] | Missing) -> int | Missing:
    if isinstance(webhooks, Missing):
        return webhooks
    services = [hook["clientConfig"].get("service") for w in webhooks for hook in w["webhooks"]]
    service = next((s for s in services if s), None)
    if service is None:
        return Missing("no webhook is registered", is_absent=True)
    selector = f"kubernetes.io/service-name={service['name']}"
    found = await _try(api.list(ENDPOINTS.path(service["namespace"]), selector=selector))
    if isinstance(found, Missing):
        return found
    endpoints = [e for part in found for e in part.get("endpoints") or []]
    # Nothing said about it means ready (discovery.k8s.io/v1, EndpointConditions).
    return sum((e.get("conditions") or {}).get("ready") is not False for e in endpoints)


def _only(policies: Sequence[Json] | Missing, cluster: str | None) -> Sequence[Json] | Missing:
    if isinstance(policies, Missing) or cluster is None:
        return policies
    return [
        p for p in policies if cluster in (p["metadata"]["name"], p["spec"]["clusterRef"]["name"])
    ]


async def _may(api: KubeApi, namespace: str, right: Right, user: str) -> bool | None:
    """Whether a user (empty: whoever runs this) may do something; None: nobody says."""
    asked: dict[str, Any] = {
        "resourceAttributes": {
            "namespace": namespace,
            "verb": right.verb,
            "group": right.resource.group,
            "resource": right.resource.plural,
            "subresource": right.subresource,
        }
    }
    kind = "SubjectAccessReview" if user else "SelfSubjectAccessReview"
    if user:
        asked["user"] = user
        asked["groups"] = ["system:serviceaccounts", "system:authenticated"]
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": asked}
    answer = await _try(api.create(f"{REVIEWS}/{kind.lower()}s", body))
    return None if isinstance(answer, Missing) else bool(answer["status"].get("allowed"))


async def _schedulers(
    policies: Sequence[Json] | Missing, namespace: str, context: str | None
) -> dict[str, ObservedScheduler]:
    if isinstance(policies, Missing):
        return {}
    names = sorted({p["spec"]["clusterRef"]["name"] for p in policies})[:SCHEDULERS]
    turns = asyncio.Semaphore(5)

    async def ask(name: str) -> ObservedScheduler:
        try:
            async with turns, lookout(ClusterKey(namespace, name), context) as there:
                return await there.look()
        except ConnectionError as exc:
            return ObservedScheduler(message=f"not reached from here: {exc}")

    return dict(zip(names, await asyncio.gather(*map(ask, names)), strict=True))


def of_cluster_pods(facts: Facts, cluster: str, component: str) -> list[Json]:
    """Pods of one cluster and of one component."""
    if isinstance(facts.workers, Missing):
        return []
    wanted = {CLUSTER_LABEL: cluster, COMPONENT_LABEL: component}
    return [
        pod
        for pod in facts.workers
        if wanted.items() <= (pod["metadata"].get("labels") or {}).items()
    ]
