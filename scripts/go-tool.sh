#!/bin/bash
# Build a tool from its Go module into the cache, once for each version, and print its path: go-tool.sh NAME.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../localnode/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../localnode/lib.sh"

# Each is a main package with its version. Go checks it against the checksum database, as it does any module.
case ${1:-} in
act) package=github.com/nektos/act@v0.2.89 ;;
actionlint) package=github.com/rhysd/actionlint/cmd/actionlint@v1.7.12 ;;
cosign) package=github.com/sigstore/cosign/v3/cmd/cosign@v3.1.3 ;;
d2) package=oss.terrastruct.com/d2@v0.7.2 ;;
helm) package=helm.sh/helm/v3/cmd/helm@$(awk '$1 == "helm.sh/helm/v3" {print $2}' "$root/localnode/go.mod") ;;
helm-docs) package=github.com/norwoodj/helm-docs/cmd/helm-docs@v1.14.2 ;;
kubeconform) package=github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0 ;;
krew) package=sigs.k8s.io/krew/cmd/krew@v0.4.3 ;;
syft) package=github.com/anchore/syft/cmd/syft@v1.57.0 ;;
validate-krew-manifest) package=sigs.k8s.io/krew/cmd/validate-krew-manifest@v0.4.3 ;;
*) die "'${1:-}' is not a tool of ours; it builds: act, actionlint, cosign, d2, helm, helm-docs, kubeconform, krew, syft, validate-krew-manifest" ;;
esac

tools=$cache/tools
tool=$tools/$1-${package##*@}
lock "$tools"
if [ ! -x "$tool" ]; then
  command -v go >/dev/null || die "Go is missing, and $1 is built with it; install Go $(awk '$1 == "go" {print $2}' "$root/localnode/go.mod") or newer and put it on PATH"
  need_disk "$(GOFLAGS='' go env GOCACHE)" 3 "Go's build cache (GOCACHE)"
  say "building $package; cosign and syft take minutes the first time"
  part=$(mktemp -d "$tools/part.XXXXXX")
  trap 'rm -rf "$part"' EXIT
  # From outside any module, so that only the tool's own go.mod decides about its dependencies.
  (cd "$part" && GOTOOLCHAIN=local GOFLAGS='' GOBIN=$part CGO_ENABLED=0 \
    progress "building $1" "$tools/$1.log" nice -n 10 go install -ldflags "-s -w" "$package") ||
    die "$1 could not be built; mend the cause and run this again, it goes on from Go's build cache"
  mv "$part/$1" "$tool"
fi
echo "$tool"
