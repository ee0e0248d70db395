"""The values that the documentation shows: Helm renders the chart with each of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.doc_commands import chart_values, doc_commands, inline_commands, pages
from support.kube_server import rendered
from support.walk import blocks

VALUES = sorted(
    {tuple(s) for c in [*doc_commands(), *inline_commands()] if (s := chart_values(c.text))}
)
FILES = [b.text for page in pages() for b in blocks(page) if b.text.startswith("# values.yaml\n")]

#: The chart has no image of its own to name.
IMAGE = ("--set", "image.repository=registry.example.com/dask-adaptive")


@pytest.mark.parametrize("sets", VALUES, ids=" ".join)
def test_values_of_a_command_are_accepted(sets: tuple[str, ...]) -> None:
    with_names = [re.sub(r"\$\w+|REPO", "registry.example.com", word) for word in sets]

    assert rendered(*IMAGE, *with_names)


@pytest.mark.parametrize("text", FILES)
def test_a_values_file_is_accepted(text: str, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(text)

    assert rendered(*IMAGE, "--values", str(file))
