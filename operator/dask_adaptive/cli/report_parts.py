"""Asks for what goes into a report, part by part; what is refused is noted and left out."""

from __future__ import annotations

import json
import platform
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field

from dask_adaptive.cli.check_facts import (
    CRDS,
    NAME_LABEL,
    OPERATOR,
    UPSTREAM,
    crd_names,
)
from dask_adaptive.cli.from_here import lookout
from dask_adaptive.cli.report_agent import snapshot
from dask_adaptive.cli.report_redact import REDACT, scrubbed, scrubbed_json
from dask_adaptive.kube.api import Json, KubeApi
from dask_adaptive.kube.errors import Forbidden, KubeError
from dask_adaptive.kube.history import HISTORY_LABEL, history_name
from dask_adaptive.kube.objects import CLUSTER_LABEL
from dask_adaptive.kube.resources import (
    AUTOSCALERS,
    CLUSTERS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    EVENTS,
    GROUPS,
    PODS,
    POLICIES,
    QUOTAS,
)
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive_agent import __version__, wire

#: Port of the operator's metrics; the chart names it so.
_METRICS_PORT = 8080

#: What a report is about. Secrets and other people's ConfigMaps are never asked for.
_KINDS = {
    "policies": POLICIES, "clusters": CLUSTERS, "groups": GROUPS, "autoscalers": AUTOSCALERS,
    "quotas": QUOTAS,
}  # fmt: skip
_OF_DASK = {"deployments": DEPLOYMENTS, "pods": PODS}

#: Events about other kinds are other people's business.
_EVENTS_ABOUT = frozenset(
    ("AdaptivePolicy", "DaskCluster", "DaskWorkerGroup", "DaskAutoscaler", "Pod", "Deployment",
     "ReplicaSet")
)  # fmt: skip


@dataclass(slots=True)
class Report:
    """What has been gathered so far, redacted."""

    objects: dict[str, list[Json]] = field(default_factory=dict)  # by name of the file
    texts: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)  # and why

    def put(self, name: str, bodies: Sequence[Json]) -> None:
        self.objects[name] = [REDACT[name](body) for body in bodies]

    async def take(self, name: str, question: Awaitable[Sequence[Json]]) -> Sequence[Json]:
        """Ask for objects and keep them; returns them as they are."""
        try:
            bodies = await question
        except KubeError as exc:
            self.left_out[name] = scrubbed(str(exc))
            return ()
        self.put(name, bodies)
        return bodies


async def gather(api: KubeApi, namespace: str, *, lines: int, context: str | None) -> Report:
    """
    All parts. What can't be had is noted in the report.

    Raises:
        KubeError: The API server can't be reached at all, or does not know us.
    """
    report = Report()
    report.texts["versions.json"] = json.dumps(await _versions(api), indent=2)
    found: dict[str, Sequence[Json]] = {}
    for name, resource in _KINDS.items():
        found[name] = await report.take(name, api.list(resource.path(namespace)))
    for name, resource in _OF_DASK.items():
        query = api.list(resource.path(namespace), selector=CLUSTER_LABEL)
        found[name] = await report.take(name, query)
    await report.take("events", _events(api, namespace))
    await report.take("history", _histories(api, namespace, found["policies"]))
    await report.take("crds", _crds(api))
    await _operators(api, report, lines)
    await _agents(report, namespace, found, context)
    return report


async def _events(api: KubeApi, namespace: str) -> list[Json]:
    found = await api.list(EVENTS.path(namespace))
    return [e for e in found if (e.get("involvedObject") or {}).get("kind") in _EVENTS_ABOUT]


async def _histories(api: KubeApi, namespace: str, policies: Sequence[Json]) -> list[Json]:
    """Only ConfigMaps that we have made: by name, and by the label that is on ours alone."""
    found = []
    for policy in policies:
        path = CONFIG_MAPS.path(namespace, history_name(policy["metadata"]["name"]))
        try:
            body = await api.get(path)
        except KubeError:
            continue
        if HISTORY_LABEL in (body["metadata"].get("labels") or {}):
            found.append(body)
    return found


async def _crds(api: KubeApi) -> list[Json]:
    return [await api.get(CRDS.path(name=name)) for name in crd_names()]


async def _operators(api: KubeApi, report: Report, lines: int) -> None:
    """Ours and upstream's: Deployments, pods, the end of ours' logs, and its metrics."""
    selector = f"{NAME_LABEL} in ({OPERATOR},{UPSTREAM})"
    await report.take("operators", api.list(DEPLOYMENTS.path(), selector=selector))
    pods = await report.take("operator-pods", api.list(PODS.path(), selector=selector))
    for pod in pods:
        meta = pod["metadata"]
        if (meta.get("labels") or {}).get(NAME_LABEL) == OPERATOR:
            await _logs(api, report, pod, lines)
            await _metrics(api, report, meta["namespace"], meta["name"])


async def _logs(api: KubeApi, report: Report, pod: Json, lines: int) -> None:
    meta = pod["metadata"]
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    has_previous = any(s.get("restartCount") for s in statuses)
    path = PODS.path(meta["namespace"], meta["name"], "log")
    for suffix, query in (("", {}), ("-previous", {"previous": "true"})):
        if suffix and not has_previous:
            continue
        name = f"logs/{meta['name']}{suffix}.log"
        try:
            text = await api.text(path, {"tailLines": str(lines), "timestamps": "true", **query})
        except KubeError as exc:
            report.left_out[name] = scrubbed(str(exc))
            continue
        report.texts[name] = scrubbed(text)


async def _metrics(api: KubeApi, report: Report, namespace: str, pod: str) -> None:
    name = f"metrics/{pod}.txt"
    path = PODS.path(namespace, f"{pod}:{_METRICS_PORT}", "proxy") + "/metrics"
    try:
        text = await api.text(path)
    except KubeError as exc:
        report.left_out[name] = scrubbed(str(exc))
        return
    ours = [line for line in text.splitlines() if "dask_adaptive_" in line]
    report.texts[name] = scrubbed("\n".join(ours) + "\n")


async def _agents(
    report: Report, namespace: str, found: Mapping[str, Sequence[Json]], context: str | None
) -> None:
    known = {d["metadata"]["name"] for d in found["deployments"]}
    for name in sorted({p["spec"]["clusterRef"]["name"] for p in found["policies"]}):
        try:
            async with lookout(ClusterKey(namespace, name), context) as there:
                seen = await there.look(demand=True)
        except ConnectionError as exc:
            report.left_out[f"agents/{name}.json"] = scrubbed(str(exc))
            continue
        report.texts[f"agents/{name}.json"] = json.dumps(snapshot(seen, known), indent=2)


async def _versions_of_server(api: KubeApi) -> Json:
    try:
        return await api.get("/version")
    except Forbidden as exc:
        return {"unknown": str(exc)}


async def _versions(api: KubeApi) -> Json:
    server = await _versions_of_server(api)
    kept = ("major", "minor", "gitVersion", "platform", "unknown")
    return {
        "dask-adaptive": __version__,
        "protocol": wire.PROTOCOL,
        "python": platform.python_version(),
        "kubernetes": scrubbed_json({k: server[k] for k in kept if k in server}),
    }
