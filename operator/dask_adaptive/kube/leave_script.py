"""The hook that runs in a worker's pod before it ends, as text: it finds and starts Python."""

from __future__ import annotations

#: POSIX sh, for dash and busybox alike. `{zip}` is where the agent is mounted.
LEAVE_SOURCE = """\
#!/bin/sh
# This pod is about to end. Have its Dask workers hand over their work, and wait until they have.
# The pod ends all the same, so this never fails.
#   leave.sh [--kill-after SECONDS] [what the agent's `leave` takes]
# Nor by a signal: what it starts ignores them as well.
trap '' HUP INT TERM
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
  "$py" "$zip" leave "$@"
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
