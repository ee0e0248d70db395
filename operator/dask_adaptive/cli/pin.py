"""`dask-adaptive pin` and `unpin`: the annotations that hold a worker."""

from __future__ import annotations

import sys

import click

from dask_adaptive.cli.access import NOTHING, USAGE, ask, default_namespace, fail, kube_options
from dask_adaptive.kube.api import Json, KubeApi
from dask_adaptive.kube.errors import NotFound
from dask_adaptive.kube.objects import COMPONENT_LABEL
from dask_adaptive.kube.pins import PIN, PIN_REASON
from dask_adaptive.kube.resources import PODS
from dask_adaptive.model.duration import parse_duration
from dask_adaptive.model.pins import read_instant

#: In managedFields: a person's own pin, by way of this command.
MANAGER = "dask-adaptive-cli"


@click.command("pin")
@click.argument("pod")
@click.option("--for", "lasts", help="How long, such as 90m or 4h. Default: as the policy allows.")
@click.option("--until", help="Until when, such as 2026-01-31T18:00:00Z.")
@click.option("--reason", default="", help="Why; shown by explain, status and events.")
@kube_options
def command(
    pod: str,
    lasts: str | None,
    until: str | None,
    reason: str,
    namespace: str | None,
    context: str | None,
) -> None:
    """Hold the worker in POD: it is not retired until the pin ends."""
    value = _value(lasts, until)
    notes = {PIN: value, PIN_REASON: reason or None}
    _annotate(pod, notes, namespace or default_namespace(context), context)
    click.echo(f"pod {pod} pinned ({value})" if value != "true" else f"pod {pod} pinned")


@click.command("unpin")
@click.argument("pod")
@kube_options
def uncommand(pod: str, namespace: str | None, context: str | None) -> None:
    """Lift the pin of POD. Exit code 1 if it had none."""
    where = namespace or default_namespace(context)
    before = _annotate(pod, {PIN: None, PIN_REASON: None}, where, context)
    if PIN not in (before["metadata"].get("annotations") or {}):
        click.echo(f"pod {pod} has no pin of its own.", err=True)
        sys.exit(NOTHING)
    click.echo(f"pod {pod} unpinned")


def _value(lasts: str | None, until: str | None) -> str:
    if lasts and until:
        fail("give --for or --until, not both", USAGE)
    if until:
        if read_instant(until) is None:
            fail(f"--until {until} is no instant; write one like 2026-01-31T18:00:00Z", USAGE)
        return until
    if lasts:
        try:
            parse_duration(lasts)
        except ValueError as exc:
            fail(f"--for: {exc}", USAGE)
        return lasts
    return "true"


def _annotate(pod: str, notes: dict[str, str | None], namespace: str, context: str | None) -> Json:
    """Set or remove annotations; returns the pod as it was before."""

    async def question(api: KubeApi) -> Json | None:
        path = PODS.path(namespace, pod)
        try:
            before = await api.get(path)
            labels = before["metadata"].get("labels") or {}
            if labels.get(COMPONENT_LABEL) != "worker":
                fail(f"pod {pod} in {namespace} is not a Dask worker", USAGE)
            await api.patch(path, {"metadata": {"annotations": notes}}, manager=MANAGER)
        except NotFound:
            return None
        return before

    before = ask(question, context=context)
    if before is None:
        hint = f"kubectl -n {namespace} get pods -l {COMPONENT_LABEL}=worker"
        fail(f"no pod {pod} in namespace {namespace}; see: {hint}", NOTHING)
    return before
