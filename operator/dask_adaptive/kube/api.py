"""
The asyncio client of the `kubernetes` package, wrapped: JSON in, JSON or typed errors out; and the
kinds of objects by their addresses.

What can go wrong with the API server, and who can put it right:

* PlatformError (loop.ports)
  + KubeError
    + ApiUnreachable   time, or whoever runs the API server; retried
      + Throttled      time: the API server has too much to do, and says when to come again
    + Unauthorized     whoever gave the credentials: they are missing, wrong or out of date
    + Forbidden        whoever installed the chart: a rule is missing from its role
    + NotFound         nobody needs to: the object is gone (or its CRD is not installed)
    + AlreadyExists    nobody: somebody else was faster
    + Conflict         time: the object changed under our hands, or a precondition does not hold
    + Invalid          a developer, or who wrote the object: the API server refuses its content
    + NotLeading       nobody: another replica acts by now

That package and aiohttp take most of a second to import: the first connection does it, so that the
help of a command does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import math
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import msgspec

from dask_adaptive import DOMAIN
from dask_adaptive.loop.ports import LinkError, PlatformError


class Resource(NamedTuple):
    """One kind of object, with its address in the API."""

    group: str  # empty: the core group
    version: str
    plural: str
    kind: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def head(self) -> Json:
        """The first fields of each object of the kind, and of each reference to one."""
        return {"apiVersion": self.api_version, "kind": self.kind}

    def owner(self, name: str, uid: str) -> Json:
        """An entry of `metadata.ownerReferences`."""
        return {**self.head, "name": name, "uid": uid}

    def path(self, namespace: str | None = None, name: str = "", subresource: str = "") -> str:
        """The URL path of a collection, of an object, or of its subresource."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        within = "" if namespace is None else f"namespaces/{namespace}"
        return "/".join(filter(None, (root, within, self.plural, name, subresource)))


DASK = "kubernetes.dask.org"

POLICIES = Resource(DOMAIN, "v1alpha1", "adaptivepolicies", "AdaptivePolicy")
BUDGETS = Resource(DOMAIN, "v1alpha1", "adaptivebudgets", "AdaptiveBudget")
CLUSTERS = Resource(DASK, "v1", "daskclusters", "DaskCluster")
GROUPS = Resource(DASK, "v1", "daskworkergroups", "DaskWorkerGroup")
AUTOSCALERS = Resource(DASK, "v1", "daskautoscalers", "DaskAutoscaler")
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
PODS = Resource("", "v1", "pods", "Pod")
SERVICES = Resource("", "v1", "services", "Service")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
SECRETS = Resource("", "v1", "secrets", "Secret")
QUOTAS = Resource("", "v1", "resourcequotas", "ResourceQuota")
NODES = Resource("", "v1", "nodes", "Node")
NAMESPACES = Resource("", "v1", "namespaces", "Namespace")
EVENTS = Resource("", "v1", "events", "Event")
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")
WEBHOOKS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
)


Json: TypeAlias = dict[str, Any]


class KubeError(PlatformError):
    """The API server refused, or did not answer."""

    def __init__(self, message: str, *, status: int = 0, retry_after_s: float = 0.0) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.status = status


class ApiUnreachable(KubeError): ...


class Throttled(ApiUnreachable): ...


class NotLeading(KubeError, LinkError):
    """Another replica acts by now; this one asks nothing of schedulers, either."""


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
    429: Throttled,
}

#: The longest that an API server may ask us to wait.
_MOST_AFTER_S = 120.0


def error_of(status: int, body: str, request: str, retry_after: str = "") -> KubeError:
    """Turn an answer of 4xx or 5xx into an error by who can fix it."""
    try:
        answer = msgspec.json.decode(body, type=dict[str, Any])
    except ValueError:
        answer = {}
    text = str(answer.get("message") or body.strip()[:200] or f"status {status}")
    kind = _BY_STATUS.get(status, ApiUnreachable)
    if status == 409 and answer.get("reason") == "AlreadyExists":
        kind = AlreadyExists
    if issubclass(kind, ApiUnreachable):
        text = f"the API server answered {request} with {status}: {text}"
    after_s = float(retry_after) if retry_after.isdecimal() else 0.0
    return kind(text, status=status, retry_after_s=min(after_s, _MOST_AFTER_S))


if TYPE_CHECKING:
    from kubernetes.aio import client


class Rate:
    """Limits calls per second, with a burst after a pause; excess calls wait."""

    def __init__(self, per_s: float, burst: int) -> None:
        self._every_s, self._burst = 1.0 / per_s, burst
        self._next_at = -math.inf  # when the next call would be due if they were spaced evenly

    async def wait(self) -> None:
        now = time.monotonic()
        due = max(self._next_at, now - self._every_s * (self._burst - 1))
        self._next_at = due + self._every_s
        if due > now:
            await asyncio.sleep(due - now)


_JSON = "application/json"
#: A list's columns for people, as `kubectl get` wants them; a server may send the objects instead.
_TABLE = f"{_JSON};as=Table;v=v1;g=meta.k8s.io,{_JSON}"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"

#: Our name in `metadata.managedFields`.
FIELD_MANAGER = "dask-adaptive"

#: The API server accepts objects nested 10,000 deep, and every reader, kopf too, must survive that.
#: (Python 3.11, as in the image; later versions count differently.)
_DEPTH = 12_000

#: Objects in one answer of a list. Parsing 250 pods stops the event loop for 20 ms.
_PAGE = 250

#: Concurrent calls; further ones wait. Watches do not count.
_AT_ONCE = 32

#: Concurrent pages of lists, of 6 MiB each when parsed; an operator may watch dozens of namespaces.
_PAGES_AT_ONCE = 4

#: A watch that is silent for this long may be broken. Bookmarks arrive every minute, except for
#: kinds that were not written since it began (Cacher.dispatchEvents of the API server).
SILENCE_S = 80.0


class KubeApi:
    """A connection to one API server. Every call has a deadline; a failed one is a `KubeError`."""

    def __init__(
        self, api: client.ApiClient, *, timeout_s: float = 10.0, dry_run: bool = False,
        rate: Rate | None = None,
    ) -> None:  # fmt: skip
        self._client, self._timeout_s, self._dry_run = api, timeout_s, dry_run
        self._client.user_agent = "dask-adaptive"
        self._rate = rate
        self._calls = asyncio.Semaphore(_AT_ONCE)
        self._pages = asyncio.Semaphore(_PAGES_AT_ONCE)
        self.check: Callable[[], None] = lambda: None  # called before each write

    def checked(self, check: Callable[[], None]) -> KubeApi:
        """Return the same connection, calling `check` before each write; it may raise."""
        api = copy.copy(self)
        api.check = check
        return api

    def apart(self) -> KubeApi:
        """Return the same connection, for calls that never wait for those of others."""
        api = copy.copy(self)
        api._rate, api._calls = None, asyncio.Semaphore(_AT_ONCE)
        return api

    @classmethod
    async def connect(
        cls,
        *,
        kubeconfig: str | None = None,
        context: str | None = None,
        timeout_s: float = 10.0,
        dry_run: bool = False,
        rate: Rate | None = None,
    ) -> KubeApi:
        """
        Connect with the given kubeconfig, the pod's service account, or the user's kubeconfig.

        Args:
            dry_run: The API server checks all writes, and carries out none.
            rate: How many calls may be made; None: as many as there are.

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
        # The library raises TypeError for an empty file.
        except (config.ConfigException, YAMLError, OSError, ValueError, TypeError) as exc:
            raise KubeError(
                f"there is no usable kubeconfig: {exc}; set KUBECONFIG to one that kubectl can use"
            ) from exc
        settings.connection_pool_maxsize = 0  # watches keep connections; `Rate` limits calls
        api = client.ApiClient(settings)
        sys.setrecursionlimit(max(sys.getrecursionlimit(), _DEPTH))
        return cls(api, timeout_s=timeout_s, dry_run=dry_run, rate=rate)

    @property
    def configuration(self) -> Any:
        """Return a `kubernetes.client.Configuration` for the API server."""
        return self._client.configuration

    async def authorization(self) -> str:
        """Return the header, such as "Bearer …", or "". Tokens are renewed before they expire."""
        auth = (await self.configuration.auth_settings()).get("BearerToken")
        return str(auth["value"]) if auth else ""

    async def close(self) -> None:
        await self._client.close()  # type: ignore[no-untyped-call]

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> Json:
        return await self._call("GET", path, query)

    async def list(self, path: str, *, selector: str = "", field: str = "") -> list[Json]:
        """Return all objects of a collection."""
        return [body async for body in self.each(path, selector=selector, field=field)]

    async def each(self, path: str, *, selector: str = "", field: str = "") -> AsyncIterator[Json]:
        """Yield the objects of a collection, fetched in pages to save memory."""
        async for page in self.pages(path, selector=selector, field=field):
            for body in page.get("items") or ():
                yield body

    async def total(self, path: str, *, selector: str) -> int:
        """Count the objects of a collection; costs a tenth of reading them."""
        pages = self.pages(path, selector=selector, how=_TABLE)
        return sum([len(page.get("rows") or page.get("items") or ()) async for page in pages])

    async def pages(
        self, path: str, *, selector: str = "", field: str = "", how: str = _JSON
    ) -> AsyncIterator[Json]:
        """Yield the pages of a collection, all of one version."""
        query = {"limit": str(_PAGE)} | ({"includeObject": "None"} if how == _TABLE else {})
        query |= {"labelSelector": selector} if selector else {}
        query |= {"fieldSelector": field} if field else {}
        while True:
            async with self._pages:
                page = await self._call("GET", path, query, how=how)
            yield page
            more = page["metadata"].get("continue")
            if not more:
                return
            query["continue"] = more

    async def text(self, path: str, query: Mapping[str, str] | None = None) -> str:
        """Read text that is not JSON: a pod's log, or its answer through the API server."""
        return (await self._answer("GET", path, query)).decode()

    async def watch(
        self, path: str, *, version: str, selector: str = "", seconds: int = 300,
        silence_s: float = math.inf,
    ) -> AsyncIterator[tuple[str, Json]]:  # fmt: skip
        """
        Yield events of a collection from a version on, as pairs of type and object, bookmarks
        included, until the API server ends the watch.

        Args:
            silence_s: After so long without any event the watch ends: from where it is, another one
                can go on, and finds out whether the API server can be reached.

        Raises:
            KubeError: Among them with status 410: the version is too old, list again.
        """
        import aiohttp

        query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": str(seconds)}
        query |= {"allowWatchBookmarks": "true"}
        query |= {"labelSelector": selector} if selector else {}
        request = f"watch of {path}"
        async with self._in_time(f"the {request}"):
            answer = await self._opened("GET", path, query)
        try:
            if answer.status >= 400:
                raise _refused(answer, (await answer.read()).decode(), request)
            lines = _lines(answer.response.content.iter_any())
            while (line := await _next(lines, silence_s)) is not None:
                event = msgspec.json.decode(line)
                if event["type"] == "ERROR":
                    code = int(event["object"].get("code") or 500)
                    raise error_of(code, json.dumps(event["object"]), request)
                yield event["type"], event["object"]
        except TimeoutError:
            return
        except (aiohttp.ClientError, OSError, ValueError, RecursionError) as exc:
            raise ApiUnreachable(f"the {request} was interrupted: {exc!r}") from exc
        finally:
            answer.response.close()

    async def create(self, path: str, body: Json) -> Json:
        return await self._call("POST", path, {"fieldManager": FIELD_MANAGER}, body)

    async def replace(self, path: str, body: Json) -> Json:
        return await self._call("PUT", path, {"fieldManager": FIELD_MANAGER}, body)

    async def patch(self, path: str, body: Json, *, how: str = MERGE) -> Json:
        return await self._call("PATCH", path, {"fieldManager": FIELD_MANAGER}, body, how)

    async def delete(self, path: str, *, uid: str = "") -> Json:
        """Delete an object in the background; with `uid`, only if it is still that one."""
        body: Json = {"propagationPolicy": "Background"}
        if self._dry_run:  # with a body, the API server ignores the query
            body["dryRun"] = ["All"]
        if uid:
            body["preconditions"] = {"uid": uid}
        return await self._call("DELETE", path, None, body)

    async def _call(
        self, method: str, path: str, query: Mapping[str, str] | None = None,
        body: Json | None = None, how: str = _JSON,
    ) -> Json:  # fmt: skip
        if self._dry_run and method != "GET":
            query = {**(query or {}), "dryRun": "All"}
        text = await self._answer(method, path, query, body, how)
        try:
            answer = msgspec.json.decode(text) if text else {}
        except (ValueError, RecursionError) as exc:
            raise ApiUnreachable(f"the answer to {method} {path} can't be read: {exc}") from exc
        return answer if isinstance(answer, dict) else {}

    async def _answer(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Json | None = None,
        how: str = _JSON,
    ) -> bytes:  # fmt: skip
        request = f"{method} {path}"
        if self._rate is not None:
            await self._rate.wait()
        async with self._calls:
            if method != "GET":
                self.check()  # we may have waited
            async with self._in_time(request):
                answer = await self._opened(method, path, query, body, how, self._timeout_s)
                text: bytes = await answer.read()
        if answer.status >= 400:
            raise _refused(answer, text.decode(), request)
        return text

    @contextlib.asynccontextmanager
    async def _in_time(self, request: str) -> AsyncIterator[None]:
        """Limit the time of a request, with a message for the timeout."""
        import aiohttp

        try:
            async with asyncio.timeout(self._timeout_s):
                yield
        except TimeoutError as exc:
            late = f"no answer to {request} within {self._timeout_s:g} s"
            raise ApiUnreachable(late) from exc
        except (aiohttp.ClientError, OSError) as exc:
            where = self.configuration.host
            raise ApiUnreachable(f"the API server at {where} can't be reached: {exc}") from exc

    async def _opened(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Json | None = None,
        how: str = _JSON, timeout_s: float | None = None,
    ) -> Any:  # fmt: skip
        """Open an answer after reading only its head."""
        import aiohttp

        verb, url, headers, payload, _ = await self._client.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params={"Accept": how if method == "GET" else _JSON, "Content-Type": how},
            body=body,
            auth_settings=["BearerToken"],
        )
        return await self._client.call_api(
            verb, url, headers, payload, _request_timeout=aiohttp.ClientTimeout(timeout_s)
        )


async def remove(api: KubeApi, path: str, uid: str) -> None:
    """Delete an object; succeed if it is already gone, or replaced by another of its name."""
    with contextlib.suppress(NotFound, Conflict):
        await api.delete(path, uid=uid)


def _refuse_missing(files: str) -> None:
    """Raise `KubeError` if none of these kubeconfigs exists."""
    paths = [os.path.expanduser(path) for path in files.split(os.pathsep) if path]
    if not any(map(os.path.exists, paths)):
        raise KubeError(
            f"there is no kubeconfig at {' or '.join(paths)}: name the file that kubectl uses with"
            " --kubeconfig, or set KUBECONFIG to it"
        )


def _refused(answer: Any, text: str, request: str) -> KubeError:
    retry_after = str(answer.headers.get("Retry-After") or "")
    return error_of(answer.status, text, request, retry_after)


async def _next(lines: AsyncIterator[bytes], silence_s: float) -> bytes | None:
    """Return the next line, or None at the end. Raises `TimeoutError`."""
    async with asyncio.timeout(None if silence_s == math.inf else silence_s):
        return await anext(lines, None)


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield whole lines; aiohttp's own limit of 64 KiB is too short for an object."""
    partial = b""
    async for chunk in chunks:
        *lines, partial = (partial + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield line
