#!/bin/bash
# What our code costs, beside stock, in one run. Prints min, median and max of repeated measurements. Two minutes on two
# quiet cores. What it saves is measured by relief/run.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
python=${PYTHON_BENCH:-.venv/bin/python}
export PYTHONPATH=operator:tests DASK_LOGGING__DISTRIBUTED=warning
for bench in tests/bench/bench_*.py; do
  echo "== $(basename "$bench" .py)"
  "$python" "$bench" "$@"
done
