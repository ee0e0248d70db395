"""Rules of `check` about what is installed: CRDs, operators, webhook, rights. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dask_adaptive.cli.check_facts import Facts, Missing, Right, crd_names
from dask_adaptive.cli.check_finding import Finding, Level, error, ok, unseen, warning
from dask_adaptive.kube.api import Json
from dask_adaptive_agent import __version__

_INSTALL = "helm install dask-adaptive … (docs/howto/install.md)"


def crds(facts: Facts) -> Iterator[Finding]:
    for name in crd_names():
        crd, what = facts.crds[name], f"CRD {name}"
        is_ours = name.startswith("adaptivepolicies")
        mend = _INSTALL if is_ours else "install dask-kubernetes' operator, with its CRDs"
        if isinstance(crd, Missing):
            yield error(what, "is not installed", mend) if crd.is_absent else unseen(what, crd)
            continue
        versions = [v["name"] for v in crd["spec"]["versions"] if v.get("served")]
        lacks = _lacking(crd, is_ours=is_ours, is_group=name.startswith("daskworkergroups"))
        if lacks:
            yield error(what, f"lacks {', '.join(lacks)}", f"it is too old: {mend}")
        else:
            yield ok(what, f"serves {', '.join(versions)}")


def _lacking(crd: Json, *, is_ours: bool, is_group: bool) -> list[str]:
    """Fields and subresources that this release relies on."""
    version: Json = next((v for v in crd["spec"]["versions"] if v.get("served")), {})
    schema = (version.get("schema") or {}).get("openAPIV3Schema") or {}
    spec = _properties(schema).get("spec") or {}
    if is_ours:
        known = _properties(spec)
        return [f"spec.{field}" for field in _OUR_FIELDS if field not in known]
    lacks = []
    if is_group and "scale" not in (version.get("subresources") or {}):
        lacks.append("the subresource scale")
    if is_group and "replicas" not in _properties(_properties(spec).get("worker") or {}):
        lacks.append("spec.worker.replicas")
    return lacks


#: One field of each thing that has been added to AdaptivePolicy.
_OUR_FIELDS = (
    "clusterRef",
    "maxReplicas",
    "pins",
    "recycle",
    "scheduler",
    "behavior",
    "schedules",
    "idle",
    "fallback",
)


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = schema.get("properties") or {}
    return found


def operator(facts: Facts) -> Iterator[Finding]:
    what = "operator"
    if isinstance(facts.operators, Missing):
        yield unseen(what, facts.operators)
        return
    if not facts.operators:
        yield error(what, "is not installed", _INSTALL)
        return
    if len(facts.operators) > 1:
        places = ", ".join(sorted(_place(o) for o in facts.operators))
        yield warning(
            what,
            f"installed {len(facts.operators)} times: {places}",
            "let each watch namespaces of its own (watch.namespaces)",
        )
    for deployment in facts.operators:
        yield _readiness(what, deployment)
        version = _labels(deployment).get("app.kubernetes.io/version", "?")
        if version != __version__:
            yield warning(
                what,
                f"is {version}, this program {__version__}",
                "use the program of the operator's release",
            )
    yield _leader(facts.lease)


def _readiness(what: str, deployment: Json) -> Finding:
    ready = (deployment.get("status") or {}).get("readyReplicas", 0)
    wanted = deployment["spec"].get("replicas", 1)
    where, said = _place(deployment), f"{ready} of {wanted} replicas ready"
    if ready:
        return ok(what, f"{where}: {said}")
    namespace, _, name = where.partition("/")
    return error(
        what,
        f"{where}: {said}",
        f"kubectl -n {namespace} describe deployment {name}; logs deployment/{name}",
    )


def _leader(lease: Json | Missing) -> Finding:
    if isinstance(lease, Missing):
        if not lease.is_absent:
            return unseen("leader", lease)
        none = "there is none: no Lease dask-adaptive-operator"
        return error("leader", none, "see the operator's logs")
    holder = (lease.get("spec") or {}).get("holderIdentity")
    if holder:
        return ok("leader", str(holder))
    return error("leader", "no replica leads", "wait 15 s; then see the operator's logs")


def _place(body: Json) -> str:
    return f"{body['metadata']['namespace']}/{body['metadata']['name']}"


def _labels(body: Json) -> Mapping[str, str]:
    found: Mapping[str, str] = body["metadata"].get("labels") or {}
    return found


def webhook(facts: Facts) -> Iterator[Finding]:
    what = "webhook"
    if isinstance(facts.webhooks, Missing):
        yield unseen(what, facts.webhooks)
        return
    if not facts.webhooks:
        yield warning(
            what,
            "is not registered: running schedulers are attached instead",
            "webhook.enabled=true in the chart's values, unless you want it so",
        )
        return
    if any(not h["clientConfig"].get("caBundle") for w in facts.webhooks for h in w["webhooks"]):
        yield error(what, "has no caBundle: the API server can't trust it", "helm upgrade")
    if isinstance(facts.webhook_ready, Missing):
        yield unseen(what, facts.webhook_ready)
    elif facts.webhook_ready:
        yield ok(what, f"registered, {facts.webhook_ready} endpoints ready")
    else:
        yield error(what, "nobody answers it", "see whether the operator's pods are ready")


def upstream(facts: Facts) -> Iterator[Finding]:
    what = "dask-kubernetes"
    if isinstance(facts.upstream, Missing):
        yield unseen(what, facts.upstream)
    elif not facts.upstream:
        yield warning(
            what,
            "its operator was not found by its label",
            "if it is not there, nothing makes workers: install dask-kubernetes",
        )
    else:
        for deployment in facts.upstream:
            version = _labels(deployment).get("app.kubernetes.io/version", "of unknown version")
            readiness = _readiness(what, deployment)
            message = f"{version}, {readiness.message}"
            yield Finding(readiness.level, what, message, readiness.mend)


def rights(facts: Facts) -> Iterator[Finding]:
    yield from _rights(
        "your rights", facts.our_rights, Level.WARNING, "ask your cluster's administrator"
    )
    yield from _rights(
        "the operator's rights",
        facts.their_rights,
        Level.ERROR,
        "helm upgrade; is this namespace in watch.namespaces?",
    )


def _rights(
    what: str, known: Mapping[Right, bool | None], level: Level, mend: str
) -> Iterator[Finding]:
    if not known:
        return
    lacks = [str(right) for right, allowed in known.items() if allowed is False]
    unknown = [str(right) for right, allowed in known.items() if allowed is None]
    if lacks:
        yield Finding(level, what, f"may not {', '.join(lacks)}", mend)
    elif unknown:
        yield warning(what, "not known: the API server does not say", "ask who may ask it")
    else:
        yield ok(what, f"{len(known)} checked")
