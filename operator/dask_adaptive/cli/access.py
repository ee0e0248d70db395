"""What commands that ask Kubernetes share: options, the connection, and errors as sentences."""

from __future__ import annotations

import asyncio
import functools
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from dask_adaptive.kube.api import KubeApi
from dask_adaptive.kube.errors import Forbidden, KubeError, NotFound, Unauthorized

NOTHING, USAGE, UNREACHABLE = 1, 2, 3

T = TypeVar("T")


def kube_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that kubectl has, with kubectl's meaning."""
    function = click.option("--context", help="Context of the kubeconfig.")(function)
    return click.option(
        "-n", "--namespace", help="Namespace; default: that of the kubeconfig's context."
    )(function)


output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="For people or for programs.",
)


def ask(question: Callable[[KubeApi], Awaitable[T]], *, context: str | None) -> T:
    """Connect, ask, disconnect; an error ends the program with a sentence and an exit code."""

    async def session() -> T:
        api = await KubeApi.connect(context=context)
        try:
            return await question(api)
        finally:
            await api.close()

    try:
        return asyncio.run(session())
    except KubeError as exc:
        fail(_sentence(exc), UNREACHABLE)


def _sentence(exc: KubeError) -> str:
    if isinstance(exc, Forbidden):
        return f"{exc}; ask your cluster's administrator for this right"
    if isinstance(exc, Unauthorized):
        return f"Kubernetes does not know you ({exc}); log in again, as for kubectl"
    if isinstance(exc, NotFound):
        return f"{exc}; are the CRDs installed? (helm install dask-adaptive …)"
    return str(exc)


def fail(message: str, code: int) -> NoReturn:
    click.echo(f"Error: {message}", err=True)
    sys.exit(code)


@functools.lru_cache(maxsize=1)
def default_namespace(context: str | None = None) -> str:
    """The namespace that kubectl would use here."""
    in_pod = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
    from kubernetes.config import ConfigException, list_kube_config_contexts

    try:
        untyped: Any = list_kube_config_contexts
        contexts, active = untyped(os.environ.get("KUBECONFIG"))
    except (ConfigException, OSError, TypeError):
        return in_pod.read_text().strip() if in_pod.exists() else "default"
    chosen = next((c for c in contexts if c["name"] == context), active)
    return str((chosen.get("context") or {}).get("namespace") or "default")
