#!/bin/bash
# What our code costs, beside stock, in one run. Prints min, median and max of repeated measurements.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON_BENCH:-.venv/bin/python}
export PYTHONPATH=operator:tests
for bench in tests/bench/bench_*.py; do
  echo "== $(basename "$bench" .py)"
  "$python" "$bench" "$@"
done
