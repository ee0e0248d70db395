"""Kinds of objects by their address in the API, and nothing about their content."""

from __future__ import annotations

from typing import NamedTuple

from dask_adaptive import DOMAIN


class Resource(NamedTuple):
    """One kind of object, as the API server addresses it."""

    group: str  # empty: the core group
    version: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
        """The URL path of a collection, of an object, or of its subresource."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [root]
        if namespace is not None:
            parts += ["namespaces", namespace]
        parts += [p for p in (self.plural, name, subresource) if p]
        return "/".join(parts)


DASK = "kubernetes.dask.org"

POLICIES = Resource(DOMAIN, "v1alpha1", "adaptivepolicies", "AdaptivePolicy")
CLUSTERS = Resource(DASK, "v1", "daskclusters", "DaskCluster")
GROUPS = Resource(DASK, "v1", "daskworkergroups", "DaskWorkerGroup")
AUTOSCALERS = Resource(DASK, "v1", "daskautoscalers", "DaskAutoscaler")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
PODS = Resource("", "v1", "pods", "Pod")
SERVICES = Resource("", "v1", "services", "Service")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
NODES = Resource("", "v1", "nodes", "Node")
NAMESPACES = Resource("", "v1", "namespaces", "Namespace")
EVENTS = Resource("", "v1", "events", "Event")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
