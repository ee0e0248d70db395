"""
How benchmarks keep their figures and write their pages: lines of JSON, tables, pictures.

Each line carries the digest of the code that it measures. Pages mark what has another one, and the
README shows only what is current.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from support.source import code

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs/benchmarks"

#: The code that the figures of a page depend on, below operator/.
MEASURED = {
    "relief": ("dask_adaptive_agent/relief",),
    "scale": ("dask_adaptive",),
    "upstream": ("dask_adaptive/planner", "dask_adaptive_agent/demand"),
}
OLD = "†: the code that it measures has changed since."

Row = dict[str, Any]


@cache
def digest(page: str) -> str:
    """Of the code that a page's figures depend on; comments and docstrings do not count."""
    found = hashlib.sha256()
    for folder in MEASURED[page]:
        for file in sorted((ROOT / "operator" / folder).rglob("*.py")):
            # Of the command line only `run` is the operator's.
            if file.parent.name != "cli" or file.name == "run.py":
                found.update("\n".join(filter(None, code(file.read_text()))).encode())
    return found.hexdigest()[:12]


def is_current(row: Row, page: str) -> bool:
    return bool(row.get("code") == digest(page))


def mark(rows: Iterable[Row], page: str) -> str:
    """What stands beside a figure that was made of these rows."""
    return "" if all(is_current(row, page) for row in rows) else " †"


def into_readme(name: str, lines: str, readme: Path = ROOT / "README.md") -> None:
    """Replace what stands between two markers in a README."""
    begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
    before, _, rest = readme.read_text().partition(begin)
    readme.write_text(f"{before}{begin}{lines}\n{end}{rest.partition(end)[2]}")


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


def filled(script: str, **parts: str) -> str:
    """The page.md beside a script, with these in its places."""
    return Path(script).with_name("page.md").read_text().format(**parts)


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
