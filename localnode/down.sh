#!/bin/bash
# Stop what up.sh started and put the machine back; safe to run again.
#   --api-only   the apiserver of `up.sh --api-only` instead of the node
#   --wipe       remove the state (etcd, containers, certificates) too; binaries and images stay
set -uo pipefail # not -e: whatever can be taken away is taken away
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh" || exit 1

api_only=
wipe=
for argument in "$@"; do
  case $argument in
  --api-only) api_only=yes ;;
  --wipe) wipe=yes ;;
  *) die "$argument is unknown; it takes --api-only and --wipe" ;;
  esac
done

mounts_under() { awk -v d="$1/" 'index($2 "/", d) == 1 {print $2}' /proc/mounts | sort -r; }

# The containers, their network namespaces, their shims. Prints nothing; fills netns.
netns=()
stop_containers() {
  local ids id ns
  # If containerd died, only it still knows its containers: it comes back to tell.
  if ! alive containerd && [ -f "$state/run/containerd.pid" ] && [ -f "$state/containerd.toml" ]; then
    mkdir -p "$run"
    start containerd containerd --config "$state/containerd.toml"
    until_ok 20 "containerd ready" ctr_ version
  fi
  alive containerd || return 0
  mapfile -t ids < <(ctr_ containers ls -q)
  for id in "${ids[@]}"; do
    ns=$(ctr_ containers info "$id" | grep -o '/run/netns/cni-[0-9a-f-]*' | head -n 1)
    [ -n "$ns" ] && netns+=("$ns")
    ctr_ tasks kill --signal SIGKILL "$id" 2>/dev/null
  done
  for id in "${ids[@]}"; do
    for _ in {1..20}; do
      ctr_ tasks delete "$id" >/dev/null 2>&1
      ctr_ tasks ls -q | grep -x "$id" >/dev/null || break # not grep -q: with pipefail its early end is a failure
      sleep 0.1
    done
    ctr_ containers delete "$id" 2>/dev/null
    rm -f /var/lib/cni/results/*-"$id"-*
  done
}

# Shims outlive a containerd that died. Ours have our socket's address and our mount namespace: a node in another
# namespace may use the same path, and its shims are not ours to end.
stop_shims() {
  local proc
  for proc in /proc/[0-9]*; do
    if [[ "$(tr '\0' ' ' 2>/dev/null <"$proc/cmdline")" == *containerd-shim*" -address $run/containerd.sock "* ]] &&
      [ "$(readlink "$proc/ns/mnt")" = "$(readlink /proc/self/ns/mnt)" ]; then
      kill -9 "${proc#/proc/}" 2>/dev/null
    fi
  done
}

clean_network() {
  local ns ipt rules
  for ns in "${netns[@]}"; do
    umount "$ns" 2>/dev/null
    rm -f "$ns"
  done
  ip link delete "$bridge" 2>/dev/null
  ip address delete "$dns_ip/32" dev lo 2>/dev/null
  for ipt in iptables ip6tables; do # drop every chain and rule that names a KUBE- or CNI- chain; all others stay, with their counters
    rules=$("$ipt-save" -c 2>/dev/null)
    if grep -E '(KUBE|CNI)-' <<<"$rules" >/dev/null; then
      grep -vE '(KUBE|CNI)-' <<<"$rules" | "$ipt-restore" -c
    fi
  done
  rm -f /var/lib/cni/results/localnode-*
}

clean_mounts_and_cgroups() {
  local dir m cg
  for dir in "$state" "$run"; do
    mounts_under "$dir" | while read -r m; do umount "$m" 2>/dev/null || umount -l "$m"; done
  done
  find /sys/fs/cgroup -maxdepth 2 -type d -name kubepods 2>/dev/null | while read -r cg; do
    find "$cg" -name cgroup.procs -exec cat {} + 2>/dev/null | sort -u | xargs -r kill -9 2>/dev/null # only if containerd had died
    for _ in {1..20}; do # a cgroup can't be removed before its processes are really gone
      find "$cg" -depth -type d -exec rmdir {} + 2>/dev/null
      [ -d "$cg" ] || break
      sleep 0.1
    done
  done
}

put_back() { # sysctls, and folders outside the state directory that up.sh had not found
  local path
  find /var/log/containers -maxdepth 1 -lname "$state/*" -delete 2>/dev/null
  if [ -f "$state/sysctl" ]; then
    sed 's/ = /=/' "$state/sysctl" | xargs -r sysctl -qw 2>/dev/null
    rm -f "$state/sysctl"
  fi
  if [ -f "$state/made" ]; then
    if grep -x /var/lib/kubelet "$state/made" >/dev/null; then rm -f /var/lib/kubelet/device-plugins/kubelet.sock; fi
    while read -r path; do
      if [ -d "$path" ]; then find "$path" -xdev -depth -type d -empty -delete 2>/dev/null; fi
      if [ -f "$path" ]; then rm -f "$path"; fi
    done <"$state/made"
    rm -f "$state/made"
  fi
}

down_node() {
  need_root
  for process in coredns proxy kubelet scheduler controller-manager apiserver etcd; do stop "$process"; done # nothing may start a container again
  stop_containers
  stop containerd
  stop_shims
  clean_network
  clean_mounts_and_cgroups
  rm -rf --one-file-system "${run:?}"
  put_back
}

if [ "$api_only" ]; then use_api; fi
if [ -d "$state" ]; then lock "$state"; fi
if [ "$api_only" ]; then
  for process in apiserver etcd; do stop "$process"; done
else
  down_node
fi
if [ "$wipe" ]; then rm -rf --one-file-system "${state:?}"; fi
say "$instance is down$([ "$wipe" ] && echo ', its state removed')"
