"""AdaptivePolicies and their status as values, parsed once for all commands that show them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from dask_adaptive.cli.access import NOTHING, fail
from dask_adaptive.kube.api import POLICIES
from dask_adaptive.kube.status_json import idle_of, last_decision_of
from dask_adaptive.model.keys import default_group_of
from dask_adaptive.model.plan import Decision
from dask_adaptive.model.policy import InvalidPolicy, Policy, parse_policy
from dask_adaptive.model.scaling import AUTO_S, GroupBounds
from dask_adaptive.planner.context import IdleTime

if TYPE_CHECKING:
    from dask_adaptive.kube.api import Json, KubeApi

T = TypeVar("T")

NOT_LOOKED = "the operator has not processed it yet; is it running?"


def _of(kind: type) -> Any:
    """Declare an object of the status, or a list of them; empty if it is missing."""
    return field(default=(), metadata={"kind": kind})


def _written(default: T, *keys: str) -> T:
    """Declare a field with other names in the status: the first that is there counts."""
    made: T = field(default=default, metadata={"keys": keys})
    return made


@dataclass(frozen=True, slots=True)
class RowView:
    """A worker or a condition: its state, and why."""

    name: str = _written("", "name", "type")
    state: str = _written("", "state", "status")
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class PinView:
    source: str
    owner: str = ""
    reason: str = ""
    until: str = ""  # an instant; empty: not known
    workers: tuple[str, ...] = ()  # the first ten
    count: int = 0

    def names(self, most: int = 3) -> str:
        """The first names, and how many more there are."""
        shown = ", ".join(self.workers[:most])
        more = self.count - len(self.workers[:most])
        return f"{shown} and {more} more" if more > 0 else shown


def most_first(workers: Mapping[str, int]) -> list[str]:
    """Render numbers of workers, by reason."""
    return [f"{n} {why}" for why, n in sorted(workers.items(), key=lambda row: (-row[1], row[0]))]


@dataclass(frozen=True, slots=True)
class SchedulerView:
    distributed: str = ""
    agent: str = ""
    relief: Mapping[str, str] = field(default_factory=dict)  # states, by name


@dataclass(frozen=True, slots=True)
class GroupView:
    """Workers of a group, or, in a status, of all groups that are scaled."""

    name: str = ""
    replicas: int = 0
    desired: int = _written(0, "desiredReplicas")
    wanted: int = _written(0, "wantedReplicas")
    connected: int = 0
    pending: int = 0
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class StatusView(GroupView):
    """The status that the operator wrote last."""

    idle: int = 0
    busy: int = 0
    pinned: int = 0
    retiring: int = 0
    groups: tuple[GroupView, ...] = _of(GroupView)
    workers: tuple[RowView, ...] = _of(RowView)  # about which there is something to say
    held_by: tuple[PinView, ...] = _of(PinView)
    conditions: tuple[RowView, ...] = _of(RowView)
    blockers: Mapping[str, int] = field(default_factory=dict)  # not needed, and stay, by reason
    pending_reasons: Mapping[str, int] = field(default_factory=dict)
    recycled: Mapping[str, int] = field(default_factory=dict)  # by reason
    scheduler: SchedulerView = field(default=SchedulerView(), metadata={"kind": SchedulerView})
    decision: Decision | None = None  # the last one

    def worker(self, name: str) -> RowView | None:
        return next((w for w in self.workers if name == w.name), None)

    @property
    def replaced(self) -> list[RowView]:
        """Workers that are to be replaced, or whose replacement starts."""
        return [w for w in self.workers if w.state in ("Due", "Surging")]


@dataclass(frozen=True, slots=True)
class PolicyView:
    """An AdaptivePolicy, with its status."""

    body: Json
    namespace: str
    name: str
    cluster: str
    mode: str
    rules: Policy | None  # None: nothing that this version can read
    status: StatusView | None  # None: the operator has not processed it

    @property
    def bounds(self) -> dict[str, tuple[int, int]]:
        """Least and most workers, by group, the default one first."""
        return {row.name: (row.minimum, row.maximum) for row in self._rows}

    @property
    def _rows(self) -> tuple[GroupBounds, ...]:
        return self.rules.bounds(default_group_of(self.cluster)) if self.rules else ()

    @property
    def idle_times(self) -> dict[str, IdleTime]:
        """What `idleTimeout: Auto` is now, by group."""
        return idle_of(self.body.get("status") or {})

    def idle_s(self, group: str) -> float:
        """After so long without a task a worker of a group may leave."""
        fixed = next((row.idle_timeout_s for row in self._rows if row.name == group), 0.0)
        if fixed != AUTO_S:
            return fixed
        auto = self.idle_times.get(group)
        return auto.seconds if auto else 0.0

    def is_of(self, name: str) -> bool:
        """Tells whether the policy, or its cluster, has this name."""
        return name in (self.name, self.cluster)


async def list_policies(
    api: KubeApi, namespace: str | None, name: str | None = None
) -> list[PolicyView]:
    """List policies by namespace and name: all, or those of one cluster. Raises `KubeError`."""
    return views_of(await api.list(POLICIES.path(namespace)), name)


def fail_without_policy(namespace: str | None, name: str | None) -> NoReturn:
    place = f"namespace {namespace}" if namespace else "any namespace"
    fail(f"no AdaptivePolicy for {name or 'any cluster'} in {place}", NOTHING)


def views_of(bodies: Iterable[Json], name: str | None = None) -> list[PolicyView]:
    chosen = (p for p in map(_policy_view, bodies) if name is None or p.is_of(name))
    return sorted(chosen, key=lambda p: (p.namespace, p.name))


def _policy_view(body: Json) -> PolicyView:
    spec, meta, status = body["spec"], body["metadata"], body.get("status")
    try:
        rules = parse_policy(spec)
    except InvalidPolicy:
        rules = None
    return PolicyView(
        body=body,
        namespace=meta["namespace"],
        name=meta["name"],
        cluster=spec["clusterRef"]["name"],
        mode=spec.get("mode", "Auto"),
        rules=rules,
        status=replace(_read(StatusView, status), decision=last_decision_of(status))
        if status
        else None,
    )


def _read(kind: type[T], body: Mapping[str, Any]) -> T:
    """Read the fields that are there; their keys are camelCase unless declared otherwise."""
    values = {}
    for f in fields(kind):  # type: ignore[arg-type]  # all kinds are dataclasses
        camel = re.sub("_(.)", lambda match: match[1].upper(), f.name)
        keys, inner = f.metadata.get("keys", (camel,)), f.metadata.get("kind")
        value = next((body[key] for key in keys if body.get(key) is not None), None)
        is_list = f.default == ()
        if value is None or isinstance(value, list) is not is_list:
            continue  # it is not there; or 0.1.0 wrote it, as a list where there is an object now
        if is_list:
            values[f.name] = tuple(_read(inner, row) if inner else row for row in value)
        else:
            values[f.name] = _read(inner, value) if inner else value
    return kind(**values)
