"""Objects that e2e tests apply: the example cluster, made to measure."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from dask_adaptive.kube.api import AUTOSCALERS, GROUPS
from support.kube_bodies import body, policy
from support.kube_server import ROOT

#: What schedulers and workers run.
DASK_IMAGE = os.environ.get("DASK_IMAGE", "localhost/dask:2026.8.0")

_EXAMPLES = ROOT / "manifests/examples"
_EXAMPLE = yaml.safe_load((_EXAMPLES / "cluster.yaml").read_text())
_TLS_EXAMPLE = next(yaml.safe_load_all((_EXAMPLES / "tls-cluster.yaml").read_text()))


def dask_cluster(
    name: str, *, replicas: int = 0, tls: bool = False, labels: Mapping[str, str] | None = None,
    notes: Mapping[str, str] | None = None, **worker: Any,
) -> dict[str, Any]:  # fmt: skip
    """An example under another name; `labels` and what follows are of the workers' pods."""
    example = _TLS_EXAMPLE if tls else _EXAMPLE
    old = example["metadata"]["name"]
    made: Any = yaml.safe_load(
        yaml.safe_dump(example).replace(f"{old}-scheduler", f"{name}-scheduler")
    )
    made["metadata"]["name"] = name
    spec = made["spec"]
    spec["scheduler"]["service"]["selector"]["dask.org/cluster-name"] = name
    for part in ("scheduler", "worker"):
        container = spec[part]["spec"]["containers"][0]
        container["image"] = DASK_IMAGE
        container["resources"]["requests"] = {"cpu": "10m", "memory": "64Mi"}  # many fit on a node
    metadata = {"labels": dict(labels or {}), "annotations": dict(notes or {})}
    spec["worker"] |= {"replicas": replicas, "metadata": metadata}
    change_workers(spec["worker"]["spec"], **worker)
    return made


def change_workers(
    pod: dict[str, Any], *, requests: dict[str, str] | None = None, node: str | None = None,
    args: Sequence[str] = (), in_shell: bool = False, **fields: Any,
) -> None:  # fmt: skip
    """`args` come after the example's own; further `fields` are those of the pod's spec."""
    pod |= fields
    pod["containers"][0]["args"] += args
    if in_shell:  # which passes no signal on
        command = " ".join(pod["containers"][0]["args"])
        pod["containers"][0] |= {"command": ["sh", "-c"], "args": [f"true; {command}; true"]}
    if requests:
        pod["containers"][0]["resources"]["requests"] |= requests
    if node:
        pod["nodeSelector"] = {"kubernetes.io/hostname": node}


def adaptive_policy(name: str, **spec: Any) -> dict[str, Any]:
    """A policy that does not wait long."""
    hasty = {"maxReplicas": 3, "idleTimeout": "2s", "target": {"duration": "1s"}}
    return policy(name, name, **{**hasty, **spec})


def worker_group(cluster: str, name: str, replicas: int) -> dict[str, Any]:
    worker = dask_cluster(cluster, replicas=replicas)["spec"]["worker"]
    return body(GROUPS, name, {"cluster": cluster, "worker": worker})


def autoscaler(cluster: str, *, minimum: int, maximum: int) -> dict[str, Any]:
    spec = {"cluster": cluster, "minimum": minimum, "maximum": maximum}
    return body(AUTOSCALERS, cluster, spec)
