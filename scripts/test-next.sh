#!/bin/bash
# The newest releases of what we build on, in an environment of their own: what is new in sentences, then the tests that know upstream's code: the contract
# (the patches and their guards, and graphs whose results are compared with and without the agent) and what we rely on in dask-kubernetes.
#   PRE=1      pre-releases, too
#   ALWAYS=1   run the tests although nothing is newer
#   scripts/test-next.sh -x    arguments go to pytest
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
say() { echo "test-next: $*"; }
env=.venv-next
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

rm -rf "$env"
scripts/venv.sh "$env" "-e .[lab] -e operator/dask_adaptive_lab pytest>=8 pytest-asyncio>=1 pytest-cov pytest-timeout pytest-xdist hypothesis trustme" \
  "dask[array,dataframe] distributed dask-kubernetes kopf kubernetes ${PRE:+--pre}"
for one in .venv "$env"; do "$one/bin/python" scripts/next_releases.py look >"$work/$one.json" 2>"$work/log" || { cat "$work/log" >&2; exit 1; }; done
refused=0
.venv/bin/python scripts/next_releases.py compare "$work/.venv.json" "$work/$env.json" || refused=$?
if [ "${ALWAYS:-}" != 1 ] && ! .venv/bin/python scripts/next_releases.py newer "$work/.venv.json" "$work/$env.json"; then
  say "nothing is newer than what the tests run on, so they are not run again; ALWAYS=1 runs them"
  exit "$refused"
fi
code=0
"$env/bin/python" -m pytest -q -n 4 -m "not thorough" tests/contract "$@" || code=$?
release=$("$env/bin/python" -c 'import importlib.metadata as m; print(m.version("dask-kubernetes"))')
# Those of them that need an API server are skipped where there is none.
DASK_KUBERNETES=$release "$env/bin/python" -m pytest -q tests/api/test_dask_kubernetes.py "$@" || code=$?
((code == 0 && refused == 0)) || { say "the newest releases change what we rely on: see above"; exit 1; }
say "all passed on the newest releases"
