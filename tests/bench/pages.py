"""How benchmarks keep their figures and write their pages: lines of JSON, tables, pictures."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[2] / "docs/benchmarks"

Row = dict[str, Any]


def read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def take_over(path: Path, new: Sequence[Row], what: Callable[[Row], Hashable]) -> list[Row]:
    """Keep new rows in a file; they replace those about the same. Returns all rows."""
    replaced = set(map(what, new))
    rows = [row for row in read(path) if what(row) not in replaced] + [*new]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], texts: int = 1) -> str:
    """In Markdown. Columns after the first `texts` hold figures."""
    rules = ["---"] * texts + ["--:"] * (len(head) - texts)
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in (head, rules, *rows))


def pyplot(salt: str) -> Any:
    """
    Matplotlib's module, for pictures without a screen: the same figures give the same file.

    It is imported late, because only benchmarks that draw need it.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = salt
    import matplotlib.pyplot as plt

    return plt
