"""The newest operator over schedulers and workers of the oldest and a middle release."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.stage import Watched
from support.tables import table

ROOT = Path(__file__).resolve().parents[2]
OLD = "aaf0d72"  # 0.1.0; the same protocol as today's

SCRIPT = """
import sys
from distributed import Client, Event

def held(x):
    Event("two are there").wait(60)
    return 1

with Client(sys.argv[1]) as client:
    futures = client.map(held, range(24), pure=False)
    client.wait_for_workers(2)
    Event("two are there").set()
    assert 24 == sum(client.gather(futures))
    print("computed", flush=True)
    sys.stdin.readline()  # results are held until told otherwise
    assert 24 == sum(client.gather(futures))
"""


@asynccontextmanager
async def running(tmp_path: Path, release: str, **options: Any) -> AsyncIterator[Watched]:
    python = ROOT / f".venv-{release}/bin/python"
    if not python.exists():
        pytest.skip(f"no environment of {release}: `make test` makes it")
    spec = {
        "clusterRef": {"name": "t"}, "minReplicas": 1, "maxReplicas": 3, "idleTimeout": "1s",
        "target": {"duration": "1s"},
    }  # fmt: skip
    async with Watched(tmp_path, spec=spec, python=str(python), **options) as stage:
        yield stage


def agent_of(commit: str, folder: Path) -> Path:
    """Unpack the agent of an earlier release; schedulers keep theirs while the operator changes."""
    words = ["git", "-C", ROOT, "archive", commit, "operator/dask_adaptive_agent"]
    git = subprocess.run(words, capture_output=True, check=False)
    if git.returncode:
        pytest.skip(f"{commit} is not in this clone's history: {git.stderr.decode()}")
    subprocess.run(["tar", "-x", "-C", folder], input=git.stdout, check=True)
    return folder / "operator"


@table("release, agent", live=("2023.5.0", None), ours=("2024.8.2", ""), old=("2023.5.0", OLD))
async def test_an_older_release_is_served(
    tmp_path: Path, release: str, agent: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if agent is not None:  # as the webhook does: the agent is on the scheduler's path
        path = agent_of(agent, tmp_path) if agent else ROOT / "operator"
        monkeypatch.setenv("PYTHONPATH", str(path))
    async with running(tmp_path, release, inject=agent is not None) as s:
        python = ROOT / f".venv-{release}/bin/python"
        script = await asyncio.create_subprocess_exec(
            python, "-c", SCRIPT, s.rehearsal.address,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert script.stdout is not None
        assert b"computed\n" == await asyncio.wait_for(script.stdout.readline(), 60)
        await s.until(lambda: len(s.names()) == 1, "down to the minimum, with results held")
        await script.communicate(b"go\n")

        assert 0 == script.returncode
        assert release == s.status.scheduler.distributed
        assert s.status.scheduler.agent
        tally = await s.final_tally()
        assert (24, 24, 0) == (tally.tasks, tally.runs, tally.redone)
        assert s.peak > 1
