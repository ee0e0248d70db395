#!/bin/bash
# Tests on a real kube-apiserver of each Kubernetes version, then on the newest with each release of dask-kubernetes. What passes is recorded, and the
# tables in README.md and docs/reference/versions.md are made from that (scripts/versions.py). Builds an apiserver the first time: 2 to 5 minutes each.
#   VERSIONS="1.30.14 1.37.2"      only these; default: localnode/versions.txt; "" none
#   DASK_KUBERNETES="2023.6.0"     only these; default: below; "" none
#   scripts/test-versions.sh -x    arguments go to pytest
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

export DASK_ADAPTIVE_REQUIRE_K8S=1 # a test that finds no server fails
versions=${VERSIONS-$(grep -v '^#' "$root/localnode/versions.txt" | xargs)}
# The CRDs have been the same, byte for byte, since 2023.6.0, the first release whose workers are Deployments. These releases are those that changed
# what makes a worker, scales a group or rests an autoscaler, and the newest.
releases=${DASK_KUBERNETES-2023.6.0 2023.9.0 2024.3.1 2024.5.0 2024.9.0 2025.1.1 2025.7.0 2026.3.0}
unset DASK_KUBERNETES KUBECONFIG
export LOCALNODE_API_STATE=${LOCALNODE_API_STATE:-$cache/api-versions} LOCALNODE_API_PORT=${LOCALNODE_API_PORT:-16543} \
  LOCALNODE_API_ETCD_PORT=${LOCALNODE_API_ETCD_PORT:-12479}
python=$root/.venv/bin/python
results=$(mktemp -d)
failed=()
cd "$root"
[ "$EUID" != 0 ] || "$root/localnode/packages.sh" # who may not install is told what is missing

down() { "$root/localnode/down.sh" --api-only --wipe; }
trap 'down; rm -rf "$results"' EXIT

# on VERSION: an empty server of that version
on() {
  "$root/localnode/apiserver.sh" "$1"
  down
  server=$(LOCALNODE_APISERVER=$cache/bin-apiserver-$1/kube-apiserver "$root/localnode/up.sh" --api-only)
  eval "$server"
}

# tried PART VERSION PYTEST-ARGUMENTS...: goes on after a failure, so that one run tells all.
tried() {
  local part=$1 version=$2 began=$SECONDS
  shift 2
  say "$part $version"
  "$python" -m pytest -q -n 4 --junitxml="$results/$part.xml" "$@" || true
  scripts/versions.py record "$part" "$version" "$results/$part.xml" || failed+=("$part $version")
  rm -f "$results/$part.xml"
  say "$part $version: $((SECONDS - began)) s"
}

for version in $versions; do
  on "$version"
  KUBE_VERSION=$version tried kubernetes "$version" tests/chart tests/api tests/chaos/test_server.py "$@"
done
if [ -n "$releases" ]; then on "$(grep -v '^#' "$root/localnode/versions.txt" | tail -n 1)"; fi
for release in $releases; do
  DASK_KUBERNETES=$release tried dask-kubernetes "$release" \
    tests/api/test_dask_kubernetes.py tests/api/test_adoption.py tests/api/test_recycle.py tests/api/test_crd.py "$@"
done
((${#failed[@]} == 0)) || die "failed, so no table claims them: $(printf '%s; ' "${failed[@]}")"
