#!/bin/bash
# Prints the path of promtool, which checks alerts: the one on PATH, or the one of Debian's package, unpacked into the cache.
# The package is not installed: it would start a Prometheus.
#   promtool.sh              promtool
#   promtool.sh prometheus   the server, for tests that start one of their own
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../../localnode/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../localnode/lib.sh"
tool=${1:-promtool}
if command -v "$tool"; then exit; fi
if [ ! -x "$bin/$tool" ]; then
  command -v apt-get >/dev/null || die "$tool is missing, and this is not Debian: install Prometheus"
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  chmod 755 "$folder"
  (cd "$folder" && { apt-get download prometheus || { apt-get update && apt-get download prometheus; }; }) >&2
  mkdir -p "$bin"
  dpkg-deb --fsys-tarfile "$folder"/prometheus_*.deb | tar -x -C "$folder" "./usr/bin/$tool"
  mv "$folder/usr/bin/$tool" "$bin/$tool"
fi
echo "$bin/$tool"
