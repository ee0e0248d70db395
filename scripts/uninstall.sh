#!/bin/bash
# Remove what install.sh installed; safe to run again. CRDs stay, and so do the objects of their kinds.
#   scripts/uninstall.sh           local node: both operators; a cluster of yours (KUBECONFIG): only dask-adaptive
#   ALL=1 scripts/uninstall.sh     also dask-kubernetes on a cluster of yours, if install.sh installed it
#   CRDS=1 scripts/uninstall.sh    also the CRDs, with all AdaptivePolicies (and DaskClusters, where dask-kubernetes goes too)
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

[ $# = 0 ] || die "takes no arguments, only ALL=1, CRDS=1 and YES=1 before it"

remove_namespace() { # only one that install.sh made, and that nobody else uses
  if [ -z "$(kubectl get namespaces --selector "$mark" --field-selector "metadata.name=$1" --output name)" ]; then return; fi
  local used
  used=$(kubectl --namespace "$1" get deployments,statefulsets,daemonsets,jobs --output name)
  if [ -n "$used" ]; then
    say "namespace $1 stays: it holds $(xargs <<<"$used")"
    return
  fi
  kubectl delete namespace "$1" --timeout=90s >/dev/null
}

remove_chart() { # RELEASE NAMESPACE
  local words=("$1" --namespace "$2" --ignore-not-found --wait --timeout 150s)
  if ! quiet_helm uninstall "${words[@]}"; then
    # Our chart's hook gives DaskAutoscalers back, with the operator's image, which may be gone.
    say "trying once more without hooks; DaskAutoscalers may stay adopted (dask-adaptive tidy gives them back)"
    quiet_helm uninstall "${words[@]}" --no-hooks || die "$1 could not be removed (see above)"
  fi
  remove_namespace "$2"
}

remove_crds() { # CHART: first the objects, kind by kind, while the operator still has all its kinds to work with
  local kind
  if [ -z "$crds" ] || [ ! -d "$1/crds" ]; then return; fi
  kubectl get --ignore-not-found --filename "$1/crds" --output name | while read -r kind; do
    kubectl delete "${kind#*/}" --all --all-namespaces --timeout=90s >/dev/null ||
      die "objects of ${kind#*/} could not be deleted (see above); is the operator that deletes them running?"
  done
  kubectl delete --ignore-not-found --timeout=90s --filename "$1/crds" >/dev/null
}

clusters() { { kubectl get daskclusters.kubernetes.dask.org --all-namespaces --output name 2>/dev/null || true; } | wc -l; }

choose_cluster
upstream=
if [ "$where" = local ] || [ "${ALL:-}" = 1 ]; then
  if ! foreign_upstream; then upstream=yes; fi
fi
crds=
if [ "${CRDS:-}" = 1 ]; then crds=yes; fi
say "cluster: $(context)"
say "will remove dask-adaptive${upstream:+ and dask-kubernetes}${crds:+, with their CRDs and all objects of those kinds}"
confirm
# Objects are deleted by their operator: kinds go before it does.
remove_crds "$root/helm/dask-adaptive-operator/files" # our chart has its CRDs in a template, which Helm keeps
remove_chart "$release" "$namespace"
if [ "$upstream" ]; then
  upstream_chart_folder=$(upstream_chart)
  remove_crds "$upstream_chart_folder"
  left=$(clusters)
  if ours_upstream && ((left > 0)); then
    die "dask-kubernetes stays: without it nobody could delete the $left DaskClusters that are left; delete them (kubectl delete daskclusters --all --all-namespaces) and run this again"
  fi
  remove_chart "$upstream_release" "$upstream_namespace"
fi
say "removed; CRDs $([ "$crds" ] && echo 'too' || echo 'stay (CRDS=1 removes them)')"
