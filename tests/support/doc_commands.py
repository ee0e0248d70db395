"""The commands in the documentation, one by one."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.kube_server import ROOT
from support.walk import FENCE, blocks, commands

#: The first words of lines in indented blocks that are commands, and not configuration or output.
_PROGRAMS = re.compile(
    r"(helm|kubectl|dask-adaptive|dask|make|docker|podman|pip|python|git|towncrier|unzip|gunzip|source"
    r"|eval|cosign|oc|nerdctl|(\S*/)?(scripts|localnode|bin)/\S+)(?=\s|$)"
)
_SETTINGS = re.compile(r"([A-Z_]+=(\"[^\"]*\"|\S*)\s+)*")


@dataclass(frozen=True, slots=True)
class DocCommand:
    """A command, or with `is_console` one that tests can type, because it is in a console block."""

    page: str
    text: str
    is_console: bool = False


def pages() -> list[Path]:
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
    return [page for page in found if page.exists()]


def doc_commands() -> list[DocCommand]:
    return [command for page in pages() for command in _of(page)]


def _of(page: Path) -> Iterator[DocCommand]:
    name = str(page.relative_to(ROOT))
    for block in blocks(page):
        if block.language == "console":
            yield from (DocCommand(name, c.text, is_console=True) for c in commands(block))
        elif block.language in ("bash", "sh", "shell"):
            yield from (DocCommand(name, line) for line in _joined(block.text) if line)
    prose = FENCE.sub("", page.read_text())
    for line in _joined("\n".join(x[4:] for x in prose.splitlines() if x.startswith("    "))):
        settings = _SETTINGS.match(line)
        rest = line[settings.end() :] if settings else line
        if _PROGRAMS.match(rest) or rest.startswith("--set"):
            yield DocCommand(name, line)


def _joined(text: str) -> list[str]:
    """Lines, with those that a backslash continues; without comments."""
    whole = re.sub(r"\\\n\s*", "", text)
    return [re.sub(r"\s+# .*$", "", line).strip() for line in whole.splitlines()]


#: Pages whose console blocks tests/e2e/test_first_hour.py types on a real node.
TYPED = ("docs/howto/first-hour.md", "docs/howto/restore.md", "docs/howto/air-gap.md")

#: Those that tests/api/test_docs.py runs on an API server, with names of objects put in.
_ON_API = re.compile(
    r"kubectl (--namespace \S+ )?(annotate|label|patch|get|describe) "
    r"|kubectl dask-adaptive (status|explain(?! budget)|report) ?"
)
#: What an API server alone cannot do, or what never ends.
_NEVER_ON_API = re.compile(r"--watch|--raw|--patch-file| events | -n dask-adaptive\b")


def is_run(command: DocCommand) -> bool:
    """Whether a test runs it: typed on a node, on an API server, or rendered by Helm."""
    return (
        (command.is_console and command.page in TYPED)
        or is_for_api(command)
        or bool(chart_values(command.text))
    )


def is_for_api(command: DocCommand) -> bool:
    if command.page in TYPED or _NEVER_ON_API.search(command.text):
        return False
    return _ON_API.match(command.text) is not None


def chart_values(text: str) -> list[str]:
    """The `--set` options of a command for our chart, for `helm template`."""
    if not re.match(r"helm (install|upgrade) |--set", text):
        return []
    words = shlex.split(text)
    pairs = [words[i : i + 2] for i, word in enumerate(words) if word == "--set"]
    return [word for pair in pairs for word in pair]


def inline_commands() -> Iterator[DocCommand]:
    """Commands in the midst of sentences and tables."""
    for page in pages():
        for text in re.findall(r"`((?:kubectl |dask-adaptive |helm )[^`]+)`", page.read_text()):
            yield DocCommand(str(page.relative_to(ROOT)), text)
