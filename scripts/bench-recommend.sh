#!/bin/bash
# Advice from a recording beside what then happens, in rehearsals on this machine, or on the node that KUBECONFIG names.
# Writes docs/benchmarks/recommend.md.
#
#   make bench-recommend                       three workloads, twice each: 7 minutes
#   make bench-recommend WORKLOADS="waves"
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PYTHONPATH=operator:tests:tests/bench
# shellcheck disable=SC2086 # workloads are words
.venv/bin/python tests/bench/recommend/run.py ${WORKLOADS:-}
