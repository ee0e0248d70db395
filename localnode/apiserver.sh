#!/bin/bash
# Build the kube-apiserver of other Kubernetes versions from the Go proxy: apiserver.sh VERSION... (as in versions.txt); nothing to do when they are there.
# Each is in the cache as bin-apiserver-VERSION/kube-apiserver; LOCALNODE_APISERVER=that up.sh --api-only runs it.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

[ $# != 0 ] || die "takes versions of Kubernetes, for example: localnode/apiserver.sh $(grep -v '^#' "$here/versions.txt" | tail -n 1)"
need_linux
# GOWORK: the module holds upstream's workspace, whose folders it does not hold.
export GOTOOLCHAIN=local GOFLAGS='' GOWORK=off CGO_ENABLED=0
go_found=$(go env GOVERSION 2>/dev/null || true)

# requirements FOLDER VERSION: go.mod and go.sum with which the module builds on its own. Upstream's go.mod takes its staging modules from
# folders beside it; these are published as v0.MINOR.PATCH. Dependencies stay those of upstream, hashes too; Go checks the staging modules' against its
# checksum database. The proxy lacks a few that no apiserver needs: they are left out, and -mod=readonly refuses to build if one is needed after all.
requirements() {
  local module=$1 staging=v0.${2#1.} names
  names=$(sed -En 's#^\t(k8s\.io/[a-z-]+) v0\.0\.0( //.*)?$#\1#p' "$module/go.mod" | sort -u)
  (cd / && xargs go mod download -json <<<"${names//$'\n'/@$staging }@$staging" || true) |
    awk -F '"' '$2 == "Path" {p = $4} $2 == "Version" {v = $4} $2 == "Sum" {print p, v, $4} $2 == "GoModSum" {print p, v "/go.mod", $4}' >staging.sum
  cat "$module/go.sum" staging.sum >go.sum
  sed -E -e '/=> \.\/staging/d' -e "s#^(\tk8s\.io/[a-z-]+) v0\.0\.0( //.*)?\$#\1 $staging#" "$module/go.mod" |
    awk -v staging="$staging" 'NR == FNR {if ($2 == staging) there[$1]; next} $2 != staging || $1 in there' staging.sum - >go.mod
}

build() { # VERSION FOLDER
  local version=$1 part=$2 module flags
  module=$(cd / && go mod download -json "k8s.io/kubernetes@v$version" | awk -F '"' '$2 == "Dir" {print $4}')
  [ -d "$module" ] || return 1
  cd "$part"
  requirements "$module" "$version"
  flags=$(sed -e "s/v1\.[0-9.]*[0-9]/v$version/g" -e "s/gitMinor=[0-9]*/gitMinor=$(cut -d. -f2 <<<"$version")/" "$here/ldflags")
  cd "$module"
  nice -n 10 go build -buildvcs=false -modfile="$part/go.mod" -mod=readonly -ldflags "$flags" -o "$part/kube-apiserver" ./cmd/kube-apiserver
}

for version in "$@"; do
  [[ $version =~ ^1\.[0-9]+\.[0-9]+$ ]] || die "$version is not a version of Kubernetes; write it like 1.34.4"
  folder=$cache/bin-apiserver-$version
  if [ -x "$folder/kube-apiserver" ]; then continue; fi # moved there when complete
  lock "$cache/bin-apiserver.lock"
  if [ -x "$folder/kube-apiserver" ]; then continue; fi # another one built it
  if [[ $(cat "$here/ldflags") == *gitVersion=v$version\ * ]]; then # the node's own
    "$here/build.sh"
    mkdir -p "$folder"
    ln -f "$bin/kube-apiserver" "$folder/"
    continue
  fi
  [ -n "$go_found" ] || die "Go is missing; install Go $(awk '$1 == "go" {print $2}' "$here/go.mod") or newer and put it on PATH"
  need_disk "$(go env GOCACHE)" 3 "Go's build cache (GOCACHE)"
  rm -rf "$folder.part"
  mkdir -p "$folder.part"
  say "building kube-apiserver $version with $go_found; a first time takes 2 to 5 minutes on 2 cores"
  began=$SECONDS
  progress "building kube-apiserver $version" "$cache/build-apiserver-$version.log" build "$version" "$folder.part" ||
    die "kube-apiserver $version was not built; mend the cause and run this again"
  mv "$folder.part" "$folder"
  say "built kube-apiserver $version in $((SECONDS - began)) s"
done
