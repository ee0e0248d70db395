"""The values that the documentation shows: Helm renders the chart with each of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.doc_commands import chart_values, doc_commands, inline_commands, pages
from support.kube_server import ROOT, built, ran, rendered
from support.walk import blocks

VALUES = sorted(
    {tuple(s) for c in [*doc_commands(), *inline_commands()] if (s := chart_values(c.text))}
)
FILES = [b.text for page in pages() for b in blocks(page) if b.text.startswith("# values.yaml\n")]

#: The chart has no image of its own to name.
IMAGE = ("--set", "image.repository=registry.example.com/dask-adaptive")


@pytest.mark.parametrize("sets", VALUES, ids=" ".join)
def test_values_of_a_command_are_accepted(sets: tuple[str, ...]) -> None:
    with_names = [re.sub(r"\$\w+|REPO", "x.io", word).replace("…", "0" * 64) for word in sets]

    assert rendered(*IMAGE, *with_names)


#: As docs/reference/policy.md shows it.
SCHEMAS = str(ROOT / "manifests/schemas/{{.ResourceKind}}_{{.ResourceAPIVersion}}.json")


@pytest.mark.parametrize(
    ("added", "code"), [("", 0), ("  maxReplica: 3", 1), ("  idleTimeout: 5 minutes", 1)]
)
def test_kubeconform_accepts_the_examples_and_nothing_wrong(
    added: str, code: int, tmp_path: Path
) -> None:
    examples, more = ROOT / "manifests/examples", tmp_path / "more.yaml"
    more.write_text((examples / "minimal-policy.yaml").read_text() + added)
    kubeconform = built("scripts/go-tool.sh", "kubeconform")
    options = ("-strict", "-ignore-missing-schemas", "-schema-location", SCHEMAS)

    assert code == ran(kubeconform, *options, str(examples), str(more)).returncode


@pytest.mark.parametrize("text", FILES)
def test_a_values_file_is_accepted(text: str, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(text)

    assert rendered(*IMAGE, "--values", str(file))
