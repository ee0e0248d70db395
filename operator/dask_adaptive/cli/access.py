"""
Declares options that commands share: those of kubectl, the connection to Kubernetes, durations.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from dask_adaptive.cli.errors import UNREACHABLE, complain, fail
from dask_adaptive.model.amounts import parse_duration

if TYPE_CHECKING:
    from dask_adaptive.kube.api import KubeApi, KubeError

#: Also for those who import these from here.
__all__ = ["UNREACHABLE", "complain", "fail"]

_IN_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Access:
    """The API server and namespace that kubectl's options select."""

    kubeconfig: str | None = None  # None: KUBECONFIG, or kubectl's default
    context: str | None = None  # None: the current one
    chosen: str | None = None  # namespace; None: that of the context

    @property
    def namespace(self) -> str:
        """The namespace that kubectl would use."""
        return self.chosen or _namespace_of(self.kubeconfig, self.context)

    @property
    def kubectl(self) -> tuple[str, ...]:
        """The kubectl command with options for the same API server."""
        config = ("--kubeconfig", self.kubeconfig) if self.kubeconfig else ()
        return ("kubectl", *config, *(("--context", self.context) if self.context else ()))

    def ask(self, question: Callable[[KubeApi], Awaitable[T]], *, dry_run: bool = False) -> T:
        """
        Connect, ask, disconnect; an error ends the program with a sentence and an exit code.

        Args:
            dry_run: The API server checks all writes, and carries out none.
        """
        import asyncio

        from dask_adaptive.kube.api import KubeApi, KubeError

        names = [c["name"] for c in _contexts(self.kubeconfig)[0]] if self.context else []
        if names and self.context not in names:
            fail(f"no context {self.context}; there are: {', '.join(names)}", UNREACHABLE)

        async def session() -> T:
            api = await KubeApi.connect(
                kubeconfig=self.kubeconfig, context=self.context, dry_run=dry_run
            )
            try:
                return await question(api)
            finally:
                await api.close()

        try:
            return asyncio.run(session())
        except KubeError as exc:
            fail(_sentence(exc), UNREACHABLE)


async def found(question: Awaitable[T]) -> T | None:
    """Return the API server's answer; None if there is no such object."""
    from dask_adaptive.kube.api import NotFound

    try:
        return await question
    except NotFound:
        return None


def _kept(context: click.Context, option: click.Parameter, given: str | None) -> None:
    """Keep an option of kubectl's; one after the command's name comes later, and wins."""
    if given is not None:
        context.ensure_object(dict)[option.name] = given


_kubectls = partial(click.option, expose_value=False, callback=_kept, allow_from_autoenv=False)

namespace_option = _kubectls(
    "-n", "--namespace", "chosen", help="Namespace; default: that of the kubeconfig's context."
)
_context_option = _kubectls("--context", help="Context of the kubeconfig.")
_kubeconfig_option = _kubectls(
    "--kubeconfig", type=click.Path(), metavar="FILE",
    help="The kubeconfig; default: KUBECONFIG, or kubectl's.",
)  # fmt: skip


def connection_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--kubeconfig` and `--context`."""
    return _kubeconfig_option(_context_option(function))


def kube_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add kubectl's options; `function` gets them as `access`."""
    return namespace_option(cluster_options(function))


def cluster_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the same options without a namespace."""

    @functools.wraps(function)
    def command(**given: Any) -> None:
        function(access=Access(**click.get_current_context().ensure_object(dict)), **given)

    return connection_options(command)


def _or_before_the_command(
    context: click.Context, option: click.Parameter, chosen: tuple[str, ...]
) -> tuple[str, ...]:
    above = context.ensure_object(dict).get("chosen")
    is_given = context.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE
    return (above,) if above and not is_given else chosen


namespaces_option = click.option(
    "-n", "--namespace", "namespaces", multiple=True, envvar="DASK_ADAPTIVE_NAMESPACES",
    callback=_or_before_the_command,
    help="Only in this namespace; may be repeated. Default: all.",
)  # fmt: skip

namespace_selector_option = click.option(
    "--namespace-selector", default="", metavar="LABELS",
    envvar="DASK_ADAPTIVE_NAMESPACE_SELECTOR",
    help="Only in namespaces with these labels, such as team=a,env!=dev. Default: all.",
)  # fmt: skip


def refuse_both(namespaces: tuple[str, ...], selector: str) -> None:
    """Raise `click.UsageError` if namespaces are both named and selected."""
    if namespaces and selector:
        raise click.UsageError("--namespace and --namespace-selector exclude each other")


output_option = click.option(
    "-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table",
    show_default=True, help="Output format.",
)  # fmt: skip


def duration(value: str | float) -> float:
    """Option type: seconds, written as in policies: 90s, 15m or 1h30m."""
    try:
        return value if isinstance(value, float) else parse_duration(value)
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc


def _sentence(exc: KubeError) -> str:
    from dask_adaptive.kube.api import Forbidden, NotFound, Unauthorized

    if isinstance(exc, Forbidden):
        return f"{exc}; ask your cluster's administrator for this right"
    if isinstance(exc, Unauthorized):
        return f"Kubernetes refuses your credentials ({exc}); log in again, as for kubectl"
    if isinstance(exc, NotFound):
        return f"{exc}; are the CRDs installed? (helm install dask-adaptive …)"
    return str(exc)


def _contexts(kubeconfig: str | None) -> tuple[list[Any], dict[str, Any]]:
    """Return a kubeconfig's contexts, and the current one; `KubeApi.connect` says what is wrong."""
    from kubernetes.config import ConfigException, list_kube_config_contexts
    from yaml import YAMLError

    try:
        untyped: Any = list_kube_config_contexts
        contexts, active = untyped(kubeconfig or os.environ.get("KUBECONFIG"))
    except (ConfigException, YAMLError, OSError, ValueError, TypeError):
        return [], {}
    return contexts, active


def _namespace_of(kubeconfig: str | None, context: str | None) -> str:
    contexts, active = _contexts(kubeconfig)
    if not contexts and _IN_POD.exists():
        return _IN_POD.read_text().strip()
    chosen = next((c for c in contexts if c["name"] == context), active)
    return str((chosen.get("context") or {}).get("namespace") or "default")
