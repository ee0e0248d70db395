"""`dask-adaptive rehearse POLICY [SCRIPT]`: a script under a policy, on this machine."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from dask_adaptive.model.keys import ClusterKey
from dask_adaptive_lab.cli.files import REDONE, read_policy


@click.command("rehearse", context_settings={"allow_interspersed_args": False})
@click.argument("policy", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("script", required=False, type=click.Path(exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--nthreads", default=1, show_default=True, help="Threads of each worker.")
@click.option("--memory-limit", default="1GiB", show_default=True, help="Memory of each worker.")
@click.option(
    "--resources", multiple=True, metavar="[GROUP:]NAME=AMOUNT …",
    help="Resources of each worker, in the default or another group of the policy.",
)  # fmt: skip
@click.option(
    "--logs", type=click.Path(file_okay=False, path_type=Path), help="Directory for logs."
)
@click.option(
    "--trace", type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Record a trace here, for `simulate`.",
)  # fmt: skip
def command(
    policy: Path, script: str | None, arguments: Sequence[str], nthreads: int, memory_limit: str,
    resources: Sequence[str], logs: Path | None, trace: Path | None,
) -> None:  # fmt: skip
    """
    Run SCRIPT under POLICY with a real scheduler and real workers on this machine.

    POLICY is an AdaptivePolicy as you would apply it. SCRIPT is your own Dask program: in it,
    `Client()` connects to the rehearsal. Without SCRIPT the built-in demo runs.

    Exit codes: the script's own; 2 for an invalid policy; 5 if scaling had tasks rerun;
    128 and its number for a signal.

    \b
    Examples:
      dask-adaptive rehearse policy.yaml                      # the built-in demo
      dask-adaptive rehearse policy.yaml script.py --rows 9   # your script, with its options
    """
    # Only this command needs distributed, which takes a second to import.
    from dask_adaptive_lab.local import Machine, amounts_of
    from dask_adaptive_lab.rehearse.rehearsal import rehearse

    wanted = read_policy(policy)
    default = ClusterKey("local", wanted.cluster).default_group
    offered = (text.rpartition(":")[::2] for text in resources)
    by_group = {group or default: amounts for group, amounts in offered}
    try:
        any(map(amounts_of, by_group.values()))
    except ValueError as exc:
        raise click.BadParameter(f"{exc}: write NAME=AMOUNT", param_hint="--resources") from exc
    machine = Machine(nthreads=nthreads, memory_limit=memory_limit, resources=by_group)
    run = [script, *arguments] if script else []
    code, figures = rehearse(wanted, run, logs, machine, name=policy.name, trace=trace)
    redone = figures.tally.redone if figures.tally else 0
    sys.exit(code or (REDONE if redone else 0))
