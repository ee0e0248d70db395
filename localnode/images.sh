#!/bin/bash
# Build the images as tar files for up.sh and load.sh; one is built again when what it is made from changed.
#   images.sh                      the four that the node, the demo and the tests need
#   images.sh dask-adaptive        only ours; its tag is in $LOCALNODE_IMAGES/dask-adaptive.tag
#   images.sh dask:2023.5.0        another release of Dask
#   images.sh kueue:0.17.0         Kueue, for make test-kueue
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

usual=(pause:1 "dask:$dask_version" "dask-kubernetes-operator:$dask_kubernetes_version" dask-adaptive)
# minbase has no Python; ca-certificates for pip.
base_packages=python3,python3-venv,ca-certificates
suite=bookworm # Python 3.11
# A store of our own, so that the machine's other images are left alone. /run: it holds mounts, which end with a reboot.
store=(--root "$cache/buildah" --runroot /run/dask-adaptive-buildah)
# pip must trust what the host trusts; only mounted for the build, not kept in an image.
ca=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}
[ -f "$ca" ] || die "$ca (certificates that pip trusts) is missing; set SSL_CERT_FILE, or run localnode/packages.sh"

need_linux
need_root
need_packages "${packages_images[@]}"
lock "$images"
need_disk "$cache" 4 "building images"
rm -rf --one-file-system "$images"/work.*
work=$(mktemp -d "$images/work.XXXXXX")
cleanup() {
  rm -rf --one-file-system "$work"
  # A build that failed leaves its container, which is mounted.
  buildah "${store[@]}" rm --all >/dev/null 2>&1 || true
  umount "$cache/buildah/overlay" 2>/dev/null || true
  rm -rf --one-file-system /run/dask-adaptive-buildah
}
trap cleanup EXIT

tar_of() { echo "$images/${1/:/_}.tar"; }
is_current() { [ -f "$(tar_of "$1")" ] && [ "$(cat "$(tar_of "$1").stamp" 2>/dev/null)" = "$2" ]; } # IMAGE STAMP

buildah_() { # WHAT ARGUMENTS...
  local what=$1
  shift
  progress "$what" "$images/build.log" buildah "${store[@]}" "$@" || die "$what failed; mend the cause and run this again"
}

build() { # IMAGE STAMP DOCKERFILE CONTEXT ARGUMENTS...
  local image=$1 stamp=$2 file=$3 context=$4 began=$SECONDS
  shift 4
  say "building $image${number:+ (image $number of $total)}"
  buildah_ "building $image" build --isolation chroot --network host --volume "$ca:/etc/ssl/certs/ca-certificates.crt:ro" \
    --label "dask-adaptive.dev/stamp=$stamp" --tag "localhost/$image" --file "$file" "$@" "$context"
  took=$((SECONDS - began))
}

save() { # IMAGE STAMP: the stamp last, so that a tar without it is half-written
  local tar
  tar=$(tar_of "$1")
  rm -f "$tar.stamp" "$tar.part"
  buildah_ "saving $1" push "localhost/$1" "docker-archive:$tar.part:localhost/$1"
  mv "$tar.part" "$tar"
  echo "$2" >"$tar.stamp"
  say "built $1 ($took s, $(du -sh "$tar" | cut -f1))"
}

base_stamp=$({ cat "$here/images/python.Dockerfile" && echo "$base_packages $suite $(uname -m)"; } | hash_of)
base() { # stays in buildah's store: no pod runs it
  local found mirror
  found=$(buildah "${store[@]}" inspect --type image --format '{{index .OCIv1.Config.Labels "dask-adaptive.dev/stamp"}}' localhost/python:3.11 2>/dev/null || true)
  [ "$found" != "$base_stamp" ] || return 0
  # shellcheck disable=SC2016 # $(SITE) is apt's, not the shell's
  mirror=${DEBIAN_MIRROR:-$(apt-get indextargets --format '$(SITE)' 2>/dev/null | sed -n 1p)}
  [ -n "$mirror" ] || die "apt knows no Debian mirror; set DEBIAN_MIRROR"
  say "building python:3.11 (debootstrap)"
  progress "unpacking Debian $suite" "$images/debootstrap.log" \
    debootstrap --variant=minbase --include="$base_packages" "$suite" "$work/base" "$mirror" ||
    die "debootstrap failed; another mirror can be given with DEBIAN_MIRROR"
  rm -rf "$work/base"/var/{cache/apt,lib/apt/lists}/* "$work/base"/usr/share/{doc,man,locale}
  mkdir "$work/context"
  tar -C "$work/base" -cf "$work/context/base.tar" .
  rm -rf --one-file-system "$work/base"
  build python:3.11 "$base_stamp" "$here/images/python.Dockerfile" "$work/context"
  rm -rf "$work/context"
}

simple() { # IMAGE BUILD-ARGUMENTS...: a Dockerfile in images/, no files
  local image=$1 stamp arg arguments=()
  shift
  stamp=$({ cat "$here/images/${image%%:*}.Dockerfile" && echo "$base_stamp $*"; } | hash_of)
  if is_current "$image" "$stamp"; then return; fi
  base
  for arg in "$@"; do arguments+=(--build-arg "$arg"); done
  mkdir -p "$work/empty"
  build "$image" "$stamp" "$here/images/${image%%:*}.Dockerfile" "$work/empty" "${arguments[@]}"
  save "$image" "$stamp"
}

dask() { # VERSION
  local extra=
  # Releases before 2024.6 were written before numpy 2, and their pandas readers before pandas 2.2.
  if [ "$(printf '%s\n' "$1" 2024.6 | sort -V | head -n 1)" = "$1" ]; then extra="numpy<2 pandas<2.2 pyarrow<16 setuptools<81"; fi
  simple "dask:$1" "DASK=$1" "EXTRA=$extra"
}

pause() {
  local stamp
  "$here/build.sh"
  stamp=$(cat "$here/images/pause.Dockerfile" "$bin/pause" | hash_of)
  if is_current pause:1 "$stamp"; then return; fi
  mkdir "$work/pause"
  cp "$bin/pause" "$work/pause/"
  build pause:1 "$stamp" "$here/images/pause.Dockerfile" "$work/pause"
  save pause:1 "$stamp"
}

kueue() { # VERSION: the program of its module, with upstream's own go.mod and go.sum
  local module stamp
  module=$(kueue_module "$1")
  stamp=$({ cat "$here/images/kueue.Dockerfile" && echo "$1 $(go env GOVERSION)"; } | hash_of)
  if is_current "kueue:$1" "$stamp"; then return; fi
  mkdir "$work/kueue"
  # shellcheck disable=SC2016 # $0 and $1 are the inner shell's
  GOTOOLCHAIN=local GOFLAGS='' GOWORK=off CGO_ENABLED=0 progress "building kueue $1" "$images/build.log" \
    nice -n 10 bash -c 'cd "$0" && go build -buildvcs=false -o "$1" ./cmd/kueue' "$module" "$work/kueue/manager" ||
    die "kueue $1 was not built; mend the cause and run this again"
  build "kueue:$1" "$stamp" "$here/images/kueue.Dockerfile" "$work/kueue"
  save "kueue:$1" "$stamp"
}

# Ours. The sources are copied first, and the copy is what is hashed and built: they may change meanwhile.
adaptive() {
  local from=$work/adaptive tag stamp file
  mkdir "$from"
  for file in Dockerfile pyproject.toml requirements.lock build.lock README.md LICENSE operator; do
    [ -e "$root/$file" ] || die "$root/$file is missing, so dask-adaptive can't be built; use a complete checkout"
    cp -r "$root/$file" "$from/"
  done
  find "$from" \( -name __pycache__ -o -name '*.py[co]' -o -name '.*_cache' \) -prune -exec rm -rf {} +
  tag=$(cd "$from" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | hash_of 12)
  stamp="$tag $base_stamp"
  if ! is_current "dask-adaptive:$tag" "$stamp"; then
    base
    # Equal dates: a file that was only copied again must not undo the cached layers.
    find "$from" -exec touch -h -d @0 {} +
    build "dask-adaptive:$tag" "$stamp" "$from/Dockerfile" "$from" --layers --build-arg BASE_IMAGE=localhost/python:3.11
    save "dask-adaptive:$tag" "$stamp"
  fi
  echo "$tag" >"$images/dask-adaptive.tag"
  forget_older "$tag"
}

forget_older() { # TAG: the tars of our other tags, and their names in the store; the cached layers stay
  local tar old
  for tar in "$images"/dask-adaptive_*.tar; do
    old=${tar##*/dask-adaptive_}
    old=${old%.tar}
    if [ "$old" != "$1" ]; then
      rm -f "$tar" "$tar.stamp"
      buildah "${store[@]}" rmi "localhost/dask-adaptive:$old" >/dev/null 2>&1 || true
    fi
  done
}

wanted=("${@:-${usual[@]}}")
total=${#wanted[@]} number=0
for name in "${wanted[@]}"; do
  number=$((number + 1))
  case $name in
  pause | pause:1) pause ;;
  python | python:3.11) base ;;
  dask) dask "$dask_version" ;;
  dask:*) dask "${name#*:}" ;;
  dask-kubernetes-operator) simple "$name:$dask_kubernetes_version" "DASK_KUBERNETES=$dask_kubernetes_version" ;;
  dask-kubernetes-operator:*) simple "$name" "DASK_KUBERNETES=${name#*:}" ;;
  kueue:*) kueue "${name#*:}" ;;
  dask-adaptive) adaptive ;;
  *) die "$name is not an image of ours; it builds: ${usual[*]} and dask:VERSION" ;;
  esac
done
