"""dask-kubernetes' own builder of worker Deployments, out of its wheel, without what it needs."""

from __future__ import annotations

import ast
import copy
import zipfile
from collections.abc import Callable
from typing import Any

import kopf

from support.kube_server import CACHE, DASK_KUBERNETES, upstream_crds

_CONTROLLER = "dask_kubernetes/operator/controller/controller.py"
_NAME = "build_worker_deployment_spec"


def worker_deployment_builder() -> Callable[..., dict[str, Any]]:
    """`build_worker_deployment_spec`, as released."""
    upstream_crds()  # brings the wheel
    (wheel,) = (CACHE / f"dask-kubernetes-{DASK_KUBERNETES}").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        tree = ast.parse(archive.read(_CONTROLLER))
    tree.body = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == _NAME]
    names: dict[str, Any] = {"copy": copy, "kopf": kopf, "Any": Any}
    exec(compile(tree, _CONTROLLER, "exec"), names)
    builder: Callable[..., dict[str, Any]] = names[_NAME]
    return builder
