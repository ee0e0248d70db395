#!/bin/bash
# Install dask-kubernetes (where it is not there) and dask-adaptive; safe to run again, it upgrades.
#   scripts/install.sh                        on the local node (localnode/up.sh)
#   KUBECONFIG=... IMAGE=repo:tag scripts/install.sh   on a cluster of yours (or repo@sha256:...); says what it will create, then asks (YES=1: no question)
#   scripts/install.sh --set replicas=2       arguments go to Helm, for our chart
# UPSTREAM_IMAGE=repo:tag is upstream's image; on a cluster of yours it is the published one if not set.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

choose_images() {
  if [ "$where" = local ]; then
    if [ -z "${IMAGE:-}" ]; then
      IMAGE=localhost/dask-adaptive:$("$here/load.sh")
    fi
    UPSTREAM_IMAGE=${UPSTREAM_IMAGE:-localhost/dask-kubernetes-operator:$dask_kubernetes_version}
  else
    [ -n "${IMAGE:-}" ] || die "IMAGE is not set; give the image of dask-adaptive that your cluster can pull, as IMAGE=repo:tag (build it with: docker build .)"
    UPSTREAM_IMAGE=${UPSTREAM_IMAGE:-}
  fi
  local image
  for image in "$IMAGE" ${UPSTREAM_IMAGE:+"$UPSTREAM_IMAGE"}; do
    [[ $image == "$IMAGE" && $image == *@sha256:* ]] || [[ ${image##*/} == *:?* ]] || die "$image has no tag; give it as repo:tag"
  done
}

upstream_values() { # without an image given: the chart's own, which in a source tree lacks only its tag
  if [ "$UPSTREAM_IMAGE" ]; then
    echo "image.name=${UPSTREAM_IMAGE%:*},image.tag=${UPSTREAM_IMAGE##*:},image.pullPolicy=IfNotPresent"
  else
    echo "image.tag=$dask_kubernetes_version"
  fi
}

our_values() {
  if [[ $IMAGE == *@* ]]; then
    echo "image.repository=${IMAGE%@*},image.digest=${IMAGE##*@}"
  else
    echo "image.repository=${IMAGE%:*},image.tag=${IMAGE##*:}"
  fi
}

announce() {
  say "cluster: $(context)"
  if [ "$upstream" = foreign ]; then
    say "dask-kubernetes is there already and stays as it is"
  else
    say "will install dask-kubernetes $dask_kubernetes_version: release $upstream_release in namespace $upstream_namespace, image ${UPSTREAM_IMAGE:-of upstream}, its CRDs and cluster roles"
  fi
  say "will install dask-adaptive: release $release in namespace $namespace, image $IMAGE, its CRDs, cluster roles and webhooks"
}

make_namespace() {
  if kubectl get namespace "$1" >/dev/null 2>&1; then return; fi
  kubectl create namespace "$1" >/dev/null
  kubectl label namespace "$1" "$mark" >/dev/null
}

# Helm installs the CRDs of a chart once and never upgrades them.
apply_crds() { # CHART
  if [ -d "$1/crds" ]; then kubectl apply --server-side --force-conflicts --filename "$1/crds" >/dev/null; fi
}

install_chart() { # RELEASE NAMESPACE CHART ARGUMENTS...
  local name=$1 space=$2 from=$3
  shift 3
  [ -z "$(helm list --namespace "$space" --pending --short)" ] ||
    die "an earlier installation of $name was interrupted; remove it with scripts/uninstall.sh and run this again"
  make_namespace "$space"
  apply_crds "$from"
  if ! quiet_helm upgrade --install "$name" "$from" --namespace "$space" --skip-crds --wait --timeout "${TIMEOUT:-3m}" "$@"; then
    kubectl --namespace "$space" get pods >&2 || true
    kubectl --namespace "$space" logs --selector "app.kubernetes.io/instance=$name" --tail 20 >&2 || true
    die "$name did not become ready; its pods and last words are above"
  fi
}

choose_cluster
choose_images
if foreign_upstream; then upstream=foreign; else upstream=ours; fi
announce
confirm
if [ "$upstream" = ours ]; then
  upstream_chart_folder=$(upstream_chart)
  install_chart "$upstream_release" "$upstream_namespace" "$upstream_chart_folder" --labels "$helm_mark" \
    --set-string "$(upstream_values)"
fi
install_chart "$release" "$namespace" "$chart" \
  --set-string "$(our_values),image.pullPolicy=IfNotPresent" "$@"
say "installed; a DaskCluster becomes adaptive by an AdaptivePolicy, or by the annotation dask-adaptive.dev/max-replicas"
