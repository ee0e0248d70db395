"""Finds the address of a scheduler, and the certificates for one that accepts only TLS."""

from __future__ import annotations

import asyncio
import base64
import binascii
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple
from weakref import WeakValueDictionary

from cryptography import x509

from dask_adaptive.kube.api import SECRETS, ApiUnreachable, Json, KubeApi, KubeError, NotFound
from dask_adaptive.kube.cache.world import World
from dask_adaptive.kube.objects import ServiceObject
from dask_adaptive.loop.ports import LinkError, Tls, TlsFailed
from dask_adaptive.model.amounts import instant
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.policy import Policy
from dask_adaptive.model.scheduler_settings import TCP

#: Interval of reading a Secret again, to use renewed certificates.
FRESH_S = 30.0

_KEYS = ("ca.crt", "tls.crt", "tls.key")
_HOW = "kubectl create secret generic NAME " + " ".join(f"--from-file={key}" for key in _KEYS)


class Route(NamedTuple):
    """The way to one scheduler."""

    address: str  # as Dask writes it, e.g. `tls://10.0.0.7:8786`
    secret: str = ""  # that `tls` was read from
    tls: Tls | None = None


class Routes:
    """
    The ways to schedulers, with certificates out of Secrets in their namespaces.

    Args:
        secret: The Secret of clusters whose policies name none; empty: those take no TLS.
        wall_clock: Seconds since 1970.
    """

    def __init__(
        self, api: KubeApi, world: World, *, secret: str = "",
        wall_clock: Callable[[], float] = time.time, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._api, self._world, self._secret = api, world, secret
        self._wall_clock, self._clock = wall_clock, clock
        self._read: dict[tuple[str, str], tuple[float, Tls]] = {}
        #: While a reader waits for one.
        self._locks = WeakValueDictionary[tuple[str, str], asyncio.Lock]()

    async def to(self, key: ClusterKey, policy: Policy) -> Route:
        """
        Find the route to a cluster's scheduler.

        Raises:
            LinkError: There is none, or what it needs is missing or wrong; the message says what to
                do.
        """
        protocol, secret = policy.scheduler.transport(self._secret)
        address = f"{protocol}://{_place(self._world, key)}"
        if protocol == TCP:
            return Route(address)
        if not secret:
            raise TlsFailed(f"no Secret is named for {protocol}: set spec.scheduler.tls.secretName")
        async with self._locks.setdefault((key.namespace, secret), asyncio.Lock()):
            return Route(address, secret, await self._tls(key.namespace, secret))

    async def _tls(self, namespace: str, name: str) -> Tls:
        read_at, known = self._read.get((namespace, name), (0.0, None))
        if known is not None and self._clock() < read_at + FRESH_S:
            return known
        try:
            tls = await read_tls(self._api, namespace, name, now=self._wall_clock())
        except ApiUnreachable as exc:
            if known is None:
                raise TlsFailed(f"Secret {namespace}/{name} can't be read: {exc}") from exc
            tls = known
        self._read[namespace, name] = (self._clock(), tls)
        return tls


async def read_tls(api: KubeApi, namespace: str, name: str, *, now: float) -> Tls:
    """
    Read client certificates from a Secret; `now` in seconds since 1970.

    Raises:
        TlsFailed: It is not there, may not be read, or holds nothing that can be used.
        ApiUnreachable: The API server does not answer.
    """
    where = f"Secret {namespace}/{name}"
    try:
        body = await api.get(SECRETS.path(namespace, name))
    except NotFound:
        raise TlsFailed(f"there is no {where}: make it with {_HOW}") from None
    except ApiUnreachable:
        raise
    except KubeError as exc:
        raise TlsFailed(
            f"{where} can't be read ({exc}): grant the right to get it; to the operator, by the"
            " chart's scheduler.tls.secretNames"
        ) from exc
    texts = _texts(body)
    missing = [key for key in _KEYS if not texts.get(key, "").strip()]
    if missing:
        raise TlsFailed(f"{where} lacks {' and '.join(missing)}, as PEM: make it with {_HOW}")
    tls = Tls(*(texts[key] for key in _KEYS))
    try:
        certificates = x509.load_pem_x509_certificates(tls.certificate.encode())
    except ValueError as exc:
        raise TlsFailed(f"tls.crt of {where} is not a PEM certificate: {exc}") from exc
    end = certificates[0].not_valid_after_utc.timestamp()
    if end <= now:
        raise TlsFailed(f"tls.crt of {where} expired at {instant(end)}: renew it")
    return tls


def _texts(body: Json) -> Mapping[str, str]:
    texts = {}
    for key, value in (body.get("data") or {}).items():
        try:
            texts[key] = base64.b64decode(value, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            continue  # not PEM: counts as missing
    return texts


def _place(world: World, key: ClusterKey) -> str:
    """Return host and port of a scheduler: its Service by IP, which needs no DNS."""
    name = f"{key.name}-scheduler"
    service = world.get(ServiceObject, key.namespace, name)
    if service is None:
        raise LinkError(f"there is no Service {name}, or it can't be read")
    if not service.selects:
        raise LinkError(f"Service {name} selects no pods: give it the selector of dask-kubernetes")
    if not service.ip:
        return f"{name}.{key.namespace}.svc:{service.port}"
    host = f"[{service.ip}]" if ":" in service.ip else service.ip
    return f"{host}:{service.port}"
