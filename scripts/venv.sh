#!/bin/bash
# Make or bring up to date a virtual environment: venv.sh DIR "PACKAGES" ["MORE PACKAGES"].
# PYTHON chooses the interpreter (3.10 or newer; 3.11 is what we test most).
set -euo pipefail
dir=$1
shift
python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
  { echo "venv.sh: $("$python" --version) is too old; set PYTHON to Python 3.10 or newer" >&2; exit 1; }
if [ ! -x "$dir/bin/python" ]; then
  echo "making $dir ($("$python" --version))"
  "$python" -m venv "$dir"
fi
read -ra packages <<<"$*"
echo "installing into $dir (a minute or two the first time): $*"
"$dir/bin/python" -m pip install --quiet --disable-pip-version-check "${packages[@]}"
