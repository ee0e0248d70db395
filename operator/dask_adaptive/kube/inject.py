"""What to change in a scheduler's pod so that it loads the agent. Pure: pod in, JSON patch out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask_adaptive import DOMAIN
from dask_adaptive.kube.agent_zip import BOOT_PATH, MOUNT, PRELOAD
from dask_adaptive.kube.api import Json
from dask_adaptive.kube.objects import COMPONENT_LABEL, INJECT, INJECTED

VOLUME = "dask-adaptive-agent"

_SCHEDULER_COMMAND = re.compile(r"dask[ -]scheduler|distributed\.cli\.dask_scheduler")


@dataclass(frozen=True, slots=True)
class Injection:
    """A JSON patch."""

    patch: tuple[Json, ...]


@dataclass(frozen=True, slots=True)
class Skip:
    """Nothing is changed, and why; the scheduler may still be attached live."""

    why: str


def refusal(holder: str, annotations: Mapping[str, str] | None) -> str:
    """Who forbids injection, if the annotations of this object do."""
    word = (annotations or {}).get(INJECT, "").strip().lower()
    return f"{holder} is annotated {INJECT}={word}" if word in ("false", "no", "off") else ""


def inject(pod: Mapping[str, Any], config_map: str, *, version: str) -> Injection | Skip:
    """
    Let a scheduler's pod load the agent; nothing that the user set is overwritten.

    Args:
        pod: As the API server sends it to a webhook.
        config_map: Holds the agent, in the pod's namespace.
        version: Of the agent, for the annotation that says what was done.
    """
    why = _objection(pod)
    if why:
        return Skip(why)
    at, container = _scheduler_container(pod["spec"]["containers"])
    path = f"/spec/containers/{at}"
    preload = _preload(container, path)
    if isinstance(preload, Skip):
        return preload
    volume = {
        "name": VOLUME,
        "configMap": {"name": config_map, "optional": False, "defaultMode": 0o444},
    }
    mount = {"name": VOLUME, "mountPath": MOUNT, "readOnly": True}
    return Injection(
        (
            *_append(pod["spec"], "/spec", "volumes", volume),
            *_append(container, path, "volumeMounts", mount),
            *preload,
            *_annotate(pod, INJECTED, version),
        )
    )


def _objection(pod: Mapping[str, Any]) -> str:
    meta, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    if (meta.get("labels") or {}).get(COMPONENT_LABEL) != "scheduler":
        return "not a Dask scheduler"
    refused = refusal("the pod", meta.get("annotations"))
    if refused:
        return refused
    if not spec.get("containers"):
        return "it has no containers"
    if any(v.get("name") == VOLUME for v in spec.get("volumes") or []):
        return "it is injected already"
    system = (spec.get("os") or {}).get("name") or (spec.get("nodeSelector") or {}).get(
        "kubernetes.io/os", "linux"
    )
    return "" if system == "linux" else f"it runs on {system}, not Linux"


def _scheduler_container(
    containers: Sequence[Mapping[str, Any]],
) -> tuple[int, Mapping[str, Any]]:
    """The container that runs the scheduler: by its command, else by its name, else the first."""
    for at, container in enumerate(containers):
        if _SCHEDULER_COMMAND.search(" ".join(_words(container))):
            return at, container
    for at, container in enumerate(containers):
        if container.get("name") == "scheduler":
            return at, container
    return 0, containers[0]


def _words(container: Mapping[str, Any]) -> list[str]:
    return [*(container.get("command") or []), *(container.get("args") or [])]


def _preload(container: Mapping[str, Any], path: str) -> tuple[Json, ...] | Skip:
    # With --preload on the command line Dask ignores the configuration: the two are not merged.
    for field in ("args", "command"):
        words = container.get(field) or []
        if any(w == "--preload" or w.startswith("--preload=") for w in words):
            end: Json = {"op": "add", "path": f"{path}/{field}/-"}
            return ({**end, "value": "--preload"}, {**end, "value": BOOT_PATH})
    if any("--preload" in w for w in _words(container)):
        return Skip("a shell command with --preload can't be extended safely")
    env = container.get("env") or []
    for at, variable in enumerate(env):
        if variable.get("name") != PRELOAD:
            continue
        if "value" not in variable:
            return Skip(f"{PRELOAD} comes from elsewhere (valueFrom) and can't be extended")
        value = str([*preloads(variable["value"]), BOOT_PATH])
        return ({"op": "replace", "path": f"{path}/env/{at}/value", "value": value},)
    return tuple(_append(container, path, "env", {"name": PRELOAD, "value": BOOT_PATH}))


def preloads(value: str) -> list[str]:
    """Read the variable as Dask does: a list in Python's syntax, or else one name."""
    try:
        parsed = ast.literal_eval(value)
    except (ValueError, SyntaxError):
        parsed = value
    names = [parsed] if isinstance(parsed, str) else list(parsed or [])
    return [str(name) for name in names if str(name).strip()]


def _append(parent: Mapping[str, Any], path: str, field: str, value: Json) -> Iterator[Json]:
    if parent.get(field):
        yield {"op": "add", "path": f"{path}/{field}/-", "value": value}
    else:
        yield {"op": "add", "path": f"{path}/{field}", "value": [value]}


def _annotate(pod: Mapping[str, Any], name: str, value: str) -> Iterator[Json]:
    if pod["metadata"].get("annotations"):
        escaped = name.replace("~", "~0").replace("/", "~1")
        yield {"op": "add", "path": f"/metadata/annotations/{escaped}", "value": value}
    else:
        yield {"op": "add", "path": "/metadata/annotations", "value": {name: value}}


#: On what the operator makes at run time.
MANAGED_LABELS = {
    "app.kubernetes.io/managed-by": "dask-adaptive-operator",
    "app.kubernetes.io/part-of": DOMAIN,
}
