"""What we rely on in `distributed`, checked against the release that is installed."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import dask.config
import pytest
from dask.system import CPU_COUNT
from distributed import Client, Scheduler, wait
from distributed.active_memory_manager import RetireWorker
from distributed.core import Status, rpc
from distributed.diagnostics.plugin import SchedulerPlugin
from distributed.utils_test import gen_cluster

from dask_adaptive_agent import wire
from dask_adaptive_agent.relief.registry import is_needed
from dask_adaptive_agent.service.vetoes import HAS_HOOK
from support.agent_work import slow, until

TWO = [("127.0.0.1", 1)] * 2
QUIET = {"distributed.worker.memory.monitor-interval": "1h"}


def test_statuses_of_the_wire_are_those_of_workers() -> None:
    named = set(wire.STATUSES) - {"other"}
    assert named <= {status.name for status in Status}


def test_polls_of_clients_ask_for_no_worker_since_2026_7() -> None:
    poll = inspect.signature(Client._update_scheduler_info).parameters.get("n_workers")

    assert is_needed("identity") == (poll is None or poll.default != 0)
    assert is_needed("clientInfo") == (poll is not None and poll.default != 0)


async def test_the_variable_for_pods_of_workers_is_one_that_clients_read() -> None:
    key = "distributed.client.scheduler-info-interval"
    variables = {"DASK_DISTRIBUTED__CLIENT__SCHEDULER_INFO_INTERVAL": "600s"}
    with dask.config.set({key: dask.config.get(key, config=dask.config.collect_env(variables))}):
        async with (
            Scheduler(port=0, dashboard=False) as s,
            Client(s.address, asynchronous=True, set_as_default=False) as c,
        ):
            assert 600_000 == c._periodic_callbacks["scheduler-info"].callback_time


def test_the_status_change_handler_takes_these_arguments() -> None:
    parameters = inspect.signature(Scheduler.handle_worker_status_change).parameters
    assert ["self", "status", "worker", "stimulus_id"] == list(parameters)


def test_the_plugin_hook_is_there_since_2024_4_2() -> None:
    assert HAS_HOOK == hasattr(SchedulerPlugin, "valid_workers_downscaling")
    source = inspect.getsource(Scheduler.workers_to_close)
    assert HAS_HOOK == ("valid_workers_downscaling" in source)


@gen_cluster(client=True, nthreads=TWO)
async def test_stream_handlers_are_called_by_keyword(c, s, a, b) -> None:
    seen: dict[str, set[str]] = {}

    def spy(name: str) -> None:
        stock = s.stream_handlers[name]

        def spying(**msg: Any) -> Any:
            seen[name] = set(msg)
            return stock(**msg)

        s.stream_handlers[name] = spying

    for name in ("task-finished", "task-erred", "worker-status-change"):
        spy(name)
    await c.submit(slow, 1, 0)
    await wait(c.submit(slow, "x", delay_s="no number"))
    a.status = Status.paused
    await until(lambda: len(seen) == 3)

    assert {"key", "worker", "stimulus_id"} <= seen["task-finished"]
    assert {"key", "worker", "stimulus_id"} <= seen["task-erred"]
    assert {"status", "worker", "stimulus_id"} <= seen["worker-status-change"]


@gen_cluster(client=True, nthreads=TWO)
async def test_a_worker_that_closes_gracefully_starts_nothing(c, s, a, b) -> None:
    """So a draining worker must not be told while it has tasks that nobody else may take."""
    futures = [c.submit(slow, i, 0.1, workers=[a.address]) for i in range(3)]
    await until(lambda: a.state.executing_count and len(s.workers[a.address].processing) == 3)

    a.status = Status.closing_gracefully
    await until(lambda: any(future.done() for future in futures))
    await until(lambda: not a.state.executing_count)

    assert 2 == len(s.workers[a.address].processing)
    a.status = Status.running
    await wait(futures)


@gen_cluster(client=True, nthreads=TWO, config=QUIET)
async def test_an_aborted_retirement_is_silent_and_restores_the_status_it_found(c, s, a, b) -> None:
    await c.submit(slow, 1, 0, workers=[a.address])
    future = c.submit(slow, 1, 0, workers=[a.address])
    await future
    b.status = Status.paused
    await until(lambda: len(s.running) == 1)
    s.handle_worker_status_change(Status.closing_gracefully, s.workers[a.address], "test")

    retired = await s.retire_workers(workers=[a.address], close_workers=False, remove=False)

    assert a.address not in retired
    await until(lambda: a.status == Status.closing_gracefully)
    assert Status.closing_gracefully == s.workers[a.address].status


@gen_cluster(client=True, nthreads=TWO)
async def test_retire_workers_keeps_a_worker_that_it_need_not_remove(c, s, a, b) -> None:
    future = c.submit(slow, 1, 0, workers=[a.address])
    await future

    retired = await s.retire_workers(workers=[a.address], close_workers=False, remove=False)

    assert [a.address] == list(retired)
    assert a.address in s.workers
    assert [b.address] == [ws.address for ws in s.running]
    assert s.workers[b.address].has_what


@gen_cluster(client=True, nthreads=TWO)
async def test_a_handler_may_wait_while_others_are_served(c, s, a, b) -> None:
    is_over = asyncio.Event()

    async def wait_for_it() -> str:
        await is_over.wait()
        return "it"

    s.handlers["wait_for_it"] = wait_for_it
    async with rpc(s.address) as one:
        waiting = asyncio.ensure_future(one.wait_for_it())
        before = s.transition_counter
        await c.submit(slow, 1, 0)
        assert before < s.transition_counter, "which tells that something has happened"
        assert 2 == len((await one.identity())["workers"])
        assert not waiting.done()
        is_over.set()
        assert "it" == await waiting


@gen_cluster(nthreads=TWO)
async def test_extensions_have_what_we_ask_them(s, a, b) -> None:
    stealing, shuffle = s.extensions["stealing"], s.extensions["shuffle"]

    assert ["ts", "victim", "thief"] == list(
        inspect.signature(stealing.move_task_request).parameters
    )
    assert {} == stealing.in_flight
    assert {} == getattr(shuffle, "active_shuffles", None) or {} == shuffle.states
    assert isinstance(s.extensions["amm"].policies, set)
    assert "x" == RetireWorker("x").address


@gen_cluster(nthreads=TWO)
async def test_books_of_the_scheduler(s, a, b) -> None:
    ws = s.workers[a.address]
    assert s.running == set(s.workers.values())
    for book in ("processing", "has_what", "long_running", "actors", "metrics"):
        assert 0 <= len(getattr(ws, book))
    assert (0, 0) == (len(s.queued), len(s.unrunnable))
    assert callable(s.valid_workers)
    assert s in Scheduler._instances
    assert s.loop.asyncio_loop


#: `kube/worker_pods.py` reads command lines and environments of workers as `dask worker` does.
VARIABLE = "DASK_DISTRIBUTED__WORKER__RESOURCES"


@asynccontextmanager
async def started(s: Scheduler, *words: str, **env: str) -> AsyncIterator[None]:
    """A `dask worker`, until the block ends."""
    command = [sys.executable, "-m", "dask", "worker", s.address, "--no-dashboard", *words]
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, **env},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        await process.wait()


async def joined(s: Scheduler, number: int) -> None:
    for _ in range(600):
        if len(s.workers) == number:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{len(s.workers)} of {number} workers joined")


@pytest.mark.thorough
@gen_cluster(nthreads=[], timeout=90)
async def test_options_count_for_each_process(s) -> None:
    words = ("--nworkers", "2", "--nthreads", "1", "--nthreads=3", "--resources", "GPU=1, FOO=2")
    async with started(s, *words, **{f"{VARIABLE}__BAR": "9"}):
        await joined(s, 2)

        for ws in s.workers.values():
            assert 3 == ws.nthreads
            assert {"GPU": 1.0, "FOO": 2.0} == dict(ws.resources)


@pytest.mark.thorough
@gen_cluster(nthreads=[], timeout=90)
async def test_a_resource_in_a_variable_has_a_name_in_lower_case(s) -> None:
    async with started(s, "--no-nanny", "--nthreads", "0", **{f"{VARIABLE}__GPU": "2"}):
        await joined(s, 1)

        (ws,) = s.workers.values()
        assert {"gpu": 2.0} == dict(ws.resources)
        assert CPU_COUNT == ws.nthreads


def test_a_dict_in_a_variable_keeps_its_names() -> None:
    found = dask.config.collect_env({VARIABLE: "{'Foo': 1}"})

    assert {"Foo": 1} == found["distributed"]["worker"]["resources"]
