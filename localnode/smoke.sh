#!/bin/bash
# Prove the running node: upstream's chart, a DaskCluster, logs, exec, port-forward, webhooks, eviction, OOM kills, DNS.
# It works in the namespace "smoke" and removes it; upstream's operator is left as it was found.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export KUBECONFIG=$state/admin.kubeconfig PATH=$bin:$PATH
need_packages openssl:openssl
alive apiserver || die "the node is not running; start it with: localnode/up.sh"

tmp=$(mktemp -d)
forward=
cleanup() {
  if [ -n "$forward" ]; then kill "$forward" 2>/dev/null || true; fi
  rm -rf "$tmp"
}
trap cleanup EXIT
trap 'say "failed at line $LINENO; what the node holds: kubectl --namespace smoke get all"' ERR

k() { kubectl --namespace smoke "$@"; }
refused() { # TEXT COMMAND...: the command fails and says TEXT
  local text=$1 out
  shift
  if out=$("$@" 2>&1); then return 1; fi
  grep -F "$text" <<<"$out" >/dev/null
}
ok() {
  local now=${EPOCHREALTIME/./}
  printf '%3d.%d s  ok: %s\n' $(((now - began) / 1000000)) $(((now - began) / 100000 % 10)) "$1"
  began=$now
}
evict() {
  kubectl create --raw "/api/v1/namespaces/smoke/pods/$1/eviction" --filename - \
    <<<"{\"apiVersion\":\"policy/v1\",\"kind\":\"Eviction\",\"metadata\":{\"name\":\"$1\",\"namespace\":\"smoke\"}}"
}
count_is() { [ "$(k get pods -o name | wc -l)" = "$1" ]; }
gone() { ! k get pod "$1"; }
killed_for_memory() { k get pod greedy -o jsonpath='{.status.containerStatuses[0].state.terminated.reason}' | grep -x OOMKilled; }
healthy() { python3 -c 'import urllib.request as r; r.urlopen("http://127.0.0.1:18787/health", timeout=2)'; }

chart=$(upstream_chart)
began=${EPOCHREALTIME/./}
kubectl delete --ignore-not-found mutatingwebhookconfigurations,validatingwebhookconfigurations smoke >/dev/null
kubectl delete namespace smoke --ignore-not-found --timeout=90s >/dev/null
had_operator=$(helm list --namespace dask-operator --short)
if [ -z "$had_operator" ]; then
  helm upgrade --install dask-operator "$chart" --namespace dask-operator --create-namespace --wait --timeout 2m \
    --set "image.name=localhost/dask-kubernetes-operator,image.tag=$dask_kubernetes_version,image.pullPolicy=IfNotPresent" >/dev/null 2>"$tmp/helm" || { cat "$tmp/helm" >&2; die "upstream's operator did not become ready"; }
fi
ok "upstream's chart ${had_operator:+was already }installed, its operator available"

kubectl create namespace smoke >/dev/null
sed "s/DASK_VERSION/$dask_version/" "$here/smoke/daskcluster.yaml" | k apply --filename - >/dev/null
until_ok 30 "three pods" count_is 3
k wait --for=condition=Ready pods --all --timeout=60s >/dev/null
until_ok 30 "two workers" k exec deploy/smoke-scheduler -- python3 -c '
from distributed import Client
c = Client("tcp://smoke-scheduler.smoke.svc.cluster.local:8786", timeout=5)
assert len(c.scheduler_info()["workers"]) == 2 and c.submit(sum, [1, 2]).result() == 3'
ok "a DaskCluster with two workers computes (by its DNS name, through exec)"

k logs deploy/smoke-scheduler | grep "Scheduler at" >/dev/null
k port-forward service/smoke-scheduler 18787:8787 >/dev/null 2>&1 &
forward=$!
until_ok 10 "port-forward" healthy
kill "$forward"
forward=
ok "logs, port-forward"

openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=webhook -addext subjectAltName=DNS:webhook.smoke.svc -keyout "$tmp/key" -out "$tmp/crt" 2>/dev/null
k create secret tls webhook --cert="$tmp/crt" --key="$tmp/key" >/dev/null
k create configmap webhook --from-file="$here/smoke/webhook.py" >/dev/null
sed "s/DASK_VERSION/$dask_version/" "$here/smoke/pods.yaml" | k apply --filename - >/dev/null
k wait --for=condition=Ready pod/webhook --timeout=60s >/dev/null
sed "s/CA_BUNDLE/$(base64 -w0 <"$tmp/crt")/" "$here/smoke/admission.yaml" | kubectl apply --filename - >/dev/null
until_ok 20 "webhook reached" k create configmap changed # kube-proxy needs a second or two after Ready
[ "$(k get configmap changed -o jsonpath='{.metadata.labels.smoke}')" = mutated ]
refused "smoke says no" k create configmap refused
ok "mutating and validating webhooks are reached through a Service"

refused "disruption budget" evict webhook
worker=$(k get pods -l dask.org/component=worker -o jsonpath='{.items[0].metadata.name}')
evict "$worker" >/dev/null
until_ok 30 "evicted pod gone" gone "$worker"
ok "eviction: refused by a budget, granted without"

until_ok 30 "OOM kill" killed_for_memory
ok "a pod over its memory limit is OOMKilled"

kubectl delete mutatingwebhookconfigurations,validatingwebhookconfigurations smoke >/dev/null
kubectl delete namespace smoke --timeout=90s >/dev/null
if [ -z "$had_operator" ]; then
  helm uninstall dask-operator --namespace dask-operator --wait --timeout 1m >/dev/null
  kubectl delete namespace dask-operator --timeout=90s >/dev/null
fi
ok "removed"
