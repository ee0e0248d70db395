#!/bin/bash
# A job on the local node while the operator, the scheduler, the API server, etcd, the kubelet, pods and nodes are killed and come back.
#   make soak MINUTES=30 SEED=7            boots the node and installs both operators; takes all away again at the end, but for the CRDs
#   make soak MINUTES=3                    a smoke test
#   WRITE=1 make soak MINUTES=30           writes docs/contributing/soak.md, if nothing went wrong
#   KEEP=1                                 leaves the node up
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../../scripts/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../scripts/lib.sh"
cd "$root"
unset KUBECONFIG # the processes of no other cluster could be killed here
python=$root/.venv/bin/python
[ -x "$python" ] || die ".venv is missing; make it with: make check"
was_up=
if alive apiserver && alive kubelet; then was_up=yes; fi
localnode/packages.sh
say "booting the node (the first time builds it: up to 20 minutes)"
node=$(localnode/up.sh)
eval "$node"
leave() {
  scripts/uninstall.sh || true
  if [ -z "$was_up" ] && [ "${KEEP:-}" != 1 ]; then localnode/down.sh; fi
}
trap leave EXIT
scripts/install.sh
export LOCALNODE_STATE=$state PYTHONPATH=operator:tests
"$python" -m soak.run --minutes "${MINUTES:-30}" ${SEED:+--seed "$SEED"} ${WRITE:+--write docs/contributing/soak.md}
