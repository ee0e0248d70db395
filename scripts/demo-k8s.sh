#!/bin/bash
# The demo's four acts on a real Kubernetes node. Without KUBECONFIG: builds (once) and boots the local node.
# With KUBECONFIG: IMAGE=repo:tag (ours), DASK_IMAGE=repo:tag (Dask 2026.8.0 with pandas), YES=1 asks nothing.
#   demo-k8s.sh down    removes what it made: on the local node all of it, node included; on a KUBECONFIG of yours the demo and our chart
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
space=dask-adaptive-demo
say() { echo "demo-k8s: $*" >&2; }
step=0 steps=3
step() {
  step=$((step + 1))
  say "step $step of $steps: $*"
}

if [ "${1:-}" = down ]; then
  if [ -z "${KUBECONFIG:-}" ]; then exec "$root/localnode/down.sh" --wipe; fi
  kubectl delete namespace "$space" --ignore-not-found --timeout=120s
  exec "$root/scripts/uninstall.sh"
fi
if [ -z "${KUBECONFIG:-}" ]; then
  steps=4
  step "a Kubernetes node on this machine; the first time, its programs and images are built"
  "$root/localnode/packages.sh"
  node=$("$root/localnode/up.sh")
  eval "$node"
fi
export PATH=$root/.venv/bin:$PATH # kubectl finds its plugin dask-adaptive there
step "dask-kubernetes and dask-adaptive"
"$root/scripts/install.sh"

step "manifests/examples/cluster.yaml and policy.yaml in namespace $space"
kubectl create namespace "$space" --dry-run=client -o yaml | kubectl apply -f - >/dev/null
kubectl --namespace "$space" delete daskcluster,adaptivepolicy demo --ignore-not-found --wait --timeout=120s >/dev/null
until [ -z "$(kubectl --namespace "$space" get pods -o name)" ]; do sleep 1; done
sed "s|localhost/dask:2026.8.0|${DASK_IMAGE:-localhost/dask:2026.8.0}|" "$root/manifests/examples/cluster.yaml" |
  kubectl --namespace "$space" apply -f - >/dev/null
kubectl --namespace "$space" apply -f "$root/manifests/examples/policy.yaml" >/dev/null

say "waiting for the scheduler and the policy"
until kubectl --namespace "$space" get deployment demo-scheduler >/dev/null 2>&1; do sleep 0.5; done
kubectl --namespace "$space" rollout status deployment/demo-scheduler --timeout=180s >/dev/null
kubectl --namespace "$space" wait --for=condition=Ready adaptivepolicy/demo --timeout=60s >/dev/null

address=tcp://$(kubectl --namespace "$space" get service demo-scheduler -o jsonpath='{.spec.clusterIP}'):8786
forward=
if ! timeout 2 bash -c ": </dev/tcp/$(sed 's|tcp://||; s|:|/|' <<<"$address")" 2>/dev/null; then
  kubectl --namespace "$space" port-forward service/demo-scheduler 18786:8786 >/dev/null &
  forward=$!
  trap 'kill $forward 2>/dev/null' EXIT
  address=tcp://127.0.0.1:18786
  until timeout 1 bash -c ": </dev/tcp/127.0.0.1/18786" 2>/dev/null; do sleep 0.2; done
fi
step "the demo's four acts"
"$root/.venv/bin/python" "$root/scripts/demo_on_kubernetes.py" "$space" demo "$address"

cat <<T

The cluster stays up. Three commands to try:
  export KUBECONFIG=$KUBECONFIG PATH=$(dirname "$(command -v kubectl)"):$root/.venv/bin:\$PATH
  kubectl --namespace $space get dap --watch
  kubectl dask-adaptive explain demo --namespace $space
  kubectl --namespace $space describe dap demo
make demo-k8s-down removes everything.
T
