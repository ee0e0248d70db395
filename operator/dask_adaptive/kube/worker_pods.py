"""
Reads worker pods by their specs and status. Pure.

The command line of a container gives the threads and resources of its worker, read as `dask worker`
does (`distributed.cli.dask_worker`). Images, configuration files and shell scripts are not read:
then the threads are the container's CPUs. Also computes a pod's cost for quotas, as Kubernetes
does, and why a pod does not run, in the words of Kubernetes.
"""

from __future__ import annotations

import ast
import functools
import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dask_adaptive.model.amounts import parse_quantity

#: (what, in thousandths), by name: "requests.cpu", "limits.memory", "requests.nvidia.com/gpu".
Costs = tuple[tuple[str, int], ...]

#: (name, amount), by name.
Resources = tuple[tuple[str, float], ...]

_VARIABLE = "DASK_DISTRIBUTED__WORKER__RESOURCES"

#: As Kubernetes and shells write it: `$(NAME)`, `${NAME}`.
_REFERENCE = re.compile(r"\$(?:\((\w+)\)|\{(\w+)\})")

_LONGEST = 200  # characters of a message that are of use in a status

#: Limits of unvalidated templates: parsing more than honest ones contain would cost seconds.
#: Characters of split command lines, of one value, digits of a number of threads, and containers.
_COMMAND, _VALUE, _DIGITS, _CONTAINERS = 20_000, 1000, 9, 200

#: What starts a worker. A sidecar may have the word in a name (`dask-worker-logs`).
_STARTS_WORKER = re.compile(r"(^|[ /])dask([ -]cuda)?[ -]worker( |$)")


def which(
    containers: Sequence[Mapping[str, Any]],
    name: str,
    starts: Callable[[Mapping[str, Any]], object],
) -> int:
    """Return the container that runs a program: by its command, by its name, or the first."""
    started = (at for at, container in enumerate(containers) if starts(container))
    named = (at for at, container in enumerate(containers) if container.get("name") == name)
    return next(started, next(named, 0))


def as_list(value: Any) -> Sequence[Any]:
    """Return a list; empty for anything else, such as a text of many characters."""
    return value if isinstance(value, (list, tuple)) else ()


def command_line(container: Mapping[str, Any]) -> list[str]:
    return [str(word) for field in ("command", "args") for word in as_list(container.get(field))]


@dataclass(frozen=True, slots=True)
class Shape:
    """The part of a pod that a quota counts."""

    costs: Costs = ()
    best_effort: bool = True  # asks for no CPU and no memory
    ends: bool = False  # has a deadline
    priority_class: str = ""


NO_SHAPE = Shape()


def shape_of(pod_spec: Mapping[str, Any] | None) -> Shape:
    """Return the shape of a pod; equal pods share one object, to save memory."""
    spec = pod_spec or {}
    try:
        costs = pod_costs(spec)
    except (AttributeError, TypeError, ValueError):
        costs = ()  # of an unknown shape: leave refusals to the API server
    counted = {name.partition(".")[2] for name, _ in costs}
    return _one_for_all(
        Shape(
            costs,
            best_effort=not counted & {"cpu", "memory"},
            ends=spec.get("activeDeadlineSeconds") is not None,
            priority_class=str(spec.get("priorityClassName") or ""),
        )
    )


def pod_costs(spec: Mapping[str, Any]) -> Costs:
    """
    Requests and limits of a pod.

    Source:
        `PodRequests` of Kubernetes' resource helpers: containers add up; of init containers, which
        run one after the other, the greediest counts, and those that stay on (`restartPolicy:
        Always`) add up with all that come later. A limit is a request where nothing else is said.
    """
    containers, first = as_list(spec.get("containers")), as_list(spec.get("initContainers"))
    if len(containers) + len(first) > _CONTAINERS:
        raise ValueError("too many containers")
    total = sum(map(container_costs, containers), Counter[str]())
    stay: Counter[str] = Counter()
    peak: Counter[str] = Counter()
    for container in first:
        own = container_costs(container)
        if container.get("restartPolicy") == "Always":
            stay += own
            peak |= stay
        else:
            peak |= stay + own
    total = (total + stay) | peak
    total |= container_costs(spec)  # of the pod as a whole; never less than those of its containers
    # Of a RuntimeClass, which the API server writes into each pod.
    overhead: Mapping[str, Any] = spec.get("overhead") or {}
    total += Counter({f"requests.{name}": thousandths(v) for name, v in overhead.items()})
    return tuple(sorted(total.items()))


def at_least(template: Shape, made: Shape) -> Shape:
    """
    Return the shape of a pod made from a template, based on an existing pod.

    LimitRanges, priority classes and webhooks change pods when they are made.
    """
    most = Counter(dict(template.costs)) | Counter(dict(made.costs))
    return _one_for_all(replace(made, costs=tuple(sorted(most.items()))))


def thousandths(quantity: Any) -> int:
    """Round up to thousandths, as `SetDefaults_ResourceList` does."""
    return math.ceil(parse_quantity(quantity) * 1000)


def container_costs(body: Mapping[str, Any]) -> Counter[str]:
    """Return limits and requests; a limit is also a request unless one is set."""
    resources = body.get("resources") or {}
    limits = {k: thousandths(v) for k, v in (resources.get("limits") or {}).items()}
    requests = {k: thousandths(v) for k, v in (resources.get("requests") or {}).items()}
    found = Counter({f"limits.{name}": number for name, number in limits.items()})
    found.update({f"requests.{name}": number for name, number in {**limits, **requests}.items()})
    return found


@functools.lru_cache(maxsize=1024)
def _one_for_all(made: Shape) -> Shape:
    return made


def threads_of(pod_spec: Mapping[str, Any] | None) -> int:
    """Return the threads of all Dask workers in one pod; 0: unknown."""
    container = _worker_container(pod_spec)
    words, environment = _words(container), _environment(container)
    threads = _whole(_option(words, "--nthreads", environment))
    said = _option(words, "--nworkers", environment)
    processes = 1 if said is None else _whole(said)
    if threads > 0 and processes > 0:
        return threads * processes
    # Without --nthreads, and with --nworkers auto, they equal the CPUs.
    return math.ceil(_cpus(container)) if threads <= 0 else 0


def resources_of(pod_spec: Mapping[str, Any] | None) -> Resources:
    """Return the Dask resources of each Dask worker in a pod."""
    container = _worker_container(pod_spec)
    environment = _environment(container)
    said = _option(_words(container), "--resources", environment)
    found = _from_words(said) if said else _from_environment(environment)
    return tuple(sorted(found.items()))


def _worker_container(pod_spec: Mapping[str, Any] | None) -> Mapping[str, Any]:
    containers = [c for c in as_list((pod_spec or {}).get("containers")) if isinstance(c, Mapping)]
    at = which(containers, "worker", lambda c: _STARTS_WORKER.search(" ".join(_words(c))))
    return containers[at] if containers else {}


def _words(container: Mapping[str, Any]) -> list[str]:
    """Split the command line; a shell's (`sh -c "dask worker …"`) into its words."""
    every: list[str] = []
    left = _COMMAND
    for word in command_line(container):
        left -= len(word)
        try:
            every += shlex.split(word) if "worker" in word and left >= 0 else [word]
        except ValueError:  # an unclosed quote
            every.append(word)
    return every


def _environment(container: Mapping[str, Any]) -> dict[str, str]:
    said = [(str(e.get("name")), e.get("value")) for e in as_list(container.get("env"))]
    return {name: text for name, text in said if isinstance(text, str) and len(text) <= _VALUE}


def _option(words: Sequence[str], name: str, environment: Mapping[str, str]) -> str | None:
    """Return the value of an option, the last if repeated, as click does."""
    found: str | None = None
    for i, word in enumerate(words):
        if word == name and i + 1 < len(words):
            found = words[i + 1]
        elif word.startswith(f"{name}="):
            found = word.partition("=")[2]
    if found is None or len(found) > _VALUE:
        return None
    return _REFERENCE.sub(lambda m: environment.get(m[1] or m[2], m[0]), found)


def _whole(text: str | None) -> int:
    is_number = text and text.isascii() and text.isdigit() and len(text) <= _DIGITS
    return int(text) if text and is_number else 0


def _cpus(container: Mapping[str, Any]) -> float:
    limit = ((container.get("resources") or {}).get("limits") or {}).get("cpu")
    try:
        return 0.0 if limit is None else thousandths(limit) / 1000
    except (TypeError, ValueError):
        return 0.0


def _from_words(text: str) -> dict[str, float]:
    pairs = (pair.partition("=") for pair in text.replace(",", " ").split())
    return _numbers((name, value) for name, _, value in pairs)


def _from_environment(environment: Mapping[str, str]) -> dict[str, float]:
    """Read resources as `dask.config.collect_env` does: names in lower case."""
    found: dict[str, float] = {}
    for name, value in environment.items():
        if name.upper() == _VARIABLE and name.startswith("DASK_"):
            found |= _from_literal(value)
        elif name.startswith("DASK_") and name.upper().startswith(f"{_VARIABLE}__"):
            found |= _numbers([(name[len(_VARIABLE) + 2 :].lower(), value)])
    return found


def _from_literal(text: str) -> dict[str, float]:
    try:
        value = ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):  # all it may raise
        return {}
    return _numbers(value.items()) if isinstance(value, dict) else {}


def _numbers(pairs: Iterable[tuple[Any, Any]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in pairs:
        try:
            found[str(name)] = float(value)
        except (TypeError, ValueError, OverflowError):
            return {}  # Dask would not start with this
    return found


def pod_waiting(pod: Mapping[str, Any]) -> str:
    """Return why a pod waits; empty if its containers run."""
    status = pod.get("status") or {}
    phase = status.get("phase", "Pending")
    if phase in ("Failed", "Succeeded"):
        return _text(status.get("reason") or phase, status.get("message"))
    containers = [
        *(status.get("initContainerStatuses") or []),
        *(status.get("containerStatuses") or []),
    ]
    stuck = next(filter(None, map(_container_waiting, containers)), "")
    if stuck:
        return stuck
    if phase != "Pending":
        return ""
    if gates := gates_of(pod):
        return _text("SchedulingGated", gates)
    found = _condition(pod, "PodScheduled", "False")
    return _text(found.get("reason") or "Unschedulable", found.get("message")) if found else phase


def gates_of(pod: Mapping[str, Any]) -> str:
    """Return a pod's scheduling gates, such as those of Kueue's queues."""
    gates = (pod.get("spec") or {}).get("schedulingGates") or ()
    return ", ".join(str(gate.get("name")) for gate in gates)


def unscheduled_since(pod: Mapping[str, Any]) -> str:
    """Return since when the scheduler finds no node for a pod; empty if it has one."""
    found = _condition(pod, "PodScheduled", "False")
    # Not SchedulingGated: no node has been sought yet.
    is_looked_for = found.get("reason") == "Unschedulable"
    return str(found.get("lastTransitionTime") or "") if is_looked_for else ""


def _condition(body: Mapping[str, Any], kind: str, status: str) -> Mapping[str, Any]:
    """Return an object's condition with this status; empty if there is none."""
    conditions = (body.get("status") or {}).get("conditions") or []
    return next((c for c in conditions if (c.get("type"), c.get("status")) == (kind, status)), {})


def _container_waiting(container: Mapping[str, Any]) -> str:
    state = container.get("state") or {}
    if "waiting" in state:
        waiting = state["waiting"] or {}
        reason = str(waiting.get("reason") or "Waiting")
        last = (container.get("lastState") or {}).get("terminated") or {}
        message = waiting.get("message")
        if reason == "CrashLoopBackOff" and last:
            message = f"{last.get('reason', 'Error')}, exit code {last.get('exitCode')}"
        return _text(reason, message)
    ended = state.get("terminated")
    if ended and ended.get("exitCode", 0) != 0:
        return _text(ended.get("reason") or "Error", f"exit code {ended['exitCode']}")
    return ""


def deployment_waiting(deployment: Mapping[str, Any]) -> str:
    """Return why a Deployment has no pod: refused by a quota or a webhook, or not requested."""
    if (deployment.get("spec") or {}).get("replicas") == 0:
        return "ScaledToZero: spec.replicas of the worker's Deployment is 0"
    return deployment_refused(deployment)


def deployment_refused(deployment: Mapping[str, Any]) -> str:
    """
    Return why a Deployment's pod was refused; empty if it was not.

    The ReplicaSet controller goes on trying, less and less often.
    """
    found = _condition(deployment, "ReplicaFailure", "True")
    return _text(found.get("reason") or "ReplicaFailure", found.get("message")) if found else ""


def _text(reason: str, message: str | None) -> str:
    text = " ".join((message or "").split())
    if len(text) > _LONGEST:
        text = text[: _LONGEST - 1] + "…"
    return f"{reason}: {text}" if text else reason
