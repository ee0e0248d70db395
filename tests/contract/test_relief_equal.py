"""The same workload has the same results without the agent, with it, and with its reliefs off."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from distributed.utils_test import gen_cluster

from dask_adaptive_agent import wire
from dask_adaptive_agent.loading.attach import install
from support.relief_processes import ROOT, WAYS, running

#: A user's script: its functions are those of `__main__`, and pickled by value.
SCRIPT = ROOT / "tests/support/relief_script.py"

#: What `pickling: Shared` says that it changes: callables that change themselves.
SHARED_DIFFERS = {"mutating"}


def outcome(folder: Path, way: str) -> dict[str, Any]:
    with running(folder / way, way) as file:
        done = subprocess.run(
            [sys.executable, str(SCRIPT), str(file)],
            cwd=folder, capture_output=True, text=True, timeout=150, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer


@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_a_script_has_the_same_results_in_every_way(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:  # all of them wait for processes to start
        outcomes = dict(zip(WAYS, pool.map(partial(outcome, tmp_path), WAYS), strict=True))
    expected = outcomes["without the agent"]["found"]
    states = {way: outcomes[way]["states"] for way in WAYS}

    assert len(expected) > 25
    assert expected == outcomes["with the agent"]["found"]
    assert expected == outcomes["all reliefs off"]["found"]
    assert same_but(SHARED_DIFFERS, expected) == same_but(
        SHARED_DIFFERS, outcomes["callables shared"]["found"]
    )
    assert {} == states["without the agent"]
    assert {wire.DISABLED} == set(states["all reliefs off"].values())
    for way in ("with the agent", "callables shared"):
        assert {wire.R_ACTIVE, wire.R_NOT_NEEDED} >= set(states[way].values())
        assert wire.R_ACTIVE in states[way].values()


def same_but(names: set[str], found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name not in names}


def in_process(s: Any, way: str) -> None:
    if way != "without the agent":
        choice = wire.DISABLED if way == "all reliefs off" else wire.AUTO
        install(s).reliefs.configure(dict.fromkeys(wire.RELIEFS, choice))


@pytest.mark.parametrize("way", list(WAYS)[:3])
@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_answers_of_a_scheduler_are_those_of_the_books(
    c: Any, s: Any, a: Any, b: Any, way: str
) -> None:
    """Expected values, not a comparison: what `make check` can afford of the workload above."""
    in_process(s, way)
    by = 3
    keys = [str((f"held-{i // 5}", i)) for i in range(20)]
    held = c.map(lambda x: x * by, range(20), key=keys)
    erred = c.map(lambda x: 1 // x, [0], key=["erred-0"])

    assert [x * by for x in range(20)] == await c.gather(held)
    assert "integer division" in str(await erred[0].exception())
    states = s.task_prefixes["held"].states
    assert 20 == states["memory"]
    assert 20 == sum(states.values())
    assert 1 == s.task_prefixes["erred"].states["erred"]
    assert 4 == len(s.task_prefixes["held"].groups)
    assert 2 == len((await c.scheduler.identity())["workers"])
    if hasattr(type(s), "is_idle"):
        assert s.is_idle
