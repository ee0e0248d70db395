"""
The asyncio client of the `kubernetes` package, wrapped: JSON in, JSON or typed errors out; and the
kinds of objects by their addresses.

What can go wrong with the API server, and who can put it right:

* PlatformError (loop.ports)
  + KubeError
    + ApiUnreachable   time, or whoever runs the API server; retried
    + Unauthorized     whoever gave the credentials: they are missing, wrong or out of date
    + Forbidden        whoever installed the chart: a rule is missing from its role
    + NotFound         nobody needs to: the object is gone (or its CRD is not installed)
    + AlreadyExists    nobody: somebody else was faster
    + Conflict         time: the object changed under our hands, or a precondition does not hold
    + Invalid          a developer, or who wrote the object: the API server refuses its content

That package and aiohttp take most of a second to import: the first connection does it, so that the
help of a command does not.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from dask_adaptive import DOMAIN
from dask_adaptive.deadline import timeout
from dask_adaptive.loop.ports import PlatformError


class Resource(NamedTuple):
    """One kind of object, as the API server addresses it."""

    group: str  # empty: the core group
    version: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def owner(self, name: str, uid: str) -> Json:
        """An entry of `metadata.ownerReferences`."""
        return {"apiVersion": self.api_version, "kind": self.kind, "name": name, "uid": uid}

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


Json: TypeAlias = dict[str, Any]


class KubeError(PlatformError):
    """The API server said no, or nothing."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class ApiUnreachable(KubeError): ...


class Unauthorized(KubeError): ...


class Forbidden(KubeError): ...


class NotFound(KubeError): ...


class AlreadyExists(KubeError): ...


class Conflict(KubeError): ...


class Invalid(KubeError): ...


_BY_STATUS: dict[int, type[KubeError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    422: Invalid,
}


def error_of(status: int, body: str, request: str) -> KubeError:
    """Turn an answer of 4xx or 5xx into the error that says who can fix it."""
    try:
        answer = json.loads(body)
    except ValueError:
        answer = {}
    if not isinstance(answer, dict):
        answer = {}
    said = str(answer.get("message") or body.strip()[:200] or f"status {status}")
    kind = _BY_STATUS.get(status, ApiUnreachable)
    if status == 409 and answer.get("reason") == "AlreadyExists":
        kind = AlreadyExists
    if kind is ApiUnreachable:
        said = f"the API server answered {request} with {status}: {said}"
    return kind(said, status=status)


if TYPE_CHECKING:
    from kubernetes.aio import client


MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"

#: Who we are in `metadata.managedFields`.
FIELD_MANAGER = "dask-adaptive"

_PAGE = 500  # objects in one answer of a list


@dataclass(frozen=True, slots=True)
class Credentials:
    """How to reach the API server, for who makes connections of their own."""

    server: str
    ca_file: str | None
    verify: bool
    authorization: str | None  # "Bearer …"
    certificate_file: str | None
    key_file: str | None


class KubeApi:
    """A connection to one API server. Every call has a deadline; a failed one is a `KubeError`."""

    def __init__(
        self, api: client.ApiClient, *, timeout_s: float = 10.0, dry_run: bool = False
    ) -> None:
        self._client, self._timeout_s, self._dry_run = api, timeout_s, dry_run
        self._client.user_agent = "dask-adaptive"

    @classmethod
    async def connect(
        cls,
        *,
        kubeconfig: str | None = None,
        context: str | None = None,
        timeout_s: float = 10.0,
        dry_run: bool = False,
    ) -> KubeApi:
        """
        Use the kubeconfig that is named, or the pod's service account, or else the user's.

        Args:
            dry_run: The API server checks all writes, and carries out none.

        Raises:
            KubeError: There is neither; the message says which files were looked for.
        """
        from kubernetes.aio import client, config
        from kubernetes.aio.config.kube_config import KUBE_CONFIG_DEFAULT_LOCATION
        from yaml import YAMLError

        settings = client.Configuration()
        files = kubeconfig or os.environ.get("KUBECONFIG")
        try:
            if files is None and "KUBERNETES_SERVICE_HOST" in os.environ:
                config.load_incluster_config(  # type: ignore[no-untyped-call]
                    client_configuration=settings
                )
            else:
                _refuse_missing(files or KUBE_CONFIG_DEFAULT_LOCATION)
                await config.load_kube_config(  # type: ignore[no-untyped-call]
                    files, context, client_configuration=settings
                )
        # An empty file is a TypeError of the library's.
        except (config.ConfigException, YAMLError, OSError, ValueError, TypeError) as exc:
            raise KubeError(
                f"there is no usable kubeconfig: {exc}; set KUBECONFIG to one that kubectl can use"
            ) from exc
        return cls(client.ApiClient(settings), timeout_s=timeout_s, dry_run=dry_run)

    @property
    def host(self) -> str:
        return str(self._client.configuration.host)

    async def credentials(self) -> Credentials:
        """What this connection uses now; tokens are read anew when they are about to end."""
        settings = self._client.configuration
        auth = (await settings.auth_settings()).get("BearerToken")
        return Credentials(
            server=settings.host,
            ca_file=settings.ssl_ca_cert,
            verify=settings.verify_ssl,
            authorization=auth["value"] if auth else None,
            certificate_file=settings.cert_file,
            key_file=settings.key_file,
        )

    async def close(self) -> None:
        await self._client.close()  # type: ignore[no-untyped-call]

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Json:
        return await self._call("GET", path, query)

    async def list(self, path: str, *, selector: str = "", field: str = "") -> list[Json]:
        """All objects of a collection."""
        return [body async for body in self.each(path, selector=selector, field=field)]

    async def each(self, path: str, *, selector: str = "", field: str = "") -> AsyncIterator[Json]:
        """The objects of a collection, fetched in pages: all at once may not fit into memory."""
        query = {"limit": str(_PAGE)}
        query |= {"labelSelector": selector} if selector else {}
        query |= {"fieldSelector": field} if field else {}
        while True:
            page = await self._call("GET", path, query)
            for body in page.get("items") or []:
                yield body
            more = page.get("metadata", {}).get("continue")
            if not more:
                return
            query["continue"] = more

    async def text(self, path: str, query: Mapping[str, str] | None = None) -> str:
        """What is not JSON: a pod's log, or what it answers through the API server."""
        return await self._answer("GET", path, query)

    async def watch(
        self, path: str, *, version: str, field: str = "", seconds: int = 300
    ) -> AsyncIterator[tuple[str, Json]]:
        """
        Events of a collection from a version on, as pairs of type and object, until the API server
        ends the watch: at the latest after so many seconds.

        Raises:
            KubeError: Among them with status 410: the version is too old, list again.
        """
        query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": str(seconds)}
        query |= {"fieldSelector": field} if field else {}
        import aiohttp

        request = f"watch of {path}"
        try:
            answer = await self._opened("GET", path, query)
            if answer.status >= 400:
                raise error_of(answer.status, (await answer.read()).decode(), request)
            async for line in _lines(answer.response.content.iter_any()):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    code = int(event["object"].get("code") or 500)
                    raise error_of(code, json.dumps(event["object"]), request)
                yield event["type"], event["object"]
        except (aiohttp.ClientError, OSError) as exc:
            raise ApiUnreachable(f"the {request} was interrupted: {exc}") from exc

    async def create(self, path: str, body: Json) -> Json:
        return await self._call("POST", path, {"fieldManager": FIELD_MANAGER}, body)

    async def replace(self, path: str, body: Json) -> Json:
        return await self._call("PUT", path, {"fieldManager": FIELD_MANAGER}, body)

    async def patch(
        self, path: str, body: Json, *, how: str = MERGE, manager: str = FIELD_MANAGER
    ) -> Json:
        return await self._call("PATCH", path, {"fieldManager": manager}, body, how)

    async def delete(self, path: str, *, uid: str = "") -> Json:
        """Delete an object in the background; with `uid`, only if it is still that one."""
        body: Json = {"propagationPolicy": "Background"}
        if uid:
            body["preconditions"] = {"uid": uid}
        return await self._call("DELETE", path, None, body)

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        content_type: str = "application/json",
    ) -> Json:
        if self._dry_run and method != "GET":
            query = {**(query or {}), "dryRun": "All"}
        text = await self._answer(method, path, query, body, content_type)
        answer = json.loads(text) if text else {}
        return answer if isinstance(answer, dict) else {}

    async def _answer(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Json | None = None,
        content_type: str = "application/json",
    ) -> str:  # fmt: skip
        import aiohttp

        request = f"{method} {path}"
        try:
            async with timeout(self._timeout_s):
                answer = await self._opened(
                    method, path, query, body, content_type, self._timeout_s
                )
                text: str = (await answer.read()).decode()
        except (asyncio.TimeoutError, TimeoutError) as exc:
            raise ApiUnreachable(f"no answer to {request} within {self._timeout_s:g} s") from exc
        except (aiohttp.ClientError, OSError) as exc:
            raise ApiUnreachable(f"the API server at {self.host} can't be reached: {exc}") from exc
        if answer.status >= 400:
            raise error_of(answer.status, text, request)
        return text

    async def _opened(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Json | None = None,
        content_type: str = "application/json", timeout_s: float | None = None,
    ) -> Any:  # fmt: skip
        """An answer of which only the head has been read."""
        import aiohttp

        verb, url, headers, payload, _ = await self._client.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params={"Accept": "application/json", "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        return await self._client.call_api(
            verb, url, headers, payload, _request_timeout=aiohttp.ClientTimeout(timeout_s)
        )


def _refuse_missing(files: str) -> None:
    """Raises `KubeError` if none of these kubeconfigs exists."""
    paths = [os.path.expanduser(path) for path in files.split(os.pathsep) if path]
    if not any(map(os.path.exists, paths)):
        raise KubeError(
            f"there is no kubeconfig at {' or '.join(paths)}: name the file that kubectl uses with"
            " --kubeconfig, or set KUBECONFIG to it"
        )


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Whole lines; aiohttp reads none longer than 64 KiB, which an object may be."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield line
