"""
Text that tenants write, in schedulers, annotations and statuses, and that a terminal would obey: no
command prints it, and the operator writes none to the API for others to show.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from click.testing import CliRunner

from dask_adaptive.cli.errors import fail
from dask_adaptive.cli.explain import of_cluster, of_worker
from dask_adaptive.cli.main import cli
from dask_adaptive.cli.output import Cell, show
from dask_adaptive.cli.status import page
from dask_adaptive.cli.status_view import views_of
from dask_adaptive.cli.why import Live
from dask_adaptive.kube.api import EVENTS, POLICIES
from dask_adaptive.kube.objects import parse_policy_object
from dask_adaptive.kube.reporter import EventPoster
from dask_adaptive.kube.status_json import history_body, status_json, unable_json
from dask_adaptive.loop.ports import Event, EventType
from dask_adaptive.loop.status import READY, Condition, HeldBy, SchedulerRow, Status, WorkerRow
from dask_adaptive.loop.summary import status_of
from dask_adaptive.model.observed import Pin, ReliefState, Retiring, Serialized, SerializedFunction
from dask_adaptive.model.plan import Decision, Plan
from dask_adaptive.model.reason import Reason
from support import kube_objects as ko
from support.golden import Terminal
from support.kube_server import stand_in_kubectl
from support.shown_policies import STATUS, policy
from support.stored_api import ServedApi, StoredApi
from support.tables import table
from support.worlds import NOW, POLICY, cluster, dated, pending, worker

#: A title, a clipboard, a cleared screen, C1, DEL, the direction of writing, and a line of ours.
EVIL = (
    "a\x1b]0;title\x07b\x1b]52;c;cm0=\x07c\x1b[2Jd\x9b2Je\x7f\x00\x08\r\u202ef\u2066g\u2069\u2028h"
)
HARMLESS = "a]0;titleb]52;c;cm0=c[2Jd2Jefgh"

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")

#: Keys whose values people and schedulers choose.
FREE = {
    "message", "owner", "outcome", "askedBy", "distributed", "agent", "source", "state", "name"
}  # fmt: skip

#: Lists with rows of which each one has a name of its own that commands look for.
NAMED = {"groups", "steps", "workers"}


def poisoned(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        named = key in NAMED
        return {k: v if named and k == "name" else poisoned(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [poisoned(row, key) for row in value]
    return f"{value} {EVIL}" if key in FREE else value


EVIL_STATUS = {
    **poisoned(STATUS),
    "reason": EVIL,
    "pendingReasons": {EVIL: 2},
    "blockers": {EVIL: 1},
    "scheduler": {"distributed": EVIL, "agent": EVIL, "relief": {EVIL: EVIL}},
    "conditions": [
        {"type": EVIL, "status": EVIL, "reason": EVIL, "message": EVIL},
        {"type": "Ready", "status": "False", "reason": EVIL, "message": EVIL},
        {"type": "Injected", "status": "False", "reason": "X", "message": f"{EVIL}\nPolicy: fine"},
    ],
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """A command line where all that a tenant can write is hostile; what it prints anywhere."""
    body = policy(EVIL_STATUS)
    body["metadata"]["uid"] = "u"
    notes = {"dask-adaptive.dev/pin": EVIL, "dask-adaptive.dev/expires-at": EVIL, EVIL: EVIL}
    decision = Decision(1.0, "etl-default", 2, 8, 6, Reason.LOAD_INCREASED, EVIL, EVIL, EVIL)
    history = history_body(parse_policy_object(body), [decision])
    history["data"] = {
        name: text.replace("title", "\x1b[2J") for name, text in history["data"].items()
    }
    marked = {"annotations": notes}
    there = [ko.cluster(**marked), ko.group(), ko.deployment(), ko.pod(metadata=marked)]
    for each in there:
        each["metadata"]["namespace"] = "team"
    api = ServedApi()
    api.add(body, history, *there)
    monkeypatch.setenv("KUBECONFIG", api.kubeconfig(tmp_path))
    script = "printf 'error: \\033[2J\\033]0;x\\007' >&2; exit 1"
    stand_in_kubectl(tmp_path, script, monkeypatch)
    monkeypatch.chdir(tmp_path)
    yield lambda *words: CliRunner().invoke(cli, words).output
    api.close()


@table(
    "words, said",
    list=(["status"], "[2J"),
    status=(["status", "etl"], HARMLESS),
    status_json=(["status", "etl", "-o", "json"], "u001b]0;title"),
    status_yaml=(["status", "etl", "-o", "yaml"], "\\e]0;title"),
    explain=(["explain", "etl"], HARMLESS),
    explain_yaml=(["explain", "etl", "-o", "yaml"], "title"),
    explain_worker=(["explain", "worker/w1"], "w1"),
    check=(["check"], HARMLESS),
    check_json=(["check", "-o", "json"], "title"),
    report=(["report", "-f", "/nowhere/\x1b[2J.zip"], "nowhere"),
    tidy=(["tidy", "--dry-run"], "deleted"),
    our_own_argument=(["explain", f"worker/{EVIL}"], "no worker"),
    record=(["record", "etl", "--for", "1s", "-f", "trace"], "[2J"),
)
def test_no_command_prints_control_characters(
    words: Sequence[str], said: str, run: Callable[..., str]
) -> None:
    printed = run(*words)

    assert said in printed
    assert not CONTROLS.search(printed), repr(CONTROLS.search(printed))


OnTerminal = Callable[[Iterable[Cell]], str]


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[Iterable[Cell]], str]:
    """Shows lines on a terminal; what it gets, with colours."""

    def shown(lines: Iterable[Cell]) -> str:
        made = Terminal()
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.delenv("NO_COLOR", raising=False)
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", made)
            show(lines)
        return made.getvalue()

    return shown


def without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def evil_cluster() -> Live:
    pin = Pin("client", EVIL, f"{EVIL}\nSOURCE  OWNER", 60.0)
    workers = [
        worker("w1", pins=(pin,), drift=EVIL),
        worker("w2", retiring=Retiring(message=EVIL)),
        worker("w3", annotation_problem=EVIL),
        pending("w4", waiting=EVIL),
    ]
    functions = (SerializedFunction(EVIL, 1, 1.0, 1, 1),)
    relief = (ReliefState(EVIL, EVIL, EVIL, {EVIL: 1}),)
    seen = cluster(workers, relief=relief, serialized=Serialized(1, 1.0, 1, 0.5, functions))
    (view,) = views_of([policy(EVIL_STATUS)])
    return Live(view, dated(seen, NOW), "")


@pytest.mark.parametrize("name", ["", "w1", "w2", "w3", "w4"])
def test_what_a_scheduler_says_is_explained_without_them(
    name: str, on_terminal: OnTerminal
) -> None:
    live = evil_cluster()
    answer = of_worker(name, live, ends=False) if name else of_cluster(live, [])
    printed = without_colours(on_terminal(answer.lines()))

    assert HARMLESS in printed
    assert not CONTROLS.search(printed), repr(CONTROLS.search(printed))
    assert not [line for line in printed.splitlines() if line.startswith("SOURCE")]


def test_colours_are_ours_and_a_row_is_one_line(on_terminal: OnTerminal) -> None:
    printed = on_terminal(page(*views_of([policy(EVIL_STATUS)])))

    assert "\x1b[1m" in printed
    assert not CONTROLS.search(without_colours(printed))
    assert not [line for line in printed.splitlines() if line.startswith("Policy: fine")]


def test_an_error_is_printed_without_them(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        fail(EVIL, 1)

    assert f"Error: {HARMLESS}\n" == capsys.readouterr().err


def all_texts(value: Any) -> Iterator[str]:
    match value:
        case dict():
            for key, inner in value.items():
                yield key
                yield from all_texts(inner)
        case list() | tuple():
            for inner in value:
                yield from all_texts(inner)
        case str():
            yield value


def test_a_status_holds_none() -> None:
    step = Decision(1.0, "g", 1, 2, 2, Reason.RECONCILED, EVIL, EVIL, f"client {EVIL}")
    said = Status(
        message=EVIL,
        held_by=(HeldBy("client", EVIL, EVIL, (EVIL,), 1, until=5.0, left_s=60.0),),
        pending_reasons={EVIL: 1},
        workers=(WorkerRow("w", "Active", Reason.PINNED, EVIL),),
        last_decision=step, scheduler=SchedulerRow(EVIL, EVIL, relief={EVIL: EVIL}),
        conditions=(Condition(READY, True, Reason.RECONCILED, EVIL),),
    )  # fmt: skip
    seen = evil_cluster().observed
    whole = status_of(seen, POLICY, Plan(Reason.RECONCILED, EVIL), (), now=NOW)
    ready = Condition(READY, False, Reason.ACTION_FAILED, EVIL)
    at = "2026-01-31T18:00:00Z"
    for written in (
        status_json(said, before={}, now=at),
        status_json(whole, before={}, now=at),
        unable_json(ready, generation=1, before={}, now=at),
        history_body(parse_policy_object(ko.policy()), [step]),
    ):
        texts = list(all_texts(written))
        assert HARMLESS in "".join(texts)
        assert not CONTROLS.search("".join(texts))
        assert "\\u001b" not in msgspec.json.encode(written).decode()


async def test_an_event_holds_none() -> None:
    api = StoredApi(ko.namespace(), ko.policy())
    meta = parse_policy_object(ko.policy()).meta
    event = Event(EventType.WARNING, Reason.PINNED, EVIL)
    await EventPoster(api, lambda: 1.8e9).post(POLICIES, meta, event)

    (written,) = api.store.all(EVENTS)
    assert HARMLESS == written["message"]


def test_yaml_for_programs_is_still_what_it_was(run: Callable[..., str]) -> None:
    """But for what would turn the direction of writing, as YAML leaves it as it is."""
    (item,) = yaml.safe_load(run("status", "etl", "-o", "yaml"))["items"]

    assert "\x1b]0;title\x07" in item["status"]["message"]
