"""Ends a command with a sentence and an exit code."""

from __future__ import annotations

import sys
from typing import NoReturn

import click

from dask_adaptive.text import plain

#: Exit codes.
NOTHING, USAGE, UNREACHABLE = 1, 2, 3


def complain(message: str) -> None:
    click.echo(plain(message), file=sys.stderr)  # with `err` it would end up in a progress bar


def fail(message: str, code: int) -> NoReturn:
    complain(f"Error: {message}")
    sys.exit(code)
