#!/bin/bash
# Node-hours by which workers leave, and where new ones start: 13 made-up workloads in simulated time, under 3 minutes on two cores.
# Writes docs/benchmarks/nodes.md and nodes.svg.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
PYTHONPATH=operator:tests:tests/bench .venv-bench/bin/python tests/bench/economy/nodes.py "$@"
