"""What shells complete, and that neither that nor any help waits for imports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from dask_adaptive.cli.main import COMMANDS, cli, plugins

PYPROJECT = (Path(__file__).parents[3] / "pyproject.toml").read_text()

#: Each takes a tenth of a second or more to import, and together they take most of one.
HEAVY = {"aiohttp", "dask", "distributed", "kopf", "kubernetes", "matplotlib"}


def completed(*words: str) -> list[str]:
    *before, incomplete = words
    found = ShellComplete(cli, {}, "dask-adaptive", "").get_completions(before, incomplete)
    return [item.value for item in found]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["st"], ["status"]),
        (["status", "-o", "y"], ["yaml"]),
        (["status", "--wa"], ["--watch"]),
        (["run", ""], []),
    ],
)
def test_a_shell_completes(words: list[str], found: list[str]) -> None:
    assert found == completed(*words)


@pytest.mark.parametrize(
    ("shell", "expected"),
    [("bash", "plain,explain"), ("zsh", "plain\nexplain"), ("fish", "explain")],
)
def test_the_program_answers_each_shell(shell: str, expected: str) -> None:
    env = {**os.environ, "COMP_CWORD": "1", "COMP_WORDS": "dask-adaptive exp",
           "_DASK_ADAPTIVE_COMPLETE": f"{shell}_complete"}  # fmt: skip
    env |= {"COMP_WORDS": "dask-adaptive", "COMP_CWORD": "exp"} if shell == "fish" else {}
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
        "from dask_adaptive.cli.main import COMMANDS, cli, plugins",
        "cli(['--help'], standalone_mode=False)",
        "assert not [m for m in sys.modules if m.startswith('dask_adaptive.kube')]",
        "for name in [*COMMANDS, *plugins()]: cli([name, '--help'], standalone_mode=False)",
        f"assert not {HEAVY!r} & set(sys.modules), {HEAVY!r} & set(sys.modules)",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)

    assert 0 == done.returncode, done.stderr
    texts = [*COMMANDS.values(), *(text for text, _ in plugins().values())]
    assert all(text in done.stdout for text in texts)


def test_commands_of_the_lab_are_there_only_where_it_is_installed(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {"rehearse", "record", "simulate", "recommend"} == plugins().keys()

    monkeypatch.setattr("dask_adaptive.cli.main.plugins", dict)

    assert "simulate" not in run("--help").output
    assert 2 == run("simulate").exit_code
