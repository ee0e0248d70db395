#!/bin/bash
# distributed's own tests, without our agent and with it. Fails if a test fails only with it.
#
#   make upstream-tests DISTRIBUTED_SRC=path [RELEASE=2026.7.1] [REF=…] [MODULES="…"] [PROCESSES=1] [TIMEOUT=60] [PYTEST_ARGS="…"]
#
# DISTRIBUTED_SRC is a git repository of distributed, bare or not. The tests are those of REF (the tag of
# RELEASE, if not given), the code is that of the release as published. Nothing of either is kept in this repository.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
release=${RELEASE:-2026.7.1}
ref=${REF:-$release}
source=${DISTRIBUTED_SRC:?DISTRIBUTED_SRC must name a git repository of distributed}
modules=${MODULES:-tests/test_scheduler.py tests/test_client.py tests/test_worker.py tests/test_steal.py shuffle/tests deploy/tests/test_adaptive.py deploy/tests/test_adaptive_core.py}
venv=.venv-upstream-$release
suite=$venv/suite

# What these releases work with: their own metadata does not say.
case $release in
  2023.*) pins="pytest<8 pandas<2.1 numpy<2 pyarrow<15 bokeh<3.2" ;;
  2024.*) pins="pytest<8 pandas<2.3 numpy<2 pyarrow<17 bokeh<3.5" ;;
  2025.*) pins="pytest<9 pandas<3 pyarrow<20" ;;
  *) pins="pytest" ;;
esac
if [ ! -e "$venv/.ready" ]; then
  scripts/venv.sh "$venv" "dask[array,dataframe]==$release distributed==$release bokeh>=3.1 $pins" \
    "pytest-cov pytest-timeout pytest-rerunfailures pytest-xdist requests prometheus-client cryptography zstandard lz4 setuptools<81"
  touch "$venv/.ready"
fi

commit=$(git -C "$source" rev-parse --verify --quiet "$ref^{commit}") ||
  { echo "upstream-tests: $source has no $ref; give REF, or fetch its tags" >&2; exit 2; }
if [ "$(cat "$suite/.commit" 2>/dev/null)" != "$commit" ]; then
  rm -rf "$suite"
  mkdir -p "$suite"
  git -C "$source" archive "$commit" | tar --extract --directory "$suite"
  # The published package holds no tests; its modules, its version among them, go over those of the checkout.
  package=$("$venv/bin/python" -c 'import distributed, os; print(os.path.dirname(distributed.__file__))')
  cp -R "$package/." "$suite/distributed/"
  echo "$commit" >"$suite/.commit"
fi
ulimit -n "$(ulimit -Hn)" # its tests open many sockets
exec "$venv/bin/python" scripts/upstream_compare.py "$suite" --release "$release" --processes "${PROCESSES:-1}" \
  --timeout "${TIMEOUT:-60}" --known scripts/upstream-known.txt --args="${PYTEST_ARGS:-}" $modules
