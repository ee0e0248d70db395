"""The command line: lists the commands, and imports each only when it is called."""

from __future__ import annotations

import importlib
import sys
from functools import cache
from typing import Any

import click

from dask_adaptive.cli.access import connection_options, namespace_option
from dask_adaptive_agent import __version__

#: Commands and their help, in order of use: look, ask why, fix, run.
COMMANDS = {
    "status": "Summarise clusters: a line for each, or one on a screen.",
    "explain": "Explain what a cluster, a worker or a budget does.",
    "check": "Check the installation and suggest fixes.",
    "validate": "Check policies and budgets in files, without a cluster.",
    "report": "Write a zip to attach to a bug report.",
    "tidy": "Remove everything the operator added.",
    "run": "Run the operator.",
}


@cache
def packages() -> dict[str, tuple[str, str]]:
    """
    Return the help of each command and the package that it is in, by name.

    Other packages add commands by entry points. Each names a mapping like ours, in a package with a
    module for each command, such as dask_adaptive_lab.
    """
    from importlib.metadata import entry_points

    ours = {name: (text, "dask_adaptive.cli") for name, text in COMMANDS.items()}
    plugins = ((e.module, e.load()) for e in entry_points(group="dask_adaptive.commands"))
    return ours | {n: (text, place) for place, found in plugins for n, text in found.items()} | ours


class LazyGroup(click.Group):
    """Imports a command when it is called; lists and completion need only its name and help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # in order of use

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, known, rest = super().resolve_command(ctx, args)
        return name, known and load(str(name)), rest


def load(name: str) -> click.Command:
    """Import a command, which may take most of a second."""
    command: click.Command = importlib.import_module(f"{packages()[name][1]}.{name}").command
    return command


@click.group(
    cls=LazyGroup,
    commands={name: click.Command(name, help=text) for name, (text, _) in packages().items()},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="dask-adaptive %(version)s")
@namespace_option
@connection_options
def cli(**_: Any) -> None:
    """
    Scale Dask clusters on Kubernetes without rerunning tasks.

    \b
    Exit codes: 0  done
                1  nothing found, or the answer is no
                2  wrong usage or wrong input
                3  Kubernetes can't be reached, or refuses

    \b
    Examples:
      kubectl dask-adaptive status -A          # all clusters, a line for each
      kubectl dask-adaptive explain etl        # why cluster etl has the workers it has
    """


def main() -> None:
    """Entry point of `dask-adaptive` and of `kubectl dask-adaptive`."""
    name = "kubectl dask-adaptive" if "kubectl-dask_adaptive" in sys.argv[0] else "dask-adaptive"
    cli(prog_name=name)


if __name__ == "__main__":
    main()
