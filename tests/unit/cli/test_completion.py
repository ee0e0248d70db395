"""What shells complete, and that neither that nor any help waits for imports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from dask_adaptive.cli.main import COMMANDS, packages

PYPROJECT = (Path(__file__).parents[3] / "pyproject.toml").read_text()

#: Each takes a tenth of a second or more to import, and together they take most of one.
HEAVY = {"aiohttp", "dask", "distributed", "kopf", "kubernetes", "matplotlib"}


@pytest.mark.parametrize(
    ("shell", "line", "expected"),
    [
        ("bash", "exp", "plain,explain"),
        ("zsh", "exp", "plain\nexplain"),
        ("fish", "exp", "explain"),
        ("bash", "status -o y", "plain,yaml"),
        ("bash", "status --wa", "plain,--watch"),
    ],
)
def test_the_program_answers_each_shell(shell: str, line: str, expected: str) -> None:
    *before, begun = ("dask-adaptive", *line.split())
    words, at = (before, begun) if shell == "fish" else ([*before, begun], str(len(before)))
    env = {**os.environ, "_DASK_ADAPTIVE_COMPLETE": f"{shell}_complete",
           "COMP_WORDS": " ".join(words), "COMP_CWORD": at}  # fmt: skip
    answer = subprocess.run(
        [sys.executable, "-m", "dask_adaptive.cli.main"], env=env, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert expected in answer.stdout


@pytest.mark.parametrize("line", re.findall(r'^\S+ = "\w+[.\w]*:\w+"', PYPROJECT, re.MULTILINE))
def test_each_program_can_be_started(line: str) -> None:
    name, _, value = line.partition(" = ")

    assert callable(EntryPoint(name, value.split('"')[1], "console_scripts").load())


def test_no_help_imports_what_only_the_command_needs() -> None:
    """All commands in one process: each is imported, none is run."""
    lines = [
        "import sys",
        "from dask_adaptive.cli.main import cli, packages",
        "cli(['--help'], standalone_mode=False)",
        "assert not [m for m in sys.modules if m.startswith('dask_adaptive.kube')]",
        "for name in packages(): cli([name, '--help'], standalone_mode=False)",
        f"assert not {HEAVY!r} & set(sys.modules), {HEAVY!r} & set(sys.modules)",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)

    assert 0 == done.returncode, done.stderr
    assert all(text in done.stdout for text, _ in packages().values())


def test_commands_of_the_lab_are_there_only_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert {"rehearse", "record", "simulate", "recommend"} == packages().keys() - COMMANDS.keys()

    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: ())
    assert COMMANDS.keys() == packages.__wrapped__().keys()
