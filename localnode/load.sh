#!/bin/bash
# Build the image of ours if its sources changed and import it into the running node; prints its tag.
#   localnode/load.sh                  ours
#   localnode/load.sh dask:2023.5.0    other images, as images.sh takes them
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

need_root
"$here/images.sh" "${@:-dask-adaptive}"
alive containerd || die "the node is not running, so there is nothing to import into; start it with: localnode/up.sh"
lock "$state"
import_images
if [ $# = 0 ]; then cat "$images/dask-adaptive.tag"; fi
