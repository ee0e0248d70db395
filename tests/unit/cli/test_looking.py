"""What `status` prints: golden files, and what programs read; see `support.golden`."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest
import yaml
from rich.text import Text

from dask_adaptive.cli import output, status
from dask_adaptive.cli.status import page
from dask_adaptive.cli.status_view import views_of
from dask_adaptive.kube.api import ApiUnreachable
from support.golden import Terminal, compare_text, rendered
from support.shown_policies import GPU, HELD, OLD, STATUS, policy
from support.stored_api import ServedApi
from support.tables import table

Json = dict[str, Any]


def show(run: Any, *words: str, code: int = 0) -> str:
    result = run(*words)
    assert code == result.exit_code, result.output
    return str(result.output)


def items(run: Any, *words: str) -> list[Json]:
    """The same as JSON and as YAML."""
    found = json.loads(run(*words, "-o", "json").stdout)["items"]
    assert found == yaml.safe_load(run(*words, "-o", "yaml").stdout)["items"]
    return list(found)


def test_one_cluster_is_golden(api: ServedApi, run: Any) -> None:
    api.add(policy(STATUS, **GPU))

    compare_text("status.txt", show(run, "status", "etl"))


@table(
    "policies, said",
    held_and_advising=(
        [policy(HELD, mode="Advise")], ("Advise", "ScaleDownStabilized", "by kubectl")),
    old_and_not_seen=(
        [policy(OLD, name="a"), policy(name="b")], ("w7 (Due)", "not processed it yet")),
)  # fmt: skip
def test_one_cluster_in_words(
    policies: list[Json], said: tuple[str, ...], api: ServedApi, run: Any
) -> None:
    api.add(*policies)
    shown = show(run, "status", "etl")

    assert all(words in shown for words in said)


def test_a_line_for_each_cluster_is_golden(api: ServedApi, run: Any) -> None:
    api.add(policy(STATUS), policy(HELD, name="other", mode="Advise"), policy(name="new"))

    compare_text("status-list.txt", show(run, "status"))


def test_status_with_colours_is_golden() -> None:
    compare_text(
        "status.colour.txt", rendered(page(*views_of([policy(STATUS, **GPU)])), colours=True)
    )


def test_status_for_programs_has_the_bounds_of_each_group(api: ServedApi, run: Any) -> None:
    api.add(policy(STATUS, minReplicas=2, **GPU))
    (told,) = items(run, "status", "etl")

    assert {"etl-default": {"min": 2, "max": 20}, "etl-gpu": {"min": 1, "max": 4}} == told["bounds"]
    assert STATUS == told["status"]


@table(
    "spec, group, expected",
    Auto=({}, "etl-default", 19.0),
    fixed=({"idleTimeout": "60s"}, "etl-default", 60.0),
    Auto_that_is_not_known_yet=(GPU, "etl-gpu", 0.0),
)
def test_after_so_long_a_worker_of_a_group_may_leave(
    spec: dict[str, Any], group: str, expected: float
) -> None:
    status = {"groups": [{"name": "etl-default", "startSeconds": 15, "moveSeconds": 4}]}
    (view,) = views_of([policy(status, **spec)])

    assert expected == view.idle_s(group)


def test_lists_that_0_1_0_wrote_are_left_out() -> None:
    rows = [{"reason": "Busy", "workers": 2}]
    relief = [{"name": "pickling", "state": "Active"}]
    old = {**STATUS, "blockers": rows, "pendingReasons": rows, "scheduler": {"relief": relief}}
    (view,) = views_of([policy(old)])

    assert view.status is not None
    assert {} == view.status.blockers == view.status.pending_reasons == view.status.scheduler.relief
    assert page(view)


def test_watching_shows_all_again_after_each_change(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = views_of([policy(STATUS)]), views_of([policy({**STATUS, "replicas": 9})])
    looks = iter((first, first, ApiUnreachable("no answer"), second, KeyboardInterrupt()))

    async def look(*_: Any) -> Any:
        if isinstance(found := next(looks), BaseException):
            raise found
        return found

    monkeypatch.setattr(status, "list_policies", look)
    monkeypatch.setattr(status, "_EVERY_S", 0)

    lines = show(run, "status", "-w").splitlines()
    assert ["8", "9"] == [line.split()[4] for line in lines if line.startswith("team")]
    assert "no answer" in lines


def test_nothing_found_is_exit_code_1(run: Any) -> None:
    for words in ((), ("nobody",)):
        assert "no AdaptivePolicy for" in show(run, "status", *words, code=1)


@table(
    "out, no_color, coloured",
    terminal=(Terminal, None, True),
    NO_COLOR=(Terminal, "1", False),
    NO_COLOR_empty_counts_for_nothing=(Terminal, "", True),
    pipe=(io.StringIO, None, False),
)
def test_colours_are_for_terminals(
    out: type[io.StringIO], no_color: str | None, coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")  # a pipe is no terminal for it
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "40")
    stream = out()
    monkeypatch.setattr(sys, "stdout", stream)
    output.show([Text.assemble("a ", Text("b [c] :bug:", output.BAD), " ", "x" * 300)])

    assert ("\x1b[" in stream.getvalue()) is coloured
    assert "b [c] :bug:" in stream.getvalue(), "nothing in a line is taken for markup"
    assert "x" * 300 in stream.getvalue(), "lines are never wrapped"
