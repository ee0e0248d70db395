#!/bin/bash
# An upgrade from an earlier release, on the local node: its chart and image from the project's history, then ours.
#   tests/e2e/upgrade.sh             from 0.1.0; the node must be up, and nothing of ours installed
#   FROM=COMMIT tests/e2e/upgrade.sh
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../../scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/lib.sh"

from=${FROM:-aaf0d72} # 0.1.0
git -C "$root" cat-file -e "$from^{commit}" 2>/dev/null || die "commit $from is not in this clone; fetch the project's whole history (git fetch --unshallow)"
choose_cluster
[ "$where" = local ] || die "needs the local node: it imports an image (unset KUBECONFIG)"
[ -z "$(helm list --all-namespaces --filter "^$release$" --short)" ] || die "$release is installed; remove it with: scripts/uninstall.sh"

old=$(mktemp -d)
trap 'rm -rf "$old"' EXIT
git -C "$root" archive "$from" | tar -x -C "$old"
say "building the image of $from"
tag=$(LOCALNODE_IMAGES=$cache/images-$from "$old/localnode/load.sh")
new=$("$root/localnode/load.sh")
say "installing $from"
IMAGE=localhost/dask-adaptive:$tag "$old/scripts/install.sh"
say "working, upgrading, and looking again"
NEW_IMAGE=localhost/dask-adaptive:$new OLD_CHART=$old/helm/dask-adaptive-operator \
  "$root/.venv/bin/python" -m pytest -q "$root/tests/e2e/test_upgrade.py" "$@"
