#!/bin/bash
# Have a headless Chromium for the tests that look at pages: prints its path.
# Installs Debian's package where none is found and we may; says what to do where we may not.
set -euo pipefail
for name in ${CHROMIUM:-chromium chromium-browser google-chrome google-chrome-stable}; do
  if command -v "$name"; then exit 0; fi
done
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || ! grep -qs '^ID=debian' /etc/os-release; then
  echo "chromium.sh: no Chromium here; install one, or set CHROMIUM to its path" >&2
  exit 1
fi
echo "installing Debian's chromium (a minute or two)" >&2
export DEBIAN_FRONTEND=noninteractive
if [ -z "$(ls -A /var/lib/apt/lists 2>/dev/null)" ]; then apt-get update -qq >&2; fi
# The fonts: without any, pages are empty boxes.
apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null ||
  { apt-get update -qq >&2; apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null; }
command -v chromium
