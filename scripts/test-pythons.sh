#!/bin/bash
# On each Python: both wheels installed by pip into clean environments, then the tests. What passes is recorded, and the tables in README.md and
# docs/reference/versions.md are made from that (scripts/versions.py).
#   PYTHONS="3.12 3.14"           only these, of the operator; default: 3.11 to 3.14; "" none
#   AGENT_PYTHONS="3.9"           only these, of the agent; default: 3.9 to 3.14; "" none
#   scripts/test-pythons.sh -x    arguments go to pytest
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../localnode/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../localnode/lib.sh"

pythons=${PYTHONS-3.11 3.12 3.13 3.14}
agent_pythons=${AGENT_PYTHONS-3.9 3.10 3.11 3.12 3.13 3.14}
oldest=2023.5.0 newest=$dask_version
tools="cronsim msgspec rich tzdata pytest>=8 pytest-asyncio>=1 pytest-timeout pytest-xdist hypothesis trustme"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=()
cd "$root"

# tried WHAT COMMAND...: goes on after a failure, so that one run tells all. `set -e` does not count inside: steps are chained.
tried() {
  local what=$1 began=$SECONDS
  shift
  say "$what"
  "$@" || failed+=("$what")
  say "$what: $((SECONDS - began)) s"
}

# installs PYTHON NAME PACKAGE...: a clean environment, by pip alone; fails if requirements do not fit together.
installs() {
  local python=$1 at=$work/$2
  shift 2
  "$python" -m venv "$at" &&
    "$at/bin/python" -m pip install --quiet --disable-pip-version-check "$@" &&
    "$at/bin/python" -m pip check
}

full() { "$1" -c 'import platform; print(platform.python_version())'; }

# tests ENVIRONMENT RESULT PYTEST-ARGUMENTS...: pytest's own exit code is that of the record. What compares the claims with the record comes after it.
tests() {
  "$1/bin/python" -m pytest -q -n 4 -m "not thorough and not long" --junitxml="$2" \
    --deselect tests/unit/test_package.py::test_every_python_that_is_claimed_has_passed "${@:3}" || true
}

operator() {
  local python result=$work/operator-$1.xml
  python=$(scripts/python.sh "$1") &&
    installs "$python" "operator-$1" "$work"/dask_adaptive-*.whl "$work"/dask_adaptive_lab-*.whl &&
    "$work/operator-$1/bin/dask-adaptive" rehearse --help >/dev/null &&
    PYTHON=$python scripts/venv.sh ".venv-py$1" "-e .[lab,dev] -e operator/dask_adaptive_lab" "dask[array,dataframe]==$newest distributed==$newest" &&
    tests ".venv-py$1" "$result" tests/unit tests/contract "${@:2}" &&
    scripts/versions.py record python "$(full "$python")" "$result"
}

# The oldest release of distributed on a Python of its time, else the newest.
agent() {
  local python dask result=$work/agent-$1.xml
  case $1 in
  3.9 | 3.10 | 3.11) dask="dask[array,dataframe]==$oldest distributed==$oldest pandas<2.1 pyarrow<13 numpy<2" ;;
  *) dask="dask[array,dataframe]==$newest distributed==$newest" ;;
  esac
  python=$(scripts/python.sh "$1") &&
    installs "$python" "agent-$1" "$work"/dask_adaptive_agent-*.whl "$(grep -o 'distributed==[0-9.]*' <<<"$dask")" &&
    say "the agent and all that it needs: $(du -sm --exclude=pip --exclude=setuptools "$work/agent-$1/lib" | cut -f1) MB" &&
    (cd "$work" && "agent-$1/bin/python" "$root/tests/agent_alone/pinned_example.py") &&
    PYTHON=$python scripts/venv.sh ".venv-agent-py$1" "$tools" "$dask" &&
    tests ".venv-agent-py$1" "$result" tests/contract "${@:2}" &&
    scripts/versions.py record agent "$(full "$python")" "$result"
}

for folder in . operator operator/dask_adaptive_lab; do
  "$(command -v uv || echo .venv-uv/bin/uv)" build --quiet --out-dir "$work" "$folder"
done
for version in $pythons; do tried "the operator on Python $version" operator "$version" "$@"; done
for version in $agent_pythons; do tried "the agent on Python $version" agent "$version" "$@"; done
((${#failed[@]} == 0)) || die "failed: $(printf '%s; ' "${failed[@]}")"
