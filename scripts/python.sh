#!/bin/bash
# Prints the path of a Python of a release: python.sh 3.14. The one on PATH, or pyenv's; 3.14 is built from Debian's source into the cache where there is none.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../localnode/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../localnode/lib.sh"
wanted=${1:?a release of Python, like 3.14}
# Debian's pool keeps only the newest ones: another one is two values here.
source_version=3.14.7
source_sha256=3b48dac8fb59f62eaa67ac83c1eb12bda1b7a08406dd286e252c11a66be27f81
built=$cache/python-$source_version

shopt -s nullglob
# `ssl`: a Python without it installs nothing. A shim of pyenv is there whether its Python is or not.
check="import ssl, sys; sys.version_info[:2] == tuple(map(int, '$wanted'.split('.'))) and print(sys.executable)"
for candidate in "python$wanted" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$wanted".*/bin/python "$built/bin/python$wanted"; do
  found=$("$candidate" -c "$check" 2>/dev/null || true)
  [ -z "$found" ] || { echo "$found"; exit; }
done
[ "$wanted" = "${source_version%.*}" ] || die "Python $wanted is missing; install it and put python$wanted on PATH, or install it with pyenv"

missing=$(missing_packages gcc:gcc make:make curl:curl xz-utils:xz zlib1g-dev:/usr/include/zlib.h libssl-dev:/usr/include/openssl/ssl.h libbz2-dev:/usr/include/bzlib.h \
  liblzma-dev:/usr/include/lzma.h libsqlite3-dev:/usr/include/sqlite3.h "libffi-dev:/usr/include/$(uname -m)-linux-gnu/ffi.h" | xargs)
[ -z "$missing" ] || die "packages to build Python $wanted with are missing; as root: apt-get install $missing"
mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(SITE)' 2>/dev/null | sed -n 1p)}
[ -n "$mirror" ] || die "apt knows no Debian mirror; set DEBIAN_MIRROR, or put python$wanted on PATH"
lock "$cache/python.lock"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
curl --fail --silent --show-error --location --output "$folder/source.tar.xz" \
  "$mirror/pool/main/p/python$wanted/python${wanted}_$source_version.orig.tar.xz" ||
  die "Python $source_version is not in Debian's pool any more; set source_version and source_sha256 in $me to the newest there"
echo "$source_sha256  $folder/source.tar.xz" | sha256sum --check --quiet || die "the source of Python $source_version is not the one we know"
tar -x --strip-components=1 -C "$folder" -f "$folder/source.tar.xz"
say "building Python $source_version; 3 to 6 minutes on 2 cores"
build() { cd "$folder" && ./configure --prefix="$built" --with-ensurepip=install && nice -n 10 make -j "$(nproc)" && make install; }
rm -rf "$built"
progress "building Python $source_version" "$cache/build-python.log" build || die "Python $source_version was not built; mend the cause and run this again"
echo "$built/bin/python$wanted"
