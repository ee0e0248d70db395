"""Lines with colours, on a terminal only: `NO_COLOR` and pipes get plain text."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from rich.console import Console
from rich.text import Text

#: Where there is no terminal to ask, lines are as long as they like to be.
_UNBOUNDED = 100_000

#: A cell of a table: text, or text and its style.
Cell: TypeAlias = "str | Text"

GOOD, BAD, ODD, FAINT, HEAD = "green", "red", "yellow", "dim", "bold"


def console() -> Console:
    """Standard output. Nothing in a line is taken for markup, and no line is wrapped."""
    is_terminal = sys.stdout.isatty()
    with_colours = is_terminal and not os.environ.get("NO_COLOR")
    return Console(
        file=sys.stdout,
        force_terminal=is_terminal,
        color_system="standard" if with_colours else None,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=True,
        width=shutil.get_terminal_size().columns if is_terminal else _UNBOUNDED,
    )


def show(lines: Iterable[Text], to: Console | None = None) -> None:
    screen = to or console()
    for line in lines:
        screen.print(line)


def line(*parts: Cell) -> Text:
    return Text.assemble(*parts)


def styled(text: str, style: str) -> Text:
    return Text(text, style=style)


def aligned(columns: Sequence[str], rows: Iterable[Sequence[Cell]], indent: str = "") -> list[Text]:
    """A table as kubectl aligns it, with its head."""
    cells = [[styled(c, HEAD) for c in columns], *([Text.assemble(c) for c in r] for r in rows)]
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
