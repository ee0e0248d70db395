"""
Functions of dask-kubernetes, out of its PyPI package, run against a real API server. What they
import (kopf, kr8s' objects) stands around them, by our own client.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import copy
import logging
import time
import zipfile
from collections.abc import AsyncIterator, Collection
from types import SimpleNamespace
from typing import Any

import pytest

from dask_adaptive.kube.api import AUTOSCALERS, CLUSTERS, GROUPS, KubeApi, NotFound
from support.kube_server import CACHE, DASK_KUBERNETES, upstream_crds


class UpstreamTimer:
    """
    The timer of one DaskAutoscaler: daskautoscaler_adapt.

    Args:
        wants: What the scheduler's adaptive_target answers.
        takes_s: How long it takes to answer.
    """

    def __init__(self, api: KubeApi, namespace: str, *, wants: int, takes_s: float = 0.0) -> None:
        self.wants, self.takes_s = wants, takes_s
        self.scaled: list[tuple[float, int]] = []  # when (seconds since 1970), and to what
        self.runs = 0
        self._api, self._namespace = api, namespace
        around = {
            "time": time,
            "Pod": SimpleNamespace(get=self._pod),
            "DaskAutoscaler": SimpleNamespace(get=self._autoscaler),
            "DaskWorkerGroup": SimpleNamespace(get=self._group),
            "get_desired_workers": self._desired,
            "SchedulerCommError": LookupError,
        }
        names = ("DASK_AUTOSCALER_COOLDOWN_UNTIL_ANNOTATION", "daskautoscaler_adapt")
        self._run = compiled(names, around)["daskautoscaler_adapt"]

    async def run(self, name: str) -> None:
        """The timer's handler, once."""
        path = AUTOSCALERS.path(self._namespace, name)
        body = await self._api.get(path)
        if body["metadata"].get("deletionTimestamp"):
            return
        await self._run(
            spec=body["spec"], name=name, namespace=self._namespace, logger=logging.getLogger("up")
        )
        self.runs += 1

    @contextlib.asynccontextmanager
    async def every(self, seconds: float, name: str) -> AsyncIterator[UpstreamTimer]:
        """Run it over and over, as kopf does every 5 s."""

        async def forever() -> None:
            while True:
                with contextlib.suppress(NotFound):
                    await self.run(name)
                await asyncio.sleep(seconds)

        task = asyncio.create_task(forever())
        try:
            yield self
            if task.done():
                task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _pod(self, **_: Any) -> Any:
        async def ready() -> bool:
            return True

        return SimpleNamespace(ready=ready)

    async def _autoscaler(self, name: str, *, namespace: str) -> Any:
        path = AUTOSCALERS.path(namespace, name)
        body = await self._api.get(path)

        async def annotate(notes: dict[str, str]) -> None:
            await self._api.patch(path, {"metadata": {"annotations": notes}})

        notes = body["metadata"].get("annotations") or {}
        return SimpleNamespace(name=name, annotations=notes, annotate=annotate)

    async def _group(self, name: str, *, namespace: str) -> Any:
        body = await self._api.get(GROUPS.path(namespace, name))

        async def scale(replicas: int) -> None:
            self.scaled.append((time.time(), replicas))
            change = {"spec": {"worker": {"replicas": replicas}}}
            await self._api.patch(GROUPS.path(namespace, name), change)

        return SimpleNamespace(replicas=body["spec"]["worker"]["replicas"], scale=scale)

    async def _desired(self, **_: Any) -> int:
        await asyncio.sleep(self.takes_s)
        return self.wants


async def make_job_components(api: KubeApi, job: dict[str, Any]) -> None:
    """What dask-kubernetes does about a DaskJob as it is stored: daskjob_create_components."""
    meta = job["metadata"]
    owner = {k: meta[k] for k in ("name", "uid")}
    owner |= {"apiVersion": CLUSTERS.api_version, "kind": "DaskJob", "controller": True}

    def adopt(body: dict[str, Any]) -> None:  # kopf's, by the object that is being handled
        body["metadata"] |= {"ownerReferences": [owner], "namespace": meta["namespace"]}

    async def cluster(body: dict[str, Any], namespace: str) -> Any:
        async def exists() -> bool:
            return False

        async def create() -> None:
            await api.create(CLUSTERS.path(namespace), body)

        return SimpleNamespace(exists=exists, create=create)

    async def pod(body: dict[str, Any], namespace: str) -> Any:
        async def exists() -> bool:
            return True  # nothing runs here

        async def create() -> None:
            """Releases before 2025.7.0 do not ask whether it exists."""

        return SimpleNamespace(exists=exists, create=create)

    names = (
        "_ANNOTATION_NAMESPACES_TO_IGNORE", "_LABEL_NAMESPACES_TO_IGNORE", "_get_annotations",
        "_get_labels", "build_cluster_spec", "build_job_pod_spec", "get_job_runner_pod_name",
        "daskjob_create_components",
    )  # fmt: skip
    around = {
        "copy": copy,
        "kopf": SimpleNamespace(adopt=adopt),
        "DaskCluster": cluster,
        "Pod": pod,
    }
    await compiled(names, around)["daskjob_create_components"](
        spec=job["spec"],
        name=meta["name"],
        namespace=meta["namespace"],
        logger=logging.getLogger("upstream"),
        patch=SimpleNamespace(status={}),
        meta=SimpleNamespace(
            annotations=meta.get("annotations") or {}, labels=meta.get("labels") or {}
        ),
    )


def built_worker(**arguments: Any) -> dict[str, Any]:
    """The Deployment that dask-kubernetes makes of these arguments."""
    name = "build_worker_deployment_spec"
    made: dict[str, Any] = compiled([name], {"copy": copy})[name](**copy.deepcopy(arguments))
    return made


def upstream_source() -> str:
    """Its controller."""
    upstream_crds()  # downloads the package
    (path,) = (CACHE / f"dask-kubernetes-{DASK_KUBERNETES}").glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return archive.read("dask_kubernetes/operator/controller/controller.py").decode()


def compiled(names: Collection[str], around: dict[str, Any]) -> dict[str, Any]:
    """Functions and constants of upstream's controller, compiled from its source."""
    # Annotations name what is not here, so they stay unread.
    wanted = ast.parse("from __future__ import annotations").body
    for node in ast.parse(upstream_source()).body:
        if isinstance(node, (ast.AsyncFunctionDef, ast.FunctionDef)) and node.name in names:
            node.decorator_list = []
            wanted.append(node)
        elif isinstance(node, (ast.AnnAssign, ast.Assign)):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            wanted += [node for target in targets if getattr(target, "id", "") in names]
    if any(getattr(n, "id", "") == "kubernetes" for node in wanted for n in ast.walk(node)):
        pytest.skip("this release speaks to Kubernetes by another client than what stands around")
    space = dict(around)
    module = ast.Module(wanted, [])
    exec(compile(ast.fix_missing_locations(module), "controller.py", "exec"), space)
    missing = set(names) - set(space)
    assert not missing, f"dask-kubernetes has changed: no {missing}"
    return space
