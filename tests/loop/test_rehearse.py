"""`dask-adaptive rehearse` as people run it: the demo, their script, and signals that end it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from click.testing import CliRunner

from dask_adaptive.cli.main import cli
from dask_adaptive_lab.cli.record import _stopped
from dask_adaptive_lab.rehearse.rehearsal import Signals
from support.tables import table

EXAMPLE = Path(__file__).parents[2] / "manifests/examples/policy.yaml"
SCRIPT = """
import signal, subprocess, sys, time
from distributed import Client
if sys.argv[1] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with Client() as client:
    print("sum", sum(client.gather(client.map(lambda x: time.sleep(0.1) or x, range(20)))))
    if sys.argv[1].isdigit():
        sys.exit(int(sys.argv[1]))
    client.submit(subprocess.run, ["tail", "-f", __file__])
    time.sleep(1)
    print("computing", flush=True)
    time.sleep(600)
"""


def command(folder: Path, argument: str) -> list[str]:
    script = folder / "script.py"
    script.write_text(SCRIPT)
    return ["rehearse", str(EXAMPLE), str(script), argument]


def start(folder: Path, argument: str, output: int, **options: Any) -> subprocess.Popen[bytes]:
    (folder / "tmp").mkdir()
    words = [sys.executable, "-m", "dask_adaptive.cli.main", *command(folder, argument)]
    env = {**os.environ, "TMPDIR": str(folder / "tmp")}
    return subprocess.Popen(words, env=env, stdout=output, stderr=output, **options)


def until(end: int, text: str) -> None:
    """Read from a pipe or a terminal until a text is there."""
    shown = b""
    while text.encode() not in shown:
        shown += os.read(end, 1 << 16)


def left(folder: Path) -> list[Path | str]:
    """Temporary files, and processes: scheduler, workers, script, and what a task has started."""
    lines = (" ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"]))
    return [*(folder / "tmp").iterdir(), *(line for line in lines if str(folder) in line)]


def rehearsed(code: int, *words: str) -> str:
    result = CliRunner().invoke(cli, words)
    assert code == result.exit_code, result.output
    assert re.search(r"rerun by scaling +0 *\n", result.output)
    return result.output


def test_a_script_runs_under_a_policy(tmp_path: Path) -> None:
    assert "sum 190" in rehearsed(7, *command(tmp_path, "7"))


def test_the_demo_comes_to_its_end() -> None:
    """All that `make demo` shows, in its four acts, does happen."""
    rehearsed(0, "rehearse", str(EXAMPLE))


@table(
    "script, when, signals, code",
    ctrl_c=("", "computing", [signal.SIGINT], 130),
    terminated=("", "computing", [signal.SIGTERM], 143),
    hung_up=("", "computing", [signal.SIGHUP], 129),
    during_the_start=("", "starting", [signal.SIGTERM], 143),
    twice_where_the_script_goes_on=("stubborn", "computing", [signal.SIGTERM, signal.SIGINT], 143),
)
def test_nothing_stays(
    script: str, when: str, signals: list[int], code: int, tmp_path: Path
) -> None:
    with start(tmp_path, script, subprocess.PIPE) as process:
        until(process.stdout.fileno(), when)
        began = time.monotonic()
        for number in signals:
            process.send_signal(number)
            time.sleep(0.3)
        out = process.stdout.read().decode()

    assert (code, []) == (process.returncode, left(tmp_path)), out
    assert "peak workers" in out
    assert "Traceback" not in out
    assert time.monotonic() - began < 4.5, "nothing was waited for that goes on"


def test_a_terminal_that_is_gone(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    process = start(tmp_path, "", theirs, start_new_session=True)
    until(ours, "computing")
    os.close(theirs)
    os.close(ours)
    process.send_signal(signal.SIGHUP)

    assert (129, []) == (process.wait(), left(tmp_path))


def test_signals_after_the_work_let_figures_be_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    just_ended = Mock(children=lambda: [Mock(pid=2**31 - 1)])  # above the pids that there are
    monkeypatch.setattr(psutil, "Process", lambda: just_ended)
    with Signals() as after:
        assert 7 == after.run(asyncio.sleep(0, result=7))
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)

    assert 143 == after.code


def test_a_closed_terminal_ends_nothing_under_nohup() -> None:
    async def recording() -> bool:
        stop = _stopped(None)
        signal.raise_signal(signal.SIGHUP)
        await asyncio.sleep(0.05)
        return stop.is_set()

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Signals() as rehearsal:
        assert (False, 0) == (rehearsal.run(recording()), rehearsal.code)
    signal.signal(signal.SIGHUP, before)
