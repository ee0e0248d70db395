"""Progress of long commands, on standard error: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from dask_adaptive.cli.errors import complain
from dask_adaptive.cli.output import console

#: Between two lines.
EVERY_S = 30.0


@contextmanager
def progress(total: float | None) -> Iterator[Callable[[float, str], None]]:
    """
    Yield a function that is told how much is done, and what to say about it.

    Args:
        total: When all is done; None: nobody knows.
    """
    screen = console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    is_hidden = not screen.is_interactive
    bar = Progress(*columns, console=screen, transient=True, disable=is_hidden)
    task, said_at = bar.add_task("", total=total), -EVERY_S

    def tell(done: float, text: str) -> None:
        nonlocal said_at
        bar.update(task, completed=done, description=text)
        if is_hidden and time.monotonic() - said_at >= EVERY_S:
            said_at = time.monotonic()
            complain(text)

    with bar:
        yield tell
