"""The commands that talk to Kubernetes: usage, exit codes, sentences instead of tracebacks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dask_adaptive.cli.main import cli

NOWHERE = """\
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: k, user: u, namespace: team}}]
clusters: [{name: k, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: u, user: {}}]
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = tmp_path / "config"
    config.write_text(NOWHERE)
    monkeypatch.setenv("KUBECONFIG", str(config))

    def invoke(*words: str) -> Result:
        return CliRunner().invoke(cli, words)

    return invoke


def test_version(run) -> None:
    versions = json.loads(run("version", "-o", "json").output)

    assert {"dask-adaptive", "protocol", "kopf", "distributed"} <= set(versions)


@pytest.mark.parametrize(
    "words",
    [("get",), ("explain", "x"), ("pin", "x"), ("unpin", "x"), ("recycle", "x"),
     ("recycle", "x", "--cancel"), ("status",), ("status", "-w"), ("why-not-down", "x"),
     ("history", "x"), ("check",), ("report", "-o", "/dev/null")],
)  # fmt: skip
def test_an_unreachable_api_is_a_sentence_and_exit_code_3(run, words: tuple[str, ...]) -> None:
    result = run(*words)

    assert 3 == result.exit_code
    assert "can't be reached" in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pin", "x", "--for", "soon"), "90s, 15m or 1h30m"),
        (("pin", "x", "--until", "tomorrow"), "2026-01-31T18:00:00Z"),
        (("pin", "x", "--for", "1h", "--until", "tomorrow"), "not both"),
        (("pin",), "Missing argument"),
        (("recycle",), "Missing argument"),
        (("get", "-o", "xml"), "'table', 'json'"),
        (("history", "x", "--since", "soon"), "90s, 15m or 1h30m"),
        (("check", "--wait", "soon"), "90s, 15m or 1h30m"),
        (("record", "x", "-o", "t", "--every", "0s"), "longer than 0s"),
        (("record", "x"), "Missing option"),
    ],
)
def test_wrong_usage_is_exit_code_2(run, words: tuple[str, ...], said: str) -> None:
    result = run(*words)

    assert 2 == result.exit_code
    assert said in result.output


def test_no_kubeconfig_says_what_to_set(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    result = run("get", "-n", "x")

    assert 3 == result.exit_code
    assert "set KUBECONFIG" in result.output


def test_help_tells_the_exit_codes(run) -> None:
    assert "Exit codes" in run("--help").output
