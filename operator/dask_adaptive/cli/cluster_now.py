"""
Reads one cluster as it is now, from Kubernetes and from its scheduler.

The scheduler is reached from a laptop through the API server, as kubectl does.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from dask_adaptive.cli.access import Access, found
from dask_adaptive.cli.status_view import list_policies
from dask_adaptive.kube.api import CLUSTERS, DEPLOYMENTS, GROUPS, PODS, KubeApi, KubeError
from dask_adaptive.kube.cache.world import KINDS, World
from dask_adaptive.kube.objects import CLUSTER_LABEL, COMPONENT_LABEL
from dask_adaptive.kube.route import read_tls
from dask_adaptive.kube.view import view
from dask_adaptive.loop.ports import Tls, TlsFailed
from dask_adaptive.model.keys import ClusterKey
from dask_adaptive.model.observed import ObservedScheduler, PlatformView
from dask_adaptive.model.scheduler_settings import TCP

if TYPE_CHECKING:
    from dask_adaptive.scheduler.link import ReadOnlyLink

#: Time to reach a scheduler, and for each of its answers.
PATIENCE_S, ANSWER_S = 10.0, 3.0

#: kubectl's line once it forwards: `Forwarding from 127.0.0.1:40123 -> 8786`.
_FORWARDING = re.compile(rb"Forwarding from 127\.0\.0\.1:(\d+)")


async def observe_scheduler(api: KubeApi, key: ClusterKey, access: Access) -> ObservedScheduler:
    """Ask the agent in a cluster's scheduler; a problem is part of the answer."""
    try:
        async with link_to(api, key, access) as link:
            return await link.observe(meters=True)
    except ConnectionError as exc:
        return ObservedScheduler(message=str(exc))


@contextlib.asynccontextmanager
async def link_to(api: KubeApi, key: ClusterKey, access: Access) -> AsyncIterator[ReadOnlyLink]:
    """
    Connect to a scheduler for repeated requests.

    Raises:
        ConnectionError: There is no way to it from here; the message says why.
    """
    from dask_adaptive.scheduler.link import ReadOnlyLink

    try:
        async with contextlib.AsyncExitStack() as stack:
            async with asyncio.timeout(PATIENCE_S):
                protocol, tls = await _transport(api, key)
                port = await stack.enter_async_context(_forwarded(key, access))
            link = ReadOnlyLink(f"{protocol}://127.0.0.1:{port}", tls=tls, timeout_s=ANSWER_S)
            stack.push_async_callback(link.close)
            yield link
    except (TlsFailed, KubeError) as exc:
        raise ConnectionError(str(exc)) from exc
    except FileNotFoundError as exc:
        raise ConnectionError("kubectl is not on the PATH") from exc
    except TimeoutError as exc:
        raise ConnectionError(f"no answer within {PATIENCE_S:g} s") from exc


async def _transport(api: KubeApi, key: ClusterKey) -> tuple[str, Tls | None]:
    """Return protocol and TLS by the policy and the operator's default. Raises `TlsFailed`."""
    policies = await list_policies(api, key.namespace)
    policy = next((p for p in policies if p.cluster == key.name), None)
    if policy is None:
        return TCP, None
    if policy.rules is None:
        raise TlsFailed("the policy has mistakes")
    known = policy.status.scheduler.tls_secret_name if policy.status else ""
    protocol, secret = policy.rules.scheduler.transport(known)
    return protocol, await read_tls(api, key.namespace, secret, now=time.time()) if secret else None


@contextlib.asynccontextmanager
async def _forwarded(key: ClusterKey, access: Access) -> AsyncIterator[int]:
    """Forward a local port to the scheduler's."""
    process = await asyncio.create_subprocess_exec(
        *access.kubectl, "--namespace", key.namespace, "port-forward",
        f"service/{key.name}-scheduler", ":8786",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        matched = _FORWARDING.search(await process.stdout.readline())
        if matched is None:
            why = (await process.stderr.read()).decode(errors="replace").strip()
            raise ConnectionError(why or "kubectl port-forward ended without an error message")
        yield int(matched[1])
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def platform_view(api: KubeApi, key: ClusterKey) -> PlatformView:
    """Read a cluster from Kubernetes, without pins by annotation. Raises `KubeError`."""
    selector = f"{CLUSTER_LABEL}={key.name},{COMPONENT_LABEL}=worker"
    groups = await api.list(GROUPS.path(key.namespace))
    cluster = await found(api.get(CLUSTERS.path(key.namespace, key.name)))
    bodies = {
        CLUSTERS: [cluster] if cluster else [],
        GROUPS: [g for g in groups if g["spec"].get("cluster") == key.name],
        DEPLOYMENTS: await api.list(DEPLOYMENTS.path(key.namespace), selector=selector),
        PODS: await api.list(PODS.path(key.namespace), selector=selector),
    }
    world = World()
    for kind in KINDS:
        for body in bodies.get(kind.resource, ()):
            world.take(kind, "ADDED", body)
    return view(world, key, now=time.time(), manual_max_s=0.0)
