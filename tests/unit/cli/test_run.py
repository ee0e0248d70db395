"""What `run` makes of its options and of the variables that the chart sets."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from dask_adaptive.cli import run as module
from dask_adaptive.cli.run import set_up_logging
from dask_adaptive.controller import app
from dask_adaptive.controller.app import Settings
from dask_adaptive.controller.certificate import WebhookSettings
from dask_adaptive.controller.lease import Timing
from dask_adaptive.kube.annotated import Adopt
from support.tables import table


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    settings: list[Settings] = []

    async def serve(given: Settings) -> None:
        settings.append(given)

    monkeypatch.setattr(app, "serve", serve)
    monkeypatch.setattr(module, "set_up_logging", lambda *_, **__: None)
    return settings


def test_defaults(run: Any, served: list[Settings]) -> None:
    assert 0 == run("run", "--identity", "me").exit_code
    assert [Settings(identity="me")] == served


def test_each_variable_of_the_chart(
    run: Any, served: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {
        "IDENTITY": "me", "NAMESPACES": "a b", "LEASE_NAMESPACE": "system",
        "HTTP_PORT": "1", "WEBHOOK_PORT": "2", "CERTIFICATE_SECRET": "s",
        "CERTIFICATE_NAMESPACE": "c",
        "MAKE_CERTIFICATE": "true", "WEBHOOK_HOST": "h",
        "WEBHOOK_CONFIGURATION": "hooks",
        "WORKER_GRACE": "30", "HINTS": "false", "ADOPT": "Always", "LOG_FORMAT": "json",
        "VERBOSE": "true", "REST": "30", "RESYNC": "60", "QPS": "20", "BURST": "40",
        "SCHEDULER_TLS_SECRET": "dask-tls", "NODES": "true",
        "CONTROLLER_NAME": "b", "LEASE_DURATION": "30", "RENEW_DEADLINE": "20", "RETRY_PERIOD": "4",
    }  # fmt: skip
    nothing = {"DEV": "1", "CONTEXT": "x", "KUBECONFIG": "x"}
    for name, value in {**variables, **nothing}.items():
        monkeypatch.setenv(f"DASK_ADAPTIVE_{name}", value)

    assert 0 == (result := run("run")).exit_code, result.output
    assert served == [
        Settings(
            identity="me", namespaces=("a", "b"), lease_namespace="system",
            certificate_namespace="c",
            http_port=1, webhook_port=2, grace_s=30, hints=False,
            webhook=WebhookSettings("s", "h", True, "hooks"),
            adopt=Adopt.ALWAYS, controller_name="b", longest_sleep_s=30.0, resync_s=60.0, qps=20.0,
            burst=40, timing=Timing(30.0, 20.0, 4.0), scheduler_tls_secret="dask-tls", nodes=True,
        )
    ]  # fmt: skip


def test_namespaces_are_named_or_selected(run: Any, served: list[Settings]) -> None:
    labels = ("run", "--identity", "me", "--namespace-selector", "team=a")
    assert 0 == run(*labels).exit_code
    assert [Settings(identity="me", namespace_selector="team=a")] == served
    result = run(*labels, "--namespace", "etl")
    assert 2 == result.exit_code
    assert "exclude each other" in result.output


def test_on_a_machine_of_ones_own(run: Any, served: list[Settings]) -> None:
    words = ("--kubeconfig", "k", "-n", "team", "run", "--dev", "--context", "c")
    options = ("--identity", "me", "--certificate-secret", "s", "--webhook-host", "h")

    assert 0 == run(*words, *options).exit_code
    assert served == [
        Settings(identity="me", namespaces=("team",), address="127.0.0.1",
                 kubeconfig="k", context="c")
    ]  # fmt: skip


@table(
    "option, value, named",
    a_lease_that_two_could_hold=("--renew-deadline", "15", "--renew-deadline"),
    a_certificate_for_nobody=("--certificate-secret", "s", "--webhook-host"),
)
def test_what_cannot_be_served_is_refused(
    run: Any, served: list[Settings], option: str, value: str, named: str
) -> None:
    result = run("run", option, value)

    assert (2, []) == (result.exit_code, served)
    assert named in result.output


FORGED = (
    "pinned by \x1b]0;title\x07nb\n2026-01-01 INFO dask_adaptive: all is well\r\x9b2J\x7f\u202e"
)


@pytest.fixture
def logs(capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    """Sets up logging; what is logged then are the lines on standard error."""
    root, ours = logging.getLogger(), logging.getLogger("dask_adaptive")
    before = (root.handlers[:], root.level, ours.level)

    def logged(style: str) -> list[str]:
        set_up_logging(style, verbose=False)
        ours.info("No pass: %s", FORGED, extra={"cluster": FORGED})
        try:
            raise ValueError(FORGED)
        except ValueError:
            ours.exception("A pass failed")
        return capsys.readouterr().err.removesuffix("\n").split("\n")

    yield logged
    root.handlers[:], level, ours_level = before
    root.setLevel(level)
    ours.setLevel(ours_level)


def test_no_text_of_others_makes_a_line_of_the_log(logs: Any) -> None:
    message, failed, *traceback = logs("text")

    assert "No pass: pinned by \\u001b]0;title\\u0007nb\\n2026-01" in message
    assert "cluster=pinned by" in message
    assert failed.endswith("dask_adaptive: A pass failed")
    assert all(line.startswith("  ") for line in traceback)
    assert traceback[-2].startswith("  ValueError: pinned by \\u001b]0;")
    assert all(line.isprintable() for line in (message, failed, *traceback))


def test_a_record_in_json_is_one_line(logs: Any) -> None:
    message, failed = logs("json")

    assert f"No pass: {FORGED}" == json.loads(message)["message"]
    assert FORGED in json.loads(failed)["exception"]
    assert (message + failed).isprintable()
