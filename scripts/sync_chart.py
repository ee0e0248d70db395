#!/usr/bin/env python3
"""
Write the parts of the chart that are made from other files: the CRDs, and its README.

    scripts/sync_chart.py           writes them
    scripts/sync_chart.py --check   exit code 1 if one is out of date
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "helm/dask-adaptive-operator"


class Value(NamedTuple):
    """One value of the chart, as values.yaml has it."""

    path: str
    default: Any
    comment: str


def values() -> list[Value]:
    """All values; one is whole where the schema does not name its parts."""
    text = (CHART / "values.yaml").read_text()
    schema = json.loads((CHART / "values.schema.json").read_text())
    comments = _comments(text)

    def walk(node: dict[str, Any], rules: dict[str, Any], above: str) -> Iterator[Value]:
        for key, default in node.items():
            path = f"{above}.{key}".lstrip(".")
            rule = rules["properties"][key]
            rule = schema["definitions"][rule["$ref"].split("/")[-1]] if "$ref" in rule else rule
            comments.setdefault(path, comments.get(above, ""))
            if default and isinstance(default, dict) and "properties" in rule:
                yield from walk(default, rule, path)
            else:
                yield Value(path, default, comments[path])

    return list(walk(yaml.safe_load(text), schema, ""))


def _comments(text: str) -> dict[str, str]:
    """By the path of each key that has a line: the comment above it, or above its neighbours."""
    found: dict[str, str] = {}
    above: list[tuple[int, str]] = []
    comment: list[str] = []
    was_comment = False
    for line in text.splitlines():
        key = re.match(r"( *)(\w+):", line)
        if line.lstrip().startswith("#"):
            comment = [*(comment if was_comment else ()), line.strip("# ")]
        elif key:
            indent = len(key[1])
            above = [*(a for a in above if a[0] < indent), (indent, key[2])]
            found[".".join(name for _, name in above)] = " ".join(comment)
        elif not line:
            comment = []
        was_comment = line.lstrip().startswith("#")
    return found


README = """\
# dask-adaptive-operator

Adaptive scaling for Dask clusters in which no work is redone: an add-on to the
[dask-kubernetes](https://kubernetes.dask.org) operator, for Kubernetes 1.30 or newer.

No image is published yet. Build one in a checkout of the project, push it to a registry that your
cluster can pull from, and install:

    docker build -t registry.example.com/dask-adaptive:{version} .
    docker push registry.example.com/dask-adaptive:{version}
    helm install dask-adaptive helm/dask-adaptive-operator \\
        --namespace dask-adaptive --create-namespace \\
        --set image.repository=registry.example.com/dask-adaptive
    helm test dask-adaptive --namespace dask-adaptive

Then make a DaskCluster adaptive:

    kubectl annotate daskcluster NAME dask-adaptive.dev/max-replicas=20

Uninstalling takes back what the operator has written to objects of other people, and keeps the CRD
and your AdaptivePolicies. The project's documentation says more, in `docs/howto`: `install.md`,
`upgrade.md` and `environments.md`.

## Values

The chart refuses values that are not in this table, and those of a wrong type.

| value | default | what it is |
|---|---|---|
{rows}
"""


def readme() -> str:
    """Made from values.yaml and Chart.yaml."""
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    rows = (
        f"| `{v.path}` | `{json.dumps(v.default)}` | {v.comment.replace('|', '&#124;')} |"
        for v in values()
    )
    return README.format(version=version, rows="\n".join(rows))


def made() -> dict[Path, Callable[[], str]]:
    """Functions that return the text of a file, by its path."""
    sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "operator")]
    import crds

    return {CHART / "README.md": readme, **crds.made()}


def main() -> None:
    if sys.argv[1:] not in ([], ["--check"]):
        raise SystemExit(__doc__)
    for path, make in made().items():
        text = make()
        if not sys.argv[1:]:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            raise SystemExit(f"{path.relative_to(ROOT)} is out of date; run scripts/sync_chart.py")


if __name__ == "__main__":
    main()
