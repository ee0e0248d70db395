"""Published figures are those that were measured, and say where they are older than their code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench import pages
from bench.relief import report as relief
from bench.scale import report as scale
from support.source import code

sys.path.insert(0, str(Path(relief.__file__).parents[1]))  # where `make bench-upstream` finds it
from upstream import report as upstream

README = (pages.ROOT / "README.md").read_text()


def rows(name: str) -> Any:
    return pages.read(pages.FOLDER / f"{name}.jsonl")


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("relief", lambda: relief.page(rows("relief"))),
        ("scale", lambda: scale.page(rows("scale"))),
        ("upstream", lambda: upstream.page(upstream.read(pages.FOLDER / "upstream.jsonl"))),
    ],
)
def test_a_page_marks_what_is_older_than_its_code(name: str, page: Callable[[], str]) -> None:
    # Where it fails: run make bench-figures.
    assert page() == next(pages.FOLDER.parent.glob(f"*/{name}.md")).read_text()


@pytest.mark.parametrize(
    ("name", "table"), [("today", upstream.today), ("upstream", upstream.readme)]
)
def test_the_readme_shows_only_what_is_current(name: str, table: Callable[[Any], str]) -> None:
    shown = README.partition(f"<!-- {name}: begin -->\n")[2].partition(f"\n<!-- {name}: end -->")[0]

    assert table(upstream.read(pages.FOLDER / "upstream.jsonl")) == shown, "run make bench-figures"


def test_a_row_whose_code_has_changed_leaves_the_readme_and_is_marked_on_its_page() -> None:
    old = {"makespan_s": 50, "worker_seconds": 9, "redone": 0, "killed": 0, "note": "", "code": ""}
    row = {**old, "code": pages.digest("upstream")}

    def runs(ours: Any) -> Any:
        return {"p2p": {"upstream": [{**row, "makespan_s": 100}], "ours": [ours]}}

    assert "50 % less time" in upstream.readme(runs(row))
    assert "100 s | 50 s" in upstream.today(runs(row))
    assert "p2p\n" in upstream.page(runs(row))
    assert "50 s" not in upstream.readme(runs(old)) + upstream.today(runs(old))
    assert "p2p †\n" in upstream.page(runs(old))


@pytest.mark.parametrize(
    ("text", "is_same"),
    [("# why\nx = 1\n", True), ('"""Why."""\nx = 1\n', True), ("x = 2\n", False)],
)
def test_comments_and_docstrings_make_no_figure_old(text: str, is_same: bool) -> None:
    assert (code("x = 1\n") == code(text)) is is_same
