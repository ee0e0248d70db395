"""What the commands that look print: golden files, and what programs read; see `support.golden`."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from rich.text import Text

from dask_adaptive.cli import cluster_now, output
from dask_adaptive.cli.status import screen
from dask_adaptive.cli.status_view import views_of
from dask_adaptive.cli.why_not_down import ENDS
from dask_adaptive.kube.objects import parse_policy_object
from dask_adaptive.kube.status_json import decision_json, history_body
from dask_adaptive.model.plan import Decision, Step
from dask_adaptive.model.reason import Reason
from support.canned_api import CannedApi
from support.golden import compare_text, rendered
from support.shown_policies import GPU, HELD, OLD, STATUS, policy

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


@pytest.mark.parametrize(
    ("name", "policies"),
    [
        pytest.param("status", [policy(STATUS, **GPU)], id="golden-all-there-is"),
        pytest.param("status-held", [policy(HELD, mode="Advise")], id="golden-held-and-advising"),
        pytest.param(
            "status-old", [policy(OLD, name="a"), policy(name="b")], id="golden-old-and-not-seen"
        ),
    ],
)
def test_status(name: str, policies: list[Json], api: CannedApi, run: Any) -> None:
    api.add(*policies)

    compare_text(f"{name}.txt", show(run, "status"))


def test_status_with_colours_is_golden() -> None:
    compare_text(
        "status.colour.txt", rendered(screen(views_of([policy(STATUS, **GPU)])), colours=True)
    )


def test_status_for_programs_has_the_bounds_of_each_group(api: CannedApi, run: Any) -> None:
    api.add(policy(STATUS, minReplicas=2, **GPU))
    (told,) = items(run, "status", "etl")

    assert {"etl-default": {"min": 2, "max": 20}, "etl-gpu": {"min": 1, "max": 4}} == told["bounds"]
    assert STATUS == told["status"]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [({}, 9.0), ({"workerGroups": [{**GPU["workerGroups"][0], "idleTimeout": "30m"}]}, 1800.0),
     ({"idleTimeout": "5s"}, 9.0), ({"idleTimeout": "60s"}, 60.0)],
)  # fmt: skip
def test_a_worker_of_any_group_may_be_idle_for_so_long(
    spec: dict[str, Any], expected: float
) -> None:
    status = {"groups": [{"name": "etl-other", "startSeconds": 9, "moveSeconds": 0}]}
    (view,) = views_of([policy(status, **spec)])

    assert expected == view.idle_timeout_s


def test_get(api: CannedApi, run: Any) -> None:
    api.add(policy(STATUS), policy(name="new", minReplicas=3))
    head, etl, new = show(run, "get").splitlines()
    wide = show(run, "get", "-o", "wide").splitlines()

    assert head.split()[:6] == ["NAMESPACE", "NAME", "CLUSTER", "MODE", "REPLICAS", "DESIRED"]
    row = "team etl-policy etl Auto 8 5 0 4 4 2 1 True Underutilized"
    assert row == " ".join(etl.split())
    assert new.endswith("Unknown   not processed yet")
    assert [head.split(), etl.split()[:4]] == [wide[0].split()[:13], wide[1].split()[:4]]
    assert ("1 idle ones leave" in wide[1], "3     20" in wide[2]) == (True, True)
    assert ["etl-policy", "new"] == [p["metadata"]["name"] for p in items(run, "get")]
    assert "List" == json.loads(run("get", "-o", "json").output)["kind"]
    name = "adaptivepolicy.dask-adaptive.dev/new"
    assert [name] == show(run, "get", "new", "-o", "name").splitlines()


def test_get_with_nothing_to_show_ends_as_kubectl_does(run: Any) -> None:
    assert "No resources found in team namespace.\n" == show(run, "get")
    assert "No resources found.\n" == show(run, "get", "-A")
    assert [] == items(run, "get")
    assert "no AdaptivePolicy nobody in namespace team" in show(run, "get", "nobody", code=1)


def test_pins(api: CannedApi, run: Any) -> None:
    train = {"clusterRef": {"name": "train"}}
    shuffle = {"heldBy": [{"source": "shuffle", "owner": "5f3a", "workers": ["a"], "count": 1}]}
    api.add(policy(STATUS), policy(shuffle, name="z", **train), policy({}, name="new"))

    assert [
        "CLUSTER   SOURCE    OWNER      UNTIL                  WORKERS                 REASON",
        "etl       shuffle   ab12       2026-02-01T11:00:00Z   w1, w2",
        "etl       client    notebook   unknown                w1, w2, w3 and 9 more   a look",
        "train     shuffle   5f3a       unknown                a",
        "new: the operator has not processed it yet; is it running?",
    ] == show(run, "pins").splitlines()
    assert "w1, w2, w3, w4 and 8 more" in show(run, "pins", "-o", "wide")
    assert show(run, "pins", "-A").startswith("NAMESPACE   CLUSTER")
    assert items(run, "pins", "train") == [
        {"namespace": "team", "cluster": "train", "source": "shuffle", "owner": "5f3a",
         "reason": "", "until": "", "workers": ["a"], "count": 1}
    ]  # fmt: skip
    assert show(run, "pins", "new").startswith("No pins.\n")
    assert "x in namespace team has no AdaptivePolicy" in show(run, "pins", "x", code=1)


def explained(name: str, sentence: str = "may go: idle for 2m", **more: Any) -> Any:
    usual = {
        "name": name, "address": f"tcp://{name}", "status": "running", "idle_ms": 120_000,
        "processing": [], "n_processing": 0, "sole_bytes": 0, "n_sole": 0, "pins": [],
        "held_by": [], "retirement": "", "stopped": "", "runs": 1, "closable": True, "veto": "",
        "sentence": sentence,
    }  # fmt: skip
    return {**usual, **more}


WORKERS = [
    explained("w1", "stays: pinned by shuffle ab12", pins=["shuffle ab12"],
              held_by=[{"source": "shuffle", "owner": "ab12"}], veto="Pinned"),
    explained("w3", "stays: pinned by client notebook", pins=["client notebook"],
              held_by=[{"source": "client", "owner": "notebook"}], veto="Pinned"),
    explained("w4", "stays: has tasks", processing=["inc-1", "inc-2"], n_processing=4, idle_ms=0,
              veto="Busy"),
    explained("w5", idle_ms=20_000),
    explained("w6", "stays: idle for 2m, but without it results would fill over half of the memory",
              closable=False, veto="NotOffered"),
    explained("w7", "stays: holds actors", n_sole=1, veto="Actors"),
    explained("w8", "stays: holds the last copy of 3 results", n_sole=3,
              veto="NoRecipient"),
    explained("w9", "is on its way out", retirement="draining: 2 results to move"),
    explained("w10"),
]  # fmt: skip


def answers(monkeypatch: pytest.MonkeyPatch, workers: list[Any]) -> None:
    """There is a way to the scheduler, and its agent says this."""

    async def explain() -> list[Any]:
        return workers

    @contextlib.asynccontextmanager
    async def link_to(*_: Any) -> AsyncIterator[Any]:
        yield SimpleNamespace(explain=explain)

    monkeypatch.setattr(cluster_now, "link_to", link_to)


@pytest.mark.parametrize(
    ("name", "status", "workers"),
    [
        pytest.param("why", STATUS, WORKERS, id="golden-agent"),
        pytest.param("why-status", STATUS, None, id="golden-no-kubectl"),
        pytest.param(
            "why-paused", {**OLD, "reason": "Paused", "message": "paused: nothing is scaled"}, [],
            id="golden-paused",
        ),
        pytest.param(
            "why-none", {"connected": 2, "desiredReplicas": 2, "reason": "DesiredWithinRange"}, [],
            id="golden-none-too-many",
        ),
        pytest.param("why-nobody", None, None, id="golden-not-looked-at"),
    ],
)  # fmt: skip
def test_why_not_down(
    name: str, status: Any, workers: Any, api: CannedApi, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.add(policy(status, idleTimeout="60s"))
    if workers is not None:
        answers(monkeypatch, workers)

    compare_text(f"{name}.txt", show(run, "why-not-down", "etl"))


def test_what_ends_is_known_of_nothing_but_reasons() -> None:
    assert ENDS.keys() <= {reason.value for reason in Reason}


def test_each_worker_that_stays_says_what_ends_it(
    api: CannedApi, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.add(policy(STATUS, idleTimeout="60s"))
    answers(monkeypatch, WORKERS)
    found = json.loads(show(run, "why-not-down", "etl", "-o", "json"))
    stays = {s["worker"]: s for s in found["stays"]}

    assert sorted(stays) == sorted(row["name"] for row in WORKERS)
    assert all(stay["ends"] for stay in stays.values())
    assert "at the latest 2026-02-01T11:00:00Z" == stays["w1"]["ends"]
    assert "when the pin ends" == stays["w3"]["ends"], "nobody knows when"
    assert ("IdleGrace", "in 40s") == (stays["w5"]["reason"], stays["w5"]["ends"])
    assert "HoldsActors" == stays["w7"]["reason"]


def decision(at: float, **more: Any) -> Decision:
    usual: Json = {
        "group": "etl-default", "before": 2, "wanted": 8, "desired": 6,
        "reason": Reason.LOAD_INCREASED, "message": "8 wanted, 2 there: 6 workers",
        "outcome": "Done",
    }  # fmt: skip
    return Decision(at=at, **{**usual, **more})


DECISIONS = [
    decision(1_770_000_000.0),
    decision(
        1_770_000_060.0,
        outcome="Failed: the quota is used up",
        asked_by="client notebook",
        inputs={"queued": 12, "arrival_s": 20.25},
        steps=(
            Step("hint", 8, Reason.CLIENT_WANTS, "8 for 10m"),
            Step("cap", 6, Reason.QUOTA_EXCEEDED, "room for 4 more"),
        ),
    ),
]


def test_history(api: CannedApi, run: Any) -> None:
    """The last decision is in the status, and in the ConfigMap only later."""
    api.add(policy(OLD))
    assert "No decisions.\n" == show(run, "history", "etl")
    last = {"lastDecision": decision_json(DECISIONS[-1])}
    api.add(policy({**OLD, **last}))
    assert 1 == len(items(run, "history", "etl"))
    api.add({"kind": "ConfigMap", **history_body(parse_policy_object(policy()), DECISIONS)})

    compare_text("history.txt", show(run, "history", "etl"))
    compare_text("history-steps.txt", show(run, "history", "etl-policy", "--steps"))
    assert "No decisions within 1h.\n" == show(run, "history", "etl", "--since", "60m")
    assert ["Failed: the quota is used up"] == [
        d["outcome"] for d in items(run, "history", "etl", "--limit", "1")
    ]


@pytest.mark.parametrize(
    "words", [("status", "nobody"), ("status",), ("why-not-down", "nobody"), ("history", "nobody")]
)
def test_nothing_found_is_exit_code_1(words: tuple[str, ...], run: Any) -> None:
    assert "AdaptivePolicy" in show(run, *words, code=1)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("out", "no_color", "coloured"),
    [
        pytest.param(Terminal, None, True, id="terminal"),
        pytest.param(Terminal, "1", False, id="NO_COLOR"),
        pytest.param(Terminal, "", True, id="NO_COLOR-empty-counts-for-nothing"),
        pytest.param(io.StringIO, None, False, id="pipe"),
    ],
)
def test_colours_are_for_terminals(
    out: type[io.StringIO], no_color: str | None, coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = out()
    monkeypatch.setattr(sys, "stdout", stream)
    output.show([Text.assemble("a ", Text("b [c] :bug:", output.BAD))])

    assert ("\x1b[" in stream.getvalue()) is coloured
    assert "b [c] :bug:" in stream.getvalue(), "nothing in a line is taken for markup"


def test_lines_are_never_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("COLUMNS", "40")
    output.show([Text.assemble("x" * 300)])

    assert "x" * 300 in stream.getvalue()
