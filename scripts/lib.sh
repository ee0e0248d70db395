# shellcheck shell=bash disable=SC2034
# Shared by install.sh and uninstall.sh: which cluster, what is there, and asking before a cluster of the user's is touched.

# shellcheck source-path=SCRIPTDIR source=../localnode/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../localnode/lib.sh" || exit 1

chart=$root/helm/dask-adaptive-operator
release=dask-adaptive
namespace=dask-adaptive
upstream_release=dask-operator
upstream_namespace=dask-operator
mark=dask-adaptive.dev/installed-by=install.sh # on what we make, so that uninstall.sh takes nothing else away
helm_mark=installed-by=dask-adaptive           # the same on Helm's record of upstream's release

# Sets where: "local" (the node of localnode/) or "own" (a cluster that the user's KUBECONFIG names).
choose_cluster() {
  local kubeconfig=$state/admin.kubeconfig
  if [ -n "${KUBECONFIG:-}" ] && ! [ "$KUBECONFIG" -ef "$kubeconfig" ]; then
    where=own
    if [ "$KUBECONFIG" -ef "${LOCALNODE_API_STATE:-$cache/api}/admin.kubeconfig" ]; then
      die "KUBECONFIG is that of the API without a node, where no pod runs; start the node with: eval \"\$(localnode/up.sh)\""
    fi
    PATH=$PATH:$bin
  else
    where=local
    export KUBECONFIG=$kubeconfig PATH=$bin:$PATH
    alive apiserver || die "the local node is not running; start it with: localnode/up.sh (or set KUBECONFIG to a cluster of your own)"
  fi
  if ! command -v helm >/dev/null || ! command -v kubectl >/dev/null; then die "helm or kubectl is missing; build both with: localnode/build.sh"; fi
  kubectl get --raw /readyz >/dev/null 2>&1 ||
    die "the cluster of context '$(kubectl config current-context 2>/dev/null || echo none)' does not answer; check KUBECONFIG=$KUBECONFIG with: kubectl get nodes"
  [ -f "$chart/Chart.yaml" ] || die "$chart is missing; use a complete checkout"
}

context() { echo "$(kubectl config current-context) ($(kubectl config view --minify --output 'jsonpath={.clusters[0].cluster.server}'))"; }

# A cluster of the user's is changed only after a yes.
confirm() {
  local reply=
  if [ "$where" = local ] || [ "${YES:-}" = 1 ]; then return; fi
  [ -t 0 ] || die "there is no terminal to ask at; set YES=1 to go on without"
  read -r -p "Go on? [y/N] " reply
  [[ $reply == [yY]* ]] || die "nothing was changed"
}

ours_upstream() { [ -n "$(helm list --namespace "$upstream_namespace" --selector "$helm_mark" --all --short 2>/dev/null)" ]; }

# dask-kubernetes may be there already, by Helm or not, and then it stays as it is.
foreign_upstream() {
  ! ours_upstream && [ -n "$(kubectl get deployments --all-namespaces --selector app.kubernetes.io/name=dask-kubernetes-operator --output name)" ]
}

# helm's output matters only when it fails; it warns about formats in upstream's CRDs, for instance.
quiet_helm() {
  local log
  log=$(mktemp)
  if helm "$@" >"$log" 2>&1; then
    rm -f "$log"
    return
  fi
  cat "$log" >&2
  rm -f "$log"
  return 1
}
