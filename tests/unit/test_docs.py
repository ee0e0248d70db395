"""The documents say what the code says, and lead where they say they lead."""

from __future__ import annotations

import json
import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from dask_adaptive.cli.main import cli, load, packages
from dask_adaptive.controller.metrics import Metrics
from dask_adaptive.model.policy import parse_policy
from support.doc_commands import DocCommand, chart_values, doc_commands, inline_commands, is_run

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs/reference"
GENERATE = runpy.run_path(str(ROOT / "docs/generate.py"))

PAGES = sorted(
    page
    for pattern in ("*.md", "docs/**/*.md", "changelog.d/*.md", "localnode/*.md")
    for page in ROOT.glob(pattern)
)

#: Pages that lead through the code.
GUIDES = ("CONTRIBUTING.md", *(f"docs/contributing/{x}.md" for x in ("operator", "agent", "lab")))

#: `[text](target)`, in a line that is not code.
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


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


#: kubectl refuses flags before the name of a plugin.
MISPLACED = re.compile(
    r"kubectl(?: +(?:-n|--namespace|--context|--kubeconfig)[= ] *\S+)+ +dask-adaptive(?!\S)"
)


def test_no_command_has_flags_where_they_are_refused() -> None:
    files = [*PAGES, *ROOT.glob("scripts/*.*"), *ROOT.glob("manifests/**/*.yaml")]
    files += [p for p in ROOT.glob("helm/**/*") if p.is_file()]
    files += [*ROOT.glob("operator/**/*.py"), *ROOT.glob("tests/unit/golden/*")]

    assert [] == [str(file) for file in files if MISPLACED.search(file.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if "://" in link:
            continue
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} leads nowhere"
        if fragment:
            assert fragment in anchors(target), f"{link}: no such heading"


def test_every_page_has_its_place_in_the_navigation() -> None:
    toc = re.findall(r"(?:root|file): (\S+)", (ROOT / "docs/_toc.yml").read_text())

    assert sorted(ROOT.glob("docs/**/*.md")) == sorted(ROOT / f"docs/{name}.md" for name in toc)


NOT_RUN = yaml.safe_load((ROOT / "docs/not-run.yaml").read_text())


def test_every_command_is_run_by_a_test_or_listed_with_the_reason_why_not() -> None:
    left = [command for command in doc_commands() if not is_run(command)]

    for row in NOT_RUN:
        assert row["why"]
        listed = [c for c in left if re.match(row["commands"], c.text)]
        assert listed, f"docs/not-run.yaml: no such command is left: {row['commands']}"
        left = [c for c in left if c not in listed]
    assert not left, "commands that no test runs; list them in docs/not-run.yaml"


def _ours(command: DocCommand) -> list[str]:
    """The words after `dask-adaptive`; empty: it is a command of another program."""
    called = re.match(
        r"(?:source <\()?(?:kubectl |\S*/)?dask-adaptive\b(.*)", command.text, re.DOTALL
    )
    if not called or "…" in called[1]:
        return []
    return shlex.split(re.split(r" \||\)$", called[1])[0].replace("[", "").replace("]", ""))


OURS = [(c, w) for c in [*doc_commands(), *inline_commands()] if (w := _ours(c))]


def test_commands_of_ours_have_the_options_and_arguments_that_they_are_shown_with() -> None:
    assert len(OURS) > 50
    for command, words in OURS:
        if words[0].startswith("-"):
            continue  # `dask-adaptive --version`
        try:
            parse(words)
        except click.ClickException as refused:
            pytest.fail(f"{command.page}: {command.text}: {refused.format_message()}")


def parse(words: list[str]) -> None:
    made = load(words[0])
    made.make_parser(click.Context(made, **made.context_settings)).parse_args(words[1:])


@pytest.mark.parametrize("name", ["", *packages()])
def test_each_help_has_two_examples(name: str) -> None:
    shown = CliRunner().invoke(cli, [*name.split(), "--help"]).stdout
    examples = re.findall(r"^ +(?:kubectl )?dask-adaptive (.*?)(?: +#|$)", shown, re.MULTILINE)

    assert 2 == len(examples)
    for words in map(shlex.split, examples):
        parse(words)


def test_annotations_in_commands_exist() -> None:
    page, count = (REFERENCE / "annotations.md").read_text(), 0
    for command in [*doc_commands(), *inline_commands()]:
        if re.match(r"kubectl (-n \S+ )?annotate ", command.text):
            for name in re.findall(r"dask-adaptive\.dev/[\w-]*\w", command.text):
                assert f"`{name}`" in page, f"{command.page}: {command.text}"
                count += 1
    assert count > 20


def test_patches_of_policies_in_commands_are_valid() -> None:
    count = 0
    for command in doc_commands():
        if found := re.search(r"patch (?:dap|adaptivepolicy) .*'({.*})'", command.text, re.DOTALL):
            parse_policy(
                {"clusterRef": {"name": "x"}, "maxReplicas": 9} | json.loads(found[1])["spec"]
            )
            count += 1
    assert count


def test_values_in_commands_are_in_the_chart() -> None:
    """With their types they are checked by Helm: tests/chart/test_docs.py."""
    values = yaml.safe_load((ROOT / "helm/dask-adaptive-operator/values.yaml").read_text())
    count = 0
    for command in [*doc_commands(), *inline_commands()]:
        for pair in re.findall(r"([\w.]+)=", ",".join(chart_values(command.text)[1::2])):
            found = values
            for key in pair.split("."):
                assert key in found, f"{command.page}: {pair}"
                found = found[key]
            count += 1
    assert count > 20


def test_every_metric_is_documented() -> None:
    page = (REFERENCE / "metrics.md").read_text()

    for family in Metrics().registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert f"| `{name}` | {family.type} |" in page


@pytest.mark.parametrize("name", packages())
def test_every_command_and_option_is_documented(name: str) -> None:
    page = (REFERENCE / "cli.md").read_text()

    assert f"`{name}" in page
    for parameter in load(name).params:
        if isinstance(parameter, click.Option):
            longest = max(parameter.opts, key=len)
            assert re.search(rf"`?{longest}[` ]", page), f"{name} {longest} is not in cli.md"


def targets(makefile: str) -> list[str]:
    return re.findall(r"(?m)^(?!help:)([a-z0-9-]+):", (ROOT / makefile).read_text())


def test_make_is_called_with_targets_that_exist() -> None:
    known = {*targets("Makefile"), *(f"test-{name}" for name in targets("tests/Makefile"))}
    known |= {f"bench-{name}" for name in targets("tests/bench/Makefile")}
    for command in [*doc_commands(), *inline_commands()]:
        for words in re.findall(r"(?:^|[ `])make ((?:[a-z][\w-]* ?)+)", command.text):
            assert set(words.split()) <= known, f"{command.page}: {command.text}"


@pytest.mark.parametrize("page", [ROOT / name for name in GUIDES], ids=GUIDES)
def test_contributors_are_led_to_files_that_exist(page: Path) -> None:
    """Paths stand in code: from the root, or from one of the packages that a page is about."""
    roots = [ROOT, ROOT / "operator", *(p.parent for p in ROOT.glob("operator/*/__init__.py"))]
    words = re.findall(
        r"`([\w.*/-]+)`|^ *([\w./-]+/|[\w/]+\.py) {2,}", page.read_text(), re.MULTILINE
    )
    paths = {a or b for a, b in words if "/" in a + b or a.endswith((".py", ".md", ".yaml"))}

    assert [] == [path for path in sorted(paths) if not any(list(at.glob(path)) for at in roots)]
    assert len(paths) > 5


def test_each_promise_of_security_names_tests_that_there_are() -> None:
    page = (ROOT / "docs/explanation/security.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and "`tests/" in line]

    assert len(rows) >= 12
    for row in rows:
        for name in re.findall(r"`(tests/[^`]+)`", row):
            assert (ROOT / name).is_file(), name
