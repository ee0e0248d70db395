"""Commands run as a user runs them, against an API server that holds what a test gives it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dask_adaptive.cli.main import cli
from support.stored_api import ServedApi

Run = Callable[..., Result]


@pytest.fixture
def api() -> Iterator[ServedApi]:
    made = ServedApi()
    yield made
    made.close()


@pytest.fixture
def run(api: ServedApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A command line in namespace `team`, without kubectl on the PATH."""
    monkeypatch.setenv("KUBECONFIG", api.kubeconfig(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    return lambda *words: CliRunner().invoke(cli, words)
