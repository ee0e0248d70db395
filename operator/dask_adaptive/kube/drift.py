"""
Detects drift: a worker's Deployment was made from another pod spec than its DaskWorkerGroup has
now. Pure.

dask-kubernetes makes the Deployment of the group's pod spec (`build_worker_deployment_spec`) and
never looks again. Compared are images, commands, environment and resources of the containers that
the group names; the API server's defaults, and what others have added, are no drift.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dask_adaptive.kube.worker_pods import Costs, as_list, container_costs

#: Set by `build_worker_deployment_spec` in each container where the user has not.
_ADDED = frozenset({"DASK_WORKER_NAME", "DASK_SCHEDULER_ADDRESS"})

#: A group not written later than this after its creation has never changed: dask-kubernetes'
#: `daskworkergroup_create` adopts it in this time.
MAKING_S = 5.0

#: Time in which dask-kubernetes may still act on the group's previous state.
_BEHIND_S = 30.0

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Container:
    """The compared fields of one container, in one spelling."""

    name: str
    image: str
    command: tuple[str, ...]
    args: tuple[str, ...]
    env: Pairs  # by name
    env_from: tuple[str, ...]
    resources: Costs  # a limit is also a request unless one is set


Sketch = tuple[Container, ...]


def sketch(pod_spec: Mapping[str, Any] | None) -> Sketch:
    """Return the compared fields of a pod spec; equal workers share one object, to save memory."""
    try:
        return _one_for_all(tuple(map(_container, as_list((pod_spec or {}).get("containers")))))
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return ()  # of an unknown shape: never drift


@functools.lru_cache(maxsize=4096)
def _one_for_all(made: Sketch) -> Sketch:
    return made


def drifted(
    wanted: Sketch, found: Sketch, *, group_made_at: float, group_written_at: float | None,
    made_at: float,
) -> str:  # fmt: skip
    """
    Describe the difference in one sentence; empty if there is none, or it is uncertain.

    A Deployment that is younger than the last change of its group was made of that: what differs,
    somebody else has changed (a webhook, say), and would change again in the next one.

    Args:
        wanted: Of the DaskWorkerGroup, `found` of the Deployment.
        group_written_at: When the group's pod spec was last written; None: nobody knows.
        made_at: When the Deployment was made. All times are seconds since 1970.
    """
    if group_written_at is None or group_written_at <= group_made_at + MAKING_S:
        return ""
    if made_at > group_written_at + _BEHIND_S or not found or wanted == found:
        return ""
    by_name = {container.name: container for container in found}
    for container in wanted:
        other = by_name.get(container.name)
        difference = _differs(container, other) if other else "is missing"
        if difference:
            return f"container {container.name}: {difference}"
    return ""


def _differs(wanted: Container, found: Container) -> str:
    if wanted.image != found.image:
        return f"image is {found.image}, the group's is {wanted.image}"
    if wanted.command != found.command:
        return "command differs"
    if wanted.args != found.args:
        return "args differ"
    name = _first_difference(wanted.env, found.env)
    if name:
        return f"variable {name} differs"
    if wanted.env_from != found.env_from:
        return "envFrom differs"
    name = _first_difference(wanted.resources, found.resources)
    return f"{name} differs" if name else ""


def _first_difference(wanted: Iterable[tuple[str, Any]], found: Iterable[tuple[str, Any]]) -> str:
    one, other = dict(wanted), dict(found)
    return min((k for k in one.keys() | other.keys() if one.get(k) != other.get(k)), default="")


def _container(body: Mapping[str, Any]) -> Container:
    env = {str(e["name"]): _value(e) for e in as_list(body.get("env")) if e["name"] not in _ADDED}
    return Container(
        name=str(body.get("name") or ""),
        image=str(body.get("image") or ""),
        command=tuple(map(str, as_list(body.get("command")))),
        args=tuple(map(str, as_list(body.get("args")))),
        env=tuple(sorted(env.items())),
        env_from=tuple(json.dumps(_bare(e), sort_keys=True) for e in as_list(body.get("envFrom"))),
        resources=tuple(sorted(container_costs(body).items())),
    )


def _value(entry: Mapping[str, Any]) -> str:
    if entry.get("valueFrom"):
        return json.dumps(_bare(entry["valueFrom"]), sort_keys=True)
    return json.dumps(str(entry.get("value") or ""))


def _bare(node: Any) -> Any:
    """Remove fields that the API server fills in."""
    if not isinstance(node, Mapping):
        return node
    bare = {key: _bare(value) for key, value in node.items() if value not in (None, "", False)}
    if bare.get("apiVersion") == "v1":  # of a fieldRef
        del bare["apiVersion"]
    if str(bare.get("divisor", "")) == "0":  # of a resourceFieldRef
        del bare["divisor"]
    return bare
