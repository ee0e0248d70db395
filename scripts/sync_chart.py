#!/usr/bin/env python3
"""
Copy the CRD from manifests/crds, its source, into the chart.

    scripts/sync_chart.py           writes the copy
    scripts/sync_chart.py --check   exit code 1 if the copy is out of date
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "manifests/crds/adaptivepolicies.yaml"
COPY = ROOT / "helm/dask-adaptive-operator/templates/crd.yaml"

HEAD = """\
{{- if .Values.crds.install }}
# Copied from manifests/crds by scripts/sync_chart.py; edit it there.
"""
NAME = "  name: adaptivepolicies.dask-adaptive.dev\n"
ADDED = """\
  annotations:
    helm.sh/resource-policy: keep
  labels: {{- include "operator.labels" . | nindent 4 }}
"""


def rendered() -> str:
    """The chart's template: the CRD, kept when the chart is uninstalled."""
    lines = [line for line in SOURCE.read_text().splitlines(keepends=True) if line[0] != "#"]
    body = "".join(lines)
    if body.count(NAME) != 1 or "{{" in body:
        raise SystemExit(f"{SOURCE} has a shape that {__file__} does not know")
    return HEAD + body.replace(NAME, NAME + ADDED) + "{{- end }}\n"


def main() -> None:
    text = rendered()
    if sys.argv[1:] == ["--check"]:
        if not COPY.exists() or COPY.read_text() != text:
            raise SystemExit(f"{COPY.relative_to(ROOT)} is out of date; run scripts/sync_chart.py")
    elif sys.argv[1:]:
        raise SystemExit(__doc__)
    else:
        COPY.write_text(text)


if __name__ == "__main__":
    main()
