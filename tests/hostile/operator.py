"""
The operator's process, watched from inside. What would run foreign code, and the longest that the
event loop stood in one step, are lines of the file HOSTILE_WATCH.

    python -m hostile.operator run …
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from typing import Any

#: A step of the loop that takes longer, in seconds of CPU, is written down.
LONG_S = 0.3

#: What nobody does here by himself. (`exec` is what importing modules does, too.)
_FORBIDDEN = ("pickle.find_class", "os.system", "subprocess.Popen", "os.exec", "os.posix_spawn")


def watch(path: str) -> None:
    """From now on."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(text: str) -> None:
        os.write(file, f"{text}\n".encode())

    def hear(event: str, args: Any) -> None:
        if event in _FORBIDDEN:
            note(f"{event} {args!r}")

    run = asyncio.events.Handle._run  # type: ignore[attr-defined]

    def timed(handle: Any) -> None:
        began = time.thread_time()
        run(handle)
        took_s = time.thread_time() - began
        if took_s > LONG_S:
            note(f"the loop stood for {took_s:.2f} s in {handle!r}")

    asyncio.events.Handle._run = timed  # type: ignore[attr-defined]
    sys.addaudithook(hear)


def main() -> None:
    from dask_adaptive.cli.main import cli
    from dask_adaptive.controller import app  # noqa: F401  # what it imports is imported by now

    gc.freeze()
    watch(os.environ["HOSTILE_WATCH"])
    cli(sys.argv[1:])


if __name__ == "__main__":
    main()
