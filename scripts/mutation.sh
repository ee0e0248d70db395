#!/bin/bash
# Mutation testing of the planner: change its code in one place at a time, and see whether a unit
# test notices. Without arguments: all modules, from nothing, and docs/contributing/mutation.md is
# written. mutation.sh MODULE...: only those (caps, memory, ...), over what the last run left; the
# table is printed. CHILDREN (2): mutants judged at a time. mutmut's settings: pyproject.toml.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$PWD/.venv-mutation/bin
work=.cache/mutation

# A copy: mutmut takes names of modules from paths below src/, and the tree may be worked on.
[ $# -gt 0 ] || rm -rf "$work"
mkdir -p "$work"
rm -rf "$work/src" "$work/tests"
mkdir -p "$work/src" "$work/tests/unit"
cp -rp operator/dask_adaptive operator/dask_adaptive_agent operator/dask_adaptive_lab "$work/src"
cp -rp tests/support "$work/tests"
cp -p tests/unit/conftest.py "$work/tests/unit"
cp -rp tests/unit/planner "$work/tests/unit"
rm -rf "$work/mutants/tests" # mutmut copies them anew, but takes none away
sed -e 's|^pythonpath = .*|pythonpath = ["src", "tests"]|' -e 's|^mypy_path = .*|mypy_path = "src"|' \
  pyproject.toml >"$work/pyproject.toml"

modules=("${@/#/dask_adaptive.planner.}")
(
  cd "$work"
  export HYPOTHESIS_PROFILE=mutation PATH="$bin:$PATH"
  nice -n 15 "$bin/mutmut" run --max-children "${CHILDREN:-2}" "${modules[@]/%/.x*}" >run.log ||
    { tr '\r' '\n' <run.log | tail -n 100; exit 1; }
)
if [ $# -gt 0 ]; then
  "$bin/python" scripts/mutation_report.py "$work" "$@"
else
  "$bin/python" scripts/mutation_report.py "$work" --write docs/contributing/mutation.md
fi
