"""`dask-adaptive report`: writes a zip for a bug report, without secrets."""

from __future__ import annotations

import contextlib
import json
import platform
import re
import zipfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import click

from dask_adaptive import DOMAIN
from dask_adaptive.cli.access import Access, kube_options
from dask_adaptive.cli.check import NAME_LABEL, OPERATOR, UPSTREAM
from dask_adaptive.cli.errors import USAGE, complain, fail
from dask_adaptive.kube import api as kube
from dask_adaptive.kube.api import Json, KubeApi, KubeError
from dask_adaptive.kube.objects import CLUSTER_LABEL
from dask_adaptive.kube.status_json import HISTORY_LABEL, history_name
from dask_adaptive_agent import __version__, wire

#: Secrets and other people's ConfigMaps are never asked for.
_KINDS = {
    "clusters": (kube.CLUSTERS, ""), "groups": (kube.GROUPS, ""),
    "autoscalers": (kube.AUTOSCALERS, ""), "quotas": (kube.QUOTAS, ""),
    "deployments": (kube.DEPLOYMENTS, CLUSTER_LABEL), "pods": (kube.PODS, CLUSTER_LABEL),
}  # fmt: skip

#: Events about other kinds do not concern us.
_EVENTS_ABOUT = frozenset(
    ("AdaptivePolicy", "DaskCluster", "DaskWorkerGroup", "DaskAutoscaler", "Pod", "Deployment",
     "ReplicaSet")
)  # fmt: skip

T = TypeVar("T")


@click.command("report")
@click.option(
    "-f", "--file", "path", default="dask-adaptive-report.zip", show_default=True,
    type=click.Path(dir_okay=False, writable=True, path_type=Path), help="Write the zip here.",
)  # fmt: skip
@kube_options
def command(path: Path, access: Access) -> None:
    """
    Write a zip to attach to a bug report. Review it before you send it.

    It contains this namespace's policies, Dask clusters and their pods, events, the history of
    decisions, and the operator's log. Its manifest.json lists what you may not read. Never in it:

    \b
    - Secrets, and ConfigMaps other than the decision history
    - commands, arguments and environment variables
    - annotations and labels that are neither ours nor of Dask or Kubernetes
    - volumes, image pull secrets, service accounts, affinities, tolerations
    - Dask's configuration, except its keys
    - addresses, and names of nodes; in logs and messages, what looks like a secret

    \b
    Examples:
      kubectl dask-adaptive report -n team
      kubectl dask-adaptive report -n team -f team.zip
    """
    where = access.namespace
    report = access.ask(lambda api: gather(api, where))
    try:
        report.write(path, namespace=where)
    except OSError as exc:
        fail(f"{path}: {exc}", USAGE)
    click.echo(f"{path}: review it before you send it")
    for name, why in sorted(report.left_out.items()):
        complain(f"  without {name}: {why}")


@dataclass(slots=True)
class Report:
    """The files gathered so far, redacted."""

    files: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)  # and why

    async def attempt(self, name: str, question: Awaitable[T], default: T) -> T:
        """Wait for an answer, noting an error; raise if the API server is unreachable."""
        try:
            return await question
        except (kube.ApiUnreachable, kube.Unauthorized):
            raise
        except (KubeError, ConnectionError) as exc:
            self.left_out[name] = scrubbed(str(exc))
            return default

    async def take(self, name: str, question: Awaitable[Sequence[Json]]) -> Sequence[Json]:
        """Request objects and keep them; return them unredacted."""
        bodies = await self.attempt(name, question, ())
        if name not in self.left_out:
            rows = [allowed(body, OURS.get(name, FIELDS)) for body in bodies]
            self.files[f"{name}.json"] = _json(rows)
        return bodies

    def write(self, path: Path, *, namespace: str) -> None:
        """Raises `OSError`."""
        manifest = {
            "report": 1,
            "namespace": namespace,
            "files": sorted(self.files),
            "could not be read": self.left_out,
        }
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in sorted({**self.files, "manifest.json": _json(manifest)}.items()):
                archive.writestr(name, text)


def _json(value: object) -> str:
    return json.dumps(value, indent=2)


async def gather(api: KubeApi, namespace: str) -> Report:
    """
    Gather all parts. Missing ones are noted in the report.

    Raises:
        KubeError: The API server can't be reached at all, or does not know us.
    """
    report = Report()
    server = await report.attempt("version", api.get("/version"), {})
    versions = {
        "dask-adaptive": __version__, "protocol": wire.PROTOCOL,
        "python": platform.python_version(), "kubernetes": allowed(server, FIELDS),
    }  # fmt: skip
    report.files["versions.json"] = _json(versions)
    for name, (resource, selector) in _KINDS.items():
        await report.take(name, api.list(resource.path(namespace), selector=selector))
    policies = await report.take("policies", api.list(kube.POLICIES.path(namespace)))
    await report.take("events", _events(api, namespace))
    await report.take("history", _histories(api, namespace, policies))
    await _operators(api, report)
    return report


async def _events(api: KubeApi, namespace: str) -> list[Json]:
    found = await api.list(kube.EVENTS.path(namespace))
    return [e for e in found if (e.get("involvedObject") or {}).get("kind") in _EVENTS_ABOUT]


async def _histories(api: KubeApi, namespace: str, policies: Sequence[Json]) -> list[Json]:
    """Return only our own ConfigMaps: by name, and by the label that only ours have."""
    found = []
    for policy in policies:
        with contextlib.suppress(kube.NotFound):
            name = history_name(policy["metadata"]["name"])
            body = await api.get(kube.CONFIG_MAPS.path(namespace, name))
            if HISTORY_LABEL in (body["metadata"].get("labels") or {}):
                found.append(body)
    return found


async def _operators(api: KubeApi, report: Report) -> None:
    """Gather our operator and upstream's: Deployments, pods, and the end of our logs."""
    selector = f"{NAME_LABEL} in ({OPERATOR},{UPSTREAM})"
    await report.take("operators", api.list(kube.DEPLOYMENTS.path(), selector=selector))
    for pod in await report.take("operator-pods", api.list(kube.PODS.path(), selector=selector)):
        meta = pod["metadata"]
        if (meta.get("labels") or {}).get(NAME_LABEL) != OPERATOR:
            continue
        where, name = meta["namespace"], meta["name"]
        log, tail = kube.PODS.path(where, name, "log"), {"tailLines": "2000", "timestamps": "true"}
        statuses = (pod.get("status") or {}).get("containerStatuses") or []
        texts = {f"logs/{name}.log": api.text(log, tail)}
        if any(s.get("restartCount") for s in statuses):
            texts[f"logs/{name}-previous.log"] = api.text(log, {**tail, "previous": "true"})
        for file, question in texts.items():
            if text := await report.attempt(file, question, ""):
                report.files[file] = scrubbed(text)


# What may leave a cluster: an allow-list. Whatever is not named here stays. Values that people
# write freely (arguments, values of variables, annotations that are not ours) never leave; in text
# that has to, such as logs and messages, what looks like a secret or an address is replaced.

GONE = "<removed>"

#: Names of secrets, whatever their values look like.
_NAMES = (
    r"[\w.-]*(?:password|passwd|pwd|secret|token|api[_-]?key|access[_-]?key|credentials?"
    r"|private[_-]?key|auth(?:orization)?|cookie|signature|sig)[\w.-]*"
)

#: A name and its value. JSON logs may escape the quotes; command lines use blanks.
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
    """Replace what looks like a secret, an address or a person in free text."""
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text


def scrub(value: Any) -> Any:
    """Scrub every text; of Dask's configuration keep only the keys."""
    if isinstance(value, (list, tuple)):
        return [scrub(item) for item in value]
    if isinstance(value, Mapping):
        return {k: _keys(v) if k == "config" else scrub(v) for k, v in value.items()}
    return scrubbed(value) if isinstance(value, str) else value


def _keys(value: Any) -> Any:
    return {k: _keys(v) for k, v in value.items()} if isinstance(value, Mapping) else GONE


def _ours(notes: Mapping[str, Any]) -> dict[str, Any]:
    ours = {k: scrubbed(str(v)) for k, v in notes.items() if k.startswith(f"{DOMAIN}/")}
    return {**ours, "others": len(notes) - len(ours)}


def _labels(labels: Mapping[str, Any]) -> dict[str, Any]:
    """Keep labels that show ownership; others are the user's own."""
    known = ("dask.org/", "app.kubernetes.io/", "pod-template-hash", f"{DOMAIN}/")
    return {k: v for k, v in labels.items() if k.startswith(known)}


#: Fields included unchanged: names, numbers, and Kubernetes' own words.
_KEPT = """
    kind metadata name namespace uid generation creationTimestamp deletionTimestamp resourceVersion
    finalizers ownerReferences spec status template cluster worker scheduler replicas readyReplicas
    availableReplicas unavailableReplicas observedGeneration minimum maximum idleTimeout
    shutdownOnClose phase reason type startTime conditions lastTransitionTime containers
    containerStatuses ready restartCount started state lastState waiting running terminated exitCode
    startedAt finishedAt restartPolicy terminationGracePeriodSeconds activeDeadlineSeconds
    hostNetwork priority priorityClassName
    count firstTimestamp lastTimestamp eventTime reportingComponent involvedObject source component
    major minor gitVersion platform
"""

#: What is included of a field, anywhere in an object. None: all of it; for an object, the named
#: fields.
Rules: TypeAlias = "Mapping[str, Callable[[Any], Any] | None]"

FIELDS: Rules = {
    **dict.fromkeys(_KEPT.split()),
    "labels": _labels, "annotations": _ours, "image": scrub, "message": scrub,
    "resources": scrub, "hard": scrub, "used": scrub,
}  # fmt: skip

#: Our own objects are included in full, without Dask's configuration. Only our ConfigMaps get here.
OURS: Mapping[str, Rules] = {
    "policies": {**FIELDS, "spec": scrub, "status": scrub},
    "history": {**FIELDS, "data": scrub},
}


def allowed(value: Any, rules: Rules) -> Any:
    """Return the part of a value that the rules allow."""
    if isinstance(value, (list, tuple)):
        return [allowed(item, rules) for item in value]
    if not isinstance(value, Mapping):
        return value
    kept = {}
    for key, child in value.items():
        if key in rules:
            rule = rules[key]
            kept[key] = allowed(child, rules) if rule is None else rule(child)
    return kept
