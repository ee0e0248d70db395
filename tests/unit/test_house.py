"""
The house only gets smaller: how much code there is, how much users face, and how many files one
thing leads through.

`house_limits.json` holds what there is. A commit that takes something away lowers it:

    python tests/unit/test_house.py --lower
"""

from __future__ import annotations

import ast
import json
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where it is run as a script
from support.source import code

ROOT = Path(__file__).resolve().parents[2]
OPERATOR = ROOT / "operator"
TOUR = ROOT / "docs/contributing/tour.md"

#: At most so many files are opened on the way from the start of each part of the tour to its end.
STOPS = {"An idle worker leaves": 26, "The number of workers": 20, "The agent gets in": 15}


#: Folders whose code is counted one by one.
FOLDERS = (
    "operator",
    *(f"operator/{folder.parent.name}" for folder in sorted(OPERATOR.glob("*/__init__.py"))),
    *(
        f"operator/dask_adaptive/{folder.parent.name}"
        for folder in sorted(OPERATOR.glob("dask_adaptive/*/__init__.py"))
    ),
    "scripts",
    "tests",
)
LIMITS = Path(__file__).with_name("house_limits.json")


@cache
def code_lines(file: Path) -> int:
    """Lines that hold code, so that a reason costs nothing."""
    with tokenize.open(file) as opened:
        return len(code(opened.read()))


def schema_leaves(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Fields of a schema that hold no other fields."""
    if schema.get("type") == "array":
        yield from schema_leaves(schema["items"])
    elif "properties" in schema:
        for child in schema["properties"].values():
            yield from schema_leaves(child)
    else:
        yield schema


def faced_by_users() -> dict[str, int]:
    """What users have to find their way in."""
    crds = ROOT / "helm/dask-adaptive-operator/files/crds"
    policy = yaml.safe_load((crds / "adaptivepolicies.yaml").read_text())
    parts = policy["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    notes = (ROOT / "docs/reference/annotations.md").read_text().split("\n## ")[1]
    cells = [row.split("|")[1] for row in notes.splitlines() if row.startswith("| `")]
    reasons = yaml.safe_load((ROOT / "docs/reasons.yaml").read_text())
    # Pages for contributors are not what users face.
    pages = [p for p in (ROOT / "docs").rglob("*.md") if p.parent.name != "contributing"]
    makefile = (ROOT / "Makefile").read_text()
    return {
        "leaves in the spec": len(list(schema_leaves(parts["spec"]))),
        "leaves in the status": len(list(schema_leaves(parts["status"]))),
        "reasons": len(reasons),
        "annotations": sum(cell.count("`") // 2 for cell in cells),
        "pages": len(pages),
        # In steps of 500: a sentence more is no growth.
        "words in pages": -(-sum(len(page.read_text().split()) for page in pages) // 500) * 500,
        "scripts": sum(1 for file in (ROOT / "scripts").iterdir() if file.is_file()),
        "make targets": len(set(re.findall(r"^([a-z0-9-]+):", makefile, re.M))),
    }


def expected_by(node: ast.AST) -> list[ast.AST]:
    """The parts of an assertion that say what is expected."""
    if isinstance(node, ast.Assert):
        return [node.test]
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return []
    if node.func.attr == "parametrize":
        return list(node.args[1:])
    return [k.value for k in node.keywords if k.arg == "match"]


def words_of(node: ast.AST) -> Iterator[str]:
    """Each string in an expression; of one that is formatted, what is literal."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(v.value if isinstance(v, ast.Constant) else "0" for v in node.values)
    else:
        for child in ast.iter_child_nodes(node):
            yield from words_of(child)


def sentences(file: Path) -> int:
    """Of six words or more, that a test asserts to the letter: a reason and figures say it, too."""
    nodes = [part for node in ast.walk(ast.parse(file.read_text())) for part in expected_by(node)]
    return sum(len(text.split()) >= 6 for node in nodes for text in words_of(node))


def counted() -> dict[str, int]:
    lines = {
        f"lines of code in {folder}": sum(map(code_lines, (ROOT / folder).rglob("*.py")))
        for folder in FOLDERS
    }
    asserted = sum(map(sentences, (ROOT / "tests").rglob("*.py")))
    return {**lines, "sentences asserted": asserted, **faced_by_users()}


@cache
def modules() -> dict[str, Path]:
    """Every module of the operator and of the agent, by its full name."""
    found = {}
    for file in OPERATOR.rglob("*.py"):
        parts = file.relative_to(OPERATOR).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imported_by(file: Path) -> set[str]:
    """Our modules that a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names & modules().keys()


def slivers() -> list[str]:
    """Modules of less than 100 lines that one other module imports."""
    importers = defaultdict(set)
    for name, file in modules().items():
        for imported in imported_by(file) - {name}:
            importers[imported].add(name)
    return sorted(
        name
        for name, file in modules().items()
        if len(importers[name]) == 1
        and file.name != "__init__.py"
        and len(file.read_text().splitlines()) < 100
    )


def twice(names: list[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def public_classes() -> list[str]:
    return [
        node.name
        for file in modules().values()
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]


def test_the_house_only_gets_smaller() -> None:
    limits, now = json.loads(LIMITS.read_text()), counted()

    assert now.keys() == limits.keys()
    assert {} == {name: now[name] for name, most in limits.items() if now[name] > most}


def test_a_module_is_a_concept() -> None:
    assert len(modules()) <= 201
    assert len(slivers()) <= 12, slivers()


def test_a_name_stands_for_one_thing() -> None:
    leaves = [file.stem for file in modules().values() if not file.stem.startswith("__")]

    assert len(twice(public_classes())) <= 5, twice(public_classes())
    assert len(twice(leaves)) <= 5, twice(leaves)


def stops(part: str) -> list[Path]:
    """The files that a part of the tour names."""
    text = TOUR.read_text().partition(f"\n## {part}\n")[2].partition("\n## ")[0]
    return [ROOT / path for path in dict.fromkeys(re.findall(r"`(operator/[\w/]+\.py)`", text))]


@pytest.mark.parametrize("part", STOPS)
def test_the_tour_names_files_that_exist(part: str) -> None:
    passed = stops(part)

    assert passed
    assert [] == [str(path) for path in passed if not path.is_file()]
    assert len(passed) <= STOPS[part]


if __name__ == "__main__" and "--lower" in sys.argv:
    now = counted()
    limits = json.loads(LIMITS.read_text()) if LIMITS.exists() else {}
    lowered = {name: min(count, limits.get(name, count)) for name, count in now.items()}
    LIMITS.write_text(json.dumps(lowered, indent=2) + "\n")
