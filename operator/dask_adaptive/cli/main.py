"""The command line: collects the commands, and turns errors into one sentence and an exit code."""

from __future__ import annotations

import sys

import click

from dask_adaptive.cli import explain, get, pin, pins, recycle, rehearse, run, tidy, version


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def cli() -> None:
    """
    Scale Dask clusters on Kubernetes without redoing any work.

    \b
    Exit codes: 0  done
                1  nothing found, or the answer is no
                2  wrong usage or wrong input
                3  Kubernetes can't be reached, or refuses
    """


for command in (run.command, get.command, explain.command, pin.command, pin.uncommand):
    cli.add_command(command)
cli.add_command(pins.command)
cli.add_command(recycle.command)
cli.add_command(rehearse.command)
cli.add_command(tidy.command)
cli.add_command(version.command)


def main() -> None:
    """Entry point of `dask-adaptive` and of `kubectl dask-adaptive`."""
    name = "kubectl dask-adaptive" if "kubectl-dask_adaptive" in sys.argv[0] else "dask-adaptive"
    cli(prog_name=name)


if __name__ == "__main__":
    main()
