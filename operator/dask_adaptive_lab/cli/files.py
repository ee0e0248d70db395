"""Files that commands are given, policies and traces; what is wrong with them in a sentence."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import click
import yaml

from dask_adaptive.model.policy import InvalidPolicy, Policy, parse_policy
from dask_adaptive_lab.trace import InvalidTrace, Trace, read_trace

#: Exit code: scaling had tasks rerun, which the operator exists to prevent.
REDONE = 5


def read_policy(path: Path) -> Policy:
    """The AdaptivePolicy in a file; see `read_manifest`."""
    return read_manifest(path)[1]


def read_manifest(path: Path) -> tuple[dict[str, Any], Policy]:
    """
    Read an AdaptivePolicy from a file, as it is written and parsed; other documents in it are
    passed over.

    Raises:
        click.BadParameter: No policy in it, or one that makes no sense.
    """
    try:
        documents = list(yaml.safe_load_all(path.read_text()))
    except yaml.YAMLError as exc:
        raise click.BadParameter(f"{path} is not YAML: {exc}") from exc
    policies = [d for d in documents if isinstance(d, dict) and d.get("kind") == "AdaptivePolicy"]
    if len(policies) != 1:
        raise click.BadParameter(f"{path} holds {len(policies)} AdaptivePolicies; one is needed")
    try:
        return policies[0], parse_policy(policies[0].get("spec") or {})
    except InvalidPolicy as exc:
        problems = textwrap.indent(str(exc), "  ")
        raise click.BadParameter(f"{path} has mistakes:\n{problems}") from exc


def read_trace_file(path: Path) -> Trace:
    """A trace that `record` wrote. Raises `click.BadParameter`."""
    try:
        return read_trace(path.read_text(encoding="utf-8").splitlines())
    except (InvalidTrace, UnicodeDecodeError) as exc:
        raise click.BadParameter(f"{path}: {exc}") from exc
