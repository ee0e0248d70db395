"""`dask-adaptive version`."""

from __future__ import annotations

import json
import platform
from importlib import metadata

import click

from dask_adaptive.cli.access import output_option
from dask_adaptive_agent import __version__, wire

_SHOWN = ("distributed", "kopf", "kubernetes")


@click.command("version")
@output_option
def command(output: str) -> None:
    """Say which version this is, and of what it is made."""
    versions = {
        "dask-adaptive": __version__,
        "protocol": wire.PROTOCOL,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in _SHOWN},
    }
    if output == "json":
        click.echo(json.dumps(versions))
        return
    for name, version in versions.items():
        click.echo(f"{name:<14} {version}")
