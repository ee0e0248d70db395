"""
What a worker will be like, by how its container is started: its threads and resources. Pure.

Read as `dask worker` does (`distributed.cli.dask_worker`). What stands in images, configuration
files or shell scripts is not seen: then the number of threads is that of the container's CPUs.
"""

from __future__ import annotations

import ast
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dask_adaptive.kube.costs import thousandths

#: (name, amount), by name.
Resources = tuple[tuple[str, float], ...]

_VARIABLE = "DASK_DISTRIBUTED__WORKER__RESOURCES"

#: As Kubernetes and shells write it: `$(NAME)`, `${NAME}`.
_REFERENCE = re.compile(r"\$(?:\((\w+)\)|\{(\w+)\})")


def threads_of(pod_spec: Mapping[str, Any] | None) -> int:
    """Threads of all Dask workers in one pod together; 0: unknown."""
    container = _worker_container(pod_spec)
    words, environment = _words(container), _environment(container)
    threads = _whole(_option(words, "--nthreads", environment))
    said = _option(words, "--nworkers", environment)
    processes = 1 if said is None else _whole(said)
    if threads > 0 and processes > 0:
        return threads * processes
    # Without --nthreads, and with --nworkers auto, they are as many as CPUs.
    return math.ceil(_cpus(container)) if threads <= 0 else 0


def resources_of(pod_spec: Mapping[str, Any] | None) -> Resources:
    """Dask's resources that each Dask worker in a pod offers."""
    container = _worker_container(pod_spec)
    environment = _environment(container)
    said = _option(_words(container), "--resources", environment)
    found = _from_words(said) if said else _from_environment(environment)
    return tuple(sorted(found.items()))


def _worker_container(pod_spec: Mapping[str, Any] | None) -> Mapping[str, Any]:
    containers = [c for c in (pod_spec or {}).get("containers") or () if isinstance(c, Mapping)]
    starts = (c for c in containers if _starts_worker(_words(c)))
    named = (c for c in containers if c.get("name") == "worker")
    return next(starts, None) or next(named, None) or (containers[0] if containers else {})


def _starts_worker(words: Sequence[str]) -> bool:
    return bool(re.search(r"(^|[ /])dask([ -]cuda)?[ -]worker( |$)", " ".join(words)))


def _words(container: Mapping[str, Any]) -> list[str]:
    """The command line; that of a shell (`sh -c "dask worker …"`) in its words."""
    every: list[str] = []
    for word in map(str, (*(container.get("command") or ()), *(container.get("args") or ()))):
        try:
            every += shlex.split(word) if "worker" in word else [word]
        except ValueError:  # a quote that is not closed
            every.append(word)
    return every


def _environment(container: Mapping[str, Any]) -> dict[str, str]:
    entries = container.get("env") or ()
    return {str(e.get("name")): str(e["value"]) for e in entries if e.get("value") is not None}


def _option(words: Sequence[str], name: str, environment: Mapping[str, str]) -> str | None:
    """The value of an option, the last one where it stands there twice, as click reads it."""
    found: str | None = None
    for i, word in enumerate(words):
        if word == name and i + 1 < len(words):
            found = words[i + 1]
        elif word.startswith(f"{name}="):
            found = word.partition("=")[2]
    if found is None:
        return None
    return _REFERENCE.sub(lambda m: environment.get(m[1] or m[2], m[0]), found)


def _whole(text: str | None) -> int:
    return int(text) if text and text.isascii() and text.isdigit() else 0


def _cpus(container: Mapping[str, Any]) -> float:
    limit = ((container.get("resources") or {}).get("limits") or {}).get("cpu")
    try:
        return 0.0 if limit is None else thousandths(limit) / 1000
    except (TypeError, ValueError, ArithmeticError):
        return 0.0


def _from_words(text: str) -> dict[str, float]:
    pairs = (pair.partition("=") for pair in text.replace(",", " ").split())
    return _numbers((name, value) for name, _, value in pairs)


def _from_environment(environment: Mapping[str, str]) -> dict[str, float]:
    """As `dask.config.collect_env`: names of variables, and so of resources, in lower case."""
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
    except (ValueError, SyntaxError):
        return {}
    return _numbers(value.items()) if isinstance(value, dict) else {}


def _numbers(pairs: Iterable[tuple[Any, Any]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in pairs:
        try:
            found[str(name)] = float(value)
        except (TypeError, ValueError):
            return {}  # Dask would not start with this
    return found
