"""
Changes pods: a scheduler loads the agent, a worker gets time to hand over.

Pure: pod in, JSON patch out. Nothing that the user set is overwritten.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dask_adaptive.kube.agent_config import BOOT_PATH, MOUNT, PRELOAD, refusal
from dask_adaptive.kube.api import Json
from dask_adaptive.kube.objects import COMPONENT_LABEL, INJECTED
from dask_adaptive.kube.worker_pods import command_line, which
from dask_adaptive.model.scheduler_settings import (
    INHERIT,
    SchedulerSettings,
    of_scheduler,
    of_worker,
)

#: Values of the label `dask.org/component`.
SCHEDULER, WORKER = "scheduler", "worker"

#: Signs of the container that runs the program.
_COMMANDS = {
    SCHEDULER: re.compile(r"dask[ -]scheduler|distributed\.cli\.dask_scheduler"),
    WORKER: re.compile(r"dask([ -]cuda)?[ -]worker|distributed\.cli\.dask_worker|dask_cuda\.cli"),
}

VOLUME = "dask-adaptive-agent"

#: Annotations that keep cluster-autoscaler and Karpenter from removing the pod's node.
HINTS = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}

#: The API server's default grace period.
DEFAULT_GRACE_S = 30
_GRACE = "terminationGracePeriodSeconds"
#: Passes the grace period to workers: `dask_adaptive_agent.worker_side.handover` reads it.
GRACE = "DASK_ADAPTIVE_GRACE_S"

#: The `preStop` hook of workers, for dash, bash and busybox. They hand over at SIGTERM, but a shell
#: as process 1 (`sh -c "pip install … && dask worker …"`) does not pass it on, and a shell that
#: `tini` runs ends the container. $1: seconds after which what hangs is killed; 0: it is not.
HOOK = r"""# Dask workers catch SIGURG until they have handed over, which it has them do.
trap '' HUP INT TERM
mine=$(readlink /proc/self/ns/mnt)
is_ours() { [ "$(readlink "/proc/$1/ns/mnt" 2>/dev/null)" = "${mine:-none}" ]; }
ring() {
  rung=
  for pid in $(grep -ls '^SigCgt:.*[4-7c-f].....$' /proc/[0-9]*/status); do
    pid=${pid#/proc/} pid=${pid%/status}
    is_ours "$pid" && grep -qs dask "/proc/$pid/cmdline" && kill -URG "$pid" && rung=yes
  done 2>/dev/null
  [ "$rung" ]
}
while ring; do sleep 1; done
[ "$1" = 0 ] || (
  self=$(exec sh -c 'echo "$PPID"')
  # One that starts may come so late; one that looks for its scheduler ignores SIGTERM.
  while [ "$1" -gt 0 ]; do ring || set -- $(($1 - 1)); sleep 1; done
  for process in /proc/[0-9]*; do
    pid=${process#/proc/}
    case $pid in 1 | "$self") ;; *) is_ours "$pid" && kill -9 "$pid" ;; esac
  done
) </dev/null >/dev/null 2>&1 &
exit 0
"""


@dataclass(frozen=True, slots=True)
class Injection:
    """A JSON patch; empty: the pod is unchanged, and the agent may still be attached live."""

    patch: tuple[Json, ...] = ()
    lacks: str = ""  # what was left out, and why


def inject(
    pod: Mapping[str, Any], config_map: str, *, version: str, settings: SchedulerSettings
) -> Injection:
    """
    Make a scheduler's pod load the agent and start with the policy's configuration.

    Args:
        config_map: Holds the agent, in the pod's namespace.
        version: Of the agent, for the annotation that says what was done.
    """
    if why := objection(pod, SCHEDULER):
        return Injection(lacks=why)
    at, container = _container(pod, SCHEDULER)
    path = f"/spec/containers/{at}"
    preload = _preload(container, path)
    if isinstance(preload, str):
        return Injection(lacks=preload)
    taken, has_unseen = _seen(container)
    env = of_scheduler(settings, taken, has_unseen=has_unseen)
    left_out = ", ".join(env.left_out)
    # What `preload` adds to no list of variables makes one.
    has_list = bool(container.get("env")) or any(p["path"] == f"{path}/env" for p in preload)
    return Injection(
        (
            # A scheduler would exit without the file that it preloads: its pod had better wait
            # until the ConfigMap exists.
            *_mount(pod, at, config_map),
            *preload,
            *_set_variables(path, env.variables, has_list=has_list),
            *_annotate(pod, {INJECTED: version}),
        ),
        f"{INHERIT} is set in the pod already; left out: {left_out}" if left_out else "",
    )


def inject_worker(
    pod: Mapping[str, Any], *, version: str, grace_s: int | None,
    settings: SchedulerSettings, hints: bool = False,
) -> Injection:  # fmt: skip
    """
    Give a worker's pod time to hand over, and a `preStop` hook that triggers it.

    A hook of the user's own stays, and is the only one.

    Args:
        grace_s: The pod's new `terminationGracePeriodSeconds`; None: it keeps its own.
        hints: True if node autoscalers are to leave its node alone.
    """
    if why := objection(pod, WORKER):
        return Injection(lacks=why)
    spec = pod["spec"]
    at, container = _container(pod, WORKER)
    path, lifecycle = f"/spec/containers/{at}", container.get("lifecycle") or {}
    own_s = spec.get(_GRACE, DEFAULT_GRACE_S)
    taken, has_unseen = _seen(container)
    env = dict(of_worker(settings, taken, has_unseen=has_unseen).variables)
    if GRACE not in taken:
        env[GRACE] = str(own_s if grace_s is None else grace_s)
    patch = [*_set_variables(path, env, has_list=bool(container.get("env")))]
    if grace_s is not None:
        patch.append(_set(f"/spec/{_GRACE}", grace_s, replaces=_GRACE in spec))
    lacks, note = "", version
    if lifecycle.get("preStop"):
        lacks = f"container {container['name']} has a preStop hook of its own"
        note = f"{version}, no preStop hook: {lacks}"
    else:
        # A process that hangs at SIGTERM must not live longer than without us.
        kill_after_s = 0 if grace_s is None else DEFAULT_GRACE_S
        command = ["/bin/sh", "-c", HOOK, "dask-adaptive", str(kill_after_s)]
        hook = {**lifecycle, "preStop": {"exec": {"command": command}}}
        patch.append(_set(f"{path}/lifecycle", hook, replaces="lifecycle" in container))
    own = pod["metadata"].get("annotations") or {}
    kept = {name: value for name, value in HINTS.items() if hints and name not in own}
    return Injection((*patch, *_annotate(pod, {INJECTED: note, **kept})), lacks)


def may_be_default(pod: Mapping[str, Any]) -> bool:
    """True if the pod's grace period may be Kubernetes' default."""
    own_s = pod["spec"].get("terminationGracePeriodSeconds", DEFAULT_GRACE_S)
    return bool(own_s == DEFAULT_GRACE_S)


def component(pod: Mapping[str, Any]) -> str:
    labels = (pod.get("metadata") or {}).get("labels") or {}
    return str(labels.get(COMPONENT_LABEL, ""))


def objection(pod: Mapping[str, Any], role: str) -> str:
    """Return why the pod itself forbids a change; empty if nothing does."""
    meta, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    if component(pod) != role:
        return f"not a Dask {role}"
    refused = refusal("the pod", meta.get("annotations"))
    if refused:
        return refused
    if not spec.get("containers"):
        return "it has no containers"
    if INJECTED in (meta.get("annotations") or {}):
        return "it is injected already"
    _, container = _container(pod, role)
    if any(
        m.get("mountPath", "").rstrip("/") == MOUNT for m in container.get("volumeMounts") or []
    ):
        return f"something else is mounted at {MOUNT}"
    system = (spec.get("os") or {}).get("name") or (spec.get("nodeSelector") or {}).get(
        "kubernetes.io/os", "linux"
    )
    return "" if system == "linux" else f"it runs on {system}, not Linux"


def _container(pod: Mapping[str, Any], role: str) -> tuple[int, Mapping[str, Any]]:
    containers: Sequence[Mapping[str, Any]] = pod["spec"]["containers"]
    at = which(containers, role, lambda c: _COMMANDS[role].search(" ".join(command_line(c))))
    return at, containers[at]


def _mount(pod: Mapping[str, Any], at: int, config_map: str) -> Iterator[Json]:
    volume = {"name": VOLUME, "configMap": {"name": config_map, "defaultMode": 0o444}}
    mount = {"name": VOLUME, "mountPath": MOUNT, "readOnly": True}
    yield from _append(pod["spec"], "/spec", "volumes", volume)
    container = pod["spec"]["containers"][at]
    yield from _append(container, f"/spec/containers/{at}", "volumeMounts", mount)


def _seen(container: Mapping[str, Any]) -> tuple[frozenset[str], bool]:
    """
    Return a container's variables, and whether it has others: `env` overrides `envFrom`, whose
    names we do not read.
    """
    names = frozenset(str(e.get("name", "")) for e in container.get("env") or [])
    return names, bool(container.get("envFrom"))


def _set_variables(path: str, variables: Mapping[str, str], *, has_list: bool) -> Iterator[Json]:
    # kubelet expands $(NAME); $$ stands for one $ (third_party/forked/golang/expansion).
    entries = [{"name": k, "value": v.replace("$", "$$")} for k, v in variables.items()]
    if has_list:
        for entry in entries:
            yield {"op": "add", "path": f"{path}/env/-", "value": entry}
    elif entries:
        yield {"op": "add", "path": f"{path}/env", "value": entries}


def _set(path: str, value: Any, *, replaces: bool) -> Json:
    return {"op": "replace" if replaces else "add", "path": path, "value": value}


def _preload(container: Mapping[str, Any], path: str) -> tuple[Json, ...] | str:
    """Return the preload variable for the agent, or why it cannot be set."""
    # With --preload on the command line Dask ignores the configuration: the two are not merged.
    for field in ("args", "command"):
        words = container.get(field) or []
        if any(w == "--preload" or w.startswith("--preload=") for w in words):
            end: Json = {"op": "add", "path": f"{path}/{field}/-"}
            return ({**end, "value": "--preload"}, {**end, "value": BOOT_PATH})
    if any("--preload" in w for w in command_line(container)):
        return "a shell command with --preload can't be extended safely"
    env = container.get("env") or []
    for at, variable in enumerate(env):
        if variable.get("name") != PRELOAD:
            continue
        if "value" not in variable:
            return f"{PRELOAD} comes from valueFrom and can't be extended"
        value = str([*preloads(variable["value"]), BOOT_PATH])
        return ({"op": "replace", "path": f"{path}/env/{at}/value", "value": value},)
    return tuple(_append(container, path, "env", {"name": PRELOAD, "value": BOOT_PATH}))


def preloads(value: str) -> list[str]:
    """Read the variable as Dask does: a list in Python syntax, or one name."""
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


def _annotate(pod: Mapping[str, Any], notes: Mapping[str, str]) -> Iterator[Json]:
    if not pod["metadata"].get("annotations"):
        yield {"op": "add", "path": "/metadata/annotations", "value": dict(notes)}
        return
    for name, value in notes.items():
        escaped = name.replace("~", "~0").replace("/", "~1")
        yield {"op": "add", "path": f"/metadata/annotations/{escaped}", "value": value}
