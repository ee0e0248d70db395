#!/bin/bash
# Build Kubernetes, helm, CoreDNS and pause from their Go modules into the cache; nothing to do when they are there.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

[ $# = 0 ] || die "takes no arguments; it builds into $bin (LOCALNODE_BIN)"
need_linux

go_wanted=$(awk '$1 == "go" {print $2}' "$here/go.mod")
# GOTOOLCHAIN=local: the Go that is installed, not one that it would download.
go_found=$(GOTOOLCHAIN=local go env GOVERSION 2>/dev/null || true)
go_found=${go_found#go}

# What the binaries are made from. It is written last, so binaries without it are half-built.
stamp() { { cat "$here"/{go.mod,go.sum,ldflags} "$here"/*/*.go && echo "go $go_found $(uname -m)"; } | hash_of; }

incomplete() { # the binaries that are missing
  local b
  for b in "${binaries[@]}"; do [ -x "$bin/$b" ] || echo "$b"; done
}

current() {
  local found missing
  if [ ! -d "$bin" ]; then return 1; fi
  found=$(cat "$bin/.stamp" 2>/dev/null || true)
  missing=$(incomplete | xargs)
  if [ -n "$missing" ] || [ -z "$found" ]; then
    say "the binaries in $bin are half-built (${missing:-no stamp}); building them again"
    return 1
  fi
  [ "$found" = "$(stamp)" ] && return
  if [ -z "$go_found" ]; then # nothing to build with; what is there is complete
    say "Go is missing, so whether $bin is up to date can't be told; using it as it is"
    return 0
  fi
  say "go.mod, ldflags, the sources or Go have changed; building again (only what changed)"
  return 1
}

lock "$cache"
if current; then exit 0; fi
[ -n "$go_found" ] || die "Go is missing; install Go $go_wanted or newer and put it on PATH (Debian 12's own is too old)"
[ "$(printf '%s\n' "$go_wanted" "$go_found" | sort -V | head -n 1)" = "$go_wanted" ] ||
  die "Go $go_found is too old; install Go $go_wanted or newer and put it first on PATH"
need_disk "$(GOFLAGS='' go env GOCACHE)" 5 "Go's build cache (GOCACHE)"
need_disk "$(dirname "$bin")" 1 "building the binaries"

part=$bin.part
if [ -d "$part" ]; then
  say "an earlier build did not end; going on from Go's build cache"
  rm -rf "$part"
fi
mkdir -p "$part"
log=$(dirname "$bin")/build.log
built() { echo "$(find "$part" -type f | wc -l) of ${#binaries[@]} done"; }
# shellcheck disable=SC2034 # read by progress
progress_note=built
say "building ${binaries[*]}; the first time takes 7 to 10 minutes on 2 cores, then seconds"
began=$SECONDS
cd "$here"
# -buildvcs=false: a checkout without a commit, or of another user, would fail the build.
GOTOOLCHAIN=local GOFLAGS='' GOBIN=$part CGO_ENABLED=0 progress "building" "$log" nice -n 10 go install -buildvcs=false -ldflags "$(cat ldflags)" tool ||
  die "the build did not succeed; mend the cause and run this again, it goes on from where it stopped"
stamp >"$part/.stamp"
rm -rf "$bin"
mv "$part" "$bin"
say "built in $((SECONDS - began)) s, $(du -sh "$bin" | cut -f1) in $bin"
