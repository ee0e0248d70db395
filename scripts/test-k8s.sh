#!/bin/bash
# All tests that need Kubernetes: chart and API (on an API server of their own), then end to end on a real node.
#   scripts/test-k8s.sh             boots the local node with nothing on it, installs both operators, and takes it down again (unless it was up, or KEEP=1)
#   KUBECONFIG=... scripts/test-k8s.sh   on a cluster of yours, which must have room for itself: the operator is killed, upgraded and removed there;
#                                   IMAGE=repo:tag (ours), DASK_IMAGE=repo:tag (Dask 2026.8.0 with pandas), YES=1 asks nothing
#   scripts/test-k8s.sh -k pin -x   arguments go to pytest; SKIP_API=1 runs the end-to-end part only
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

export DASK_ADAPTIVE_REQUIRE_K8S=1 # a test that finds no cluster fails
python=$root/.venv/bin/python
failed=()
cd "$root"

# part WHAT PYTEST-ARGUMENTS...: goes on after a failure, so that one run tells all.
part() {
  local what=$1 began=$SECONDS code=0
  shift
  say "$what"
  "$python" -m pytest -q --durations=5 "$@" || code=$?
  ((code == 0 || code == 5)) || failed+=("$what") # 5: -k left nothing to run
  say "$what: $((SECONDS - began)) s"
}

began=$SECONDS
if [ "${KUBECONFIG:-}" -ef "$state/admin.kubeconfig" ]; then unset KUBECONFIG; fi # the local node is what is used without one
given=${KUBECONFIG:-}
PATH=$PATH:$bin
[ -x "$python" ] || die ".venv is missing; make it with: make check"
was_up=
if [ -z "$given" ]; then
  if alive apiserver && alive kubelet; then was_up=yes; fi
  "$root/localnode/packages.sh"
fi

# What is booted here starts empty: an interrupted run, or one of another version, left kinds and namespaces behind.
if [ "${SKIP_API:-}" != 1 ]; then
  # Without KUBECONFIG these boot a small API server of their own: nothing there disturbs the node, nor the other way round.
  [ -z "$given" ] || say "API tests use the cluster of your KUBECONFIG, too"
  api_was_up=$(use_api && alive apiserver && echo yes || true)
  if [ -z "$given" ]; then # here and not in a test: the first time it takes longer than any test may
    say "booting an API server (the first time builds it: up to 20 minutes)"
    if [ -z "$api_was_up" ]; then "$root/localnode/down.sh" --api-only --wipe; fi
    "$root/localnode/up.sh" --api-only >/dev/null
  fi
  part "chart and API tests" -n 4 tests/chart tests/api tests/chaos/test_server.py "$@"
  if [ -z "$given" ] && [ -z "$api_was_up" ]; then "$root/localnode/down.sh" --api-only; fi
fi

if [ -z "$given" ]; then
  if [ -z "$was_up" ]; then "$root/localnode/down.sh" --wipe; fi # binaries and images stay
  say "booting the node (the first time builds it: up to 20 minutes)"
  node=$("$root/localnode/up.sh")
  eval "$node"
  if [ -z "$was_up" ] && [ "${KEEP:-}" != 1 ]; then trap '"$root/localnode/down.sh"' EXIT; fi
else
  say "all tests run on your cluster: $(kubectl config current-context), namespaces e2e-*"
fi
say "installing both operators"
"$root/scripts/install.sh" --set "scheduler.tls.secretNames={dask-tls}"

disturbing=(tests/e2e/test_budget.py tests/e2e/test_first_hour.py tests/e2e/test_kueue.py tests/e2e/test_nodes.py tests/e2e/test_operations.py tests/e2e/test_upgrade.py)
# Pods that live for a minute need others that start within it.
hasty=tests/e2e/test_recycle.py::test_no_task_starts_that_its_pod_does_not_outlive
part "end to end, five clusters at a time" -n 5 --maxschedchunk 1 tests/e2e "${disturbing[@]/#/--ignore=}" --deselect "$hasty" "$@"
part "end to end, one at a time: short-lived pods; who shares within 10 s; nodes; replicas, upgrade, uninstall; pages of the docs" "$hasty" tests/e2e/test_budget.py tests/e2e/test_nodes.py tests/e2e/test_operations.py tests/e2e/test_first_hour.py "$@"

if ((${#failed[@]})); then
  printf -v list '%s; ' "${failed[@]}"
  die "failed after $((SECONDS - began)) s: ${list%; }"
fi
say "all passed, $((SECONDS - began)) s"
