#!/bin/bash
# Clusters whose workers Kueue admits, on the local node, which must be up. Kueue is built from its Go module, and removed again: its webhooks stop others.
#   tests/e2e/kueue.sh
#   KUEUE=VERSION KEEP=1 tests/e2e/kueue.sh    another version; Kueue stays
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../../scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/lib.sh"

version=${KUEUE:-0.17.0}
choose_cluster
[ "$where" = local ] || die "needs the local node: it imports an image (unset KUBECONFIG)"
"$root/localnode/load.sh" "kueue:$version"
"$root/scripts/install.sh"
say "installing kueue $version"
# shellcheck disable=SC2329 # called by the trap
uninstall() { # without Kueue nobody takes the finalizers of its objects away
  kubectl delete clusterqueues,resourceflavors --all --timeout=2m >/dev/null
  quiet_helm uninstall kueue --namespace kueue-system --wait
  kubectl delete namespace kueue-system --wait=false >/dev/null
}
[ "${KEEP:-}" = 1 ] || trap uninstall EXIT
quiet_helm upgrade --install kueue "$(kueue_module "$version")/charts/kueue" --namespace kueue-system --create-namespace --wait --values - <<END
controllerManager:
  manager:
    image: {repository: localhost/kueue, tag: $version, pullPolicy: IfNotPresent}
    resources: {requests: {cpu: 10m, memory: 64Mi}}
managerConfig:
  controllerManagerConfigYaml: |
    apiVersion: config.kueue.x-k8s.io/v1beta2
    kind: Configuration
    health: {healthProbeBindAddress: ":8081"}
    metrics: {bindAddress: ":8443"}
    webhook: {port: 9443}
    controller: {groupKindConcurrency: {Pod: 5, Workload.kueue.x-k8s.io: 5}}
    clientConnection: {qps: 50, burst: 100}
    integrations: {frameworks: [pod, deployment]}
    fairSharing:
      preemptionStrategies: [LessThanOrEqualToFinalShare, LessThanInitialShare]
END
DASK_ADAPTIVE_REQUIRE_K8S=1 "$root/.venv/bin/python" -m pytest -q "$root/tests/e2e/test_kueue.py" "$@"
