#!/usr/bin/env python3
"""What became of the mutants of scripts/mutation.sh, for each module of the planner.

mutation_report.py FOLDER [MODULE...] prints the table and what each survivor changed;
mutation_report.py FOLDER --write FILE puts the sums between the markers of FILE.
"""

from __future__ import annotations

import ast
import difflib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mutmut.stats import status_by_exit_code

BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"
REFUSED, KILLED, TIMEOUT = "caught by type check", "killed", "timeout"
COLUMNS = ("mutants", "refused by mypy", "killed", "timeout", "survived", "no test")


class _NoTexts(ast.NodeTransformer):
    """Put None for each text: an f-string, or a string with a space in it."""

    def visit_JoinedStr(self, _: ast.JoinedStr) -> ast.expr:
        return ast.Constant(None)

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        is_text = isinstance(node.value, str) and " " in node.value
        return ast.Constant(None) if is_text else node


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change to one function, and what the tests said."""

    function: str
    status: str
    before: str
    after: str
    only_text: bool

    def shown(self) -> str:
        lines = difflib.unified_diff(
            self.before.splitlines(), self.after.splitlines(), n=0, lineterm=""
        )
        return "\n".join([self.function, *(f"  {line}" for line in list(lines)[2:])])


@dataclass(frozen=True, slots=True)
class Module:
    name: str
    mutants: tuple[Mutant, ...]

    def row(self, *, with_texts: bool = True) -> list[int]:
        """The numbers under COLUMNS."""
        judged = [m for m in self.mutants if with_texts or not m.only_text]
        of = Counter("survived" if m.status == "suspicious" else m.status for m in judged)
        unknown = of.keys() - {REFUSED, KILLED, TIMEOUT, "survived", "no tests"}
        if unknown:
            raise SystemExit(f"{self.name}: not judged: {dict(of)}; run mutation.sh again")
        return [len(judged), *(of[s] for s in (REFUSED, KILLED, TIMEOUT, "survived", "no tests"))]


def main(folder: Path, arguments: list[str]) -> None:
    if arguments[:1] == ["--write"]:
        page = Path(arguments[1])
        before, _, rest = page.read_text().partition(BEGIN)
        lines = table(list(modules(folder))).splitlines(keepends=True)
        page.write_text("".join([before, BEGIN, *lines[:2], *lines[-2:], *rest.partition(END)[1:]]))
        return
    found = [m for m in modules(folder) if not arguments or m.name in arguments]
    for module in found:
        for mutant in module.mutants:
            if mutant.status not in {REFUSED, KILLED, TIMEOUT}:
                text = " (only a text)" if mutant.only_text else ""
                print(f"{mutant.status}{text}: {module.name}.{mutant.shown()}\n")
    print(table(found))


def modules(folder: Path) -> Iterator[Module]:
    planner = folder / "mutants/src/dask_adaptive/planner"
    for meta in sorted(planner.rglob("*.py.meta")):
        codes = json.loads(meta.read_text())["exit_code_by_key"]
        if codes:
            source = meta.with_suffix("").read_text()
            name = ".".join(meta.relative_to(planner).parts).removesuffix(".py.meta")
            yield Module(name, tuple(mutants(source, codes)))


def mutants(source: str, codes: dict[str, int | None]) -> Iterator[Mutant]:
    """The mutants that mutmut wrote into a module, each beside the function it was made of."""
    made = {
        node.name: node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and "__mutmut_" in node.name
    }
    for key, code in codes.items():
        name = key.rpartition(".")[2]
        function = name.partition("__mutmut_")[0]
        old, new = made[f"{function}__mutmut_orig"], made[name]
        yield Mutant(
            name,
            status_by_exit_code[code],
            before=body(old),
            after=body(new),
            only_text=without_texts(old) == without_texts(new),
        )


def body(function: ast.FunctionDef) -> str:
    """The code, but for the name, which differs for each mutant."""
    return ast.unparse(function).replace(function.name, "", 1)


def without_texts(function: ast.FunctionDef) -> str:
    bare = ast.parse(ast.unparse(function)).body[0]
    assert isinstance(bare, ast.FunctionDef)
    bare.name = ""
    return ast.dump(_NoTexts().visit(bare))


def table(found: list[Module]) -> str:
    """Markdown: a row for each module, all, and all but those that only change a text."""
    rows = [(m.name, m.row()) for m in found]
    rows.append(("**all**", summed([m.row() for m in found])))
    rows.append(("**all but texts**", summed([m.row(with_texts=False) for m in found])))
    head = ["module", *COLUMNS, "caught", "caught by tests"]
    lines = [head, ["---", *["--:"] * (len(head) - 1)]]
    lines += [[name, *map(str, row), *caught(row)] for name, row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def summed(rows: list[list[int]]) -> list[int]:
    return [sum(column) for column in zip(*rows, strict=True)]


def caught(row: list[int]) -> list[str]:
    """Of all mutants; and of those that mypy lets pass, those that a test noticed."""
    total, refused, killed, timeout, *_ = row
    noticed = killed + timeout
    return [share(refused + noticed, total), share(noticed, total - refused)]


def share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ""


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
