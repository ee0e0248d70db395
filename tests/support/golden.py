"""
Output that people read, compared with files that people have read.

The files are in `tests/unit/golden`: `NAME.txt` as a pipe gets it, `NAME.colour.txt` as a terminal
does. After a change of the output write them anew, and read the difference before you commit it:

    UPDATE_GOLDEN=1 .venv/bin/python -m pytest tests/unit -k golden
    git diff tests/unit/golden
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.text import Text

FOLDER = Path(__file__).resolve().parents[1] / "unit/golden"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def rendered(lines: Iterable[Text], *, colours: bool) -> str:
    """Lines as `cli.output.show` writes them to a pipe, or to a terminal."""
    out = io.StringIO()
    console = Console(
        file=out,
        force_terminal=colours,
        color_system="standard" if colours else None,
        highlight=False,
        soft_wrap=True,
        width=200,
    )
    for line in lines:
        console.print(line)
    return out.getvalue()


def compare_text(file: str, text: str) -> None:
    path = FOLDER / file
    if os.environ.get("UPDATE_GOLDEN"):
        FOLDER.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"{path} is missing: run with UPDATE_GOLDEN=1, and read it"
    assert path.read_text(encoding="utf-8") == text
