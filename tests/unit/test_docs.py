"""The documents say what the code says, and lead where they say they lead."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from dask_adaptive.cli.main import COMMANDS, cli
from dask_adaptive.controller.metrics import STABILITY, Metrics
from dask_adaptive.kube import annotated, notes
from dask_adaptive.kube.notes import PIN, PIN_REASON
from dask_adaptive.kube.objects import ADOPT, ADOPTED, COOLDOWN, INJECT, INJECTED, MANAGED_BY
from dask_adaptive.kube.status_json import HISTORY_LABEL
from dask_adaptive.model.reason import Reason

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs/reference"
GENERATE = runpy.run_path(str(ROOT / "docs/generate.py"))

PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "changelog.d/*.md", "localnode/*.md")
    for page in ROOT.glob(pattern)
)

#: `[text](target)`, in a line that is not code.
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def prose(page: Path) -> Iterator[str]:
    """The lines of a page that are not in a fenced block."""
    is_code = False
    for line in page.read_text().splitlines():
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            yield line


def links(page: Path) -> list[str]:
    return [link for line in prose(page) for link in LINK.findall(line)]


def anchors(page: Path) -> set[str]:
    """The fragments of a page's headings, as forges make them."""
    heads = [line.lstrip("#").strip().lower() for line in prose(page) if line.startswith("#")]
    return {re.sub(r"[^\w\- ]", "", head).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("name", sorted(GENERATE["PAGES"]))
def test_generated_pages_are_up_to_date(name: str) -> None:
    assert name not in GENERATE["stale"](), (
        f"{name} is stale; run .venv/bin/python docs/generate.py"
    )


def test_every_reason_has_a_sentence() -> None:
    page = (REFERENCE / "reasons.md").read_text()

    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", page, flags=re.MULTILINE)
    assert sorted(reason.value for reason in Reason) == sorted(word for word, _ in rows)
    assert all(sentence.endswith(".") for _, sentence in rows)


#: kubectl refuses flags before the name of a plugin.
MISPLACED = re.compile(
    r"kubectl(?: +(?:-n|--namespace|--context|--kubeconfig)[= ] *\S+)+ +dask-adaptive(?!\S)"
)


def test_no_command_has_flags_where_they_are_refused() -> None:
    files = [*PAGES, *ROOT.glob("scripts/*.*"), *ROOT.glob("manifests/**/*.yaml")]
    files += [p for p in ROOT.glob("helm/**/*") if p.is_file()]
    files += [*ROOT.glob("operator/**/*.py"), *ROOT.glob("tests/unit/golden/*")]

    assert MISPLACED.search("kubectl --namespace $space dask-adaptive explain demo")
    assert MISPLACED.search("kubectl -n team dask-adaptive report -o report.zip")
    assert not MISPLACED.search("kubectl dask-adaptive explain demo --namespace $space")
    assert not MISPLACED.search("kubectl -n dask-adaptive get pods")
    assert [] == [str(file) for file in files if MISPLACED.search(file.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_relative_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if "://" in link:
            continue
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} leads nowhere"
        if fragment:
            assert fragment in anchors(target), f"{link}: no such heading"


def test_every_page_can_be_reached_from_the_index() -> None:
    index = ROOT / "docs/index.md"
    reached = {(index.parent / link.partition("#")[0]).resolve() for link in links(index)}

    assert set(ROOT.glob("docs/**/*.md")) - {index} <= reached


def test_every_metric_is_documented() -> None:
    page = (REFERENCE / "metrics.md").read_text()

    for family in Metrics().registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert f"| `{name}` | {family.type} | {STABILITY[family.name]} |" in page
        assert family.documentation.startswith(f"[{STABILITY[family.name]}] ")


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_and_option_is_documented(name: str) -> None:
    page = (REFERENCE / "cli.md").read_text()

    assert f"`{name}" in page
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            longest = max(parameter.opts, key=len)
            assert re.search(rf"`?{longest}[` ]", page), f"{name} {longest} is not in cli.md"


@pytest.mark.parametrize(
    "name",
    [
        PIN,
        PIN_REASON,
        INJECT,
        INJECTED,
        MANAGED_BY,
        ADOPT,
        ADOPTED,
        COOLDOWN,
        HISTORY_LABEL,
        *(notes.PREFIX + n for n in (*notes.QUOTAS, *notes.PAUSES)),
        *(notes.PREFIX + n for n in (annotated.MAXIMUM, annotated.MINIMUM, annotated.IDLE)),
    ],
)
def test_every_annotation_is_documented(name: str) -> None:
    assert name in (REFERENCE / "annotations.md").read_text()


def test_every_make_target_is_documented() -> None:
    makefile, page = (ROOT / "Makefile").read_text(), (ROOT / "CONTRIBUTING.md").read_text()

    for target in re.findall(r"^([a-z0-9-]+):.*?## ", makefile, flags=re.MULTILINE):
        assert target == "help" or re.search(rf"(make |`){target}`", page), target
