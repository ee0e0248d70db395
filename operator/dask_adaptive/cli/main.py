"""The command line: collects the commands, and turns errors into one sentence and an exit code."""

from __future__ import annotations

import sys

import click

from dask_adaptive.cli import (
    check,
    explain,
    get,
    history,
    pin,
    pins,
    record,
    recycle,
    rehearse,
    report,
    run,
    simulate,
    status,
    tidy,
    version,
    why_not_down,
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def cli() -> None:
    """
    Scale Dask clusters on Kubernetes without redoing any work.

    \b
    Exit codes: 0  done
                1  nothing found, or the answer is no
                2  wrong usage or wrong input
                3  Kubernetes can't be reached, or refuses
                5  rehearse, simulate: work was redone
    """


#: In the order of a day's work: look, ask why, hold, try out, mend, run.
COMMANDS: tuple[click.Command, ...] = (
    status.command, get.command, explain.command, why_not_down.command, history.command,
    pins.command, pin.command, pin.uncommand, recycle.command,
    rehearse.command, record.command, simulate.command,
    check.command, report.command, tidy.command, run.command, version.command,
)  # fmt: skip

for command in COMMANDS:
    cli.add_command(command)


def main() -> None:
    """Entry point of `dask-adaptive` and of `kubectl dask-adaptive`."""
    name = "kubectl dask-adaptive" if "kubectl-dask_adaptive" in sys.argv[0] else "dask-adaptive"
    cli(prog_name=name)


if __name__ == "__main__":
    main()
