# shellcheck shell=bash disable=SC2034
# Shared by the scripts here: where things live, how we speak, locks, packages, processes kept by pid file.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
me=$(basename "$(cd "$(dirname "$0")" && pwd)")/$(basename "$0")
cache=${DASK_ADAPTIVE_CACHE:-${XDG_CACHE_HOME:-~/.cache}/dask-adaptive}
bin=${LOCALNODE_BIN:-$cache/bin}
images=${LOCALNODE_IMAGES:-$cache/images}

node=${LOCALNODE_NAME:-localnode}
bridge=localnode0
pod_cidr=10.244.0.0/24
service_cidr=10.96.0.0/16
service_ip=10.96.0.1
dns_ip=169.254.20.10
dask_version=2026.8.0
dask_kubernetes_version=2026.3.0
binaries=(kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl helm coredns pause)

# Two instances can run side by side: the full node, and an apiserver with etcd for tests of the API alone.
use_node() {
  instance="the node"
  state=${LOCALNODE_STATE:-$cache/node}
  run=${LOCALNODE_RUN:-/run/localnode} # short: the path of a unix socket ends at 108 bytes
  port=${LOCALNODE_PORT:-6443}
  etcd_port=${LOCALNODE_ETCD_PORT:-2379} # and the next one, for etcd's peers
  port_variable=LOCALNODE_PORT etcd_port_variable=LOCALNODE_ETCD_PORT
}
use_api() {
  instance="the API"
  state=${LOCALNODE_API_STATE:-$cache/api}
  run=$state/sockets
  port=${LOCALNODE_API_PORT:-16443}
  etcd_port=${LOCALNODE_API_ETCD_PORT:-12379}
  port_variable=LOCALNODE_API_PORT etcd_port_variable=LOCALNODE_API_ETCD_PORT
}
use_node

### speaking: stdout belongs to eval, so all that is for people goes to stderr

say() { echo "$me: $*" >&2; }
die() {
  say "$*"
  exit 1
}

### preconditions: one sentence each, which says how to mend it

# Debian package, and a file or command that shows it is there.
packages_api=(etcd-server:etcd openssl:openssl)
packages_node=(etcd-server:etcd openssl:openssl containerd:containerd runc:runc containernetworking-plugins:/usr/lib/cni/bridge
  iptables:iptables conntrack:conntrack iproute2:ip procps:sysctl)
packages_images=(buildah:buildah debootstrap:debootstrap)
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin # iptables and others are not on a plain user's PATH

missing_packages() { # PACKAGE:PROOF...
  local entry proof
  for entry in "$@"; do
    proof=${entry#*:}
    case $proof in
    /*) [ -e "$proof" ] ;;
    *) command -v "$proof" >/dev/null ;;
    esac || echo "${entry%%:*}"
  done
}

need_packages() {
  local missing
  missing=$(missing_packages "$@" | xargs)
  [ -z "$missing" ] || die "Debian packages are missing ($missing); install them with: localnode/packages.sh"
}

need_root() { [ "$(id -u)" = 0 ] || die "needs root (containers, mounts and iptables); run it again as root or with sudo -E"; }

need_linux() {
  [ "$(uname -s)" = Linux ] || die "runs on Linux only, this is $(uname -s); use a Linux machine or virtual machine (tried: Debian 12)"
  case $(uname -m) in
  x86_64 | aarch64) ;;
  *) die "$(uname -m) is not a processor that Kubernetes is built for here; use an amd64 or arm64 machine" ;;
  esac
}

need_disk() { # DIR GIB WHAT
  local free
  mkdir -p "$1" || die "$1 can't be made; set DASK_ADAPTIVE_CACHE to a folder that you may write to"
  free=$(($(df --output=avail -BM "$1" | tail -n 1 | tr -dc 0-9) / 1024))
  ((free >= $2)) || die "$3 needs $2 GiB but $1 has $free GiB free; make room, or set DASK_ADAPTIVE_CACHE to a folder on a larger disk"
}

port_owner() { # PORT [ADDRESS]: who listens there, for people; nothing if nobody does
  if command -v ss >/dev/null; then
    ss -Hltnp "sport = :$1" | awk -v address="${2:-}" '
      { local = $4; sub(/:[0-9]+$/, "", local) }
      address == "" || local == address || local == "0.0.0.0" || local == "*" || local == "[::]" {
        if (match($0, /\(\("[^"]*",pid=[0-9]+/)) {
          split(substr($0, RSTART + 3, RLENGTH - 3), part, "\",pid=")
          print part[1] " (pid " part[2] ")"
        } else print "a process of another user"
        exit
      }'
  elif (: <"/dev/tcp/${2:-127.0.0.1}/$1") 2>/dev/null; then
    echo "another process"
  fi
}

need_port() { # PORT FOR [VARIABLE] [ADDRESS]
  local owner
  owner=$(port_owner "$1" "${4:-}")
  [ -z "$owner" ] || die "port $1 (for $2) is in use by $owner; stop that process${3:+, or choose another port with $3=...}"
}

### locks: only one of us at a time changes a directory; the lock ends with the process

lock() { # DIR
  if ! mkdir -p "$1" || ! [ -w "$1" ]; then die "$1 can't be written to; run this as its owner, or set DASK_ADAPTIVE_CACHE to a folder of yours"; fi
  exec 9>"$1/.lock"
  flock --nonblock 9 && return
  say "waiting for another command that works in $1"
  flock 9
}

hash_of() { sha256sum | cut -c1-"${1:-64}"; } # stdin

### processes; a pid file holds "pid starttime", so that a pid used again by somebody else is never taken for ours

started_at() { awk '{sub(/.*\) /, ""); if ($1 != "Z") print $20}' "/proc/$1/stat" 2>/dev/null || true; } # nothing for a zombie: pid 1 may reap late

alive() {
  local pid when
  read -r pid when 2>/dev/null <"$state/run/$1.pid" || return 1
  [ -n "$when" ] && [ "$(started_at "$pid")" = "$when" ]
}

start() {
  local name=$1 pid
  shift
  alive "$name" && return
  if [ -e "$state/run/$name.pid" ]; then
    say "the last $name has ended without down.sh (stale pid file); starting it again"
  fi
  setsid "$@" >>"$state/log/$name.log" 2>&1 </dev/null 9>&- & # 9: a daemon must not hold our lock
  pid=$!
  echo "$pid $(started_at "$pid")" >"$state/run/$name.pid"
}

stop() {
  local name=$1 pid
  if alive "$name"; then
    read -r pid _ <"$state/run/$name.pid"
    kill "$pid"
    for _ in {1..100}; do
      alive "$name" || break
      sleep 0.1
    done
    if alive "$name"; then kill -9 "$pid"; fi
  fi
  rm -f "$state/run/$name.pid"
}

# until_ok SECONDS WHAT COMMAND...
until_ok() {
  local end=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    if ((SECONDS >= end)); then
      say "$what: not after the time allowed; see $state/log"
      return 1
    fi
    sleep 0.1
  done
}

# until_up SECONDS NAME WHAT COMMAND...: as until_ok, but a process that has died is reported at once.
until_up() {
  local end=$((SECONDS + $1)) name=$2 what=$3
  shift 3
  until "$@" >/dev/null 2>&1; do
    if ! alive "$name"; then
      tail -n 5 "$state/log/$name.log" >&2
      die "$name has ended; its last words are above, the rest in $state/log/$name.log"
    fi
    ((SECONDS < end)) || die "$what: not after $1 s; see $state/log/$name.log"
    sleep 0.1
  done
}

listening() { (: <"/dev/tcp/$1/$2") 2>/dev/null; } # ADDRESS PORT

ctr_() { ctr --address "$run/containerd.sock" --namespace k8s.io "$@"; }

### long commands: their output goes to a log; what they have done is shown in one line of a terminal, elsewhere in a line every 20 s

# What the log of buildah or debootstrap says last, for people; nothing if it says nothing.
step_in() { # LOG
  sed -nE -e 's|^STEP ([0-9]+)/([0-9]+): (.*)|step \1 of \2: \3|p' -e 's|^I: ||p' "$1" | tail -n 1 | tr -d '[:cntrl:]' | cut -c 1-70
}

# progress WHAT LOG COMMAND...: on failure the log's end is shown and 1 returned.
progress() {
  local what=$1 log=$2 began=$SECONDS next=20 line='' pid code=0 now note
  shift 2
  if [ -t 2 ] && [ "${TERM:-dumb}" != dumb ]; then line=yes; fi
  "$@" >"$log" 2>&1 9>&- &
  pid=$!
  # A background command of a script ignores Ctrl-C, so pass it on.
  trap 'kill '"$pid"' 2>/dev/null; '"${line:+echo >&2;}"' say "interrupted while '"$what"'; run it again, it goes on from there"; exit 130' INT TERM HUP
  while kill -0 "$pid" 2>/dev/null; do
    sleep 0.5
    now=$((SECONDS - began))
    if [ -z "$line" ] && ((now < next)); then continue; fi
    next=$((now + 20))
    note=$("${progress_note:-step_in}" "$log")
    note="$me: $what, $now s${note:+ ($note)}"
    # One line that is written over must not wrap.
    if [ "$line" ]; then printf '\r\033[K%s' "${note:0:$(($(tput cols 2>/dev/null || echo 80) - 1))}" >&2; else echo "$note" >&2; fi
  done
  if [ "$line" ]; then printf '\r\033[K' >&2; fi
  wait "$pid" || code=$?
  trap - INT TERM HUP
  ((code == 0)) && return
  tail -n 15 "$log" >&2
  say "$what failed (its last words are above, all of them in $log)"
  return 1
}

### upstream's chart

# The chart of dask-kubernetes is inside its Python package; prints the chart's folder, fetched once.
upstream_chart() {
  local folder=$cache/charts/dask-kubernetes-$dask_kubernetes_version python=${PYTHON:-python3} part
  local chart=$folder/dask_kubernetes/operator/deployment/helm/dask-kubernetes-operator
  if [ -n "${UPSTREAM_CHART:-}" ]; then
    [ -f "$UPSTREAM_CHART/Chart.yaml" ] || die "UPSTREAM_CHART=$UPSTREAM_CHART is not a chart (no Chart.yaml)"
    echo "$UPSTREAM_CHART"
    return
  fi
  if [ ! -f "$chart/Chart.yaml" ]; then
    "$python" -m pip --version >/dev/null 2>&1 ||
      die "$python has no pip to fetch upstream's chart with; install python3-pip, or set PYTHON, or UPSTREAM_CHART to the chart's folder"
    mkdir -p "$cache/charts"
    part=$(mktemp -d "$cache/charts/part.XXXXXX")
    # The wheel is only unpacked: which Python runs here does not matter.
    "$python" -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.11 --dest "$part" \
      "dask-kubernetes==$dask_kubernetes_version" >&2 || die "dask-kubernetes $dask_kubernetes_version could not be fetched (see above)"
    "$python" -m zipfile -e "$part"/*.whl "$part"
    rm -f "$part"/*.whl
    rm -rf "$folder"
    mv "$part" "$folder"
    chmod 755 "$folder"
    [ -f "$chart/Chart.yaml" ] || die "dask-kubernetes $dask_kubernetes_version holds no chart where it used to; set UPSTREAM_CHART"
  fi
  echo "$chart"
}

# The folder of Kueue's Go module, which holds its chart as well.
kueue_module() { # VERSION
  (cd / && go mod download -json "sigs.k8s.io/kueue@v$1") | awk -F '"' '$2 == "Dir" {print $4}'
}

### what the node changes outside its own directories

sysctls=( # kubelet and kube-proxy change these, and up.sh; down.sh puts them back
  net.ipv4.ip_forward net.ipv4.conf.all.route_localnet net.bridge.bridge-nf-call-iptables vm.overcommit_memory kernel.panic kernel.panic_on_oops
  net.netfilter.nf_conntrack_tcp_timeout_close_wait net.netfilter.nf_conntrack_tcp_timeout_established
)
# Made by kubelet, containerd and the CNI plugins; down.sh removes those that were not there before, when empty.
outside=(/var/lib/kubelet /var/lib/cni /var/log/containers /var/log/pods /run/containerd /run/netns /run/xtables.lock)

# Import the tars that the node does not have yet: a mark holds the stamp of the tar that was imported.
import_images() {
  local tar mark
  for tar in "$images"/*.tar; do
    mark=$state/images/$(basename "$tar").imported
    if [ ! -f "$tar.stamp" ] || cmp --quiet "$tar.stamp" "$mark"; then continue; fi
    say "importing $(basename "$tar" .tar)"
    ctr_ images import "$tar" >/dev/null
    cp "$tar.stamp" "$mark"
  done
  find "$state/images" -name '*.imported' | while read -r mark; do # marks of tars that are gone
    tar=$images/$(basename "$mark" .imported)
    [ -f "$tar" ] || rm -f "$mark"
  done
}
