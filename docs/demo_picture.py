"""
Make two pictures of one real run of `make demo`: its log, and the page Adaptive while it ran.

    PYTHONPATH=operator:tests .venv/bin/python docs/demo_picture.py

docs/images/demo.svg lacks only the lines that count workers and name ports. The page,
docs/images/adaptive-page.png, is that of the moment that shows most; it needs a Chromium.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

from support.chromium import Tab, find, tab

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs/images"
COMMAND = ("dask-adaptive", "rehearse", "manifests/examples/policy.yaml")

#: Lines of the log that are left out.
DULL = re.compile(r"^ *[\d.]+ s +(workers: \d|scheduler at|dashboard at)")

#: A page that shows more of these shows more of what there is.
WANTED = ("LoadIncreased", "Underutilized", "shuffle", "client", "draining", "drained", "may leave")

#: With more columns the text is too small on a telephone.
COLUMNS = 76


async def main() -> int:
    process = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name(COMMAND[0]), *COMMAND[1:],
        cwd=ROOT, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    lines = []
    async with contextlib.AsyncExitStack() as stack:
        async for line in process.stdout:
            lines.append(line.decode().rstrip())
            print(lines[-1], flush=True)
            if found := re.search(r"dashboard at (\S+)/status", lines[-1]):
                await stack.enter_async_context(watched(f"{found[1]}/adaptive"))
        code = await process.wait()
    (IMAGES / "demo.svg").write_text(terminal(lines))
    return code


@contextlib.asynccontextmanager
async def watched(url: str) -> AsyncIterator[None]:
    """Take pictures of a page meanwhile, and keep the one that shows most."""
    with tempfile.TemporaryDirectory() as profile:
        async with tab(find(), Path(profile), width=1320, height=700) as page:
            await page.open(url)
            pictures = asyncio.create_task(taken(page))
            yield
            pictures.cancel()
            await asyncio.gather(pictures, return_exceptions=True)


async def taken(page: Tab) -> None:
    most = 0
    while True:
        text = await page.text()
        shown = sum(word in text for word in WANTED)
        if shown > most:
            most = shown
            await page.picture(IMAGES / "adaptive-page.png")
        await asyncio.sleep(0.2)


def terminal(lines: list[str]) -> str:
    console = Console(
        width=COLUMNS, file=io.StringIO(), record=True, force_terminal=True,
        color_system="truecolor", legacy_windows=False, _environ={},
    )  # fmt: skip
    for line in lines:
        if not DULL.match(line):
            text = Text(line.strip("─") if line.startswith("─") else line)
            text.highlight_regex(r"Act \d.*|tasks rerun.*", "bold green")
            text.highlight_regex(r"(?<= s    )[A-Z][A-Za-z]+(?=: )", "cyan")
            console.print(text)
    svg = console.export_svg(title=" ".join(COMMAND), unique_id="demo")
    # The picture fetches no font from the network: the reader's own fixed-width font will do.
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
