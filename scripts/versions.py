#!/usr/bin/env python3
"""
Keep the record of the versions that passed, and make the tables of it.

    scripts/versions.py record PART VERSION RESULT.xml...   of pytest's --junitxml; 1: it failed
    scripts/versions.py tables                              of README.md and docs/reference/
    scripts/versions.py --check                             1: a table is not the record's

A version whose tests fail is taken out of the record, so that no table claims it.
"""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ET
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs/reference/versions.jsonl"
BEGIN, END = "<!-- versions: made by scripts/versions.py -->\n", "<!-- versions: end -->"

#: What there are versions of, in the order of the tables, and what ran on each.
PARTS = {
    "kubernetes": ("Kubernetes", "API, chart and webhook tests on a real kube-apiserver"),
    "dask-kubernetes": (
        "dask-kubernetes",
        "its CRDs, and its code together with ours, on the newest of these",
    ),
    "python": ("Python, operator and command line", "installation by pip; unit and contract tests"),
    "agent": ("Python, schedulers, workers, notebooks", "installation by pip; contract tests"),
}

Row = dict[str, Any]


def order(row: Row) -> tuple[int, list[int]]:
    return list(PARTS).index(row["part"]), [int(n) for n in re.findall(r"\d+", row["version"])]


def read() -> list[Row]:
    return [json.loads(line) for line in RECORD.read_text().splitlines()] if RECORD.exists() else []


def counted(paths: list[str]) -> dict[str, int]:
    """Tests that passed, failed and were skipped."""
    suites = [suite for path in paths for suite in ET.parse(path).getroot().iter("testsuite")]
    ran, failed, errors, skipped = (
        sum(int(suite.get(name, 0)) for suite in suites)
        for name in ("tests", "failures", "errors", "skipped")
    )
    return {
        "passed": ran - failed - errors - skipped,
        "failed": failed + errors,
        "skipped": skipped,
    }


def record(part: str, version: str, paths: list[str]) -> bool:
    """Tells whether the version passed."""
    counts = counted(paths)
    passed = counts["passed"] > 0 == counts["failed"]
    rows = [row for row in read() if (row["part"], row["version"]) != (part, version)]
    if passed:
        rows.append({"part": part, "version": version, **counts})
    rows.sort(key=order)
    RECORD.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(f"{PARTS[part][0]} {version}: {', '.join(f'{n} {what}' for what, n in counts.items())}")
    return passed


def short_table(rows: list[Row]) -> str:
    lines = ["| | versions that passed their tests |", "|---|---|"]
    for part, of in groupby(rows, lambda row: str(row["part"])):
        lines.append(f"| {PARTS[part][0]} | {', '.join(row['version'] for row in of)} |")
    return "\n".join(lines)


def long_table(rows: list[Row]) -> str:
    lines = ["| | versions, and how many tests passed | what ran |", "|---|---|---|"]
    for part, of in groupby(rows, lambda row: str(row["part"])):
        passed = ", ".join(f"{row['version']} ({row['passed']})" for row in of)
        lines.append(f"| {PARTS[part][0]} | {passed} | {PARTS[part][1]} |")
    return "\n".join(lines)


TABLES = {ROOT / "README.md": short_table, ROOT / "docs/reference/versions.md": long_table}


def written(page: Path) -> str:
    """The page with the record's table."""
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{page} has no lines '{BEGIN.strip()}' and '{END}' for its table")
    return f"{before}{BEGIN}\n{TABLES[page](read())}\n\n{END}{after}"


def stale() -> list[Path]:
    return [page for page in TABLES if written(page) != page.read_text()]


def main(words: list[str]) -> int:
    if words[:1] == ["record"] and len(words) >= 4 and words[1] in PARTS:
        passed = record(words[1], words[2], words[3:])
    elif words == ["--check"]:
        for page in stale():
            print(f"{page.relative_to(ROOT)} is stale; run scripts/versions.py tables")
        return bool(stale())
    elif words == ["tables"]:
        passed = True
    else:
        print(__doc__, file=sys.stderr)
        return 2
    for page in stale():
        page.write_text(written(page))
    return not passed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
