"""The text that attaches this package to a live scheduler. Runs where the operator runs."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from typing import Any

PACKAGE = "dask_adaptive_agent"


def sources() -> dict[str, str]:
    """The text of each module of this package, by its full name."""
    return dict(sorted(_texts(resources.files(PACKAGE), PACKAGE)))


def render(sources: dict[str, str], scheduler_id: str) -> str:
    """
    A text to execute in the scheduler's process; it raises there when attaching fails.

    Send it through the stock RPC, which works across releases because only a builtin is pickled:
    `run_function(function=pickle.dumps(exec), args=pickle.dumps((text, {})))`. The answer's status
    is "error" when it failed; a scheduler with `distributed.scheduler.pickle` off answers so too.

    Args:
        sources: See `sources`; must hold `dask_adaptive_agent.inmemory`, which is executed first.
        scheduler_id: As in the answer of the RPC `identity`, key "id".
    """
    body = f"{sources[f'{PACKAGE}.inmemory']}\n\nattach({sources!r}, {scheduler_id!r})\n"
    # exec() without globals would run in those of distributed.worker.run: bring our own.
    return f"exec({body!r}, {{'__name__': '{PACKAGE}_bootstrap'}})\n"


def _texts(folder: Any, name: str) -> Iterator[tuple[str, str]]:
    for item in folder.iterdir():
        if item.is_dir():
            if item.joinpath("__init__.py").is_file():
                yield from _texts(item, f"{name}.{item.name}")
        elif item.name == "__init__.py":
            yield name, item.read_text(encoding="utf-8")
        elif item.name.endswith(".py"):
            yield f"{name}.{item.name[:-3]}", item.read_text(encoding="utf-8")
