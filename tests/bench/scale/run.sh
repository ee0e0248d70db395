#!/bin/bash
# One operator under many clusters, and under a large one, on an API server of its own with simulated schedulers.
# Writes docs/benchmarks/scale.jsonl, and scale.md from it.
#
#   make bench-scale                                    1,000 clusters of 50 workers and one of 10,000: 25 minutes on 2 cores
#   make bench-scale SIZES="100x10 1000x50x2"           others: CLUSTERSxWORKERS, and by how many operators
#   BENCH_OPTIONS="--rest 20" tests/bench/scale/run.sh    more: tests/bench/scale/run.py --help
#
# What is measured replaces what the .jsonl has of that size.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
# Not the API server of the tests: it would be crowded for long after.
cache=${DASK_ADAPTIVE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/dask-adaptive}
export LOCALNODE_API_STATE=${LOCALNODE_API_STATE:-$cache/bench-scale}
export LOCALNODE_API_PORT=${LOCALNODE_API_PORT:-17443}
export LOCALNODE_API_ETCD_PORT=${LOCALNODE_API_ETCD_PORT:-13379}
export ETCD=http://127.0.0.1:$LOCALNODE_API_ETCD_PORT
export PYTHONPATH=operator:tests
lines=$(mktemp)
wipe() { localnode/down.sh --api-only --wipe; }
trap 'rm -f "$lines"; wipe' EXIT
for size in ${SIZES:-1000x50 1x10000}; do
  IFS=x read -r clusters workers operators <<<"$size"
  wipe
  unset KUBECONFIG
  eval "$(localnode/up.sh --api-only)"
  # shellcheck disable=SC2086 # options are words
  .venv/bin/python -m bench.scale.run --clusters "$clusters" --workers "$workers" --operators "${operators:-1}" ${BENCH_OPTIONS:-} >"$lines"
  .venv/bin/python -m bench.scale.report --add "$lines"
done
.venv/bin/python -m bench.scale.report
