#!/bin/bash
# dask's and distributed's own tests under our agent. Fails if a test fails, or loses a worker, only with it.
#
#   make upstream-tests SUITE=dask [RELEASE=2026.8.0] [SELECTION=ci|by-value|all]
#   make upstream-tests SUITE=distributed DISTRIBUTED_SRC=path [RELEASE=2026.7.1] [REF=…]
#
# Also: GROUPS_OF="'dask/bag -k map' …" (arguments of pytest) instead of a selection, PROCESSES=2, TIMEOUT=180 (seconds
# a test), PYTEST_ARGS="…", AGENT=path/to/operator of another version, DASK_ADAPTIVE_RELIEF=pickling=Shared.
# dask's wheel holds its tests; they run through a cluster (upstream_dask_plugin.py). Those of distributed come from
# DISTRIBUTED_SRC, a git repository of it, bare or not, at REF (the tag of RELEASE); the code is that of the release
# as published. Nothing of either is kept in this repository.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
suite=${SUITE:-distributed}
case $suite in
  dask) release=${RELEASE:-2026.8.0} selection=${SELECTION:-ci} ;;
  distributed) release=${RELEASE:-2026.7.1} selection=${SELECTION:-all} ;;
  *) echo "upstream-tests: SUITE is dask or distributed" >&2; exit 2 ;;
esac
selection=tests/upstream_suites/$suite-$selection.txt
[ -e "$selection" ] || { echo "upstream-tests: there is no $selection" >&2; exit 2; }
venv=.venv-upstream-$release

# What these releases work with: their own metadata does not say.
case $release in
  2023.*) pins="pytest<8 pandas<2.1 numpy<2 pyarrow<15 bokeh<3.2" ;;
  2024.*) pins="pytest<8 pandas<2.3 numpy<2 pyarrow<17 bokeh<3.5" ;;
  2025.*) pins="pytest<9 pandas<3 pyarrow<20" ;;
  *) pins="pytest" ;;
esac
if [ ! -e "$venv/.ready" ]; then
  scripts/venv.sh "$venv" "dask[array,dataframe]==$release distributed==$release bokeh>=3.1 $pins" \
    "pytest-cov pytest-timeout pytest-rerunfailures pytest-xdist requests prometheus-client cryptography zstandard lz4 scipy setuptools<81"
  touch "$venv/.ready"
fi

plugins=(--plugin upstream_agent_plugin)
arguments=${PYTEST_ARGS:-}
processes=${PROCESSES:-1} timeout=${TIMEOUT:-60} # distributed's tests measure time, and like to be alone
if [ "$suite" = dask ]; then
  plugins+=(--plugin upstream_dask_plugin)
  processes=${PROCESSES:-2} timeout=${TIMEOUT:-180}
  folder=$("$venv/bin/python" -c 'import dask, os; print(os.path.realpath(os.path.join(dask.__file__, "../..")))')
  arguments="-c /dev/null --rootdir $folder --dist load $arguments" # not this repository's configuration
else
  source=${DISTRIBUTED_SRC:?DISTRIBUTED_SRC must name a git repository of distributed}
  ref=${REF:-$release}
  folder=$venv/suite
  commit=$(git -C "$source" rev-parse --verify --quiet "$ref^{commit}") ||
    { echo "upstream-tests: $source has no $ref; give REF, or fetch its tags" >&2; exit 2; }
  if [ "$(cat "$folder/.commit" 2>/dev/null)" != "$commit" ]; then
    rm -rf "$folder"
    mkdir -p "$folder"
    git -C "$source" archive "$commit" | tar --extract --directory "$folder"
    # The published package holds no tests; its modules, its version among them, go over those of the checkout.
    package=$("$venv/bin/python" -c 'import distributed, os; print(os.path.dirname(distributed.__file__))')
    cp -R "$package/." "$folder/distributed/"
    echo "$commit" >"$folder/.commit"
  fi
fi
if [ -n "${GROUPS_OF:-}" ]; then eval "groups=($GROUPS_OF)"; else mapfile -t groups < <(grep -v '^#' "$selection"); fi
ulimit -n "$(ulimit -Hn)" # distributed's tests open many sockets
exec "$venv/bin/python" tests/upstream_suites/compare.py "$folder" --release "$release" "${plugins[@]}" \
  --agent "${AGENT:-operator}" --logs "$venv/logs-$suite" --processes "$processes" \
  --timeout "$timeout" --known tests/upstream_suites/known.txt --args="$arguments" "${groups[@]}"
