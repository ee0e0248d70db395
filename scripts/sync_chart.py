#!/usr/bin/env python3
"""
Write the parts of the chart that are made from other files: the CRDs, and the README by helm-docs.

    scripts/sync_chart.py           writes them; the README needs Go
    scripts/sync_chart.py --check   exit code 1 if a CRD is out of date; the README: tests/chart
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "helm/dask-adaptive-operator"


def readme() -> str:
    """Made from values.yaml, Chart.yaml and README.md.gotmpl."""
    chart = [f"--chart-search-root={CHART}", "--sort-values-order=file"]
    command = [_printed(str(ROOT / "scripts/go-tool.sh"), "helm-docs"), "--dry-run", *chart]
    return _printed(*command, "--log-level=warning") + "\n"


def _printed(*command: str) -> str:
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(done.returncode)
    return done.stdout.strip()


def main() -> None:
    if sys.argv[1:] not in ([], ["--check"]):
        raise SystemExit(__doc__)
    sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "operator")]
    import crds

    for path, make in crds.made().items():
        text = make()
        if not sys.argv[1:]:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            raise SystemExit(f"{path.relative_to(ROOT)} is out of date; run scripts/sync_chart.py")
    if not sys.argv[1:]:
        (CHART / "README.md").write_text(readme())


if __name__ == "__main__":
    main()
