"""The commands that talk to Kubernetes: usage, exit codes, sentences instead of tracebacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from chaos.apiserver import kubeconfig_of
from dask_adaptive.cli import tidy
from dask_adaptive.cli.access import Access
from dask_adaptive.cli.main import cli
from support.tables import table

NOWHERE = kubeconfig_of(1, "t", "team")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = tmp_path / "config"
    config.write_text(NOWHERE)
    monkeypatch.setenv("KUBECONFIG", str(config))
    return lambda *words: CliRunner().invoke(cli, words)


@pytest.mark.parametrize(
    "words",
    [("status",), ("status", "-w"), ("explain", "x"), ("explain", "pod/x"), ("explain", "budget/x"),
     ("check",), ("report", "-f", "/dev/null")],
)  # fmt: skip
def test_an_unreachable_api_is_a_sentence_and_exit_code_3(run, words: tuple[str, ...]) -> None:
    result = run(*words)

    assert 3 == result.exit_code
    assert "can't be reached" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("stauts",), "Did you mean 'status'?"),
        (("explain",), "Missing argument"),
        (("explain", "node/x"), "cluster, worker, budget"),
        (("status", "-o", "xml"), "'table', 'json', 'yaml'"),
        (("record", "x", "-f", "t", "--every", "soon"), "90s, 15m or 1h30m"),
        (("record", "x", "-f", "t", "--every", "0s"), "longer than 0s"),
        (("record", "x"), "Missing option"),
    ],
)
def test_wrong_usage_is_exit_code_2(run, words: tuple[str, ...], said: str) -> None:
    result = run(*words)

    assert 2 == result.exit_code
    assert said in result.output


@table(
    "content, words, said",
    missing=(None, (), "no kubeconfig at {path}: name the file"),
    empty=("", (), "there is no usable kubeconfig"),
    no_yaml=("a: [", (), "there is no usable kubeconfig"),
    no_context=(NOWHERE, ("--context", "x"), "no context x; there are: c"),
)
def test_a_kubeconfig_of_no_use_is_a_sentence(
    run, content: str | None, words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "other"
    if content is not None:
        path.write_text(content)
    for place in (("-n", "x"), ()):
        result = run("status", "--kubeconfig", str(path), *words, *place)

        assert 3 == result.exit_code
        assert said.format(path=path) in result.output
        assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "words",
    [
        ("--kubeconfig", "{config}", "-n", "mine", "status"),
        ("status", "--kubeconfig", "{config}", "-n", "mine"),
        ("-n", "theirs", "status", "-n", "mine", "--kubeconfig", "{config}"),
    ],
)
def test_options_count_before_the_command_and_after_it(
    run, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG")
    asked = []
    monkeypatch.setattr(Access, "ask", lambda self, question: asked.append(self) or [])
    run(*(word.format(config=tmp_path / "config") for word in words))

    (access,) = asked
    assert (str(tmp_path / "config"), "mine") == (access.kubeconfig, access.namespace)


def test_a_namespace_before_tidy_narrows_it_as_one_after_it(
    run, monkeypatch: pytest.MonkeyPatch
) -> None:
    swept = []

    async def ours(api: object, namespaces: tuple[str, ...], name: str) -> tuple[list[Any], ...]:
        swept.append(namespaces)
        return [], []

    monkeypatch.setattr(tidy, "_ours", ours)
    monkeypatch.setenv("DASK_ADAPTIVE_NAMESPACES", "from environment")
    for words in (("-n", "a", "tidy"), ("-n", "a", "tidy", "-n", "b", "-n", "c"), ("tidy",)):
        run(*words, "--yes")

    assert [("a",), ("b", "c"), ("from", "environment")] == swept
