"""Installs the kinds that the operator watches, ours and those of dask-kubernetes."""

from __future__ import annotations

import os

from support.kube_server import ROOT, Kubectl, upstream_crds


def main() -> None:
    kubectl = Kubectl(os.environ["KUBECONFIG"])
    for path in [ROOT / "manifests/crds", *upstream_crds()]:
        kubectl("apply", "--server-side", "--force-conflicts", "-f", str(path))
    kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=20s")


if __name__ == "__main__":
    main()
