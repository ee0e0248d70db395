"""
The operator's process, with clocks that run faster, and perhaps with a deliberate fault.

    python -m chaos.operator --serve SOCKET        forks one for each request, see below
    chaos.operator WRONG_S MUTANT run …            in a fork: the wall clock is wrong by so much;
                                                   MUTANT is one of `chaos.mutants`, or "none"
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

from chaos import clock

#: Imported once, so that an operator starts within a few milliseconds.
MODULES = ("dask_adaptive.cli.run", "dask_adaptive.controller.app", "kubernetes.aio.client")


def main() -> None:
    # With who started it, however that ended (PR_SET_PDEATHSIG).
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if sys.argv[1] == "--serve":
        clock.hasten(Path(os.environ[clock.VARIABLE]))
        from support import forked_processes

        return forked_processes.serve(sys.argv[2], MODULES)

    from dask_adaptive.cli.main import cli

    clock.wrong_s = float(sys.argv[1])
    if sys.argv[2] != "none":
        from chaos import mutants

        mutants.MUTANTS[sys.argv[2]].apply()
    cli(sys.argv[3:])


if __name__ == "__main__":
    main()
