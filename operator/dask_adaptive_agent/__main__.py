"""`python -m dask_adaptive_agent leave …`, and what the zip of this package runs."""

from __future__ import annotations

import sys

from dask_adaptive_agent.worker_side.prestop import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
