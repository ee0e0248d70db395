#!/usr/bin/env python3
"""
Write manifests/kustomize, the base for people without Helm, from what helm renders of the chart.

    scripts/kustomize_base.py           writes it
    scripts/kustomize_base.py --check   exit code 1 if it is out of date
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "helm/dask-adaptive-operator"
BASE = ROOT / "manifests/kustomize"

#: Release and namespace; admission policies name both, so an overlay must not change them.
NAME = "dask-adaptive"
#: Nobody can ever publish it: whoever forgets `images:` pulls nothing.
IMAGE = "registry.invalid/dask-adaptive"

MADE = "# Made from the chart by scripts/kustomize_base.py.\n"
KUSTOMIZATION = f"""\
{MADE}# An overlay sets the image: docs/howto/install.md. It can't set another namespace, which the
# admission policies name.
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [namespace.yaml, crd.yaml, operator.yaml]
"""
NAMESPACE = f"""\
{MADE}apiVersion: v1
kind: Namespace
metadata:
  name: {NAME}
  labels:
    pod-security.kubernetes.io/enforce: restricted
"""

#: What is true only of what Helm installs.
_HELMS = re.compile(
    r"(?m)^(?:# Source:.*|\s+(?:helm\.sh/chart|app\.kubernetes\.io/managed-by): [\w.+-]+)\n"
)


def helm() -> str:
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    local = Path(os.environ.get("DASK_ADAPTIVE_CACHE") or caches / "dask-adaptive") / "bin/helm"
    found = str(local) if local.exists() else shutil.which("helm")
    if found is None:
        raise SystemExit("helm is missing; build it with: localnode/build.sh")
    return found


def rendered(template: str = "") -> str:
    """All objects of the chart but its hooks; or those of one of its templates."""
    values = f"image.repository={IMAGE},crds.keep=false"
    words = ["--namespace", NAME, "--kube-version", "1.30.0", "--no-hooks", "--set", values]
    words += (
        ["--show-only", f"templates/{template}"] if template else ["--set", "crds.install=false"]
    )
    done = subprocess.run(
        [helm(), "template", NAME, str(CHART), *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return MADE + _HELMS.sub("", done.stdout)


def files() -> dict[str, str]:
    operator = rendered()
    for document in operator.split("\n---\n"):
        if "\nkind: Secret\n" in document and re.search(r"(?m)^(?:data|stringData):", document):
            raise SystemExit("the chart renders a Secret that all users of the base would share")
    return {
        "kustomization.yaml": KUSTOMIZATION,
        "namespace.yaml": NAMESPACE,
        "crd.yaml": rendered("crd.yaml"),
        "operator.yaml": operator,
    }


def main() -> None:
    if sys.argv[1:] not in ([], ["--check"]):
        raise SystemExit(__doc__)
    BASE.mkdir(exist_ok=True)
    for name, text in files().items():
        path = BASE / name
        if not sys.argv[1:]:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            where = path.relative_to(ROOT)
            raise SystemExit(f"{where} is out of date; run scripts/kustomize_base.py")


if __name__ == "__main__":
    main()
