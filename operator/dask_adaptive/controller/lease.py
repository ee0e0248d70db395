"""
Elects a leader with a Lease, as client-go does: among all operators of one `controllerName`,
replicas or separate releases, only one acts.

Another node's clock is never read: a lease has expired once it was not renewed for its duration
by our own monotonic clock. A holder that cannot renew gives up earlier, so two never act at once.
A busy holder does not: its renewals wait for no other calls, and a late answer to one counts, since
the API server accepts it only if nobody else has held the lease meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from dask_adaptive.backoff import end, until_one_ends
from dask_adaptive.kube import api as kube
from dask_adaptive.kube.api import Json, KubeApi, KubeError
from dask_adaptive.kube.objects import parse_meta

logger = logging.getLogger(__name__)

#: Operators of one name must share it, wherever they are installed.
LEASE_NAMESPACE = "kube-system"


def lease_name(controller: str) -> str:
    """Return the name of the Lease for this `controllerName`."""
    return f"dask-adaptive-operator-{controller}"


class WentBack(KubeError):
    """etcd was restored: the cache may be wrong, and watches stay silent."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. `renew_deadline_s` < `duration_s`, or two replicas could act at once."""

    duration_s: float = 15.0
    renew_deadline_s: float = 10.0
    retry_s: float = 2.0


class LeaderLease:
    """
    Runs `lead` while this process holds the lease.

    Args:
        lead: Acts as the leader; it is cancelled, and awaited, when the lease is lost.
    """

    def __init__(
        self, api: KubeApi, *, namespace: str, controller: str, identity: str,
        lead: Callable[[], Awaitable[None]], timing: Timing,
    ) -> None:  # fmt: skip
        self._api, self._namespace, self._identity = api.apart(), namespace, identity
        self._lead, self._timing = lead, timing
        self._name = lease_name(controller)
        self._path = kube.LEASES.path(namespace, self._name)
        self._seen = ("", "", 0.0)  # another holder, its last renewal, and when we saw it
        self._lease: Json | None = None  # as we last wrote it
        self._version = 0  # of the lease, as last seen
        self._renewed_at = -math.inf
        self.is_leader = False

    def check(self) -> None:
        """Raise `NotLeading` unless this process surely holds the lease; called before writes."""
        if not self.is_leader or self._is_late():
            raise kube.NotLeading("this replica no longer leads; the one that does looks again")

    def _is_late(self) -> bool:
        return time.monotonic() - self._renewed_at >= self._timing.renew_deadline_s

    async def run(self) -> None:
        """
        Lead whenever possible. Releases the lease when cancelled.

        Raises:
            WentBack: The process should restart.
        """
        try:
            while True:
                if await self._try_to_hold():
                    await self._lead_while_held()
                await asyncio.sleep(self._timing.retry_s)
        finally:
            await self._release()

    async def _lead_while_held(self) -> None:
        logger.info("This replica leads", extra={"identity": self._identity})
        self.is_leader = True
        leading = asyncio.ensure_future(self._lead())
        try:
            await self._renew_until_lost(leading)
        finally:
            await end([leading])  # it may still write: others wait until the lease expires
            self.is_leader = False
            logger.info("This replica no longer leads", extra={"identity": self._identity})

    async def _renew_until_lost(self, leading: asyncio.Future[None]) -> None:
        is_held = True
        while is_held:
            done, _ = await asyncio.wait({leading}, timeout=self._timing.retry_s)
            if done:
                leading.result()  # its error ends the process: better a restart than no leader
                return
            left_s = self._renewed_at + self._timing.renew_deadline_s - time.monotonic()
            # This takes an answer that a late loop finds together with the end of the sleep. An
            # attempt that itself comes late is short; until it succeeds, `check` lets nobody act.
            rest = asyncio.sleep(max(left_s, self._timing.retry_s))
            await until_one_ends(self._try_to_hold(), rest)
            is_held = self._lease is not None and not self._is_late()

    async def _try_to_hold(self) -> bool:
        """Take or renew the lease; False: another holds it (`_lease` is None), or no answer."""
        requested_at = time.monotonic()
        try:
            self._lease = await self._held()
        except WentBack:
            raise
        except (kube.Conflict, kube.AlreadyExists):
            return False  # another operator was faster; retry later
        except KubeError as exc:
            logger.warning("Can't renew the lease: %s", exc)
            return False
        if self._lease is None:
            self.is_leader = False
            return False
        self._see(self._lease)
        self._renewed_at = requested_at
        return True

    async def _held(self) -> Json | None:
        """Return the lease as written now; None: another operator holds it."""
        if self.is_leader and self._lease is not None:
            with contextlib.suppress(kube.Conflict, kube.NotFound):  # somebody has changed it
                return await self._replace(self._lease)
        try:
            current = await self._api.get(self._path)
        except kube.NotFound:
            meta = {"name": self._name, "namespace": self._namespace}
            new = {**kube.LEASES.head, "metadata": meta, "spec": self._spec({})}
            return await self._api.create(kube.LEASES.path(self._namespace), new)
        self._see(current)
        return await self._replace(current) if self._may_take(current) else None

    async def _replace(self, current: Json) -> Json:
        spec = self._spec(current.get("spec") or {})
        return await self._api.replace(self._path, {**current, "spec": spec})

    def _see(self, lease: Json) -> None:
        """
        Detect a restored etcd: the version of the Lease went back. A watch from a version that does
        not exist yet stays silent, so changes would be missed.
        """
        version = parse_meta(lease).version
        if version < self._version:
            raise WentBack(
                f"etcd was restored: version {version} of the lease comes after {self._version};"
                " this process ends, so that the next one reads everything again"
            )
        self._version = version

    def _may_take(self, current: Json) -> bool:
        spec = current.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder in ("", self._identity):
            return True
        if holder != self._seen[0]:
            where = f"{self._namespace}/{self._name}"
            logger.info("%s holds the Lease %s: this replica waits", holder, where)
        sign = (holder, spec.get("renewTime") or "")
        if sign != self._seen[:2]:
            self._seen = (*sign, time.monotonic())
        lasts_s = float(spec.get("leaseDurationSeconds") or self._timing.duration_s)
        return time.monotonic() - self._seen[2] > lasts_s

    def _spec(self, before: Json) -> Json:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        ours = before.get("holderIdentity") == self._identity
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(round(self._timing.duration_s), 1),
            "acquireTime": before.get("acquireTime") if ours else now,
            "renewTime": now,
            "leaseTransitions": int(before.get("leaseTransitions") or 0) + (not ours),
        }

    async def _release(self) -> None:
        """Release the lease, so that another replica need not wait until it expires."""
        if self._lease is None:
            return
        spec = {**self._lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            await self._api.replace(self._path, {**self._lease, "spec": spec})
        except KubeError as exc:
            logger.warning("Can't release the lease: %s", exc)
        self._lease = None
