#!/bin/bash
# Each load that the agent takes off a scheduler, stock and ours side by side, on each release of distributed.
# Writes docs/benchmarks/relief.jsonl, and relief.md and relief.svg from it.
#
#   make bench-relief                                        everything: up to 25 minutes on 2 cores
#   make bench-relief RELEASES="2026.8.0" CASES="map-script prefixes" REPEATS=5
#
# CASES are those of tests/bench/relief/run.py, and names of tests/bench/bench_relief_*.py and "closing".
# What is measured replaces what the .jsonl has of that release and case; the rest of it stays.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
releases=${RELEASES:?set it, or run make bench-relief}
repeats=${REPEATS:-3}
declare -A benches=([closing]=tests/bench/bench_agent_closing.py)
for bench in tests/bench/bench_relief_*.py; do
  name=${bench##*bench_relief_}
  [ ! -e "$bench" ] || benches[${name%.py}]=$bench
done
clusters=() alone=()
for case in ${CASES:-}; do
  if [ -n "${benches[$case]:-}" ]; then alone+=("$case"); else clusters+=("$case"); fi
done
[ -n "${CASES:-}" ] || alone=("${!benches[@]}")

export PYTHONPATH=operator:tests
lines=$(mktemp)
trap 'rm -f "$lines"' EXIT
failed=0
for release in $releases; do
  python=.venv-bench-$release/bin/python
  [ -x "$python" ] || { echo "bench-relief: $python is missing; run make bench-relief RELEASES=$release" >&2; exit 2; }
  for name in "${alone[@]}"; do
    echo "== $release $name"
    "$python" "${benches[$name]}" --json >"$lines" 2>/dev/null || { echo "$name failed on $release" >&2; failed=1; }
    .venv/bin/python tests/bench/relief/report.py --add "$lines" --release "$release" --source "$name"
  done
  if [ -z "${CASES:-}" ] || [ "${#clusters[@]}" -gt 0 ]; then
    echo "== $release clusters"
    cases=$(IFS=,; echo "${clusters[*]}")
    "$python" tests/bench/relief/run.py --repeats "$repeats" ${cases:+--cases "$cases"} >"$lines" || failed=1
    .venv/bin/python tests/bench/relief/report.py --add "$lines" --release "$release" --source clusters
  fi
done
.venv/bin/python tests/bench/relief/report.py
exit $failed
