"""`dask-adaptive report`: a zip for a bug report, with nothing in it that is secret."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import click

from dask_adaptive.cli.access import USAGE, ask, default_namespace, fail, kube_options
from dask_adaptive.cli.report_parts import Report, gather
from dask_adaptive.kube.api import Json

#: What is left out on purpose, for who reads the report and for who sends it.
NEVER = (
    "Secrets, and ConfigMaps other than the decision history",
    "values of environment variables, but for some of our own settings",
    "arguments of programs: only the names of known options are in",
    "annotations that are not ours, and labels that do not say what belongs to what",
    "volumes, image pull secrets, service accounts, affinities, tolerations",
    "Dask's configuration: only its keys are in",
    "keys of tasks, results, addresses; names of functions and of owners are hashed",
    "in logs, events and messages: what looks like a secret, an address or a mail address",
)


@click.command("report")
@click.option(
    "-o", "--output", "path", default="dask-adaptive-report.zip", show_default=True,
    type=click.Path(dir_okay=False, writable=True, path_type=Path), help="The zip.",
)  # fmt: skip
@click.option(
    "--lines", type=click.IntRange(min=0), default=2000, show_default=True,
    help="Of the operator's log: the last so many.",
)  # fmt: skip
@kube_options
def command(path: Path, lines: int, namespace: str | None, context: str | None) -> None:
    """
    Write a zip to attach to a bug report. Look into it before you send it.

    It holds what this namespace has of policies, Dask clusters and their pods, events, the history
    of decisions, the operator's log and metrics, and one look at each scheduler: all by an
    allow-list. What was left out is in its manifest.json.
    """
    where = namespace or default_namespace(context)
    report = ask(lambda api: gather(api, where, lines=lines, context=context), context=context)
    try:
        write(report, path, namespace=where)
    except OSError as exc:
        fail(f"{path}: {exc}", USAGE)
    click.echo(f"{path}: look into it before you send it")
    for name, why in sorted(report.left_out.items()):
        click.echo(f"  without {name}: {why}", err=True)


def write(report: Report, path: Path, *, namespace: str) -> None:
    """Raises `OSError`."""
    files = {
        **{f"{name}.json": json.dumps(rows, indent=2) for name, rows in report.objects.items()},
        **report.texts,
    }
    files["manifest.json"] = json.dumps(manifest(report, files, namespace), indent=2)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            archive.writestr(name, files[name])


def manifest(report: Report, files: dict[str, str], namespace: str) -> Json:
    counts = {f"{name}.json": len(rows) for name, rows in report.objects.items()}
    return {
        "report": 1,
        "namespace": namespace,
        "files": [
            {"name": name, **({"objects": counts[name]} if name in counts else {})}
            for name in sorted(files)
        ],
        "could not be had": report.left_out,
        "never in": NEVER,
    }
