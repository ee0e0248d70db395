#!/bin/bash
# Each load that the agent takes off a scheduler, stock and ours side by side, on each release of distributed.
# Writes docs/benchmarks/relief.jsonl, and relief.md from it.
#
#   make bench-relief                                        everything: up to 25 minutes on 2 cores
#   make bench-relief RELEASES="2026.8.0" CASES="map-script identity" REPEATS=5
#
# CASES are those of tests/bench/relief/run.py. What is measured replaces what the .jsonl has of that release and case;
# the rest of it stays.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
releases=${RELEASES:?set it, or run make bench-relief}
export PYTHONPATH=operator:tests
lines=$(mktemp)
trap 'rm -f "$lines"' EXIT
failed=0
for release in $releases; do
  python=.venv-bench-$release/bin/python
  [ -x "$python" ] || { echo "bench-relief: $python is missing; run make bench-relief RELEASES=$release" >&2; exit 2; }
  echo "== $release"
  "$python" tests/bench/relief/run.py --repeats "${REPEATS:-3}" ${CASES:+--cases "${CASES// /,}"} >"$lines" || failed=1
  .venv/bin/python tests/bench/relief/report.py --add "$lines" --release "$release"
done
.venv/bin/python tests/bench/relief/report.py
exit $failed
