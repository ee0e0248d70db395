"""The house stays as it is: how much code there is, and how many files one thing leads through."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OPERATOR = ROOT / "operator"
AGENT = OPERATOR / "dask_adaptive_agent"
TOUR = ROOT / "docs/explanation/tour.md"

#: At most so many files are opened on the way from the start of each part of the tour to its end.
STOPS = {"An idle worker leaves": 18, "The number of workers": 20, "The agent gets in": 12}


def lines_in(folder: Path) -> int:
    return sum(len(file.read_text().splitlines()) for file in folder.rglob("*.py"))


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


def test_the_code_stays_small() -> None:
    assert lines_in(OPERATOR) <= 42_400
    assert lines_in(AGENT) <= 13_200
    assert lines_in(ROOT / "tests") <= 59_400


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
