"""`dask-adaptive report`: a zip for a bug report, with nothing in it that is secret."""

from __future__ import annotations

import contextlib
import json
import platform
import re
import zipfile
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import click

from dask_adaptive import DOMAIN
from dask_adaptive.cli.access import USAGE, Access, fail, kube_options
from dask_adaptive.cli.check import CRD_NAMES, CRDS, NAME_LABEL, OPERATOR, UPSTREAM
from dask_adaptive.cli.cluster_now import link_to
from dask_adaptive.kube.api import (
    AUTOSCALERS,
    CLUSTERS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    EVENTS,
    GROUPS,
    PODS,
    POLICIES,
    QUOTAS,
    ApiUnreachable,
    Json,
    KubeApi,
    KubeError,
    NotFound,
    Unauthorized,
)
from dask_adaptive.kube.objects import CLUSTER_LABEL
from dask_adaptive.kube.status_json import HISTORY_LABEL, history_name
from dask_adaptive.model.keys import ClusterKey, hashed
from dask_adaptive_agent import __version__, wire

#: Port of the operator's metrics; the chart names it so.
_METRICS_PORT = 8080

#: Secrets and other people's ConfigMaps are never asked for.
_KINDS = {
    "policies": (POLICIES, ""), "clusters": (CLUSTERS, ""), "groups": (GROUPS, ""),
    "autoscalers": (AUTOSCALERS, ""), "quotas": (QUOTAS, ""),
    "deployments": (DEPLOYMENTS, CLUSTER_LABEL), "pods": (PODS, CLUSTER_LABEL),
}  # fmt: skip

#: Events about other kinds are other people's business.
_EVENTS_ABOUT = frozenset(
    ("AdaptivePolicy", "DaskCluster", "DaskWorkerGroup", "DaskAutoscaler", "Pod", "Deployment",
     "ReplicaSet")
)  # fmt: skip

#: Left out on purpose; for those who send a report, and for those who read it.
NEVER = (
    "Secrets, and ConfigMaps other than the decision history",
    "values of environment variables, except some of our own settings",
    "arguments of programs: only the names of known options are in",
    "annotations that are not ours, and labels that do not say what belongs to what",
    "volumes, image pull secrets, service accounts, affinities, tolerations",
    "Dask's configuration: only its keys are in",
    "keys of tasks, results, addresses; names of functions and of owners are hashed",
    "in logs, events and messages: what looks like a secret, an address or a mail address",
)

T = TypeVar("T")


@click.command("report")
@click.option(
    "-o", "--output", "path", default="dask-adaptive-report.zip", show_default=True,
    type=click.Path(dir_okay=False, writable=True, path_type=Path), help="The zip.",
)  # fmt: skip
@click.option(
    "--lines", type=click.IntRange(min=0), default=2000, show_default=True,
    help="Number of lines of the operator's log.",
)  # fmt: skip
@kube_options
def command(path: Path, lines: int, access: Access) -> None:
    """
    Write a zip to attach to a bug report. Look into it before you send it.

    It holds what this namespace has of policies, Dask clusters and their pods, events, the history
    of decisions, the operator's log and metrics, and one snapshot of each scheduler: all by an
    allow-list. What was left out is in its manifest.json.
    """
    where = access.namespace
    report = access.ask(lambda api: gather(api, where, lines=lines, access=access))
    try:
        report.write(path, namespace=where)
    except OSError as exc:
        fail(f"{path}: {exc}", USAGE)
    click.echo(f"{path}: look into it before you send it")
    for name, why in sorted(report.left_out.items()):
        click.echo(f"  without {name}: {why}", err=True)


@dataclass(slots=True)
class Report:
    """The files gathered so far, redacted."""

    files: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)  # objects, by file
    left_out: dict[str, str] = field(default_factory=dict)  # and why

    def put(self, name: str, bodies: Sequence[Json]) -> None:
        rows = [allowed(body, OURS.get(name, FIELDS)) for body in bodies]
        self.files[f"{name}.json"] = json.dumps(rows, indent=2)
        self.counts[f"{name}.json"] = len(rows)

    async def attempt(self, name: str, question: Awaitable[T], default: T) -> T:
        """Wait for an answer, and note why there is none; raise if there is no API server."""
        try:
            return await question
        except (ApiUnreachable, Unauthorized):
            raise
        except (KubeError, ConnectionError) as exc:
            self.left_out[name] = scrubbed(str(exc))
            return default

    async def take(self, name: str, question: Awaitable[Sequence[Json]]) -> Sequence[Json]:
        """Ask for objects and keep them; returns them as they are."""
        bodies = await self.attempt(name, question, ())
        if name not in self.left_out:
            self.put(name, bodies)
        return bodies

    def write(self, path: Path, *, namespace: str) -> None:
        """Raises `OSError`."""
        manifest = {
            "report": 1,
            "namespace": namespace,
            "files": [
                {"name": name, **({"objects": self.counts[name]} if name in self.counts else {})}
                for name in sorted(self.files)
            ],
            "could not be read": self.left_out,
            "never in": NEVER,
        }
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, text in sorted({**self.files, "manifest.json": _json(manifest)}.items()):
                archive.writestr(name, text)


def _json(value: object) -> str:
    return json.dumps(value, indent=2)


async def gather(api: KubeApi, namespace: str, *, lines: int, access: Access) -> Report:
    """
    All parts. What can't be had is noted in the report.

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
    found: dict[str, Sequence[Json]] = {}
    for name, (resource, selector) in _KINDS.items():
        query = api.list(resource.path(namespace), selector=selector)
        found[name] = await report.take(name, query)
    await report.take("events", _events(api, namespace))
    await report.take("history", _histories(api, namespace, found["policies"]))
    await report.take("crds", _each(api, [CRDS.path(name=name) for name in CRD_NAMES]))
    await _operators(api, report, lines)
    workers = {d["metadata"]["name"] for d in found["deployments"]}
    for cluster in sorted({p["spec"]["clusterRef"]["name"] for p in found["policies"]}):
        key, name = ClusterKey(namespace, cluster), f"agents/{cluster}.json"
        if text := await report.attempt(name, _snapshot(key, access, workers), ""):
            report.files[name] = text
    return report


async def _each(api: KubeApi, paths: Sequence[str]) -> list[Json]:
    return [await api.get(path) for path in paths]


async def _events(api: KubeApi, namespace: str) -> list[Json]:
    found = await api.list(EVENTS.path(namespace))
    return [e for e in found if (e.get("involvedObject") or {}).get("kind") in _EVENTS_ABOUT]


async def _histories(api: KubeApi, namespace: str, policies: Sequence[Json]) -> list[Json]:
    """Only ConfigMaps that we have made: by name, and by the label that is on ours alone."""
    found = []
    for policy in policies:
        with contextlib.suppress(NotFound):
            name = history_name(policy["metadata"]["name"])
            body = await api.get(CONFIG_MAPS.path(namespace, name))
            if HISTORY_LABEL in (body["metadata"].get("labels") or {}):
                found.append(body)
    return found


async def _operators(api: KubeApi, report: Report, lines: int) -> None:
    """Ours and upstream's: Deployments, pods, the end of ours' logs, and its metrics."""
    selector = f"{NAME_LABEL} in ({OPERATOR},{UPSTREAM})"
    await report.take("operators", api.list(DEPLOYMENTS.path(), selector=selector))
    for pod in await report.take("operator-pods", api.list(PODS.path(), selector=selector)):
        meta = pod["metadata"]
        if (meta.get("labels") or {}).get(NAME_LABEL) != OPERATOR:
            continue
        where, name = meta["namespace"], meta["name"]
        log, tail = PODS.path(where, name, "log"), {"tailLines": str(lines), "timestamps": "true"}
        statuses = (pod.get("status") or {}).get("containerStatuses") or []
        texts = {f"logs/{name}.log": api.text(log, tail)}
        if any(s.get("restartCount") for s in statuses):
            texts[f"logs/{name}-previous.log"] = api.text(log, {**tail, "previous": "true"})
        texts[f"metrics/{name}.txt"] = _metrics(api, where, name)
        for file, question in texts.items():
            if text := await report.attempt(file, question, ""):
                report.files[file] = scrubbed(text)


async def _metrics(api: KubeApi, namespace: str, pod: str) -> str:
    path = PODS.path(namespace, f"{pod}:{_METRICS_PORT}", "proxy") + "/metrics"
    ours = [line for line in (await api.text(path)).splitlines() if "dask_adaptive_" in line]
    return "\n".join(ours) + "\n"


async def _snapshot(key: ClusterKey, access: Access, workers: set[str]) -> str:
    async with link_to(key, access) as link:
        seen = await link.observe(demand=True)
    known = workers | {relief.name for relief in seen.relief}
    return _json(allowed(asdict(seen), snapshot_rules(known)))


# What may leave a cluster: an allow-list. Whatever is not named here stays. Values that people
# write freely (arguments, values of variables, annotations that are not ours) never leave; in text
# that has to, such as logs and messages, what looks like a secret or an address is replaced.

GONE = "<removed>"

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


def scrub(value: Any) -> Any:
    """Every text in it scrubbed, but Dask's configuration, of which only the keys are left."""
    if isinstance(value, (list, tuple)):
        return [scrub(item) for item in value]
    if isinstance(value, Mapping):
        return {k: _keys(v) if k == "config" else scrub(v) for k, v in value.items()}
    return scrubbed(value) if isinstance(value, str) else value


def _keys(value: Any) -> Any:
    return {k: _keys(v) for k, v in value.items()} if isinstance(value, Mapping) else GONE


def _hash(value: Any) -> str:
    return hashed(str(value))


def _ours(notes: Mapping[str, Any]) -> dict[str, Any]:
    ours = {k: scrubbed(str(v)) for k, v in notes.items() if k.startswith(f"{DOMAIN}/")}
    return {**ours, "others": len(notes) - len(ours)}


def _labels(labels: Mapping[str, Any]) -> dict[str, Any]:
    """Labels that say what belongs to whom; others are people's own."""
    known = ("dask.org/", "app.kubernetes.io/", "pod-template-hash", f"{DOMAIN}/")
    return {k: v for k, v in labels.items() if k.startswith(known)}


#: Options of `dask worker` and `dask scheduler` that bear on scaling. Not their values.
_OPTIONS = re.compile(
    r"--(name|nthreads|nworkers|memory-limit|resources|lifetime|lifetime-stagger|lifetime-restart"
    r"|no-nanny|nanny|death-timeout|preload|preload-argv|protocol|tls-[a-z-]+|host|interface"
    r"|idle-timeout|no-dashboard|dashboard|dashboard-address|worker-port|listen-address)\b"
)


def _option(word: str) -> str:
    found = _OPTIONS.match(str(word))
    return found[0] if found else GONE


#: Variables whose values are ours, and numbers or words of a few.
_OUR_VARIABLES = re.compile(
    r"DASK_ADAPTIVE_(HTTP_PORT|WEBHOOK_PORT|WORKER_GRACE|HINTS|LOG_FORMAT|VERBOSE|NAMESPACES)"
)


def _variable(variable: Any) -> Any:
    """The name of a variable; its value only if it is a setting of ours."""
    if not isinstance(variable, Mapping):
        return GONE
    name = str(variable.get("name") or "")
    if _OUR_VARIABLES.fullmatch(name) and "value" in variable:
        return {"name": name, "value": scrubbed(str(variable["value"]))}
    return {"name": name if name.startswith("DASK_") else hashed(name)}


#: Fields of objects that leave as they are: names, numbers, and words that Kubernetes chooses from.
_KEPT = """
    kind metadata name namespace uid generation creationTimestamp deletionTimestamp resourceVersion
    finalizers ownerReferences spec status template cluster worker scheduler replicas readyReplicas
    availableReplicas unavailableReplicas observedGeneration minimum maximum idleTimeout
    shutdownOnClose phase reason type startTime conditions lastTransitionTime containers
    containerStatuses ready restartCount started state lastState waiting running terminated exitCode
    startedAt finishedAt restartPolicy terminationGracePeriodSeconds activeDeadlineSeconds
    hostNetwork priority priorityClassName
    count firstTimestamp lastTimestamp eventTime reportingComponent involvedObject source component
    group versions served storage
    major minor gitVersion platform
"""

#: The same of an `ObservedScheduler`.
_KEPT_OF_SCHEDULER = """
    problem distributed agent at target queued processing held expected_s pins_expired redone
    relief state notes number kind shuffles run_id workers wants left_s quiet no_task_s no_client_s
    demand prefixes mean_s running ready waiting longest_s done level width fan_in
    status nthreads idle_since sole_bytes memory memory_limit closable actors leaving_reason cordon
    quota pins source until latest since
"""

#: What leaves of a field, wherever in an object it is. None: all of it; of an object, the fields
#: that are named here.
Rules: TypeAlias = "Mapping[str, Callable[[Any], Any] | None]"

FIELDS: Rules = {
    **dict.fromkeys(_KEPT.split()),
    "labels": _labels, "annotations": _ours, "nodeName": _hash, "image": scrub, "message": scrub,
    "resources": scrub, "command": _option, "args": _option, "env": _variable, "hard": scrub,
    "used": scrub,
}  # fmt: skip

#: Objects of ours leave in full, but for Dask's configuration. Of ConfigMaps only ours get here.
OURS: Mapping[str, Rules] = {
    "policies": {**FIELDS, "spec": scrub, "status": scrub},
    "history": {**FIELDS, "data": scrub},
}


def allowed(value: Any, rules: Rules) -> Any:
    """The part of a value that the rules let through."""
    if isinstance(value, (list, tuple)):
        return [allowed(item, rules) for item in value]
    if not isinstance(value, Mapping):
        return value
    return {key: _said(child, rules[key], rules) for key, child in value.items() if key in rules}


def _said(value: Any, rule: Callable[[Any], Any] | None, rules: Rules) -> Any:
    if rule is None:
        return allowed(value, rules)
    return [rule(item) for item in value] if isinstance(value, (list, tuple)) else rule(value)


def snapshot_rules(known: Collection[str]) -> Rules:
    """
    What may be said of an `ObservedScheduler` as a dict: no key, no address.

    Args:
        known: Names of reliefs, and of workers that Kubernetes knows, which the report has anyway.
            Any other name is hashed: it may be an address, a function, or what people like.
    """
    return {
        **dict.fromkeys(_KEPT_OF_SCHEDULER.split()),
        "message": scrub, "owner": _hash,
        "name": lambda name: name if name in known else hashed(name),
        "leaving": lambda leaving: leaving.value,
    }  # fmt: skip
