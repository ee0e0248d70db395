#!/bin/bash
# Install the Debian packages that are missing; nothing is started. Other packages are left as they are.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

need_linux
mapfile -t missing < <(missing_packages "${packages_node[@]}" "${packages_images[@]}" ca-certificates:/etc/ssl/certs/ca-certificates.crt)
if [ "${#missing[@]}" = 0 ]; then
  say "all Debian packages are there"
  exit 0
fi
command -v apt-get >/dev/null || die "apt-get is missing, so this is not Debian; install the equivalents of: ${missing[*]}"
need_root

# Debian starts a service as soon as it is installed. An etcd or a containerd of its own would take the ports of the node.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
  trap 'rm -f "$policy"' EXIT
fi

say "installing ${missing[*]}"
log=$(mktemp)
export DEBIAN_FRONTEND=noninteractive
for step in update "install --yes --no-install-recommends ${missing[*]}"; do
  # shellcheck disable=SC2086 # words of a command
  progress "apt-get ${step%% *}" "$log" apt-get $step || die "mend apt's sources or network and run this again"
done
rm -f "$log"
if [ -d /run/systemd/system ]; then # there, installing also enables them for the next boot
  for service in etcd containerd; do
    case " ${missing[*]} " in *" $service"*) systemctl disable --quiet "$service" 2>/dev/null || true ;; esac
  done
fi
say "installed"
