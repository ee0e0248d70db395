"""Files that commands are given, policies and traces; what is wrong with them in a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dask_adaptive.cli.errors import USAGE, complain, fail
from dask_adaptive.cli.validate import read
from dask_adaptive.kube.api import POLICIES
from dask_adaptive.model.amounts import counted
from dask_adaptive.model.policy import Policy, parse_policy
from dask_adaptive_lab.trace import InvalidTrace, Trace, read_trace

#: Exit code: scaling had tasks rerun, which the operator exists to prevent.
REDONE = 5


def read_policy(path: Path) -> Policy:
    """Return the AdaptivePolicy in a file; see `read_manifest`."""
    return parse_policy(read_manifest(path)["spec"])


def read_manifest(path: Path) -> dict[str, Any]:
    """Return the only AdaptivePolicy in a file, a valid one; otherwise end with the problems."""
    bodies, faults = read(str(path))
    for fault in faults:
        complain(fault)
    policies = [body for body in bodies if body["kind"] == POLICIES.kind]
    if faults:
        fail(f"{path} has {counted(len(faults), 'problem')}", USAGE)
    if len(policies) != 1:
        fail(f"{path} holds {len(policies)} AdaptivePolicies; one is needed", USAGE)
    return policies[0]


def read_trace_file(path: Path) -> Trace:
    """Return a trace that `record` wrote."""
    try:
        return read_trace(path.read_text(encoding="utf-8").splitlines())
    except (InvalidTrace, UnicodeDecodeError) as exc:
        fail(f"{path}: {exc}", USAGE)
