"""How the agent gets into other processes' schedulers and workers, and that it stops none."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import pickle
import pickletools
import signal
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Event, Scheduler, Worker
from distributed.core import Status, rpc
from distributed.utils_test import gen_cluster

from dask_adaptive_agent import __version__, importer, preload, wire
from dask_adaptive_agent.agent import install, uninstall
from dask_adaptive_agent.importer import UNPACK, render, sources
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
from support.agent_cluster import in_force, with_agent
from support.agent_pins import bare_worker, pins, until_pins
from support.agent_work import ask, ran, retire, until

SCHEDULER = """
import asyncio, sys
from distributed import Scheduler
async def main():
    async with Scheduler(port=0, dashboard=False, host="127.0.0.1") as s:
        print(s.address, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        print("closing", flush=True)
asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def scheduler(*, cwd: Path, **env: str) -> AsyncIterator[str]:
    """A scheduler in its own process, which has no copy of the agent; its address."""
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", SCHEDULER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=cwd,
        env={**clean, **env},
    )
    assert process.stdin
    assert process.stdout
    try:
        yield (await asyncio.to_thread(process.stdout.readline)).strip()
        process.stdin.close()
        assert "closing" == (await asyncio.to_thread(process.stdout.readline)).strip()
        assert 0 == await asyncio.to_thread(process.wait, 20)
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


async def attach(address: str, texts: dict[str, str], id: str | None = None) -> dict[str, Any]:
    """As the operator does; the raw answer of the stock RPC."""
    async with rpc(address) as link:
        id = id or (await link.identity())["id"]
        text = render(compressed(texts), id)
        answer: dict[str, Any] = await link.run_function(
            function=pickle.dumps(exec), args=pickle.dumps((text, {}))
        )
        return answer


def compressed(texts: dict[str, str]) -> bytes:
    return zlib.compress(json.dumps(texts).encode())


def of_version(version: str) -> dict[str, str]:
    texts = sources()
    old = texts["dask_adaptive_agent"]
    assert __version__ in old
    return {**texts, "dask_adaptive_agent": old.replace(__version__, version)}


async def test_a_live_scheduler_is_attached_once(tmp_path: Path) -> None:
    async with scheduler(cwd=tmp_path) as address:
        first_answer = await attach(address, sources())
        first = await ask(address, wire.HELLO)
        await attach(address, sources())
        second = await ask(address, wire.HELLO)
        seen = await ask(address, wire.OBSERVE)

    assert "OK" == first_answer["status"], first_answer
    assert __version__ == first["agent"]
    assert first["session"] == second["session"]
    assert not seen["workers"]["slot"]


async def test_another_version_replaces_the_agent(tmp_path: Path) -> None:
    async with scheduler(cwd=tmp_path) as address:
        await attach(address, of_version("0.0.1"))
        old = await ask(address, wire.HELLO)
        await attach(address, sources())
        new = await ask(address, wire.HELLO)

    assert ("0.0.1", __version__) == (old["agent"], new["agent"])
    assert old["session"] != new["session"]


NOTEBOOK = """
import asyncio, pickle, sys
import dask_adaptive_agent
from dask_adaptive_agent import PinRefused, pinned
from distributed import Client, Scheduler, Worker

async def main():
    async with Scheduler(port=0, dashboard=False, host="127.0.0.1") as s, Worker(s.address):
        exec(open(sys.argv[1]).read().replace("SCHEDULER-ID", s.id), {})
        hello = s.handlers["adaptive_hello"]()
        assert "0.0.1" == hello["agent"] != dask_adaptive_agent.__version__, hello
        assert "error" not in s.handlers["adaptive_configure"](client_pins=False)
        async with Client(s.address, asynchronous=True) as c:
            from dask_adaptive_agent import pinned as again
            for claim in (pinned, again, dask_adaptive_agent.pinned):
                try:
                    async with claim(client=c, required=True):
                        print("not refused")
                except PinRefused:
                    print("caught")
asyncio.run(main())
"""


async def test_what_a_notebook_has_imported_stays_when_its_scheduler_is_attached(
    tmp_path: Path,
) -> None:
    (tmp_path / "text").write_text(render(compressed(of_version("0.0.1")), "SCHEDULER-ID"))
    done = await asyncio.to_thread(ran, NOTEBOOK, str(tmp_path / "text"))

    assert 3 * ["caught"] == done.stdout.split(), done.stderr


async def test_a_broken_agent_is_reported_and_the_scheduler_goes_on(tmp_path: Path) -> None:
    broken = {**sources(), "dask_adaptive_agent.agent": "import no_such_module"}
    async with scheduler(cwd=tmp_path) as address:
        answer = await attach(address, broken)
        whole = await attach(address, sources())

    assert "error" == answer["status"]
    assert "no_such_module" in str(answer.get("text", answer))
    assert "OK" == whole["status"]


async def test_another_schedulers_id_is_refused(tmp_path: Path) -> None:
    async with scheduler(cwd=tmp_path) as address:
        answer = await attach(address, sources(), id="Scheduler-of-somebody-else")

    assert "error" == answer["status"]


CAN_FORBID_PICKLE = "no longer be disabled" not in inspect.getsource(Scheduler.__init__)


@pytest.mark.skipif(not CAN_FORBID_PICKLE, reason="newer schedulers can't forbid pickle")
async def test_a_scheduler_that_forbids_pickle_is_not_attached(tmp_path: Path) -> None:
    async with scheduler(cwd=tmp_path, DASK_DISTRIBUTED__SCHEDULER__PICKLE="False") as address:
        with pytest.raises(ValueError, match="disallowed"):
            await attach(address, sources())
        async with rpc(address) as link:
            assert (await link.identity())["id"]


PRELOADED = f"""given = open("sources", "rb").read()
{UNPACK}importer["lend"](sources)
from dask_adaptive_agent.preload import dask_setup
"""


async def test_preload_out_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "sources").write_bytes(importer.packed())
    (tmp_path / "preloaded.py").write_text(PRELOADED)
    async with scheduler(
        cwd=tmp_path,
        DASK_DISTRIBUTED__SCHEDULER__PRELOAD="preloaded",
        PYTHONPATH=str(tmp_path),
    ) as address:
        first = await ask(address, wire.HELLO)
        await attach(address, sources())
        second = await ask(address, wire.HELLO)

    assert __version__ == first["agent"]
    assert first["session"] == second["session"]


@gen_cluster(nthreads=[])
async def test_preload_does_nothing_in_a_worker(s) -> None:
    async with Worker(s.address, preload=["dask_adaptive_agent.preload"]) as worker:
        assert "dask-adaptive" not in worker.plugins
        assert wire.HELLO not in s.handlers


@gen_cluster(nthreads=[])
async def test_a_failing_start_leaves_the_scheduler_as_it_was(s) -> None:
    before = dict(s.handlers), dict(s.stream_handlers), dict(s.plugins)
    s.add_plugin = None

    await preload.dask_setup(s)

    del s.add_plugin
    assert before == (dict(s.handlers), dict(s.stream_handlers), dict(s.plugins))


def test_the_agent_imports_nothing_but_distributed_and_the_standard_library() -> None:
    absent = "'dask_adaptive', 'kopf', 'kubernetes', 'aiohttp', 'rich', 'prometheus_client'"
    code = (
        f"import sys; sys.modules.update({{m: None for m in ({absent})}});"
        "import dask_adaptive_agent.agent, dask_adaptive_agent.preload"
    )
    ran(code).check_returncode()


def test_importing_the_package_imports_nothing() -> None:
    code = "import sys, dask_adaptive_agent.preload; assert 'distributed' not in sys.modules"
    ran(code).check_returncode()


async def unregister(s: Any, client: Any) -> None:
    """By Dask's own means; older clients have none."""
    if hasattr(client, "unregister_scheduler_plugin"):
        await client.unregister_scheduler_plugin("dask-adaptive")
    else:
        s.remove_plugin(name="dask-adaptive")


@pytest.mark.parametrize("then", ["asked", "attached", "detached"])
@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_an_agent_whose_plugin_is_unregistered_goes_as_a_whole(c, s, a, b, then) -> None:
    before = dict(s.handlers), dict(s.stream_handlers), dict(s.plugins), set(vars(s))
    first = install(s)
    await retire(s, a.name)
    assert s.workers[a.address] not in s.running

    await unregister(s, c)
    if then == "asked":
        assert s.handlers[wire.OBSERVE](protocol=wire.PROTOCOL) is None
        assert wire.OBSERVE not in s.handlers
    elif then == "attached":
        assert first is not install(s)
        uninstall(s)
    else:
        uninstall(s)

    assert {} == in_force(first.patches)
    assert before == (dict(s.handlers), dict(s.stream_handlers), dict(s.plugins), set(vars(s)))
    await until(lambda: len(s.running) == 2)


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


@with_agent(0, timeout=120)
async def test_a_worker_that_joins_can_pin(c, s, tmp_path) -> None:
    async with bare_worker(s, tmp_path):
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


@gen_cluster(client=True, nthreads=[], timeout=120)
async def test_workers_that_are_there_get_it_and_give_it_back(c, s, tmp_path) -> None:
    async with bare_worker(s, tmp_path):
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


@with_agent(0, timeout=120)
async def test_another_version_of_the_agent_replaces_it(c, s, tmp_path) -> None:
    async with bare_worker(s, tmp_path):
        assert await in_task(c, pin_tasks.hold)
        newer = pickled_of_version("9.9")
        s.worker_plugins[NAME] = newer
        await s.broadcast(msg={"op": "plugin-add", "plugin": newer, "name": NAME})

        assert "9.9" == (await in_task(c, pin_tasks.where_from))[0]
        assert await in_task(c, pin_tasks.hold)


@pytest.mark.long
@with_agent(0, timeout=120)
async def test_a_nanny_that_restarts_its_worker(c, s, tmp_path) -> None:
    async with bare_worker(s, tmp_path, kind="Nanny"):
        assert await in_task(c, pin_tasks.hold)
        (before,) = s.workers
        await until_nanny_runs(c)
        os.kill(await in_task(c, os.getpid), signal.SIGKILL)
        await until(lambda: s.workers and before not in s.workers, 60)
        assert await in_task(c, pin_tasks.hold)


@with_agent(0, timeout=120)
async def test_an_installed_copy_comes_first(c, s, tmp_path) -> None:
    real = tmp_path / "site" / "dask_adaptive_agent"
    real.mkdir(parents=True)
    (real / "__init__.py").write_text("__version__ = 'installed'\n")
    async with bare_worker(s, tmp_path, path=str(tmp_path / "site")):
        version, origin = await in_task(c, pin_tasks.where_from)
        assert ("installed", str(real / "__init__.py")) == (version, origin)
        # Nothing of ours in a copy that lacks it: the two may not fit.
        assert not await in_task(c, pin_tasks.can_import, "dask_adaptive_agent.client.pinned")


@pytest.mark.parametrize("given", [b"", b"garbage", b"x\x9c\x03\x00\x00\x00\x00\x01"])
@gen_cluster(client=True, nthreads=[])
async def test_what_can_not_be_read_keeps_no_worker_out(c, s, given) -> None:
    s.worker_plugins[NAME] = _dumps(PluginFromText(IN_WORKERS, given))
    async with Worker(s.address, nthreads=1) as worker:
        assert Status.running == worker.status
        assert 2 == await c.submit(lambda: 2)


@gen_cluster(client=True, nthreads=[("127.0.0.1", 1)] * 2)
async def test_workers_that_share_a_process_share_it(c, s, a, b) -> None:
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
    assert importer is sys.modules["dask_adaptive_agent.importer"]


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
