#!/bin/bash
# What workers cost and how long work waits, by idleTimeout: 13 made-up workloads in simulated time, 3 minutes on two quiet cores.
# Writes docs/benchmarks/idle.md and idle.svg.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHONPATH=operator:tests:tests/bench .venv-bench/bin/python tests/bench/economy/idle.py "$@"
