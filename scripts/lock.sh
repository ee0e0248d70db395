#!/bin/bash
# Write requirements.lock, what the image installs, and build.lock, what builds its wheel: every version with its hashes, for Python 3.11 and newer. No index is named: pip's own settings count.
# The newest versions that pyproject.toml allows; those that are locked stay, unless UPGRADE=1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
uv=$(command -v uv || echo .venv-uv/bin/uv) # scripts/venv.sh makes the latter
[ -x "$uv" ] || { echo "lock.sh: uv is missing; run 'make .venv/.dev' once" >&2; exit 1; }
export UV_CUSTOM_COMPILE_COMMAND="make lock"
compile=("$uv" pip compile --quiet --generate-hashes --universal --python-version 3.11 --no-emit-index-url --no-annotate ${UPGRADE:+--upgrade})
"${compile[@]}" --output-file requirements.lock pyproject.toml
# What builds the wheel, as pyproject.toml names it.
grep -m 1 '^requires = ' pyproject.toml | grep -o '[a-z-]*==[0-9.]*' | "${compile[@]}" --output-file build.lock -
