#!/bin/bash
# Make or bring up to date a virtual environment: venv.sh DIR "PACKAGES" ["MORE PACKAGES"].
# PYTHON chooses the interpreter: 3.9 or newer for the agent, 3.11 or newer for the operator.
# uv installs several times faster than pip. Where it cannot (it does not read pip's configuration), pip does it.
set -euo pipefail
dir=$1
shift
python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' ||
  { echo "venv.sh: $("$python" --version) is too old; set PYTHON to Python 3.9 or newer" >&2; exit 1; }
if [ ! -x "$dir/bin/python" ]; then
  echo "making $dir ($("$python" --version))"
  "$python" -m venv "$dir"
fi
uv=$(command -v uv || true)
if [ -z "$uv" ]; then
  uv=.venv-uv/bin/uv
  ( # several of us may run at once: one makes it
    flock 9 2>/dev/null || true
    [ -x "$uv" ] || { "$python" -m venv .venv-uv && .venv-uv/bin/python -m pip install --quiet --disable-pip-version-check uv; } || true
  ) 9>.venv-uv.lock
fi
read -ra packages <<<"$*"
echo "installing into $dir (a minute or two the first time): $*"
"$uv" pip install --quiet --python "$dir/bin/python" "${packages[@]}" ||
  "$dir/bin/python" -m pip install --quiet --disable-pip-version-check "${packages[@]}"
