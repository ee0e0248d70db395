#!/bin/bash
# Start a single-node Kubernetes, or bring back what died; safe to run again. See README.md.
#   eval "$(localnode/up.sh)"              the node: builds what is missing, imports the images, prints KUBECONFIG and PATH
#   eval "$(localnode/up.sh --api-only)"   only etcd and the apiserver, on other ports, without root
#   --no-build                             take binaries and images as they are
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

api_only=
may_build=yes
for argument in "$@"; do
  case $argument in
  --api-only) api_only=yes ;;
  --no-build) may_build= ;;
  *) die "$argument is unknown; it takes --api-only and --no-build" ;;
  esac
done
if [ "$api_only" ]; then use_api; fi

### before anything is changed: what would fail later

preflight() {
  local b
  need_linux
  if [ "$api_only" ]; then
    need_packages "${packages_api[@]}"
  else
    need_root
    need_packages "${packages_node[@]}" ${may_build:+"${packages_images[@]}"}
    # A unix socket's path ends at 108 bytes; containerd appends its own names.
    ((${#run} <= 60)) || die "LOCALNODE_RUN=$run is too long for the paths of sockets (60 characters at most)"
  fi
  if [ "$may_build" ]; then
    "$here/build.sh"
    if [ ! "$api_only" ]; then
      "$here/images.sh" || die "images could not be built (see above); --no-build starts with those that are there"
    fi
  fi
  for b in "${binaries[@]}"; do
    [ -x "$bin/$b" ] || die "$bin/$b is missing; build it with: localnode/build.sh"
  done
  [ -x "${LOCALNODE_APISERVER:-$bin/kube-apiserver}" ] || die "LOCALNODE_APISERVER=$LOCALNODE_APISERVER is no program; build it with: localnode/apiserver.sh"
  need_disk "$state" "$([ "$api_only" ] && echo 1 || echo 4)" "$instance's state"
}

need_ports() {
  alive etcd || { need_port "$etcd_port" etcd "$etcd_port_variable" 127.0.0.1; need_port $((etcd_port + 1)) "etcd's peers" "$etcd_port_variable" 127.0.0.1; }
  alive apiserver || need_port "$port" kube-apiserver "$port_variable"
  if [ "$api_only" ]; then return; fi
  alive controller-manager || need_port 10257 kube-controller-manager
  alive scheduler || need_port 10259 kube-scheduler
  alive kubelet || { need_port 10250 kubelet; need_port 10248 "kubelet's health" "" 127.0.0.1; }
  alive proxy || { need_port 10249 kube-proxy "" 127.0.0.1; need_port 10256 "kube-proxy's health"; }
  alive coredns || need_port 53 CoreDNS "" "$dns_ip"
}

### certificates: the CA and the service-account key stay, leaf certificates are made anew when the apiserver starts

ec=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)

authority() {
  if [ -f "$pki/complete" ]; then return; fi # written last: a half-made pki is made again
  openssl req -x509 "${ec[@]}" -keyout "$pki/ca.key" -out "$pki/ca.crt" -subj /CN=localnode -days 3650 2>/dev/null
  openssl ecparam -name prime256v1 -genkey -noout -out "$pki/sa.key"
  openssl ec -in "$pki/sa.key" -pubout -out "$pki/sa.pub" 2>/dev/null
  touch "$pki/complete"
}

leaf() { # NAME SUBJECT SAN
  openssl req "${ec[@]}" -keyout "$pki/$1.key" -out "$pki/$1.csr" -subj "$2" 2>/dev/null
  openssl x509 -req -in "$pki/$1.csr" -CA "$pki/ca.crt" -CAkey "$pki/ca.key" -CAcreateserial -out "$pki/$1.crt" \
    -days 365 -extfile <(echo "subjectAltName=$3") 2>/dev/null
}

kubeconfig() { # NAME; the certificates inside, so that the file can be copied
  cat >"$state/$1.kubeconfig.part" <<Y
apiVersion: v1
kind: Config
clusters: [{name: $node, cluster: {server: "https://127.0.0.1:$port", certificate-authority-data: $(base64 -w0 <"$pki/ca.crt")}}]
users: [{name: $1, user: {client-certificate-data: $(base64 -w0 <"$pki/$1.crt"), client-key-data: $(base64 -w0 <"$pki/$1.key")}}]
contexts: [{name: $node, context: {cluster: $node, user: $1}}]
current-context: $node
Y
  mv "$state/$1.kubeconfig.part" "$state/$1.kubeconfig"
}

certificates() {
  authority
  leaf apiserver /CN=kube-apiserver "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:localhost,IP:$service_ip,IP:127.0.0.1,IP:$host_ip"
  leaf admin /O=system:masters/CN=admin DNS:admin
  kubeconfig admin
  if [ "$api_only" ]; then return; fi
  leaf kubelet "/O=system:nodes/CN=system:node:$node" "DNS:$node,IP:$host_ip"
  kubeconfig kubelet
}

### control plane

start_apiserver() {
  local own=()
  if [ "$api_only" ]; then
    # No controller makes default service accounts there, so creating a pod must not ask for one.
    own=(--bind-address=127.0.0.1 --advertise-address="$host_ip" --endpoint-reconciler-type=none --disable-admission-plugins=ServiceAccount)
  else
    # The node's name does not resolve on the host: kubelet is reached by its address.
    own=(--advertise-address="$host_ip" --kubelet-client-certificate="$pki/admin.crt" --kubelet-client-key="$pki/admin.key"
      --kubelet-preferred-address-types=InternalIP)
  fi
  start etcd etcd --data-dir "$state/etcd" --unsafe-no-fsync --listen-client-urls "http://127.0.0.1:$etcd_port" \
    --advertise-client-urls "http://127.0.0.1:$etcd_port" --listen-peer-urls "http://127.0.0.1:$((etcd_port + 1))" \
    --initial-advertise-peer-urls "http://127.0.0.1:$((etcd_port + 1))" --initial-cluster "default=http://127.0.0.1:$((etcd_port + 1))"
  until_up 20 etcd "etcd listening" listening 127.0.0.1 "$etcd_port"
  start apiserver "${LOCALNODE_APISERVER:-kube-apiserver}" --etcd-servers="http://127.0.0.1:$etcd_port" --secure-port="$port" \
    --service-cluster-ip-range="$service_cidr" --authorization-mode=Node,RBAC --allow-privileged=true \
    --client-ca-file="$pki/ca.crt" --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" \
    --service-account-issuer=https://kubernetes.default.svc --service-account-key-file="$pki/sa.pub" \
    --service-account-signing-key-file="$pki/sa.key" "${own[@]}"
}

apiserver_ready() {
  until_up 60 apiserver "apiserver listening" listening 127.0.0.1 "$port"
  until_up 60 apiserver "apiserver ready" kubectl get --raw /readyz
}

start_controllers() {
  start controller-manager kube-controller-manager --kubeconfig="$KUBECONFIG" --leader-elect=false --use-service-account-credentials=true \
    --service-account-private-key-file="$pki/sa.key" --root-ca-file="$pki/ca.crt" --allocate-node-cidrs=true --cluster-cidr=10.244.0.0/16
  start scheduler kube-scheduler --kubeconfig="$KUBECONFIG" --leader-elect=false
}

### what the machine needs; what was there before is noted, for down.sh to put it back

prepare_machine() {
  local path
  if [ ! -f "$state/sysctl" ]; then sysctl -e "${sysctls[@]}" >"$state/sysctl" 2>/dev/null || true; fi
  if [ ! -f "$state/made" ]; then
    for path in "${outside[@]}"; do [ -e "$path" ] || echo "$path"; done >"$state/made"
  fi
  # Without it, pods do not reach a Service whose pod is on the same bridge.
  [ -e /proc/sys/net/bridge ] || modprobe br_netfilter 2>/dev/null || say "warning: no br_netfilter in this kernel; Services may not be reached from pods"
  if [ -e /proc/sys/net/bridge/bridge-nf-call-iptables ]; then sysctl -qw net.bridge.bridge-nf-call-iptables=1; fi
  sysctl -qw net.ipv4.ip_forward=1
  ip address replace "$dns_ip/32" dev lo
}

### containers

start_containerd() {
  cat >"$state/cni/10-localnode.conflist" <<Y
{"cniVersion": "0.4.0", "name": "localnode", "plugins": [
  {"type": "bridge", "bridge": "$bridge", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "$state/cni/ipam", "ranges": [[{"subnet": "$pod_cidr"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
Y
  # restrict_oom_score_adj: without CAP_SYS_RESOURCE runc can't lower a score, and no pod would start.
  cat >"$state/containerd.toml" <<Y
version = 2
root = "$state/containerd"
state = "$run/containerd"
[grpc]
  address = "$run/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "$state/containerd-opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$state/cni"
Y
  start containerd containerd --config "$state/containerd.toml"
}

### node

start_node() {
  # failCgroupV1: Kubernetes 1.35 and newer refuse the older cgroups otherwise. Image collection is off: a collected
  # image could not be pulled again. A log rotates late, because `kubectl logs` shows only its newest file.
  cat >"$state/kubelet.yaml" <<Y
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
failSwapOn: false
cgroupDriver: cgroupfs
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $pki/ca.crt}}
authorization: {mode: Webhook}
clusterDNS: [$dns_ip]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix://$run/containerd.sock
podLogsDir: $state/pod-logs
volumePluginDir: $state/volume-plugins
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 100
containerLogMaxSize: 100Mi
maxPods: 250
Y
  cat >"$state/Corefile" <<Y
.:53 {
  bind $dns_ip
  errors
  cache 5
  kubernetes cluster.local {
    kubeconfig $KUBECONFIG
    pods insecure
  }
}
Y
  start kubelet kubelet --config="$state/kubelet.yaml" --kubeconfig="$state/kubelet.kubeconfig" --hostname-override="$node" \
    --node-ip="$host_ip" --root-dir="$state/kubelet" --cert-dir="$state/kubelet/pki"
  start proxy kube-proxy --kubeconfig="$KUBECONFIG" --hostname-override="$node" --cluster-cidr="$pod_cidr" --proxy-mode=iptables --conntrack-max-per-core=0
  start coredns coredns -conf "$state/Corefile"
}

node_ready() {
  until_up 60 kubelet "node ready" kubectl wait --for=condition=Ready "node/$node" --timeout=1s
  until_up 30 controller-manager "default service account" kubectl get serviceaccount default
  until_up 30 coredns "DNS listening" listening "$dns_ip" 53
}

### go

preflight
lock "$state"
# The umask of a hardened machine would lock pods out of their volumes.
umask 022
mkdir -p "$state"/{pki,log,run,cni,images} "$run"
chmod 700 "$state/pki"
need_ports
pki=$state/pki
export KUBECONFIG=$state/admin.kubeconfig PATH=$bin:$PATH
host_ip=$(ip -4 route get "$service_ip" 2>/dev/null | sed -n 's/.* src \([0-9.]*\).*/\1/p' || true)
host_ip=${host_ip:-$(hostname -I | awk '{print $1}')}
host_ip=${host_ip:-127.0.0.1}
began=$SECONDS

alive apiserver || certificates
start_apiserver
if [ "$api_only" ]; then
  apiserver_ready
else
  prepare_machine
  start_containerd
  until_up 20 containerd "containerd ready" ctr_ version
  import_images & # while the apiserver starts
  importing=$!
  apiserver_ready
  start_controllers
  wait "$importing" || die "importing images failed (see above); build them again with: localnode/images.sh"
  start_node
  node_ready
fi
say "$instance is up after $((SECONDS - began)) s (logs: $state/log)"
echo "export KUBECONFIG=$KUBECONFIG PATH=$bin:\$PATH"
