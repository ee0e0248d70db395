#!/bin/bash
# The same workloads under upstream's autoscaler and under ours, on the local node or on KUBECONFIG, which has both operators.
# Writes docs/benchmarks/upstream.jsonl, and upstream.md, upstream.svg and the README's table from it. What is measured
# replaces what the .jsonl has of that workload.
#
#   make node-up install bench-upstream                        everything three times: about 70 minutes
#   make bench-upstream WORKLOADS=p2p,slow-step REPEATS=1
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../../../scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../../scripts/lib.sh"
cd "$root"
export KUBECONFIG=${KUBECONFIG:-$state/admin.kubeconfig} PYTHONPATH=operator:tests:tests/bench PATH=$PATH:$bin
[ -e "$KUBECONFIG" ] || die "no cluster: make node-up install, or set KUBECONFIG"
# shellcheck disable=SC2086
.venv/bin/python tests/bench/upstream/run.py ${WORKLOADS:+${WORKLOADS//,/ }} --repeats "${REPEATS:-3}"
.venv/bin/python tests/bench/upstream/report.py
