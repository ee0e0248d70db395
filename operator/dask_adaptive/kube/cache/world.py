"""Holds all watched objects, as last received from the API server, by cluster."""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

from dask_adaptive.kube import api, nodes, objects, resource_quotas
from dask_adaptive.kube.api import KubeApi, Resource
from dask_adaptive.kube.nodes import NodeObject
from dask_adaptive.kube.objects import PodObject, PolicyObject, ServedNamespace, Watched, text_at
from dask_adaptive.kube.resource_quotas import QuotaObject
from dask_adaptive.model.keys import ClusterKey

W = TypeVar("W", bound=Watched)

logger = logging.getLogger(__name__)

#: Deleted objects that are remembered, per kind.
_GONE = 1000

_NAME, _SPEC, _REF = ("metadata", "name"), ("spec", "cluster"), ("spec", "clusterRef", "name")
_LABEL = ("metadata", "labels", objects.CLUSTER_LABEL)
_WORKERS = f"{objects.COMPONENT_LABEL}=worker"


@dataclass(frozen=True)
class Kind:
    """One kind of object that we watch."""

    resource: Resource
    type: type[Any]
    parse: Callable[[Mapping[str, Any]], Watched]
    cluster: tuple[str, ...] = ()  # field with its cluster's name; empty: about none
    selector: str = ""  # labels; the API server sends nothing else
    cluster_scoped: bool = False  # cluster-scoped, so a Role is not enough
    by_people: bool = False  # written by people and dask-kubernetes, in small numbers
    lost: str = ""  # feature lost while it is unreadable; empty: all

    def __str__(self) -> str:
        group = f".{self.resource.group}" if self.resource.group else ""
        return f"{self.resource.plural}{group}"


KINDS: tuple[Kind, ...] = (
    Kind(api.POLICIES, objects.PolicyObject, objects.parse_policy_object, _REF, by_people=True),
    Kind(api.CLUSTERS, objects.ClusterObject, objects.parse_cluster, _NAME, by_people=True),
    Kind(api.GROUPS, objects.GroupObject, objects.parse_group, _SPEC, by_people=True),
    Kind(
        api.AUTOSCALERS,
        objects.AutoscalerObject,
        objects.parse_autoscaler,
        _SPEC,
        by_people=True,
        lost="DaskAutoscalers are not noticed",
    ),
    Kind(api.DEPLOYMENTS, objects.DeploymentObject, objects.parse_deployment, _LABEL, _WORKERS),
    Kind(api.PODS, objects.PodObject, objects.parse_pod, _LABEL, _WORKERS),
    Kind(
        api.SERVICES,
        objects.ServiceObject,
        objects.parse_service,
        _LABEL,
        f"{objects.COMPONENT_LABEL}=scheduler",
        lost="new schedulers are not reached",
    ),
    Kind(
        api.QUOTAS,
        QuotaObject,
        resource_quotas.parse_quota,
        lost="workers beyond a ResourceQuota are requested",
    ),
    Kind(
        api.BUDGETS,
        objects.BudgetObject,
        objects.parse_budget_object,
        cluster_scoped=True,
        lost="AdaptiveBudgets do not limit clusters",
    ),
    Kind(
        api.NODES,
        NodeObject,
        nodes.parse_node,
        cluster_scoped=True,
        lost="workers on nodes that are about to go away are not replaced in time",
    ),
    Kind(
        api.NAMESPACES,
        objects.NamespaceObject,
        objects.parse_namespace,
        cluster_scoped=True,
        lost="AdaptiveBudgets that select namespaces by labels do not limit clusters",
    ),
    Kind(
        api.NAMESPACES, objects.ServedNamespace, objects.parse_served_namespace, cluster_scoped=True
    ),
)

_BUDGETS, _NODES, _NAMESPACES, _SERVED = KINDS[-4:]

_BY_TYPE = {kind.type: kind for kind in KINDS}

#: Namespace and name.
_Where: TypeAlias = tuple[str, str]

_NOT_YET = "it has not been read yet"

#: One kind in one namespace, or in all (None): what is listed and watched at once.
Scope: TypeAlias = tuple[Kind, str | None]


def scopes_of(
    namespaces: Iterable[str] = (), *, nodes: bool = False, budgets: str | None = None,
    selector: str = "",
) -> tuple[Scope, ...]:  # fmt: skip
    """
    The scopes to watch.

    Args:
        namespaces: None but these; empty: all.
        nodes: Watch them though there are `namespaces`: in these alone one may see no nodes.
        budgets: The same of AdaptiveBudgets, by the scope that their CRD has: `Cluster`, or
            `Namespaced`: those in `namespaces`.
        selector: Labels of the namespaces that are served; empty: all are.
    """
    within: tuple[str | None, ...] = tuple(namespaces) or (None,)
    kinds = [kind for kind in KINDS if not kind.cluster_scoped]
    beyond = [_NODES] if nodes or within == (None,) else []
    if budgets == "Namespaced":
        kinds.append(_BUDGETS)
    elif budgets or within == (None,):
        beyond += [_BUDGETS, _NAMESPACES]
    if selector:
        beyond.append(replace(_SERVED, selector=selector))
    return (
        *((kind, namespace) for kind in kinds for namespace in within),
        *((kind, None) for kind in beyond),
    )


class World:
    """
    The cache. Watches (`take`) and whole lists (`read`) feed each scope.

    Scopes that `expect` named and that are unread, or unreadable, show in `unread` and `losses`.

    An unreadable object shows in `fault`, or in `losses` if it is about no single cluster. Its last
    readable version stays, if there was one.
    """

    def __init__(self) -> None:
        self._all: dict[type[Any], dict[_Where, Any]] = {k.type: {} for k in KINDS}
        #: By namespace, so that one's are looked at for its own clusters only: by kind and name,
        #: which cluster an object is about (empty: none in particular), and why it can't be read.
        self._faults = defaultdict[str, dict[tuple[type[Any], str], tuple[str, str]]](dict)
        #: By uid: the answer to our write may arrive after the deletion event.
        self._gone = {k.type: deque[str](maxlen=_GONE) for k in KINDS}
        self._by_cluster: dict[tuple[type[Any], ClusterKey], dict[str, Any]] = {}
        self._by_name: dict[tuple[type[Any], ClusterKey], tuple[Any, ...]] = {}  # as `of` gave it
        self._listeners: list[Callable[[ClusterKey], None]] = []
        self._selects = False  # True if only some namespaces are served
        self._unread: dict[Scope, str] = {}  # why it is unreliable
        self._namespaces = set[str | None]()

    def expect(self, scopes: Iterable[Scope]) -> None:
        """Require these scopes; they count as unread until `sees` is called."""
        self._unread = dict.fromkeys(scopes, _NOT_YET)
        self._namespaces = {where for kind, where in self._unread if not kind.cluster_scoped}
        self._selects = any(kind.type is ServedNamespace for kind, _ in self._unread)

    def serves(self, namespace: str) -> bool:
        """True if the namespace has the labels of served namespaces."""
        return not self._selects or self.get(ServedNamespace, "", namespace) is not None

    def sees(self, scope: Scope) -> None:
        """Mark the cache of a scope as in step."""
        if self._unread.pop(scope, ""):
            self._tell_all(scope[1])

    def misses(self, scope: Scope, why: str) -> None:
        """Mark a scope as unreadable: its cached objects may be out of date."""
        is_news = scope not in self._unread
        self._unread[scope] = why
        if is_news:
            self._tell_all(scope[1])

    def waits_for(self) -> str:
        """
        Return why no cluster can be served yet: some scope was not tried, or no namespace read.
        """
        for (kind, _), why in self._unread.items():
            if why == _NOT_YET:
                return f"{kind}: {why}"
        reasons = [self.unread(namespace) for namespace in self._namespaces]
        return reasons[0] if reasons and all(reasons) else ""

    def unread(self, namespace: str | None = None) -> str:
        """
        Return why nothing may be decided in a namespace (None: in any of them); empty if it may.
        """
        missing = self._missing(namespace)
        return next((f"{k} can't be read: {why}" for k, why in missing if not k.lost), "")

    def losses(self, namespace: str) -> tuple[str, ...]:
        """
        Return unreadable kinds for a namespace, with the features that are off and the reasons.
        """
        faults = self._faults[namespace]
        return tuple(
            f"{kind.lost}: {kind} can't be read ({why})"
            for kind, why in self._missing(namespace)
            if kind.lost
        ) + tuple(
            f"{_BY_TYPE[of].lost}: {why}".removeprefix(": ")
            for (of, _), (cluster, why) in [*self._faults[""].items(), *faults.items()]
            if not cluster
        )

    def fault(self, key: ClusterKey, *kinds: type[Any]) -> str:
        """
        Return the unreadable object (of these kinds) about a cluster, with the reason; empty: none.
        """
        found = (
            why
            for (kind, _), (cluster, why) in self._faults[key.namespace].items()
            if cluster == key.name and (not kinds or kind in kinds)
        )
        return next(found, "")

    def faults(self, kind: Kind) -> int:
        """Count the unreadable objects of a kind. May be called in a thread."""
        return len(self._faulty(kind))

    def _faulty(self, kind: Kind) -> list[_Where]:
        every = [(namespace, list(faults)) for namespace, faults in list(self._faults.items())]
        return [(where, name) for where, faults in every for of, name in faults if of is kind.type]

    def _missing(self, namespace: str | None) -> Iterator[tuple[Kind, str]]:
        for (kind, within), why in self._unread.items():
            if namespace is None or within in (None, namespace):
                yield kind, why

    def _tell_all(self, namespace: str | None) -> None:
        policies: Iterable[PolicyObject] = self._all[PolicyObject].values()
        self._call({p.key for p in policies if namespace in (None, p.meta.namespace)})

    def _call(self, keys: Iterable[ClusterKey]) -> None:
        for key in keys:
            for listener in self._listeners:
                listener(key)

    def listen(self, listener: Callable[[ClusterKey], None]) -> None:
        """Call `listener` with each changed cluster."""
        self._listeners.append(listener)

    def of(self, kind: type[W], key: ClusterKey) -> tuple[W, ...]:
        """
        Return all objects of a kind about a cluster, by name: the same tuple until one changes.
        """
        known = self._by_name.get((kind, key))
        if known is None and (found := self._by_cluster.get((kind, key))):
            known = self._by_name[kind, key] = tuple(map(found.__getitem__, sorted(found)))
        return known or ()

    def existing(self, kind: type[W], key: ClusterKey) -> list[W]:
        """Return the same, without objects that are being deleted."""
        return [one for one in self.of(kind, key) if not one.meta.deleting]

    def get(self, kind: type[W], namespace: str, name: str) -> W | None:
        return self._all[kind].get((namespace, name))

    def all(self, kind: type[W]) -> list[W]:
        found = self._all[kind]
        return [found[k] for k in sorted(found)]

    def take(self, kind: Kind, event: str | None, body: Mapping[str, Any]) -> None:
        """Take one watch event; any `event` but DELETED means the current state."""
        if event == "DELETED":
            where, uid = _where(body), text_at(body, "metadata", "uid")
            self._gone[kind.type].append(uid)
            self._forget(kind.type, where, uid)
            self._mended(kind.type, where)
        elif (new := self.parsed(kind.type, body)) is not None:
            self._remember(kind.type, new)

    def parsed(self, kind: type[W], body: Mapping[str, Any]) -> W | None:
        """
        Parse an object; None if that fails, which is noted.

        Where a cluster's object can't be read nothing is decided about the cluster (`fault`): a
        worker whose pin or group is not seen might be taken away.
        """
        where, known = _where(body), _BY_TYPE[kind]
        try:
            new: W = known.parse(body)  # type: ignore[assignment]
        except Exception as exc:  # one unreadable object must not affect others
            self._failed(known, where, body, exc)
            return None
        self._mended(kind, where)
        return new

    def _failed(self, kind: Kind, where: _Where, body: Mapping[str, Any], exc: Exception) -> None:
        namespace, name = where
        old = self._all[kind.type].get(where)
        cluster = text_at(body, *kind.cluster) if namespace else ""
        key = old.key if old else ClusterKey(namespace, cluster)
        why = f"{kind.resource.kind} {name:.253} can't be read: {exc!r:.200}"
        if self._faults[namespace].get((kind.type, name)) != (key.name, why):
            self._faults[namespace][kind.type, name] = key.name, why
            logger.warning("In namespace %s: %s", namespace, why)
            self._tell_about(key)

    def _mended(self, kind: type[Any], where: _Where) -> None:
        if (fault := self._faults[where[0]].pop((kind, where[1]), None)) is not None:
            self._tell_about(ClusterKey(where[0], fault[0]))

    def _tell_about(self, key: ClusterKey) -> None:
        if key.name:
            self._call({key})
        else:
            self._tell_all(key.namespace or None)

    def put(self, value: Watched, *, is_read: bool = False) -> None:
        """
        Take the API server's answer to our write before the watch reports it. Objects deleted
        meanwhile stay deleted.

        Args:
            is_read: It was asked for because what is known must be wrong: take it though it seem
                older. Versions go back when etcd is restored.
        """
        if value.meta.uid not in self._gone[type(value)]:
            self._remember(type(value), value, even_if_older=is_read)

    async def read(self, api: KubeApi, scope: Scope) -> str:
        """
        Compare a scope with a complete list, page by page.

        Returns:
            The list's version, from which a watch goes on.

        Raises:
            KubeError: Then what earlier pages said is known, and nothing is forgotten.
        """
        kind, namespace = scope
        known = {
            where: value
            for where, value in self._all[kind.type].items()
            if namespace in (None, where[0])
        }
        failed = [where for where in self._faulty(kind) if namespace in (None, where[0])]
        listed, version = set(), ""
        async for page in api.pages(kind.resource.path(namespace), selector=kind.selector):
            version = page["metadata"]["resourceVersion"]
            for body in page.get("items") or ():
                where = _where(body)
                listed.add(where)
                value = self.parsed(kind.type, body)
                if value is None:
                    continue
                # Unless changed while we listed, objects are as listed, whatever their version:
                # versions go back when etcd is restored.
                untouched = self._all[kind.type].get(where) is known.get(where)
                self._remember(kind.type, value, even_if_older=untouched)
        # Objects added while we listed are not in `known`, so they stay.
        for where, value in known.items():
            if where not in listed:
                self._gone[kind.type].append(value.meta.uid)
                self._forget(kind.type, where, value.meta.uid)
        for where in failed:
            if where not in listed:
                self._mended(kind.type, where)
        return version

    def _remember(self, kind: type[Any], new: Watched, *, even_if_older: bool = False) -> None:
        where = (new.meta.namespace, new.meta.name)
        old = self._all[kind].get(where)
        if old is not None and not even_if_older and _is_echo(new, old):
            return
        if old == new and old.meta.version == new.meta.version:
            return  # reported before
        if old is not None and old.key != new.key:
            self._forget(kind, where, old.meta.uid)
        self._all[kind][where] = new
        self._by_cluster.setdefault((kind, new.key), {})[new.meta.name] = new
        self._by_name.pop((kind, new.key), None)
        if old != new:
            self._call(self._concerned(old, new))

    def _forget(self, kind: type[Any], where: tuple[str, str], uid: str) -> None:
        old = self._all[kind].get(where)
        if old is None or old.meta.uid != uid:
            return
        del self._all[kind][where]
        siblings = self._by_cluster[kind, old.key]
        del siblings[old.meta.name]
        self._by_name.pop((kind, old.key), None)
        if not siblings:
            del self._by_cluster[kind, old.key]
        self._call(self._concerned(old, None))

    def _concerned(self, old: Watched | None, new: Watched | None) -> set[ClusterKey]:
        one = new or old
        if isinstance(one, ServedNamespace):
            return {
                key for kind, key in self._by_cluster
                if kind in (PolicyObject, objects.ClusterObject) and key.namespace == one.meta.name
            }  # fmt: skip
        if isinstance(one, NodeObject):
            signals = {n.signals if isinstance(n, NodeObject) else () for n in (old, new)}
            if len(signals) == 1:  # no wake-up: losing pods is reported by the pods
                return set()
            pods: Iterable[PodObject] = self._all[PodObject].values()
            return {pod.key for pod in pods if pod.node == one.meta.name}
        if isinstance(one, QuotaObject):
            hard = {q.hard if isinstance(q, QuotaObject) else None for q in (old, new)}
            if len(hard) == 1:  # usage changes with each pod, and concerns no cluster
                return set()
            policies: Iterable[PolicyObject] = self._all[PolicyObject].values()
            return {p.key for p in policies if p.meta.namespace == one.meta.namespace}
        return {one.key} if one else set()


def _where(body: Any) -> _Where:
    return text_at(body, "metadata", "namespace"), text_at(body, "metadata", "name")


def _is_echo(new: Watched, old: Watched) -> bool:
    """True if a newer version is already known."""
    return new.meta.uid == old.meta.uid and new.meta.version < old.meta.version
