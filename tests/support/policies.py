"""
Specs of policies and budgets, right and wrong ones: policies.yaml says what they are for.

What is wrong with one field alone is made from the CRD, in test_policy.py: there it is once for
each sentence.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from support.kube_server import CRDS, ROOT

#: The example that names every field.
FULL: dict[str, Any] = yaml.safe_load((ROOT / "manifests/examples/full-policy.yaml").read_text())[
    "spec"
]

LEAST: dict[str, Any] = {"clusterRef": {"name": "etl"}, "maxReplicas": 5}

_CASES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())


def _wrong(kind: str) -> list[tuple[dict[str, Any], str, str]]:
    return [(case["spec"], case["field"], case.get("words", "")) for case in _CASES[kind]]


MANY_SETTINGS = {f"k{i}": {"a": 1} for i in range(201)}

#: (spec, field, a part of what is said of it).
WRONG = [*_wrong("wrong"), ({"scheduler": {"config": MANY_SETTINGS}}, "scheduler.config", "")]
WRONG_BUDGETS = _wrong("wrong-budgets")

#: What both take, and read alike.
TAKEN: list[dict[str, Any]] = _CASES["taken"]


def schema_of(crd: str) -> dict[str, Any]:
    """Of a spec, as the CRD has it."""
    (version,) = yaml.safe_load((CRDS / f"{crd}.yaml").read_text())["spec"]["versions"]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return found


def changed(node: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy with another value at a path; `drop`: without it."""
    if not path:
        return value
    head, *rest = path
    copy = node.copy()
    if value == "drop" and not rest:
        del copy[head]
    else:
        copy[head] = changed(node[head], tuple(rest), value)
    return copy


def spec(written: str | dict[str, Any]) -> dict[str, Any]:
    """Fields, maybe as YAML, added to the least policy."""
    return {**LEAST, **(yaml.safe_load(written) if isinstance(written, str) else written)}
