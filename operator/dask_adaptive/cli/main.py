"""The command line: lists the commands, and imports each only when it is called."""

from __future__ import annotations

import importlib
import sys
from functools import cache
from typing import Any

import click
from click.shell_completion import CompletionItem

from dask_adaptive.cli.access import connection_options, namespace_option
from dask_adaptive_agent import __version__

#: Commands and their help, in order of use: look, ask why, fix, run.
COMMANDS = {
    "status": "Summarise clusters: a line for each, or one on a screen.",
    "explain": "Explain what a cluster, a worker or a budget does.",
    "check": "Check the installation and suggest fixes.",
    "report": "Write a zip to attach to a bug report.",
    "tidy": "Remove everything the operator added.",
    "run": "Run the operator.",
}

#: Other packages add commands by entry points of this group. Each names a mapping like ours, in a
#: package with a module for each command, such as dask_adaptive_lab.
PLUGINS = "dask_adaptive.commands"


@cache
def plugins() -> dict[str, tuple[str, str]]:
    """Return commands of other packages by name, with the help and package of each."""
    from importlib.metadata import entry_points

    return {
        name: (text, entry.module)
        for entry in entry_points(group=PLUGINS)
        for name, text in entry.load().items()
        if name not in COMMANDS
    }


class LazyGroup(click.Group):
    """Shows help and completion without importing commands, which takes most of a second."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS, *plugins()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        package = "dask_adaptive.cli"
        if cmd_name not in COMMANDS:
            if cmd_name not in plugins():
                return None
            package = plugins()[cmd_name][1]
        command: click.Command = importlib.import_module(f"{package}.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(self._texts())

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        found = [(name, summary) for name, summary in self._texts() if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=summary) for name, summary in found), *options]

    def _texts(self) -> list[tuple[str, str]]:
        return [*COMMANDS.items(), *((name, text) for name, (text, _) in plugins().items())]


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="dask-adaptive %(version)s")
@namespace_option
@connection_options
def cli(**_: Any) -> None:
    """
    Scale Dask clusters on Kubernetes without redoing any work.

    \b
    Exit codes: 0  done
                1  nothing found, or the answer is no
                2  wrong usage or wrong input
                3  Kubernetes can't be reached, or refuses
    """


def main() -> None:
    """Entry point of `dask-adaptive` and of `kubectl dask-adaptive`."""
    name = "kubectl dask-adaptive" if "kubectl-dask_adaptive" in sys.argv[0] else "dask-adaptive"
    cli(prog_name=name)


if __name__ == "__main__":
    main()
