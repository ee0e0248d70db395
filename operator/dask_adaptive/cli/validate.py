"""`dask-adaptive validate`: checks manifests without a cluster. The lab reads policies with it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import click
import yaml

from dask_adaptive import DOMAIN
from dask_adaptive.budget.adaptive_budget import parse_budget
from dask_adaptive.cli.errors import NOTHING, USAGE, fail
from dask_adaptive.cli.output import show
from dask_adaptive.kube.api import BUDGETS, POLICIES, Json
from dask_adaptive.model.amounts import counted
from dask_adaptive.model.codec import InvalidPolicy, Problem
from dask_adaptive.model.policy import parse_policy

_FILE = click.Path(exists=True, dir_okay=False, allow_dash=True)

#: What PyYAML raises; the last three for values that are not of their tag, such as `!!bool x`.
_INVALID = (yaml.YAMLError, ValueError, RecursionError, TypeError, LookupError, AttributeError)

#: Readers of specs, by kind.
_SPECS = {POLICIES.kind: parse_policy, BUDGETS.kind: parse_budget}


@click.command("validate")
@click.argument("files", nargs=-1, type=_FILE, metavar="FILE…")
@click.option("-f", "--filename", "more", multiple=True, type=_FILE, help="The same as FILE.")
def command(files: tuple[str, ...], more: tuple[str, ...]) -> None:
    """
    Check AdaptivePolicies and AdaptiveBudgets in files, without a cluster.

    FILE is YAML or JSON; - is standard input. All problems are shown, with file, line and field.
    Objects of other kinds are skipped. Exit code 2 if there is a problem, 1 if there is no object.

    \b
    Examples:
      kubectl dask-adaptive validate policy.yaml manifests/*.yaml
      kubectl dask-adaptive validate -f - < policy.yaml
    """
    found = [read(name) for name in files + more]
    bodies = [body for of_file, _ in found for body in of_file]
    faults = [fault for _, of_file in found for fault in of_file]
    if not bodies and not faults:
        fail(f"no {' or '.join(_SPECS)} in these files", NOTHING)
    total = f"{counted(len(bodies), 'object')} checked: {counted(len(faults), 'problem')}"
    show([*faults, total])
    if faults:
        sys.exit(USAGE)


def read(file: str) -> tuple[list[Json], list[str]]:
    """Return the policies and budgets in a file, and all of their problems, a line for each."""
    bodies, faults = list[Json](), list[str]()
    try:
        with click.open_file(file, "rb") as stream:
            loader = _Loader(stream.read())
        loader.check_node()  # skips the start of the stream
        while node := loader.get_node():
            for place, body in _ours(loader.construct_document(node)):
                bodies.append(body)
                for problem in _problems(body):
                    line = _line(node, f"{place}.{problem.path}", node.start_mark.line + 1)
                    faults.append(f"{file}:{line}: {problem}")
    except _INVALID as exc:
        mark = getattr(exc, "problem_mark", None)
        words = getattr(exc, "problem", None) or exc
        faults.append(f"{file}:{mark.line + 1 if mark else 1}: invalid YAML: {words}")
    return bodies, faults


class _Loader(yaml.SafeLoader):
    """Refuses keys that are there twice, as kubectl does."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key for key, _ in node.value]
        names = [key.value for key in keys]
        if twice := next((key for i, key in enumerate(keys) if key.value in names[:i]), None):
            problem = f"{twice.value} is there twice"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=twice.start_mark)
        return super().construct_mapping(node, deep)


def _ours(body: Any) -> Iterator[tuple[str, Json]]:
    """Yield our objects in a document, or in a List, each with its place."""
    if not isinstance(body, dict):
        return
    if isinstance(items := body.get("items"), list):
        for i, one in enumerate(items):
            yield from ((f".items[{i}]{place}", ours) for place, ours in _ours(one))
    elif str(body.get("kind")) in _SPECS or str(body.get("apiVersion")).startswith(f"{DOMAIN}/"):
        yield "", body


def _problems(body: Json) -> list[Problem]:
    kind, version, metadata = (body.get(key) for key in ("kind", "apiVersion", "metadata"))
    if str(kind) not in _SPECS:
        return [Problem("kind", f"must be {' or '.join(_SPECS)}; got {kind!r:.60}")]
    found = []
    if version != POLICIES.api_version:
        found.append(Problem("apiVersion", f"must be {POLICIES.api_version}; got {version!r:.60}"))
    if not isinstance(metadata, Mapping) or not metadata.get("name"):
        found.append(Problem("metadata.name", "is required"))
    for key in body.keys() - {"apiVersion", "kind", "metadata", "spec", "status"}:
        found.append(Problem(str(key), "is not a known field"))
    try:
        _SPECS[str(kind)](body.get("spec") or {})
    except InvalidPolicy as exc:
        found += exc.problems
    return found


def _line(node: yaml.Node, path: str, above: int) -> int:
    """Return the line of a field such as `.spec.workerGroups[0]`; without one that of its owner."""
    is_map = isinstance(node, yaml.MappingNode)
    for i, entry in enumerate(node.value if isinstance(node, yaml.CollectionNode) else ()):
        key, child = entry if is_map else (entry, entry)
        rest = path.removeprefix(f".{key.value}" if is_map else f"[{i}]")
        if rest != path and rest[:1] in ("", ".", "["):
            return _line(child, rest, key.start_mark.line + 1)
    return above
