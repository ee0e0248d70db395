"""`validate` finds all problems in files, with their lines, and asks no cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dask_adaptive.cli.main import cli
from support.golden import compare_text
from support.tables import table

ROOT = Path(__file__).parents[3]


def validate(*words: str, text: str = "") -> Result:
    return CliRunner().invoke(cli, ["validate", *words], input=text)


def test_all_problems_are_golden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT / "tests/support")
    result = validate("-f", "invalid_policies.yaml")

    assert 2 == result.exit_code
    compare_text("validate.txt", result.stdout)


def test_the_examples_are_valid() -> None:
    result = validate(*map(str, ROOT.glob("manifests/examples/*.yaml")))

    assert (0, True) == (result.exit_code, "checked: 0 problems" in result.stdout)


@table(
    "text, code, said",
    nothing=("", 1, "no AdaptivePolicy or AdaptiveBudget in these files"),
    no_yaml=("a:\n- [", 2, "-:2: invalid YAML: "),
    too_deep=("[" * 10_000, 2, "-:1: invalid YAML: "),
    wrong_tag=("a: !!bool b", 2, "-:1: invalid YAML: "),
    wrong_tag_of_a_map=("!!map [a]", 2, "-:1: invalid YAML: "),
    itself=("&a {items: [*a]}", 2, "-:1: invalid YAML: "),
    no_objects=("kind: AdaptivePolicy\nmetadata: 1\nspec: [1]", 2, ":3: spec: must be an object"),
)
def test_whatever_a_file_holds_is_a_sentence(text: str, code: int, said: str) -> None:
    result = validate("-", text=text)

    assert code == result.exit_code
    assert said in result.output
