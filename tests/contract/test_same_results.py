"""Work has the same results, or fails alike, with the agent and without, and for each relief."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import distributed
import pytest
from distributed import Client
from packaging.version import Version

from dask_adaptive_agent import wire
from dask_adaptive_agent.relief.registry import VARIABLE
from support.same_graph import Senders, computed, differences

pytestmark = pytest.mark.skipif(
    Version(distributed.__version__) < Version("2023.8.1"), reason="functions' bytes are kept"
)

#: GRAPHS=20000 for a thorough look; FIRST_GRAPH for others.
GRAPHS = int(os.environ.get("GRAPHS", "2000"))
CLUSTER_GRAPHS = int(os.environ.get("CLUSTER_GRAPHS", "100"))
FIRST = int(os.environ.get("FIRST_GRAPH", "1000"))


ROOT = Path(__file__).resolve().parents[2]
PRELOAD = {"DASK_DISTRIBUTED__SCHEDULER__PRELOAD": "dask_adaptive_agent.preload"}
#: All processes can import the same, whether they run the agent or not.
PATH = f"{ROOT / 'operator'}{os.pathsep}{ROOT / 'tests'}"
ALL_OFF = ",".join(f"{name}={wire.DISABLED}" for name in wire.RELIEFS)

#: What a scheduler's environment has, by the way in which it is run.
WAYS: dict[str, dict[str, str]] = {
    "without the agent": {},
    "with the agent": PRELOAD,
    "all reliefs off": {**PRELOAD, VARIABLE: ALL_OFF},
    "callables shared": {**PRELOAD, VARIABLE: f"pickling={wire.SHARED}"},
}


@contextlib.contextmanager
def running(folder: Path, way: str) -> Iterator[Path]:
    """A scheduler and two workers, as processes; the file that tells where the scheduler is."""
    folder.mkdir()
    file = folder / "scheduler.json"
    bare = {k: v for k, v in os.environ.items() if not k.startswith(("DASK_", "PYTHONPATH"))}
    bare |= {"PYTHONWARNINGS": "ignore", "PYTHONPATH": PATH, "PYTHONHASHSEED": "0"}
    here = ["--dashboard-address", "127.0.0.1:0", "--no-dashboard", "--scheduler-file", str(file)]
    commands = [["dask_scheduler", "--host", "127.0.0.1", "--port", "0", *here]]
    for name in ("first", "second"):
        commands.append(
            ["dask_worker", "--scheduler-file", str(file), "--no-nanny", "--no-dashboard"]
        )
        commands[-1] += ["--nthreads", "1", "--name", name]
    processes = []
    try:
        for i, (module, *arguments) in enumerate(commands):
            with open(folder / f"{i}.log", "wb") as log:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", f"distributed.cli.{module}", *arguments],
                        env={**bare, **WAYS[way]} if i == 0 else bare,
                        cwd=folder, stdout=log, stderr=log,
                    )
                )  # fmt: skip
        yield file
    finally:
        for process in reversed(processes):
            process.kill()
            process.wait()


@pytest.fixture
def senders() -> Iterator[Senders]:
    made = Senders()
    logging.disable(logging.CRITICAL)  # stock code logs what can't be pickled, with its traceback
    try:
        yield made
    finally:
        logging.disable(logging.NOTSET)
        made.close()


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (125, 250, 375))]
)
def test_graphs_give_the_same(senders: Senders, first: int) -> None:
    wrong = [text for seed in range(first, first + 125) for text in differences(seed, senders)]

    assert [] == wrong
    assert 100 < senders.n_reused()


@pytest.mark.thorough
@pytest.mark.timeout(7200)
def test_many_graphs_give_the_same(senders: Senders) -> None:
    wrong = [text for seed in range(FIRST, FIRST + GRAPHS) for text in differences(seed, senders)]

    assert [] == wrong


def states(client: Client) -> set[str]:
    """Those of a scheduler's reliefs."""

    def of(dask_scheduler: Any) -> list[str]:
        hello = dask_scheduler.handlers.get("adaptive_hello", lambda: {"relief": []})
        return [row["state"] for row in hello()["relief"]]

    return set(client.run_on_scheduler(of))


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_clusters_give_the_same(tmp_path: Path) -> None:
    """With schedulers and workers in processes of their own, each sent the same."""
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(running(tmp_path / way, way)) for way in WAYS]
        clients = [stack.enter_context(Client(scheduler_file=str(file))) for file in files]
        for client in clients:
            client.wait_for_workers(2)
        logging.disable(logging.CRITICAL)
        stack.callback(logging.disable, logging.NOTSET)
        n_compared = 0
        for seed in range(FIRST, FIRST + CLUSTER_GRAPHS):
            stock, *others = [computed(client, seed) for client in clients]
            n_compared += len(stock)
            if [stock] * len(others) != others:
                # Stock code itself may give this or that: cloudpickle fills a class that goes by
                # value on one thread while another already reads it.
                given = {one for _ in range(20) for one in computed(clients[0], seed)}
                assert set(chain(*others)) <= given | set(stock), f"graph {seed}"
                assert [len(stock)] * len(others) == list(map(len, others)), f"graph {seed}"
        workers = [len(client.scheduler_info()["workers"]) for client in clients]
        applied = [states(client) for client in clients]

    assert CLUSTER_GRAPHS < n_compared
    assert [2] * len(WAYS) == workers
    without, default, off, shared = applied
    assert (set(), {wire.DISABLED}) == (without, off)
    assert {wire.R_ACTIVE} <= default & shared <= {wire.R_ACTIVE, wire.R_NOT_NEEDED}
