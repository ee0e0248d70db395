"""
The agent as one zip file: the same sources give the same bytes, and its name says which. And the
hook that runs in a worker's pod before it ends, as text: it finds and starts Python.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any

#: POSIX sh, for dash and busybox alike. `{zip}` is where the agent is mounted.
LEAVE_SOURCE = """\
#!/bin/sh
# This pod is about to end. Have its Dask workers hand over their work, and wait until they have.
# The pod ends all the same, so this never fails; nor by a signal, which its programs ignore, too.
#   leave.sh [--kill-after SECONDS] [what the agent's `leave` takes]
trap '' HUP INT TERM
{{ read -r began _ </proc/uptime; }} 2>/dev/null # the time counts, however slowly Python starts
zip={zip}
log=/proc/1/fd/1
kill_after=
if [ "${{1:-}}" = --kill-after ]; then
  kill_after=$2
  shift 2
fi

# Takes $1 if it is a Python that has what the agent needs.
py=
take() {{
  [ -z "$py" ] && [ -n "$1" ] || return 0
  "$1" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("distributed") is None)' \\
    >/dev/null 2>&1 && py=$1
  return 0
}}

# The words of a process's command line, one a line; it may have ended meanwhile.
words() {{
  {{ tr '\\000' '\\n' <"$1/cmdline"; }} 2>/dev/null
}}

# First the Python that runs the worker, which PATH need not know (a virtual environment, conda).
for process in /proc/[0-9]*; do
  case $(words "$process") in
  *dask*worker*)
    # With setproctitle installed, a worker has another command line (distributed.proctitle).
    for word in "$(words "$process" | head -n 1)" "$(readlink "$process/exe" 2>/dev/null)"; do
      case ${{word##*/}} in
      python* | pypy*) take "$word" ;;
      esac
    done
    ;;
  esac
done
# Then the one that the program `dask` names in its first line.
dask=$(command -v dask 2>/dev/null)
if [ -n "$dask" ]; then
  read -r first <"$dask" 2>/dev/null
  case $first in
  '#!'*) take "${{first#??}}" ;;
  esac
fi
take python3
take python

if [ -n "$py" ]; then
  "$py" "$zip" leave ${{began:+--since "$began"}} "$@"
else
  # Into the container's log: nobody sees what a hook prints.
  (echo "dask-adaptive: no Python with distributed was found: nothing is handed over" >>"$log") \\
    2>/dev/null
fi

# Now comes SIGTERM. A worker may hang then: one that still waits for its scheduler never ends
# (Nanny.close). It used to be killed after Kubernetes' 30 s; the longer grace that we gave this pod
# is for the above. Process 1 can't be killed from here, but a nanny ends with its worker.
mine=$(readlink /proc/self/ns/mnt 2>/dev/null)
if [ -n "$kill_after" ] && [ -n "$mine" ]; then
  (
    trap '' HUP TERM
    self=$(exec sh -c 'echo "$PPID"')
    sleep "$kill_after"
    for process in /proc/[0-9]*; do
      pid=${{process##*/}}
      case $pid in
      1 | "$self") continue ;;
      esac
      # Of this container alone: pods may share processes among containers, or with the node.
      [ "$(readlink "$process/ns/mnt" 2>/dev/null)" = "$mine" ] && kill -9 "$pid"
    done
  ) </dev/null >/dev/null 2>&1 &
fi
exit 0
"""

PACKAGE = "dask_adaptive_agent"
MOUNT = "/opt/dask-adaptive"
ZIP = "agent.zip"
BOOT = "dask_adaptive_boot.py"
LEAVE = "leave.sh"

BOOT_PATH = f"{MOUNT}/{BOOT}"
LEAVE_PATH = f"{MOUNT}/{LEAVE}"
PRELOAD = "DASK_DISTRIBUTED__SCHEDULER__PRELOAD"

#: What a scheduler preloads. By path, so that PYTHONPATH, which the image may set itself, is left
#: alone; and guarded, because an error at import would end the scheduler (exit 1). Dask executes a
#: preload that is a path twice: import and reload (distributed.utils.import_file).
BOOT_SOURCE = f'''\
"""Bring the dask-adaptive agent into this scheduler. Must never raise."""
import logging
import os
import sys

_log = logging.getLogger("distributed.dask_adaptive")
if "{MOUNT}/{ZIP}" not in sys.path:
    sys.path.append("{MOUNT}/{ZIP}")  # last: it must not shadow anything


def _preloads_of_image():
    """What the image's own Dask configuration files preload: our variable outranks them."""
    from dask.config import collect
    from distributed.preloading import process_preloads

    if os.environ.get("{PRELOAD}") != "{BOOT_PATH}":
        return []  # the user's own variable, joined with ours, outranked them before
    env = {{k: v for k, v in os.environ.items() if k != "{PRELOAD}"}}
    scheduler = collect(env=env).get("distributed", {{}}).get("scheduler", {{}})
    return list(process_preloads(None, scheduler.get("preload") or [], []))


if "_others" not in globals():
    _others, _agent = [], None
    try:
        _others = _preloads_of_image()
    except Exception:
        _log.exception("Preloads of the image's own configuration can't be loaded")
    try:
        from dask_adaptive_agent import preload as _agent
    except Exception:
        _log.exception("The dask-adaptive agent can't be loaded; this scheduler runs without it")


async def dask_setup(scheduler):
    for other in _others:
        try:
            other.dask_object = scheduler
            await other.start()
        except Exception:
            _log.exception("Preload %s failed", other.name)
    if _agent is not None:
        await _agent.dask_setup(scheduler)


async def dask_teardown(scheduler):
    for other in reversed(_others):
        try:
            await other.teardown()
        except Exception:
            _log.exception("Preload %s failed", other.name)
'''

#: What `python agent.zip` runs: the hook of a worker's pod does.
MAIN = "__main__.py"
MAIN_SOURCE = """\
import sys

from dask_adaptive_agent.worker_side.prestop import main

sys.exit(main(sys.argv[1:]))
"""


@dataclass(frozen=True, slots=True)
class Bundle:
    """What is mounted into a scheduler, and into a worker."""

    name: str  # of the ConfigMap; another content has another name
    zip: str  # base64
    texts: tuple[tuple[str, str], ...]  # other files: name, content


@functools.lru_cache(maxsize=1)
def bundle() -> Bundle:
    """The agent that this operator brings."""
    content = agent_zip()
    texts = ((BOOT, BOOT_SOURCE), (LEAVE, LEAVE_SOURCE.format(zip=f"{MOUNT}/{ZIP}")))
    digest = hashlib.sha256(content + str(texts).encode()).hexdigest()[:8]
    return Bundle(f"dask-adaptive-agent-{digest}", base64.b64encode(content).decode(), texts)


def agent_zip() -> bytes:
    """All sources of the agent; stored, not deflated, for images whose Python has no zlib."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        sources = _sources(resources.files(PACKAGE), PACKAGE)
        for name, content in sorted([(MAIN, MAIN_SOURCE.encode()), *sources]):
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content)
    return packed.getvalue()


def _sources(folder: Any, prefix: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        name = f"{prefix}/{entry.name}"
        if entry.is_dir() and entry.name != "__pycache__":
            yield from _sources(entry, name)
        elif entry.name.endswith(".py"):
            yield name, entry.read_bytes()
