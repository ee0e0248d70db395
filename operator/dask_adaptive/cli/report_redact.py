"""
What may leave a cluster in a report: an allow-list. Pure: objects in, objects out.

Whatever is not named here does not leave. Values that people wrote freely (arguments, values of
variables, annotations that are not ours) never do; of text that has to, such as logs and messages,
what looks like a secret or an address is taken out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from dask_adaptive import DOMAIN
from dask_adaptive.kube.api import Json
from dask_adaptive.loop.tracing import hashed

GONE = "<removed>"

#: Labels that say what belongs to whom; others are people's own.
_LABELS = ("dask.org/", "app.kubernetes.io/", "pod-template-hash", f"{DOMAIN}/")

#: What may be said of any object.
_META = ("name", "namespace", "uid", "generation", "creationTimestamp", "deletionTimestamp",
         "resourceVersion", "finalizers")  # fmt: skip

#: Variables whose values are ours, and numbers or words of a few.
_OUR_VARIABLES = re.compile(
    r"DASK_ADAPTIVE_(HTTP_PORT|WEBHOOK_PORT|WORKER_GRACE|HINTS|LOG_FORMAT|VERBOSE|NAMESPACES)"
)

#: Names of what is secret, whatever it looks like.
_NAMES = (
    r"[\w.-]*(?:password|passwd|pwd|secret|token|api[_-]?key|access[_-]?key|credentials?"
    r"|private[_-]?key|auth(?:orization)?|cookie|signature|sig)[\w.-]*"
)

#: A name and its value. In a log of JSON the quotes may be escaped; a command line has blanks.
_SECRET = re.compile(
    rf"""(?ix)
    ( {_NAMES} (?: \\* ["'] )? \s* [:=] \s* | -{_NAMES} \s+ )
    ( \\* " [^"\\]* | \\* ' [^'\\]* | (?: basic | bearer | token ) \s+ \S+ | [^\s,;&"'}}\]]+ )
    """
)
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [^-]+-----.*?(?:-----END [^-]+-----|\Z)", re.DOTALL), GONE),
    (_SECRET, r"\1" + GONE),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), r"\1 " + GONE),
    (re.compile(r"\b([a-z][a-z0-9+.-]*://)[^\s/@:]*:[^\s/@]*@", re.IGNORECASE), r"\1" + GONE + "@"),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.?[\w-]*"), GONE),  # JSON Web Tokens
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), GONE),
    (re.compile(r"\b(?:gh[pousr]_|github_pat_|glpat-|xox[baprs]-|sk-|hvs\.)[\w-]{10,}"), GONE),
    # Keys and digests. Names in Kubernetes have no capitals, and dashes: they stay.
    (re.compile(r"\b(?=[\w+/-]*[A-Z])(?=[\w+/-]*[0-9])[\w+/-]{32,}={0,2}"), GONE),
    (re.compile(r"\b[a-z0-9]{40,}\b"), GONE),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b"), "<address>"),
    (re.compile(r"\b(?:[0-9a-f]{1,4}:){3,7}[0-9a-f]{1,4}\b", re.IGNORECASE), "<address>"),
    (re.compile(r"\b[\w.+-]+@(?!sha256:)[\w.-]+\b"), "<mail>"),
)


def scrubbed(text: str) -> str:
    """Free text without what looks like a secret, an address or a person."""
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text


def scrubbed_json(value: Any) -> Any:
    """The same for every text in JSON, keys aside."""
    if isinstance(value, str):
        return scrubbed(value)
    if isinstance(value, Mapping):
        return {k: scrubbed_json(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrubbed_json(v) for v in value]
    return value


def metadata(meta: Mapping[str, Any]) -> Json:
    """Who it is and whose; of annotations only ours, of labels only those that sort."""
    found: Json = {key: meta[key] for key in _META if key in meta}
    labels = meta.get("labels") or {}
    found["labels"] = {k: v for k, v in labels.items() if k.startswith(_LABELS)}
    notes = meta.get("annotations") or {}
    found["annotations"] = {
        k: scrubbed(str(v)) for k, v in notes.items() if k.startswith(f"{DOMAIN}/")
    }
    found["otherAnnotations"] = sum(not k.startswith(f"{DOMAIN}/") for k in notes)
    found["ownerReferences"] = [
        {k: o.get(k) for k in ("kind", "name", "uid")} for o in meta.get("ownerReferences") or []
    ]
    return found


def policy(body: Json) -> Json:
    """An AdaptivePolicy: ours in full, but for Dask's configuration, which people write freely."""
    spec = {k: v for k, v in (body.get("spec") or {}).items() if k != "scheduler"}
    scheduler = dict((body.get("spec") or {}).get("scheduler") or {})
    if "config" in scheduler:
        scheduler["config"] = _keys_only(scheduler["config"])
    return _object(
        body, spec=scrubbed_json({**spec, **({"scheduler": scheduler} if scheduler else {})}),
        status=scrubbed_json(body.get("status") or {}),
    )  # fmt: skip


def _keys_only(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _keys_only(v) for k, v in value.items()}
    return GONE


def cluster(body: Json) -> Json:
    spec = body.get("spec") or {}
    return _object(
        body,
        spec={
            "idleTimeout": spec.get("idleTimeout"),
            "shutdownOnClose": spec.get("shutdownOnClose"),
            "worker": _worker(spec.get("worker") or {}),
            "scheduler": _pod_spec((spec.get("scheduler") or {}).get("spec") or {}),
        },
        status={"phase": (body.get("status") or {}).get("phase")},
    )


def group(body: Json) -> Json:
    spec = body.get("spec") or {}
    return _object(
        body,
        spec={"cluster": spec.get("cluster"), "worker": _worker(spec.get("worker") or {})},
    )


def autoscaler(body: Json) -> Json:
    spec = body.get("spec") or {}
    return _object(body, spec={k: spec.get(k) for k in ("cluster", "minimum", "maximum")})


def _worker(worker: Mapping[str, Any]) -> Json:
    return {"replicas": worker.get("replicas"), "spec": _pod_spec(worker.get("spec") or {})}


def deployment(body: Json) -> Json:
    spec, status = body.get("spec") or {}, body.get("status") or {}
    template = (spec.get("template") or {}).get("spec") or {}
    counts = ("replicas", "readyReplicas", "availableReplicas", "unavailableReplicas",
              "observedGeneration")  # fmt: skip
    return _object(
        body,
        spec={"replicas": spec.get("replicas"), "template": _pod_spec(template)},
        status={
            **{k: status[k] for k in counts if k in status},
            "conditions": [_condition(c) for c in status.get("conditions") or []],
        },
    )


def pod(body: Json) -> Json:
    status = body.get("status") or {}
    return _object(
        body,
        spec=_pod_spec(body.get("spec") or {}),
        status={
            "phase": status.get("phase"),
            "reason": status.get("reason"),
            "message": scrubbed(str(status.get("message") or "")),
            "startTime": status.get("startTime"),
            "conditions": [_condition(c) for c in status.get("conditions") or []],
            "containers": [_container_status(c) for c in status.get("containerStatuses") or []],
        },
    )


def _pod_spec(spec: Mapping[str, Any]) -> Json:
    """What bears on scaling: never arguments, values of variables, volumes or pull secrets."""
    found: Json = {
        key: spec[key]
        for key in ("restartPolicy", "terminationGracePeriodSeconds", "activeDeadlineSeconds",
                    "hostNetwork", "priority", "priorityClassName")
        if key in spec
    }  # fmt: skip
    if "nodeName" in spec:
        found["nodeName"] = hashed(str(spec["nodeName"]))
    found["containers"] = [_container(c) for c in spec.get("containers") or []]
    return found


def _container(container: Mapping[str, Any]) -> Json:
    words = (*(container.get("command") or ()), *(container.get("args") or ()))
    return {
        "name": container.get("name"),
        "image": scrubbed(str(container.get("image") or "")),
        "resources": container.get("resources") or {},
        "options": sorted({_option(str(w)) for w in words} - {""}),
        "env": [_variable(v) for v in container.get("env") or []],
        "hasPreStop": "preStop" in (container.get("lifecycle") or {}),
    }


#: Options of `dask worker` and `dask scheduler` that bear on scaling. Not their values.
_OPTIONS = re.compile(
    r"--(name|nthreads|nworkers|memory-limit|resources|lifetime|lifetime-stagger|lifetime-restart"
    r"|no-nanny|nanny|death-timeout|preload|preload-argv|protocol|tls-[a-z-]+|host|interface"
    r"|idle-timeout|no-dashboard|dashboard|dashboard-address|worker-port|listen-address)\b"
)


def _option(word: str) -> str:
    found = _OPTIONS.match(word)
    return found[0] if found else ""


def _variable(variable: Mapping[str, Any]) -> Json:
    """Its name; its value only if it is a setting of ours."""
    name = str(variable.get("name") or "")
    if _OUR_VARIABLES.fullmatch(name) and "value" in variable:
        return {"name": name, "value": scrubbed(str(variable["value"]))}
    return {"name": name if name.startswith("DASK_") else hashed(name)}


def _container_status(status: Mapping[str, Any]) -> Json:
    found: Json = {k: status.get(k) for k in ("name", "ready", "restartCount", "started")}
    for which in ("state", "lastState"):
        found[which] = {
            kind: {
                **{k: said[k] for k in ("reason", "exitCode", "startedAt", "finishedAt")
                   if k in said},
                "message": scrubbed(str(said.get("message") or "")),
            }
            for kind, said in (status.get(which) or {}).items()
        }  # fmt: skip
    return found


def _condition(condition: Mapping[str, Any]) -> Json:
    kept = ("type", "status", "reason", "lastTransitionTime")
    found: Json = {k: condition[k] for k in kept if k in condition}
    return {**found, "message": scrubbed(str(condition.get("message") or ""))}


def event(body: Json) -> Json:
    about = body.get("involvedObject") or {}
    kept = ("type", "reason", "count", "firstTimestamp", "lastTimestamp", "eventTime")
    return {
        **{k: body[k] for k in kept if body.get(k) is not None},
        "about": {k: about.get(k) for k in ("kind", "name", "uid")},
        "source": (body.get("source") or {}).get("component") or body.get("reportingComponent"),
        "message": scrubbed(str(body.get("message") or "")),
    }


def history(body: Json) -> Json:
    """A ConfigMap of ours; the caller has made sure that it is."""
    return _object(body, data={k: scrubbed(str(v)) for k, v in (body.get("data") or {}).items()})


def quota(body: Json) -> Json:
    status = body.get("status") or {}
    return _object(body, status={k: status.get(k) for k in ("hard", "used")})


def crd(body: Json) -> Json:
    """Its versions; the schema is in the chart."""
    spec = body.get("spec") or {}
    versions = [
        {k: v.get(k) for k in ("name", "served", "storage")} for v in spec.get("versions") or []
    ]
    return _object(body, spec={"group": spec.get("group"), "versions": versions})


def _object(body: Json, **parts: Any) -> Json:
    head = {"kind": body.get("kind"), "metadata": metadata(body.get("metadata") or {})}
    return {**{k: v for k, v in head.items() if v}, **parts}


#: What is done to objects, by the name of their file in the report.
REDACT: Mapping[str, Callable[[Json], Json]] = {
    "policies": policy,
    "clusters": cluster,
    "groups": group,
    "autoscalers": autoscaler,
    "deployments": deployment,
    "pods": pod,
    "events": event,
    "quotas": quota,
    "history": history,
    "crds": crd,
    "operators": deployment,
    "operator-pods": pod,
}
