"""
Loaded into pytest for dask's own tests by run.sh: every computation goes to a cluster.

dask's tests compute in their own process unless told otherwise, so they say nothing about a
scheduler. Here `dask.base.get_scheduler` is replaced: whichever of dask's own schedulers a test
names (most name `sync`), the graph is pickled and sent over TCP to a scheduler and workers that are
processes of their own. A callable or client that a test brings itself is left alone.

With `UPSTREAM_AGENT=1` the scheduler has the agent, by the preload that the environment names. The
workers never find the agent on their path, as in users' images. They have no nanny: a worker that
ends is lost, is written down with the test that lost it, and the next test gets a new cluster.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import cloudpickle
import dask.base
import dask.local
import dask.multiprocessing
import dask.threaded
import distributed.client
import pytest
from distributed import Client
from upstream_agent_plugin import HAS_AGENT, came, note

WORKERS = 2
THREADS = 2
START_S = 120.0  # a busy machine takes its time to import

stock_get_scheduler = dask.base.get_scheduler
LOCAL = {dask.local.get_sync, dask.threaded.get, dask.multiprocessing.get}


def python(*arguments: str, folder: Path, path: str) -> subprocess.Popen[bytes]:
    with open(folder / "log", "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", *arguments], stdout=log, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": path}, cwd=folder,
        )  # fmt: skip


def forget(dask_scheduler: Any = None) -> None:
    """
    Remove tasks that nobody wants, and that have never been run: schedulers keep some for good.

    Tests name their random data alike ("A"), so the next one's would be taken for theirs.
    """
    tasks = dask_scheduler.tasks.values()
    left = {ts.key: "forgotten" for ts in tasks if ts.state == "released" and not ts.who_wants}
    dask_scheduler.transitions(left, stimulus_id="between-tests")


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # a scheduler can't import it


class Cluster:
    """A scheduler, its workers, and a client; made anew once it has lost a worker."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="upstream-dask-"))
        file = self.folder / "scheduler.json"
        own, own_path = self.folder, os.environ["UPSTREAM_AGENT_PATH"]
        self.scheduler = python(
            "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0",
            "--no-dashboard", "--scheduler-file", str(file), folder=own, path=own_path,
        )  # fmt: skip
        self.workers = [
            python(
                "distributed.cli.dask_worker", "--scheduler-file", str(file), "--host", "127.0.0.1",
                "--no-nanny", "--no-dashboard", "--memory-limit", "0", "--nthreads", str(THREADS),
                "--name", f"worker-{i}", "--death-timeout", "60", folder=own, path="",
            )
            for i in range(WORKERS)
        ]  # fmt: skip
        until = time.monotonic() + START_S
        while not file.exists() and time.monotonic() < until:
            time.sleep(0.05)
        self.client = Client(scheduler_file=str(file), timeout=START_S, set_as_default=False)
        self.client.wait_for_workers(WORKERS, timeout=START_S)
        self.is_closing = False
        threading.Thread(target=self.watch, daemon=True).start()
        if HAS_AGENT:
            self.ask_agent()
            came["preload"] += 1

    def watch(self) -> None:
        """Close the client once a worker has ended, so that no test waits for a lost result."""
        while not self.is_closing and self.lost() == 0:
            time.sleep(0.2)
        if not self.is_closing:
            self.client.close(timeout=5)

    def ask_agent(self) -> list[str]:
        """The state of each relief; raises where the scheduler has no agent."""
        answer = self.client.sync(self.client.scheduler.adaptive_observe, protocol=1)
        return [f"{row['name']} {row['state']}" for row in answer["relief"]]

    def lost(self) -> int:
        """Workers that have ended, or that the scheduler no longer knows."""
        ended = sum(worker.poll() is not None for worker in self.workers)
        if ended or self.scheduler.poll() is not None or self.client.status != "running":
            return max(ended, 1)
        return 0

    def close(self) -> None:
        self.is_closing = True
        if HAS_AGENT and self.client.status == "running":
            came.update(self.ask_agent())
        self.client.close(timeout=5)
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class Clusters:
    """The cluster of this process of pytest."""

    def __init__(self) -> None:
        self.now: Cluster | None = None

    def use(self) -> None:
        """Be the default client again: tests bring, and close, clients of their own."""
        if self.now is None:
            self.now = Cluster()
        distributed.client._set_global_client(self.now.client)

    def check(self, test: str, took_s: float, timeout_s: float) -> None:
        """After a test: write down what it lost. What ran into the timeout may still be running."""
        assert self.now is not None
        known = 0 if self.now.lost() else len(self.now.client.nthreads())
        lost = max(self.now.lost(), WORKERS - known)
        if lost:
            note(id=test, lost=lost)
        if lost or took_s >= timeout_s:
            self.drop()
        else:
            self.now.client.run_on_scheduler(forget)

    def drop(self) -> None:
        if self.now is not None:
            self.now.close()
            self.now = None


clusters = Clusters()


def get_scheduler(
    get: Any = None, scheduler: Any = None, collections: Any = None, cls: Any = None
) -> Callable[..., Any] | None:
    """Raises what stock raises; else the cluster takes the place of dask's local schedulers."""
    chosen = stock_get_scheduler(get=get, scheduler=scheduler, collections=collections, cls=cls)
    here = clusters.now and clusters.now.client.get
    if here and (chosen is None or chosen in LOCAL or chosen == here):
        came["sent to the cluster"] += 1
        return here
    return chosen  # type: ignore[no-any-return]


dask.base.get_scheduler = get_scheduler  # now: modules of dask import it by name, its conftest some


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, None, None]:
    clusters.use()
    start = time.monotonic()
    yield
    clusters.check(item.nodeid, time.monotonic() - start, float(item.config.getvalue("timeout")))


def pytest_sessionfinish(session: pytest.Session) -> None:
    clusters.drop()
