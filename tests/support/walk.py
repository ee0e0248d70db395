"""Pages of the documentation as somebody types them: blocks, commands, and where they are typed."""

from __future__ import annotations

import asyncio
import io
import json
import re
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from support.kube_server import Kubectl

#: A fenced block: its indent, its language, and what is in it.
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_MARK = "~~ done:"

_NOTEBOOK = f"""
import json, sys, traceback
names = {{"__name__": "__main__"}}
for line in sys.stdin:
    code = 0
    try:
        exec(json.loads(line), names)
    except BaseException:
        traceback.print_exc()
        code = 1
    print("\\n{_MARK}", code, flush=True)
"""


@dataclass(frozen=True, slots=True)
class Block:
    language: str
    text: str
    section: str


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a console block, and the output that the page shows."""

    text: str
    shown: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    heads = [(found.start(), found[1]) for found in _HEADING.finditer(text)]
    return [
        Block(
            found[2],
            textwrap.dedent(found[3]),
            next((head for at, head in reversed(heads) if at < found.start()), ""),
        )
        for found in FENCE.finditer(text)
    ]


def commands(block: Block) -> Iterator[Command]:
    """The lines that begin with `$ `, each with the lines that a backslash adds to it."""
    lines, found = block.text.splitlines(), list[list[str]]()
    for line in lines:
        if line.startswith("$ "):
            found.append([line[2:], ""])
        elif found and not found[-1][1] and found[-1][0].endswith("\\"):
            found[-1][0] += f"\n{line}"
        else:
            assert found, f"output without a command: {line}"
            found[-1][1] += f"{line}\n"
    return (Command(text, shown) for text, shown in found)


def matches(shown: str, output: str) -> bool:
    """Whether a command printed what the page shows: `…` is anything, spaces are not counted."""
    parts = [re.escape(_even(part)) for part in re.split("…", shown.strip())]
    pattern = ".*".join(parts).replace("\\\n.*\\\n", "\\\n(?:.*\\\n)?")
    return re.fullmatch(pattern, _even(output.strip()), re.DOTALL) is not None


def _even(text: str) -> str:
    return re.sub(r"[ \t]+(\n|$)", r"\1", re.sub(r"[ \t]+", " ", text))


class Session:
    """A process that runs what is typed and prints: a shell, or the kernel of a notebook."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, *words: str, env: Mapping[str, str], cwd: Path) -> Session:
        process = await asyncio.create_subprocess_exec(
            *words, env=env, cwd=cwd, limit=2**20,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        return cls(process)

    @classmethod
    async def shell(cls, env: Mapping[str, str], cwd: Path) -> Session:
        return await cls.start("bash", "--norc", env=env, cwd=cwd)

    @classmethod
    async def notebook(cls, env: Mapping[str, str], cwd: Path) -> Session:
        return await cls.start(sys.executable, "-W", "ignore", "-c", _NOTEBOOK, env=env, cwd=cwd)

    async def type(self, command: str, timeout_s: float = 300.0) -> tuple[int, str]:
        """A command of a shell: its exit code, and its output."""
        typed = f"{{ {command}\n}} </dev/null\necho; echo '{_MARK}' $?\n"
        return await asyncio.wait_for(self._ask(typed), timeout_s)

    async def run(self, cell: str, timeout_s: float = 300.0) -> tuple[int, str]:
        """A cell of a notebook."""
        return await asyncio.wait_for(self._ask(f"{json.dumps(cell)}\n"), timeout_s)

    async def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 30)
        except TimeoutError:
            self._process.kill()

    async def _ask(self, typed: str) -> tuple[int, str]:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(typed.encode())
        lines = list[str]()
        while line := (await self._process.stdout.readline()).decode():
            if line.startswith(_MARK):
                return int(line.removeprefix(_MARK)), "".join(lines).strip()
            lines.append(line)
        raise AssertionError(f"it ended: {''.join(lines)}")


#: Commands that only look: people type them again until they see what the page shows.
_LOOKS = re.compile(r"kubectl (get|dask-adaptive (status|explain)|.*dask-adaptive check)\b")
_PATIENCE_S = 120.0

_PENDING = 'jsonpath={.items[?(@.status.phase=="Pending")].metadata.name}'


class Walk:
    """Types a page's blocks one after the other, and compares what is printed."""

    def __init__(
        self, kubectl: Kubectl, shell: Session, notebook: Session, images: Mapping[str, str]
    ) -> None:
        #: Section, command and output.
        self.typed = list[tuple[str, str, str]]()
        self._kubectl, self._shell, self._notebook = kubectl, shell, notebook
        self._images = " ".join(f"{name}={value}" for name, value in images.items())

    async def enter(self, namespace: str) -> None:
        """Make it the namespace of all commands."""
        await self._shell.type(f"kubectl config set-context --current --namespace {namespace}")

    async def address_of(self, service: str) -> str:
        return await self._get("service", service, "-o", "jsonpath={.spec.clusterIP}")

    async def block(self, block: Block) -> None:
        if block.language == "python":
            mending = asyncio.create_task(self._mend_phases())
            try:
                code, output = await self._notebook.run(block.text)
            finally:
                mending.cancel()
            assert 0 == code, f"{block.text}\n{output}"
        if block.language != "console":
            return
        for command in commands(block):
            async with asyncio.TaskGroup() as tasks:
                if command.text.startswith("kubectl drain"):
                    tasks.create_task(self._another_node())
                output = await self._command(command)
            print(f"$ {command.text}\n{output}", flush=True)
            self.typed.append((block.section, command.text, output))
        if "export IMAGE=" in block.text:  # the page's images are examples
            await self._shell.type(f"export {self._images}")

    async def _command(self, command: Command) -> str:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            code, output = await self._shell.type(command.text)
            if code == 0 and (not command.shown or matches(command.shown, output)):
                return output
            again = _LOOKS.match(command.text) and time.monotonic() < deadline
            wanted = f"exit code {code}; the page shows\n{command.shown}"
            assert again, f"$ {command.text}\n{output}\n-- {wanted}"
            await asyncio.sleep(1)

    async def _mend_phases(self) -> None:
        """
        As docs/howto/troubleshooting.md says: of two of upstream's handlers the one that ends last
        writes the phase, and on a busy machine that may be the wrong one (dask-kubernetes#968).
        """
        before = set[str]()
        while True:
            await asyncio.sleep(10)
            stuck = set((await self._get("daskclusters", "-o", _PENDING)).split())
            for name in stuck & before:
                service = f"{name}-scheduler"
                if await self._get("service", service, "-o", "name", "--ignore-not-found"):
                    running = '{"status": {"phase": "Running"}}'
                    words = ("patch", "daskcluster", name, "--type=merge", "-p", running)
                    print(await asyncio.to_thread(self._kubectl, *words))
            before = stuck

    async def _another_node(self) -> None:
        """Where there is one node, it takes pods again as soon as one looks for another node."""
        nodes = (await self._get("nodes", "-o", "name")).split()
        pending = ("pods", "--field-selector=status.phase=Pending", "-o", "name")
        while len(nodes) == 1:
            await asyncio.sleep(1)
            if await self._get(*pending):
                await asyncio.to_thread(self._kubectl, "uncordon", nodes[0].removeprefix("node/"))
                return

    async def _get(self, *words: str) -> str:
        return await asyncio.to_thread(self._kubectl, "get", *words)


def draw_terminal(typed: list[tuple[str, str]], path: Path) -> None:
    """A picture of commands and their output, as an SVG."""
    console = Console(record=True, width=150, file=io.StringIO(), highlight=False)
    for command, output in typed:
        console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
        console.print(Text(output))
    path.write_text(
        _without_web_fonts(console.export_svg(title="the first hour", unique_id="hour"))
    )


def _without_web_fonts(svg: str) -> str:
    """Pictures fetch nothing: the reader's own monospaced font is used."""
    return re.sub(r"@font-face {.*?}", "", svg, flags=re.DOTALL)
