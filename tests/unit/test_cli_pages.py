"""What the commands that look print: golden files, plain and coloured; see `support.golden`."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from dask_adaptive.cli import history, paint, why_not_down
from dask_adaptive.cli.status import as_json, screen
from dask_adaptive.cli.status_page import summary
from dask_adaptive.cli.why_not import why_not
from dask_adaptive.model.history import Decision, Step
from dask_adaptive.model.reason import Reason
from support.golden import compare

DECISION: dict[str, Any] = {
    "at": "2026-02-01T10:00:00Z", "group": "etl-default", "before": 8, "wanted": 3, "desired": 5,
    "reason": "Underutilized", "message": "8 workers, 5 desired: 3 idle ones leave",
    "outcome": "Done", "askedBy": "load",
    "inputs": {"queued": 0, "processing": 4, "arrival_s": 12.5},
    "steps": [
        {"stage": "load", "replicas": 3, "reason": "DesiredWithinRange", "message": "12 s of work"},
        {"stage": "window", "replicas": 5, "reason": "ScaleDownStabilized",
         "message": "5 were wanted 40s ago"},
    ],
}  # fmt: skip

STATUS: dict[str, Any] = {
    "replicas": 8, "desiredReplicas": 5, "wantedReplicas": 3, "connected": 8, "pending": 0,
    "idle": 4, "busy": 4, "pinned": 2, "retiring": 1,
    "reason": "Underutilized", "message": "8 workers, 5 desired: 1 idle ones leave",
    "groups": [
        {"name": "etl-default", "replicas": 8, "desiredReplicas": 5, "wantedReplicas": 3,
         "connected": 8, "pending": 0, "reason": "ScaleDownStabilized",
         "message": "3 wanted, 5 held until the fall has lasted idleTimeout"},
        {"name": "etl-gpu", "replicas": 2, "desiredReplicas": 2, "wantedReplicas": 4,
         "connected": 0, "pending": 2, "reason": "Unschedulable", "message": "0/3 nodes are free"},
    ],
    "lastDecision": DECISION,
    "scheduler": {"distributed": "2026.8.0", "agent": "0.1.0"},
    "heldBy": [
        {"source": "shuffle", "owner": "ab12", "workers": ["w1", "w2"], "count": 2,
         "until": "2026-02-01T11:00:00Z"},
        {"source": "client", "owner": "notebook", "reason": "a look",
         "workers": ["w1", "w2", "w3", "w4"], "count": 12},
    ],
    "blockers": [{"reason": "Pinned", "workers": 2}, {"reason": "Busy", "workers": 1}],
    "pendingReasons": [{"reason": "Unschedulable", "workers": 2}],
    "workers": [
        {"name": "w1", "pod": "w1-x", "state": "Active", "reason": "Pinned",
         "message": "pinned by shuffle ab12"},
        {"name": "w9", "pod": "w9-x", "state": "Draining", "reason": "Retiring",
         "message": "2 results to move"},
    ],
    "replacing": [{"worker": "w7", "state": "Due", "reason": "Lifetime", "message": ""}],
    "conditions": [
        {"type": "Ready", "status": "True", "reason": "Reconciled", "message": "served"},
        {"type": "Injected", "status": "False", "reason": "InjectionRefused",
         "message": "namespace team is annotated inject=false"},
        {"type": "SchedulerConfigured", "status": "Unknown", "reason": "AgentMissing",
         "message": "nobody compares"},
        {"type": "ScalingLimited", "status": "True", "reason": "Unschedulable",
         "message": "0/3 nodes are free"},
        {"type": "Paused", "status": "False", "reason": "Reconciled", "message": "mode is Auto"},
    ],
}  # fmt: skip


def policy(status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "team", "name": "etl-policy"},
        "spec": {"clusterRef": {"name": "etl"}, "maxReplicas": 20, **spec},
        **({"status": status} if status is not None else {}),
    }


GPU = {"workerGroups": [{"name": "etl-gpu", "minReplicas": 1, "maxReplicas": 4}]}
HELD = {**STATUS, "pause": {"message": "scale-in held by kubectl", "until": "2026-02-01T12:00:00Z"}}
#: Of an operator that tells of no groups and no decisions yet.
OLD = {k: v for k, v in STATUS.items() if k not in ("groups", "lastDecision", "pause")}


@pytest.mark.parametrize(
    ("name", "policies"),
    [
        pytest.param("status", [policy(STATUS, **GPU)], id="golden-all-there-is"),
        pytest.param("status-held", [policy(HELD, mode="Advise")], id="golden-held-and-advising"),
        pytest.param("status-old", [policy(OLD), policy()], id="golden-old-and-not-looked-at"),
    ],
)
def test_status(name: str, policies: list[dict[str, Any]]) -> None:
    compare(name, screen(policies))


def test_status_of_nobody_is_one_line_in_logs() -> None:
    said = "team/etl: 8 replicas, 5 desired, 3 wanted, 0 pending, 4 busy, 4 idle: Underutilized: "
    assert summary(policy(STATUS)).startswith(said)
    assert "is it running?" in summary(policy())


def test_status_for_programs_has_the_bounds_of_each_group() -> None:
    told = as_json(policy(STATUS, minReplicas=2, **GPU))

    assert {"etl-default": {"min": 2, "max": 20}, "etl-gpu": {"min": 1, "max": 4}} == told["bounds"]
    assert STATUS == told["status"]


def explained(name: str, sentence: str = "may go: idle for 2m", **more: Any) -> Any:
    usual = {
        "name": name, "address": f"tcp://{name}", "status": "running", "idle_ms": 120_000,
        "processing": [], "n_processing": 0, "sole_bytes": 0, "n_sole": 0, "pins": [],
        "retirement": "", "stopped": "", "runs": 1, "closable": True, "sentence": sentence,
    }  # fmt: skip
    return {**usual, **more}


WORKERS = [
    explained("w1", "stays: pinned by shuffle ab12", pins=["shuffle ab12"]),
    explained("w3", "stays: pinned by client notebook", pins=["client notebook"]),
    explained("w4", "stays: has tasks", processing=["inc-1", "inc-2"], n_processing=4, idle_ms=0),
    explained("w5", idle_ms=20_000),
    explained("w6", "stays: idle for 2m, but without it results would fill over half of the memory",
              closable=False),
    explained("w7", "stays: holds actors", n_sole=1),
    explained("w8", "stays: holds the last copy of 3 results", n_sole=3),
    explained("w9", "is on its way out", retirement="draining: 2 results to move"),
    explained("w10"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "seen", "workers", "unknown"),
    [
        pytest.param("why", STATUS, WORKERS, "", id="golden-agent"),
        pytest.param("why-status", STATUS, None, "kubectl is not on the PATH", id="golden-status"),
        pytest.param(
            "why-paused",
            {**OLD, "reason": "Paused", "message": "paused: nothing is scaled"}, [], "",
            id="golden-paused",
        ),
        pytest.param(
            "why-none", {"connected": 2, "desiredReplicas": 2, "reason": "DesiredWithinRange"}, [],
            "", id="golden-none-too-many",
        ),
        pytest.param("why-nobody", {}, None, "no answer", id="golden-not-looked-at"),
    ],
)  # fmt: skip
def test_why_not_down(name: str, seen: dict[str, Any], workers: Any, unknown: str) -> None:
    compare(name, why_not_down.lines_of(why_not(policy(seen), workers, unknown)))


def test_each_worker_that_stays_says_what_ends_it() -> None:
    stays = {s.worker: s for s in why_not(policy(STATUS, idleTimeout="60s"), WORKERS).stays}

    assert sorted(stays) == sorted(row["name"] for row in WORKERS)
    assert all(stay.ends for stay in stays.values())
    assert "at the latest 2026-02-01T11:00:00Z" == stays["w1"].ends
    assert "when the pin ends" == stays["w3"].ends, "nobody knows when"
    assert ("IdleGrace", "in 40s") == (stays["w5"].reason, stays["w5"].ends)


def decision(at: float, **more: Any) -> Decision:
    usual: dict[str, Any] = {
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


@pytest.mark.parametrize("steps", [False, True], ids=["golden-short", "golden-steps"])
def test_history(steps: bool) -> None:
    compare("history-steps" if steps else "history", history.lines_of(DECISIONS, steps=steps))


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
    paint.show([paint.line("a ", paint.styled("b [c] :bug:", paint.BAD))])

    assert ("\x1b[" in stream.getvalue()) is coloured
    assert "b [c] :bug:" in stream.getvalue(), "nothing in a line is taken for markup"


def test_lines_are_never_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setenv("COLUMNS", "40")
    paint.show([paint.line("x" * 300)])

    assert "x" * 300 in stream.getvalue()
