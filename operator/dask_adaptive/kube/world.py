"""All that we watch, as last heard from the API server, by cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from dask_adaptive.kube import api, nodes, objects, resource_quotas
from dask_adaptive.kube.api import KubeApi, Resource
from dask_adaptive.kube.nodes import NodeObject
from dask_adaptive.kube.objects import COMPONENT_LABEL, PodObject, PolicyObject, Watched
from dask_adaptive.kube.resource_quotas import QuotaObject
from dask_adaptive.model.keys import ClusterKey

W = TypeVar("W", bound=Watched)


@dataclass(frozen=True)
class Kind:
    """One kind of object that we watch."""

    resource: Resource
    type: type[Any]
    parse: Callable[[Mapping[str, Any]], Watched]
    selector: str = ""  # labels; the API server sends nothing else
    cluster_scoped: bool = False  # in no namespace, and so beyond a Role


KINDS: tuple[Kind, ...] = (
    Kind(api.POLICIES, objects.PolicyObject, objects.parse_policy_object),
    Kind(api.CLUSTERS, objects.ClusterObject, objects.parse_cluster),
    Kind(api.GROUPS, objects.GroupObject, objects.parse_group),
    Kind(api.AUTOSCALERS, objects.AutoscalerObject, objects.parse_autoscaler),
    Kind(
        api.DEPLOYMENTS,
        objects.DeploymentObject,
        objects.parse_deployment,
        f"{COMPONENT_LABEL}=worker",
    ),
    Kind(api.PODS, objects.PodObject, objects.parse_pod, f"{COMPONENT_LABEL}=worker"),
    Kind(
        api.SERVICES,
        objects.ServiceObject,
        objects.parse_service,
        f"{COMPONENT_LABEL}=scheduler",
    ),
    Kind(api.QUOTAS, QuotaObject, resource_quotas.parse_quota),
    Kind(api.NODES, NodeObject, nodes.parse_node, cluster_scoped=True),
)


def kinds_within(namespaces: Iterable[str]) -> tuple[Kind, ...]:
    """What can be watched: who is let into some namespaces only sees no nodes."""
    return tuple(k for k in KINDS if not (k.cluster_scoped and tuple(namespaces)))


class World:
    """
    The cache. Fed by watches (`take`) and, against what watches miss, by whole lists (`resync`).

    A watch that is broken and begun anew does not tell what was deleted meanwhile, hence the lists.
    """

    def __init__(self) -> None:
        self._all: dict[type[Any], dict[tuple[str, str], Any]] = {k.type: {} for k in KINDS}
        self._by_cluster: dict[tuple[type[Any], ClusterKey], dict[str, Any]] = {}
        self._listeners: list[Callable[[ClusterKey], None]] = []

    def listen(self, listener: Callable[[ClusterKey], None]) -> None:
        """Call `listener` with each cluster about which something changed."""
        self._listeners.append(listener)

    def of(self, kind: type[W], key: ClusterKey) -> list[W]:
        """All objects of a kind that are about a cluster, by name."""
        found = self._by_cluster.get((kind, key), {})
        return [found[name] for name in sorted(found)]

    def get(self, kind: type[W], namespace: str, name: str) -> W | None:
        return self._all[kind].get((namespace, name))

    def all(self, kind: type[W]) -> list[W]:
        found = self._all[kind]
        return [found[k] for k in sorted(found)]

    def take(self, kind: Kind, event: str | None, body: Mapping[str, Any]) -> None:
        """Note what one watch event says; `event` is DELETED, or anything else for 'is so now'."""
        new = kind.parse(body)
        if event == "DELETED":
            self._forget(kind.type, (new.meta.namespace, new.meta.name), new.meta.uid)
        else:
            self._remember(kind.type, new)

    async def resync(self, api: KubeApi, namespaces: Iterable[str] = ()) -> None:
        """Compare with whole lists. Raises `KubeError`."""
        namespaces = tuple(namespaces)
        scopes: tuple[str | None, ...] = namespaces or (None,)
        for kind in kinds_within(namespaces):
            known = dict(self._all[kind.type])
            listed = set()
            for scope in scopes:
                async for body in api.each(kind.resource.path(scope), selector=kind.selector):
                    value = kind.parse(body)
                    where = (value.meta.namespace, value.meta.name)
                    listed.add(where)
                    # What did not change while we listed is as the list says, whatever its
                    # version: versions go back when etcd is restored.
                    untouched = self._all[kind.type].get(where) is known.get(where)
                    self._remember(kind.type, value, even_if_older=untouched)
            # What was added while we listed is not in `known`, so it stays.
            for where in set(known) - listed:
                self._forget(kind.type, where, known[where].meta.uid)

    def _remember(self, kind: type[Any], new: Watched, *, even_if_older: bool = False) -> None:
        where = (new.meta.namespace, new.meta.name)
        old = self._all[kind].get(where)
        if old is not None and not even_if_older and _is_echo(new, old):
            return
        if old == new and old.meta.version == new.meta.version:
            return  # said before
        if old is not None and old.key != new.key:
            self._forget(kind, where, old.meta.uid)
        self._all[kind][where] = new
        self._by_cluster.setdefault((kind, new.key), {})[new.meta.name] = new
        if old != new:
            self._tell(old, new)

    def _forget(self, kind: type[Any], where: tuple[str, str], uid: str) -> None:
        old = self._all[kind].get(where)
        if old is None or old.meta.uid != uid:
            return
        del self._all[kind][where]
        siblings = self._by_cluster[kind, old.key]
        del siblings[old.meta.name]
        if not siblings:
            del self._by_cluster[kind, old.key]
        self._tell(old, None)

    def _tell(self, old: Watched | None, new: Watched | None) -> None:
        for key in self._concerned(old, new):
            for listener in self._listeners:
                listener(key)

    def _concerned(self, old: Watched | None, new: Watched | None) -> set[ClusterKey]:
        one = new or old
        if isinstance(one, NodeObject):
            signals = {n.signals if isinstance(n, NodeObject) else () for n in (old, new)}
            if len(signals) == 1:  # it comes or goes quietly: who loses pods hears of the pods
                return set()
            pods: Iterable[PodObject] = self._all[PodObject].values()
            return {pod.key for pod in pods if pod.node == one.meta.name}
        if isinstance(one, QuotaObject):
            hard = {q.hard if isinstance(q, QuotaObject) else None for q in (old, new)}
            if len(hard) == 1:  # what is used changes with each pod, and concerns nobody
                return set()
            policies: Iterable[PolicyObject] = self._all[PolicyObject].values()
            return {p.key for p in policies if p.meta.namespace == one.meta.namespace}
        return {one.key} if one else set()


def _is_echo(new: Watched, old: Watched) -> bool:
    """Whether it comes late, and tells of what we know already to be over."""
    return new.meta.uid == old.meta.uid and new.meta.version < old.meta.version
