"""
Prints for commands: colours on a terminal, plain text elsewhere, JSON and YAML. Drops control
characters, because text may come from schedulers or annotations.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import click
from rich.text import Text

from dask_adaptive.text import plain

if TYPE_CHECKING:
    from rich.console import Console

#: A cell of a table: text, or text and its style.
Cell: TypeAlias = "str | Text"

GOOD, BAD, ODD, FAINT, HEAD = "green", "red", "yellow", "dim", "bold"


def dump(value: object, output: str) -> None:
    """Print for programs: JSON or YAML."""
    text = json.dumps(value, indent=2)
    if output == "yaml":
        import yaml

        text = yaml.safe_dump(json.loads(text), sort_keys=False, allow_unicode=True).rstrip()
    click.echo(plain(text))


def console(*, stderr: bool = False) -> Console:
    """Return a standard stream, which FORCE_COLOR makes no terminal where it is a pipe."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, force_terminal=stream.isatty())


def show(lines: Iterable[Cell]) -> None:
    """Print lines without markup or wrapping."""
    screen = console()
    for line in lines:
        screen.print(_on_one_line(line), soft_wrap=True)


def _on_one_line(cell: Cell) -> Text:
    text = Text.assemble(cell)
    text.plain = plain(text.plain).replace("\n", " ")
    return text


def aligned(columns: Sequence[str], rows: Iterable[Sequence[Cell]], indent: str = "") -> list[Text]:
    """Align a table as kubectl does, with its head; without rows there is no line."""
    rows = list(rows)
    if not rows:
        return []
    cells = [[Text(c, HEAD) for c in columns], *([_on_one_line(c) for c in r] for r in rows)]
    widths = [max(row[i].cell_len for row in cells) for i in range(len(columns))]
    lines = []
    for row in cells:
        text = Text(indent)
        for cell, width in zip(row, widths, strict=True):
            text.append_text(cell)
            text.append(" " * (width - cell.cell_len + 3))
        text.rstrip()
        lines.append(text)
    return lines
