#!/bin/bash
# Remove what demo-k8s made: on the local node all of it, node included; on a KUBECONFIG of yours the demo and our chart.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
if [ -z "${KUBECONFIG:-}" ]; then
  "$root/localnode/down.sh" --wipe
  exit
fi
kubectl delete namespace dask-adaptive-demo --ignore-not-found --timeout=120s
"$root/scripts/uninstall.sh"
