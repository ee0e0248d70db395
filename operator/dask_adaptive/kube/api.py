"""The asyncio client of the `kubernetes` package, wrapped: JSON in, JSON or typed errors out."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import aiohttp
from kubernetes.aio import client, config

from dask_adaptive.deadline import timeout
from dask_adaptive.kube.errors import ApiUnreachable, KubeError, error_of

Json: TypeAlias = dict[str, Any]

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

    def __init__(self, api: client.ApiClient, *, timeout_s: float = 10.0) -> None:
        self._client, self._timeout_s = api, timeout_s
        self._client.user_agent = "dask-adaptive"

    @classmethod
    async def connect(cls, *, context: str | None = None, timeout_s: float = 10.0) -> KubeApi:
        """
        Use the pod's service account, or else the user's kubeconfig.

        Raises:
            KubeError: There is neither; the user can fix it by setting KUBECONFIG.
        """
        settings = client.Configuration()
        in_pod = "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ
        try:
            if in_pod:
                config.load_incluster_config(  # type: ignore[no-untyped-call]
                    client_configuration=settings
                )
            else:
                await config.load_kube_config(  # type: ignore[no-untyped-call]
                    os.environ.get("KUBECONFIG"), context, client_configuration=settings
                )
        except (config.ConfigException, OSError, ValueError) as exc:
            raise KubeError(
                f"no way to reach Kubernetes: {exc}; set KUBECONFIG to a file that kubectl can use"
            ) from exc
        return cls(client.ApiClient(settings), timeout_s=timeout_s)

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
        request = f"GET {path}"
        status, text = await self._answer(request, "GET", path, query, None, "application/json")
        if status >= 400:
            raise error_of(status, text, request)
        return text

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
        request = f"watch of {path}"
        try:
            answer = await self._opened("GET", path, query, None, "application/json", None)
            if answer.status >= 400:
                raise error_of(answer.status, (await answer.read()).decode(), request)
            async for line in _lines(answer.response.content.iter_any()):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    code = int(event["object"].get("code") or 500)
                    raise error_of(code, json.dumps(event["object"]), request)
                yield event["type"], event["object"]
        except (aiohttp.ClientError, OSError) as exc:
            raise ApiUnreachable(f"the {request} broke off: {exc}") from exc

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
        request = f"{method} {path}"
        status, text = await self._answer(request, method, path, query, body, content_type)
        if status >= 400:
            raise error_of(status, text, request)
        answer = json.loads(text) if text else {}
        return answer if isinstance(answer, dict) else {}

    async def _answer(
        self, request: str, method: str, path: str, query: Mapping[str, str] | None,
        body: Json | None, content_type: str,
    ) -> tuple[int, str]:  # fmt: skip
        try:
            async with timeout(self._timeout_s):
                return await self._send(method, path, query, body, content_type)
        except (asyncio.TimeoutError, TimeoutError) as exc:
            raise ApiUnreachable(f"no answer to {request} within {self._timeout_s:g} s") from exc
        except (aiohttp.ClientError, OSError) as exc:
            raise ApiUnreachable(f"the API server at {self.host} can't be reached: {exc}") from exc

    async def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Json | None,
        content_type: str,
    ) -> tuple[int, str]:
        answer = await self._opened(method, path, query, body, content_type, self._timeout_s)
        content: bytes = await answer.read()
        return answer.status, content.decode()

    async def _opened(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Json | None,
        content_type: str,
        timeout_s: float | None,
    ) -> Any:
        """An answer of which only the head has been read."""
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


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Whole lines; aiohttp reads none longer than 64 KiB, which an object may be."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield line
