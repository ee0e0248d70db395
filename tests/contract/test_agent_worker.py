"""How tasks come to import `pinned` in workers whose image has no copy of the agent."""

from __future__ import annotations

import os
import pickle
import pickletools
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Event, Worker
from distributed.core import Status
from distributed.utils_test import gen_cluster

from dask_adaptive_agent import __version__, wire
from dask_adaptive_agent.loading import importer
from dask_adaptive_agent.loading.attach import install, uninstall
from dask_adaptive_agent.worker_side.worker_plugin import (
    IN_WORKERS,
    LENT,
    NAME,
    PluginFromText,
    packed,
    pickled,
    text_of,
)
from support import pin_tasks
from support.agent_pins import bare_worker, pins, until_pins
from support.agent_work import until

CLIENT = {"client": True, "nthreads": [], "timeout": 120}

_folders: list[Path] = []


@pytest.fixture(autouse=True)
def _one_folder(tmp_path: Path) -> Iterator[None]:
    """For tests under `gen_cluster`, whose arguments are not fixtures."""
    _folders.append(tmp_path)
    yield
    _folders.pop()


def folder() -> Path:
    return _folders[-1]


async def in_task(client: Any, task: Any, *args: Any, **options: Any) -> Any:
    return await client.submit(task, *args, pure=False, **options)


async def until_can_import(client: Any, expected: bool) -> None:
    while expected != await in_task(client, pin_tasks.can_import, "dask_adaptive_agent"):
        pass


async def until_nanny_runs(client: Any) -> None:
    """A nanny restarts no worker whose start it has not seen the end of: it looks every 50 ms."""
    while {"running"} != set(
        (await client.run(lambda dask_worker: dask_worker.process.status.name, nanny=True)).values()
    ):
        pass


@gen_cluster(**CLIENT)
async def test_a_worker_that_joins_can_pin(c: Any, s: Any) -> None:
    install(s)
    async with bare_worker(s, folder()):
        version, origin = await in_task(c, pin_tasks.where_from)
        assert (__version__, "<dask-adaptive dask_adaptive_agent>") == (version, origin)
        (address,) = s.workers
        task = c.submit(pin_tasks.hold_until, "go", "from afar", pure=False)
        await until_pins(s, [(wire.CLIENT, "from afar", ["bare"])])
        assert [] == s.workers_to_close(n=1)
        await Event("go").set()
        assert (address,) == tuple(await task)
        assert [] == await pins(s)
        # Only what `pinned` needs is there.
        assert not await in_task(c, pin_tasks.can_import, "dask_adaptive_agent.agent")


@gen_cluster(**CLIENT)
async def test_workers_that_are_there_get_it_and_give_it_back(c: Any, s: Any) -> None:
    async with bare_worker(s, folder()):
        await until_can_import(c, False)
        install(s)
        await until_can_import(c, True)
        assert await in_task(c, pin_tasks.hold)
        uninstall(s)
        await until_can_import(c, False)
        assert NAME not in s.worker_plugins
        uninstall(s)
        install(s)
        uninstall(s)
        install(s)  # the last message counts, whatever is still on its way
        await until_can_import(c, True)
        assert await in_task(c, pin_tasks.hold)


@gen_cluster(**CLIENT)
async def test_another_version_of_the_agent_replaces_it(c: Any, s: Any) -> None:
    install(s)
    async with bare_worker(s, folder()):
        assert await in_task(c, pin_tasks.hold)
        newer = pickled_of_version("9.9")
        s.worker_plugins[NAME] = newer
        await s.broadcast(msg={"op": "plugin-add", "plugin": newer, "name": NAME})

        assert "9.9" == (await in_task(c, pin_tasks.where_from))[0]
        assert await in_task(c, pin_tasks.hold)


@gen_cluster(**CLIENT)
async def test_a_nanny_that_restarts_its_worker(c: Any, s: Any) -> None:
    install(s)
    async with bare_worker(s, folder(), kind="Nanny"):
        assert await in_task(c, pin_tasks.hold)
        (before,) = s.workers
        await until_nanny_runs(c)
        os.kill(await in_task(c, os.getpid), signal.SIGKILL)
        await until(lambda: s.workers and before not in s.workers, 60)
        assert await in_task(c, pin_tasks.hold)


@gen_cluster(**CLIENT)
async def test_an_installed_copy_comes_first(c: Any, s: Any) -> None:
    install(s)
    path = folder()
    real = path / "site" / "dask_adaptive_agent"
    real.mkdir(parents=True)
    (real / "__init__.py").write_text("__version__ = 'installed'\n")
    async with bare_worker(s, path, path=str(path / "site")):
        version, origin = await in_task(c, pin_tasks.where_from)
        assert ("installed", str(real / "__init__.py")) == (version, origin)
        # Nothing of ours in a copy that lacks it: the two may not fit.
        assert not await in_task(c, pin_tasks.can_import, "dask_adaptive_agent.client.pinned")


@pytest.mark.parametrize("given", [b"", b"garbage", b"x\x9c\x03\x00\x00\x00\x00\x01"])
def test_what_can_not_be_read_keeps_no_worker_out(given: bytes) -> None:
    @gen_cluster(client=True, nthreads=[])
    async def run(c: Any, s: Any) -> None:
        s.worker_plugins[NAME] = _dumps(PluginFromText(IN_WORKERS, given))
        async with Worker(s.address, nthreads=1) as worker:
            assert Status.running == worker.status
            assert 2 == await c.submit(lambda: 2)

    run()


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_workers_that_share_a_process_share_it(c: Any, s: Any, a: Any, b: Any) -> None:
    def lenders() -> list[Any]:
        return [f for f in sys.meta_path if type(f).__name__ == importer.SourcesFinder.__name__]

    for left in lenders():  # workers of an earlier test, which had no time to give it back
        sys.meta_path.remove(left)
    install(s)
    await until(lambda: NAME in a.plugins and NAME in b.plugins)
    (lender,) = lenders()
    assert 2 == lender.borrowers
    await a.close()
    assert [lender] == lenders()
    uninstall(s)
    await until(lambda: NAME not in b.plugins)
    assert [] == lenders()
    assert importer is sys.modules["dask_adaptive_agent.loading.importer"]


def test_it_is_small_and_made_of_builtins() -> None:
    plugin = pickled()

    assert len(plugin) < 25_000
    strings = [arg for op, arg, _ in pickletools.genops(plugin) if op.name == "SHORT_BINUNICODE"]
    # Protocol 4 names a global by the two strings before STACK_GLOBAL.
    ops = [op.name for op, _, _ in pickletools.genops(plugin)]
    assert 1 == ops.count("STACK_GLOBAL")
    assert ["builtins", "eval"] == strings[:2]


def pickled_of_version(version: str) -> bytes:
    sources = {name: text_of(name) for name in LENT}
    sources["dask_adaptive_agent"] = sources["dask_adaptive_agent"].replace(__version__, version)
    return _dumps(PluginFromText(IN_WORKERS, packed(sources)))


def _dumps(made: Any) -> bytes:
    return pickle.dumps(made, protocol=4)
