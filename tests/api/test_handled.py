"""What kopf notes of a worker group, and when: dask-kubernetes runs on it, with these defaults."""

from __future__ import annotations

import asyncio
from typing import Any

import kopf

from dask_adaptive.controller.handlers import login
from dask_adaptive.kube.api import GROUPS, KubeApi
from dask_adaptive.kube.objects import handled_replicas
from support.kube_bodies import group
from support.kube_operator import until
from support.kube_server import Kubectl


def registry(done: asyncio.Event, seen: list[tuple[Any, Any]]) -> Any:
    made = kopf.OperatorRegistry()
    kopf.on.login(registry=made)(login)

    @kopf.on.field(GROUPS.group, GROUPS.version, GROUPS.plural, field="spec.worker.replicas",
                   registry=made)  # fmt: skip
    async def replica_update(old: Any, new: Any, **_: Any) -> None:
        seen.append((old, new))
        await done.wait()

    return made


async def test_a_number_is_noted_when_it_was_acted_on(api: KubeApi, kubectl: Kubectl) -> None:
    path = GROUPS.path(kubectl.namespace, "etl-default")
    await api.create(GROUPS.path(kubectl.namespace), group("etl", 5))
    done, stop, seen = asyncio.Event(), asyncio.Event(), list[tuple[Any, Any]]()
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    where = {"namespaces": [kubectl.namespace], "standalone": True, "stop_flag": stop,
             "memo": kopf.Memo(api=api)}  # fmt: skip
    upstream = asyncio.create_task(
        kopf.operator(registry=registry(done, seen), settings=settings, **where)
    )

    async def handled() -> int | None:
        return handled_replicas((await api.get(path))["metadata"])

    async def is_handled() -> bool:
        return await handled() == 5

    async def scale(replicas: int) -> None:
        await api.patch(f"{path}/scale", {"spec": {"replicas": replicas}})

    await until(lambda: bool(seen))
    assert await handled() is None, "it is being acted on"
    done.set()
    await until(is_handled)
    done.clear()
    await scale(4)
    await until(lambda: seen[1:] == [(5, 4)])
    await scale(5)
    assert 5 == await handled(), "which looks as if nothing were to do"
    done.set()
    await until(lambda: seen[1:] == [(5, 4), (4, 5)])
    await until(is_handled)
    stop.set()
    await upstream
