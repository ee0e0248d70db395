#!/bin/bash
# The workflow `release` on this machine, by act: neither Docker nor GitHub. It works in a clone of the commit that is checked out, tagged with its version.
#   tests/dist/rehearse.sh [FOLDER]                  FOLDER gets the workflow's artifact
#   WITHOUT_TEST=1 tests/dist/rehearse.sh [FOLDER]   without its first step, `make test`
# GitHub's own actions are replaced by stand-ins. Where podman is missing, buildah stands in for it, with localnode's base.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../../localnode/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../localnode/lib.sh"

workflow=.github/workflows/release.yml
out=$(realpath -m "${1:-$root/.cache/rehearsed}")
act=$("$root/scripts/go-tool.sh" act)
cosign=$("$root/scripts/go-tool.sh" cosign)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/bin" "$out"

stand_in() { # PATH LINES...: a program before all others on the PATH
  local name=$1
  shift
  printf '%s\n' '#!/bin/bash' "$@" >"$work/bin/$name"
  chmod +x "$work/bin/$name"
}

action() { # NAME COMMAND: a folder that act takes for the action
  mkdir -p "$work/actions/$1"
  printf '%s\n' "name: $1" "inputs: {name: {}, path: {}}" "runs:" "  using: composite" "  steps:" "  - shell: bash" "    run: $2" >"$work/actions/$1/action.yml"
}

if ! command -v podman >/dev/null; then
  "$root/localnode/images.sh" python
  # One at a time: each build of localnode and of scripts/dist.py clears the store's containers.
  stand_in podman "exec flock '$images/.lock' buildah --root '$cache/buildah' --runroot '$work/run' \"\$@\""
  digest=$("$work/bin/podman" inspect --type=image --format '{{.FromImageDigest}}' localhost/python:3.11)
  BASE_IMAGE=localhost/python@$digest
fi
[ -n "${BASE_IMAGE:-}" ] || die "BASE_IMAGE is not set; give an image of Python 3.11 as NAME@sha256:…"
if [ "${WITHOUT_TEST:-}" = 1 ]; then
  # shellcheck disable=SC2016 # the stand-in's own words
  stand_in make 'if [ "$*" = test ]; then echo "make test is left out"; else exec '"$(command -v make)"' "$@"; fi'
fi

stand_ins=()
while read -r uses; do
  name=${uses%@*}
  case $name in
  actions/upload-artifact) action "$name" "cp -r \${{ inputs.path }}. '$out'" ;;
  *) action "$name" "python3 --version && go version" ;;
  esac
  stand_ins+=(--local-repository "$uses=$work/actions/$name")
done < <(grep -oE 'actions/[a-z-]+@[0-9a-f]{40}' "$root/$workflow" | sort -u)

git clone --quiet "$root" "$work/clone"
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$root/operator/dask_adaptive_agent/__init__.py")
git -C "$work/clone" tag --force "v$version" >/dev/null
export COSIGN_PASSWORD=rehearsal
(cd "$work" && "$cosign" generate-key-pair)

say "running $workflow for v$version"
(cd "$work/clone" && PATH=$work/bin:$PATH "$act" push --workflows "$workflow" --platform ubuntu-24.04=-self-hosted \
  --container-daemon-socket - --rm "${stand_ins[@]}" --var "BASE_IMAGE=$BASE_IMAGE" \
  --secret COSIGN_PASSWORD --secret "COSIGN_PRIVATE_KEY=$(cat "$work/cosign.key")")
cp "$work/cosign.pub" "$out"
(cd "$out" && "$cosign" verify-blob --key cosign.pub --insecure-ignore-tlog --bundle SHA256SUMS.sigstore.json SHA256SUMS &&
  sha256sum --check --strict --quiet SHA256SUMS)
say "the workflow's artifact is in $out, and its signature is good"
